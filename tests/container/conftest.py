"""Both adapters of the seed, each with a root of its own."""

from __future__ import annotations

import asyncio
import fcntl
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from station import connect
from station._adapter.adapter import Adapter
from station.container import CommandRun, ContainerSandboxAdapter, SandboxError
from station.host import HostSandboxAdapter
from tests.engine import Engine
from tests.observer import command_line, pids

IMAGE = "python:3.11-slim"
KINDS = ("host", pytest.param("docker", marks=pytest.mark.docker))


@dataclass
class Bed:
    """A root, and the adapters that a test makes for it."""

    kind: str
    root: Path
    made: list[Adapter] = field(default_factory=list)

    def adapter(self, root: Path | None = None, **options: Any) -> Adapter:
        """Not ready yet."""
        made: Adapter
        if self.kind == "host":
            made = HostSandboxAdapter(root or self.root, **options)
        else:
            made = ContainerSandboxAdapter(root or self.root, **{"image": IMAGE, **options})
        self.made.append(made)
        return made

    @asynccontextmanager
    async def ready(self, **options: Any) -> AsyncIterator[Adapter]:
        async with self.adapter(**options) as adapter:
            yield adapter

    def end_station(self) -> None:
        """As an upgrade would: what runs goes on."""
        with connect(self.root) as client:
            client.stop()

    async def aclose(self) -> None:
        for adapter in self.made:
            await adapter.close()
        if (self.root / "registry.db").exists():
            await asyncio.to_thread(end, self.root)


def end(root: Path) -> None:
    """No sandbox and no station is left."""
    with connect(root) as client:
        for view in client.list():
            client.delete(view.name)
        client.stop()


@pytest.fixture(scope="module")
def engine_url(request: pytest.FixtureRequest) -> Iterator[Callable[[str], None]]:
    """For the stations that adapters of the kind start."""
    patch = pytest.MonkeyPatch()

    def use(kind: str) -> None:
        if kind == "docker":
            engine: Engine = request.getfixturevalue("engine")
            patch.setenv("DOCKER_HOST", engine.url)

    yield use
    patch.undo()


@asynccontextmanager
async def bed_of(kind: str) -> AsyncIterator[Bed]:
    with tempfile.TemporaryDirectory(prefix="stn ad-", ignore_cleanup_errors=True) as directory:
        bed = Bed(kind, Path(directory, "the root"))
        try:
            yield bed
        finally:
            await bed.aclose()


@pytest.fixture(params=KINDS)
async def bed(
    request: pytest.FixtureRequest, engine_url: Callable[[str], None], ran: Callable[[str], None]
) -> AsyncIterator[Bed]:
    """A fresh root of each kind."""
    engine_url(request.param)
    async with bed_of(request.param) as made:
        yield made
    ran(request.param)


@pytest.fixture(scope="module", params=KINDS)
async def shared(request: pytest.FixtureRequest, engine_url: Callable[[str], None]) -> AsyncIterator[Adapter]:
    """One adapter of each kind for all tests of a file that need no options of their own."""
    engine_url(request.param)
    async with bed_of(request.param) as bed, bed.ready(max_output_bytes=4096, max_file_bytes=65536) as adapter:
        yield adapter


@pytest.fixture(scope="module")
async def workspace(shared: Adapter) -> str:
    return (await shared.create()).id


def container_of(bed: Bed, engine: Engine, workspace: str) -> str:
    with connect(bed.root) as client:
        uid = client.get(workspace).id
    return engine.docker("ps", "-q", "--filter", f"label=station.id={uid}")


def is_held(root: Path) -> bool:
    """Whether a station has the root."""
    with (root / "station.lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


async def done(adapter: Adapter, sandbox_id: str, command: str, **options: Any) -> CommandRun:
    """The command at its end."""
    return await over(adapter, await adapter.exec(sandbox_id, command, **options))


async def over(adapter: Adapter, run: CommandRun) -> CommandRun:
    async with asyncio.timeout(40):
        while run.finished_at is None:
            run = await adapter.command(run.sandbox_id, run.id)
    return run


async def write(adapter: Adapter, sandbox_id: str, path: str, data: bytes, *, parents: bool = True) -> None:
    await adapter.write_file(sandbox_id, path, base64=b64encode(data).decode(), create_parents=parents)


@contextmanager
def refused(code: str, status: int | None = None, match: str | None = None) -> Iterator[None]:
    """The body raises the error of that code."""
    with pytest.raises(SandboxError, match=match) as caught:
        yield
    assert caught.value.code == code, caught.value
    assert status is None or caught.value.status == status


def alive(word: str) -> list[int]:
    """Processes of this machine that have `word` in their command line; those of boxes are among them."""
    return [pid for pid in pids() if word in command_line(pid)]
