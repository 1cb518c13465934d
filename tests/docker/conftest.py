"""A backend on the engine of this run, each with a state directory and a station of its own."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from station.backends.base import Box, Labels
from station.backends.docker import DockerBackend, DockerSettings
from station.core.spec import Spec
from station.guest.frames import StartRecord
from station.guest.session import GuestSession
from tests.engine import Engine

from .proxy import FaultProxy

IMAGE = "python:3.11-slim"
_numbers = itertools.count(1)


@dataclass
class Bed:
    """A station's place, seen by as many backends as a test likes."""

    url: str
    state: Path
    station: str
    made: list[DockerBackend] = field(default_factory=list)

    def backend(
        self, *, url: str | None = None, environ: Mapping[str, str] = MappingProxyType({}), **settings: Any
    ) -> DockerBackend:
        chosen = DockerSettings(**{"image": IMAGE, "runtime": "runc", **settings})
        environ = {"DOCKER_HOST": url or self.url, **environ}
        backend = DockerBackend(self.state, station_id=self.station, settings=chosen, environ=environ)
        self.made.append(backend)
        return backend

    def labels(self, uid: str = "uid1", generation: int = 1, **more: Any) -> Labels:
        return Labels(f"{uid}-{generation}", uid, generation, 1, self.station, os.getpid(), 0, **more)

    async def aclose(self) -> None:
        sweeper = self.backend()
        uids = {"uid1"}
        async for labels, ref in sweeper.boxes():
            uids.add(labels.uid)
            try:
                await (await sweeper.adopt(ref)).destroy()
            except Exception as error:  # noqa: BLE001 - the test has its own verdict
                print("left over:", error)
        for uid in uids:
            if uid.isalnum():
                await sweeper.remove_files(uid)
        for backend in self.made:
            await backend.aclose()


@asynccontextmanager
async def bed_on(url: str) -> AsyncIterator[Bed]:
    with tempfile.TemporaryDirectory(prefix="stn-d-") as state:
        bed = Bed(url, Path(state), f"d{os.getpid()}x{next(_numbers)}")
        try:
            yield bed
        finally:
            await bed.aclose()


@pytest.fixture
async def bed(engine: Engine, ran: Callable[[str], None]) -> AsyncIterator[Bed]:
    async with bed_on(engine.url) as made:
        yield made
    ran("docker")


@pytest.fixture
async def proxy(engine: Engine) -> AsyncIterator[FaultProxy]:
    async with FaultProxy.before(engine.url) as made:
        yield made


@asynccontextmanager
async def session_of(box: Box) -> AsyncIterator[GuestSession]:
    session = await GuestSession.connect(box.connect, patience_seconds=box.patience_seconds)
    try:
        yield session
    finally:
        await session.aclose()


async def run(session: GuestSession, box: Box, *argv: str) -> tuple[int, str]:
    """Exit code and output; -1 where the program was not started."""
    record = StartRecord(argv=argv, cwd=box.layout.workspace, env=dict(box.layout.env), timeout_seconds=20)
    process = session.start(record, guest_id=session.next_id())
    async with asyncio.timeout(30):
        text = b"".join([chunk.data async for chunk in process.chunks()]).decode(errors="replace")
        ended = await process.exit()
    process.forget()
    code = ended.to_ending().exit_code
    return (-1 if code is None or ended.kind != 1 else code), text


async def in_fresh(backend: DockerBackend, labels: Labels, spec: Spec, *argv: str) -> tuple[int, str]:
    """In a box of its own, which is gone afterwards."""
    await backend.probe()
    box = await backend.create(spec, labels)
    try:
        async with session_of(box) as session:
            return await run(session, box, *argv)
    finally:
        await box.destroy()
