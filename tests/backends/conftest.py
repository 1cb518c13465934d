"""Real boxes for tests: a backend of a fresh state directory, and a shell line run in a box of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from station.backends.base import Box, Labels
from station.backends.bubblewrap import BubblewrapBackend
from station.backends.host import HostBackend, HostSettings
from station.guest.frames import StartRecord
from station.guest.process import GuestProcess
from station.guest.session import GuestSession

STATION = f"test{os.getpid()}"
"""Of this run alone: its boxes are looked for by it among all processes."""


@pytest.fixture
def state() -> Iterator[Path]:
    """Short and walkable by nobody else, as a real one; not pytest's, which is deep."""
    path = Path(tempfile.mkdtemp(prefix="stn-test-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def bubblewrap(state: Path) -> AsyncIterator[BubblewrapBackend]:
    backend = BubblewrapBackend(state, station_id=STATION)
    capabilities = await backend.probe()
    assert capabilities.available, capabilities.reason
    yield backend
    await backend.aclose()


@pytest.fixture
async def host(state: Path) -> AsyncIterator[HostBackend]:
    files = Path(tempfile.mkdtemp(prefix="stn-host-"))
    files.chmod(0o711)
    backend = HostBackend(state, station_id=STATION, settings=HostSettings(files=files / "f"))
    await backend.probe()
    yield backend
    await backend.aclose()
    shutil.rmtree(files)


@pytest.fixture
def labels() -> Callable[[str], Labels]:
    def make(box_id: str, uid: str = "uid1") -> Labels:
        return Labels(box_id, uid, 1, 1, STATION, os.getpid(), 0)

    return make


Shell = Callable[..., Awaitable[str]]


@pytest.fixture
def sh() -> Shell:
    """Runs a shell line in a box: its output, both streams; the exit code must be as expected."""

    async def run(box: Box, line: str, *, code: int | None = 0, seconds: float = 20) -> str:
        session = await GuestSession.connect(box.connect)
        try:
            process = begin(session, box, line, seconds=seconds)
            text = b"".join([chunk.data async for chunk in process.chunks()]).decode(errors="replace")
            end = await process.exit()
            process.forget()
            assert code is None or end.value == code, (end, text)
            return text
        finally:
            await session.aclose()

    return run


def begin(session: GuestSession, box: Box, line: str, *, seconds: float = 20) -> GuestProcess:
    record = StartRecord(
        argv=("/bin/sh", "-c", f"exec 2>&1; {line}"),
        env=dict(box.layout.env),
        cwd=box.layout.workspace,
        timeout_seconds=seconds,
    )
    return session.start(record, guest_id=session.next_id())


@pytest.fixture
def start() -> Callable[..., GuestProcess]:
    return begin
