"""A box for these tests: the real guest as a sub-reaper of the test process, its roots below one directory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from station.backends.base import Labels, Layout
from station.core.capabilities import Capabilities, Grade, Level, LimitReport
from station.core.records import BoxRef
from station.core.spec import Spec
from station.guest.files import GuestFiles
from station.guest.session import GuestSession
from station.worker.journal import Journal
from station.worker.live import LiveBox
from station.worker.processes import Processes
from tests.guest.peer import RealGuest

UID = "testsandbox"


class RealBox:
    """Implements the port's `Box`, and `Measurable` by what the test says."""

    patience_seconds = 5.0

    def __init__(self, directory: Path, *, memory: Level = Level.NOT_ENFORCED) -> None:
        for name in ("workspace", "home", "tmp"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.ref = BoxRef("test", directory.name)
        self.layout = Layout(
            workspace=str(directory / "workspace"),
            home=str(directory / "home"),
            tmp=str(directory / "tmp"),
            env=(("PATH", os.environ["PATH"]), ("HOME", str(directory / "home")), ("LANG", "C.UTF-8")),
            shell="/bin/bash",
        )
        self.capabilities = Capabilities(
            "test", available=True, grade=Grade.NONE, limits={"memory_mb": LimitReport(memory, "the test")}
        )
        self.used = 0
        self.kills: int | None = 0
        self.guest = RealGuest(directory)
        self.connect = self.guest.open

    async def ended(self) -> str:
        await asyncio.to_thread(self.guest.process.wait)
        return "it ended"

    async def destroy(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.guest.process.terminate()
        self.guest.process.wait()

    async def oom_kills(self) -> int | None:
        return self.kills

    async def memory_bytes(self) -> int:
        return self.used


async def eventually(condition: Callable[[], object]) -> None:
    """Lets everything else run until `condition` holds: for what has no event to wait for."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def live_of(
    box: RealBox, *, wanted: Mapping[int, tuple[int, int]] | None = None, generation: int = 1, ephemeral: bool = False
) -> LiveBox:
    session = await GuestSession.connect(box.connect, wanted=wanted or {})
    spec = Spec("test", ephemeral=ephemeral)
    return LiveBox(UID, generation, spec, box, session, GuestFiles(session, box.layout))


class Station:
    """What one life of a station has of the worker, for one box."""

    def __init__(self, home: Path, processes: Processes, journal: Journal, live: LiveBox) -> None:
        self.home = home
        self.processes = processes
        self.journal = journal
        self.live = live

    async def die(self) -> None:
        """As a kill: nothing is said to the guest, nothing more is written down."""
        await self.processes.aclose()
        await self.live.session.aclose()
        self.journal.close()


@asynccontextmanager
async def station(home: Path, box: RealBox, **options: object) -> AsyncIterator[Station]:
    """A station begins: it recovers what the one before it left."""
    journal = Journal(home / "worker.sqlite")
    processes = Processes(journal, home / "spool", **options)  # type: ignore[arg-type]
    live = await live_of(box, wanted=processes.wanted(UID, 1))
    await processes.recover(live)
    one = Station(home, processes, journal, live)
    try:
        yield one
    finally:
        await one.die()


class RealBackend:
    """Makes real boxes below one directory; the port's `Backend` as far as a pool needs it."""

    name = "test"

    def __init__(self, directory: Path, *, memory: Level = Level.NOT_ENFORCED) -> None:
        self._directory = directory
        self._memory = memory
        self.boxes_made: list[RealBox] = []

    async def create(self, spec: Spec, labels: Labels) -> RealBox:
        box = RealBox(self._directory / labels.box_id[-12:], memory=self._memory)
        self.boxes_made.append(box)
        return box

    async def probe(self) -> Capabilities:
        raise NotImplementedError

    def check(self, spec: Spec) -> None:
        raise NotImplementedError

    async def adopt(self, ref: BoxRef) -> RealBox:
        raise NotImplementedError

    def boxes(self) -> AsyncIterator[tuple[Labels, BoxRef]]:
        raise NotImplementedError

    async def remove_files(self, uid: str) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError
