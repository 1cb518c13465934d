"""A box of every backend, with a session to its guest."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from station.backends.base import Backend, Box, ByteStream, Labels
from station.backends.docker import DockerBackend, DockerSettings
from station.backends.fake import FakeBackend, FakeStore
from station.backends.registry import make_backends
from station.core.paths import resolve
from station.core.records import BoxRef
from station.core.spec import Spec
from station.guest.endings import GuestExit
from station.guest.files import GuestFiles
from station.guest.frames import StartRecord
from station.guest.process import GuestProcess
from station.guest.session import GuestSession
from tests.engine import Engine

from .words import argv_of, programs

ENGINES = ("docker", "gvisor")
"""One backend with two runtimes of one engine."""
# On gVisor, where each box takes its time, in the full tier alone; the fast one has the attacks there.
BACKENDS = (
    "bubblewrap",
    "host",
    "fake",
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("gvisor", marks=[pytest.mark.docker, pytest.mark.full]),
)
GVISOR = "runsc"
IMAGE = "python:3.11-slim"
BOUND_SECONDS = 5.0
STATION = f"contract-{os.getpid()}"
_numbers = itertools.count(1)


@dataclass
class Collector:
    """A sink that keeps everything, and wakes who waits for some of it."""

    data: dict[int, bytearray] = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    largest: int = 0
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def output(self, stream: int, offset: int, data: bytes) -> bool:
        self.data[stream] += data
        self.largest = max(self.largest, len(data))
        self._arrived.set()
        return True

    def gap(self, stream: int, start: int, end: int) -> None:
        self.gaps.append((stream, start, end))
        self._arrived.set()

    async def until(self, text: bytes, stream: int = 1) -> None:
        while text not in self.data[stream]:
            self._arrived.clear()
            await self._arrived.wait()


@dataclass(frozen=True)
class Ran:
    exit: GuestExit
    stdout: bytes
    stderr: bytes

    @property
    def code(self) -> int | None:
        return self.exit.to_ending().exit_code


@dataclass
class Place:
    """One box and the session to it: what most tests need."""

    backend: Backend
    labels: Labels
    box: Box
    session: GuestSession = None  # type: ignore[assignment]  # set by who makes it
    stream: ByteStream | None = None

    @property
    def files(self) -> GuestFiles:
        return GuestFiles(self.session, self.box.layout)

    def word(self, name: str, *args: str) -> tuple[str, ...]:
        """The command line of a word of `words.py` on this backend."""
        return argv_of(self.backend.name, name, *args)

    def shell(self, line: str) -> tuple[str, ...]:
        return (self.box.layout.shell, "-c", line)

    def record(self, argv: tuple[str, ...], **more: Any) -> StartRecord:
        env = {**dict(self.box.layout.env), **more.pop("env", {})}
        return StartRecord(argv=argv, cwd=more.pop("cwd", self.box.layout.workspace), env=env, **more)

    def start(self, argv: tuple[str, ...], *, sink: Collector | None = None, **more: Any) -> GuestProcess:
        return self.session.start(self.record(argv, **more), guest_id=self.session.next_id(), sink=sink)

    async def run(self, argv: tuple[str, ...], *, stdin: bytes | None = None, **more: Any) -> Ran:
        """Start, feed, wait, forget."""
        sink = Collector()
        async with asyncio.timeout(BOUND_SECONDS):
            process = self.start(argv, sink=sink, stdin=stdin is not None, **more)
            if stdin is not None:
                await process.write(stdin)
                await process.close_stdin()
            ended = await process.exit()
        process.forget()
        return Ran(ended, bytes(sink.data[1]), bytes(sink.data[2]))

    async def write(self, path: str, data: bytes, **more: Any) -> None:
        await self.files.write(resolve(path), data, **more)

    async def read(self, path: str, **more: Any) -> bytes:
        stream = await self.files.read(resolve(path), **more)
        return b"".join([piece async for piece in stream])

    async def open_stream(self) -> ByteStream:
        """What the session connects by; `break_connection` cuts it."""
        self.stream = await self.box.connect()
        return self.stream

    async def break_connection(self) -> None:
        """The stream is gone under the session, which opens another one by itself."""
        assert self.stream
        await self.stream.aclose()
        await self.session.ping()

    async def reconnect(self, wanted: Mapping[int, tuple[int, int]]) -> None:
        """A new session in place of the old, as a station that starts again has it."""
        await self.session.aclose()
        self.session = await GuestSession.connect(self.box.connect, wanted=wanted)


@dataclass
class World:
    """One backend on a state directory that outlives it."""

    name: str
    state: Path
    store: FakeStore
    engine: Engine | None = None
    runtime: str | None = None
    """Of the engine."""
    made: list[Backend] = field(default_factory=list)

    def backend(self) -> Backend:
        """A backend as a freshly started station makes it."""
        if self.name == "fake":
            backends: dict[str, Backend] = {
                "fake": FakeBackend(self.state, station_id=STATION, programs=programs(), store=self.store)
            }
        elif self.engine is not None:
            environ = {**os.environ, "DOCKER_HOST": self.engine.url}
            settings = DockerSettings(image=IMAGE, runtime=self.runtime)
            backends = {
                "docker": DockerBackend(self.state, station_id=STATION, settings=settings, environ=environ),
            }
        else:
            backends = make_backends(self.state, STATION, allow_host=True)
        self.made += backends.values()
        return backends[self.name]

    async def aclose(self) -> None:
        """Lets go of everything, as stations that end do."""
        for backend in self.made:
            await backend.aclose()

    def labels(self, uid: str | None = None, generation: int = 1) -> Labels:
        number = next(_numbers)
        uid = uid or f"uid{number:04d}"
        return Labels(
            box_id=f"box-{uid}-{generation}-{number}",
            uid=uid,
            generation=generation,
            fence=1,
            station=STATION,
            owner_pid=os.getpid(),
            owner_start=0,
        )

    async def boxes(self) -> list[tuple[Labels, BoxRef]]:
        return [item async for item in self.backend().boxes()]


def world_of(request: pytest.FixtureRequest, state: Path, store: FakeStore) -> World:
    if request.param not in ENGINES:
        return World(request.param, state, store)
    found: Engine = request.getfixturevalue("engine")
    runtime = "runc" if request.param == "docker" else GVISOR
    if not found.works(runtime):
        pytest.skip(f"the engine cannot run {runtime}: {found.runtimes.get(runtime, 'it has none')}")
    return World("docker", state, store, found, runtime)


@pytest.fixture(params=BACKENDS)
async def world(request: pytest.FixtureRequest, ran: Callable[[str], None]) -> AsyncIterator[World]:
    """A backend that can run here. Whatever boxes a test leaves are destroyed, and their files removed."""
    with tempfile.TemporaryDirectory(prefix="stn-c-", ignore_cleanup_errors=True) as state:
        async with FakeStore() as store:
            world = world_of(request, Path(state), store)
            capabilities = await world.backend().probe()
            if not capabilities.available:
                pytest.skip(f"{request.param} cannot run here: {capabilities.reason}")
            yield world
            ran(request.param)
            backend = world.backend()
            for labels, ref in await world.boxes():
                await (await backend.adopt(ref)).destroy()
                await backend.remove_files(labels.uid)
            await world.aclose()


@pytest.fixture
async def place(world: World) -> AsyncIterator[Place]:
    """A running box of a kept sandbox, and a session to it."""
    backend, labels = world.backend(), world.labels()
    spec = Spec(backend=world.name)
    await backend.probe()
    backend.check(spec)
    box = await backend.create(spec, labels)
    place = Place(backend, labels, box)
    place.session = await GuestSession.connect(place.open_stream)
    yield place
    await place.session.aclose()
    await box.destroy()
    await backend.remove_files(labels.uid)
