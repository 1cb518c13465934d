"""The fake backend: boxes that are Python objects of this process. They isolate nothing and cost nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from station.backends.base import ByteStream, Labels, Layout
from station.core.capabilities import Capabilities, Grade, Level, LimitReport
from station.core.errors import BackendUnavailable, BoxLost, CannotEnforce, Conflict, InvalidInput, Unavailable
from station.core.records import BoxRef
from station.core.spec import DEFAULT_LIMITS, Spec

from .clock import Clock, LoopClock
from .faults import Faults
from .guest import FakeGuest
from .process import Program
from .programs import PROGRAMS
from .stream import pair
from .tree import Directory, Tree

_ENV = (("HOME", "/home/node"), ("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8"))
LAYOUT = Layout(env=_ENV)
_NOTHING_HOLDS = LimitReport(Level.NOT_ENFORCED, "programs of a fake box are functions of this process")
_CAPABILITIES = Capabilities(
    backend="fake",
    available=True,
    grade=Grade.NONE,
    limits=dict.fromkeys([*DEFAULT_LIMITS.named(), "max_file_size_bytes"], _NOTHING_HOLDS),
    network="unrestricted",
    containment="subreaper",
    notes=("a fake for tests: nothing is isolated, and no real program runs",),
)


@dataclass
class _Persistent:
    home: Directory
    workspace: Directory


class FakeStore:
    """The machine that fake boxes live on: it outlives every FakeBackend on it, as real boxes outlive a station.

    Owns the tasks of its boxes: `async with FakeStore()` or `aclose` ends them all.
    """

    def __init__(self) -> None:
        self.live: dict[str, LiveFake] = {}
        """By box_id, ended ones included until they are destroyed."""
        self.files: dict[str, _Persistent] = {}
        """Home and workspace by sandbox uid."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends every box. Files stay."""
        for live in list(self.live.values()):
            await live.destroy()


class LiveFake:
    """One box on the store: what `FakeBox` handles of any backend refer to."""

    def __init__(self, store: FakeStore, labels: Labels, *, faults: Faults, clock: Clock) -> None:
        self.labels = labels
        self.ref = BoxRef("fake", labels.box_id)
        self.faults = faults
        self.tree = Tree(time.time_ns, lambda: faults.disk_full)
        self.reason: str | None = None
        """Why it ended; `None` while it lives."""
        self.guest: FakeGuest
        self._store = store
        self._clock = clock
        self._ended = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    def boot(self, spec: Spec, programs: Mapping[str, Program]) -> None:
        """Files in place, and a guest that listens."""
        kept = self._persistent(ephemeral=spec.ephemeral)
        self.tree.mount(LAYOUT.home.encode(), kept.home)
        self.tree.mount(LAYOUT.workspace.encode(), kept.workspace)
        self.tree.mount(f"{LAYOUT.home}/workspace".encode(), kept.workspace)
        self.tree.mount(LAYOUT.tmp.encode(), self.tree.new_directory(0o777))
        self.guest = FakeGuest(self.tree, self._clock, programs, faults=self.faults, die=self.die)

    def _persistent(self, *, ephemeral: bool) -> _Persistent:
        kept = self._store.files.get(self.labels.uid)
        if kept is None or ephemeral:
            kept = _Persistent(self.tree.new_directory(), self.tree.new_directory())
        if not ephemeral:
            self._store.files[self.labels.uid] = kept
        return kept

    def connect(self) -> ByteStream:
        if self.guest.alive_at("connect") and self.reason is None:
            near, far = pair(self.faults, self._clock)
            self.guest.accept(far)
            return near
        raise BoxLost(f"the box is gone: {self.reason}")

    def die(self, reason: str) -> None:
        """The box is gone from now on; its tasks end in the background, `destroy` waits for them."""
        if self.reason is None:
            self.reason = reason
            self.guest.break_off()
            self._ended.set()
            self._closing = asyncio.create_task(self.guest.aclose(), name=f"end of {self.labels.box_id}")

    async def ended(self) -> str:
        await self._ended.wait()
        return self.reason or ""

    async def destroy(self) -> None:
        self.die("destroyed")
        assert self._closing
        await asyncio.shield(self._closing)  # shared: a cancelled caller must not end it for the next one
        self._store.live.pop(self.labels.box_id, None)


class FakeBox:
    """A `Box` of the fake backend."""

    patience_seconds = 5.0

    def __init__(self, live: LiveFake) -> None:
        self.ref = live.ref
        self.layout = LAYOUT
        self.capabilities = _CAPABILITIES
        self._live = live

    async def connect(self) -> ByteStream:
        """Raises BoxLost when the box has ended."""
        return self._live.connect()

    async def ended(self) -> str:
        return await self._live.ended()

    async def destroy(self) -> None:
        """Raises Unavailable as often as `Faults.destroy_failures` says."""
        if self._live.faults.takes("destroy_failures"):
            raise Unavailable(f"{self.ref.box_id} could not be destroyed: Faults.destroy_failures")
        await self._live.destroy()

    def kill(self, reason: str = "killed by the test") -> None:
        """Ends the box as if from outside; beyond the port, for tests."""
        self._live.die(reason)


class FakeBackend:
    """A whole backend for tests: real protocol, real answers, no isolation, no process, no file on disk.

    `programs` are added to the few that every fake box has (true, false, echo, printf, cat, sleep, env, pwd, sh, bash);
    whatever else is started is not found. `faults` may be changed at any time. Boxes live in `store`: give two backends
    the same one to see a station restart. `clock` is real time unless a `ManualClock` is given.
    """

    name = "fake"

    def __init__(
        self,
        _state_dir: Path,
        *,
        station_id: str,
        programs: Mapping[str, Program] | None = None,
        faults: Faults | None = None,
        store: FakeStore | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Takes a state directory as every backend does, and writes nothing to it."""
        self.programs: dict[str, Program] = {**PROGRAMS, **(programs or {})}
        """May be added to; boxes that are there see it."""
        self.faults = faults or Faults()
        self.store = store or FakeStore()
        self._owns_store = store is None
        self.clock: Clock = clock or LoopClock()
        self._station_id = station_id

    async def aclose(self) -> None:
        """Lets go of the boxes; without a `store` of the caller's, nothing else could own them, and they end."""
        if self._owns_store:
            await self.store.aclose()

    async def probe(self) -> Capabilities:
        return _CAPABILITIES

    def check(self, spec: Spec) -> None:
        """Raises CannotEnforce for any named limit (unless best_effort) and for a network allow list; InvalidInput for
        an image or a mount."""
        named = list(spec.limits.named())
        if named and not spec.best_effort:
            raise CannotEnforce(f"the backend fake enforces no limit; leave out {', '.join(named)}", limits=named)
        if spec.network not in ("none", "public"):
            raise CannotEnforce("the backend fake cannot hold a network allow list", network=spec.network)
        if spec.image is not None:
            raise InvalidInput("the backend fake has no images", field="image")
        if spec.mount is not None:
            raise InvalidInput("the backend fake mounts no folder", field="mount")

    async def create(self, spec: Spec, labels: Labels) -> FakeBox:
        """Raises BackendUnavailable or BoxLost by `faults`, Conflict where the box_id exists."""
        if self.faults.takes("create_refusals"):
            raise BackendUnavailable("refused by Faults.create_refusals")
        if labels.box_id in self.store.live:
            raise Conflict(f"a box {labels.box_id} exists already")
        live = LiveFake(self.store, labels, faults=self.faults, clock=self.clock)
        live.boot(spec, self.programs)
        self.store.live[labels.box_id] = live
        live.guest.alive_at("create")
        if self.faults.takes("lost_create_replies"):
            raise BoxLost("the reply was lost by Faults.lost_create_replies")
        return FakeBox(live)

    async def adopt(self, ref: BoxRef) -> FakeBox:
        live = self.store.live.get(ref.box_id)
        if live is None or live.reason is not None:
            self.store.live.pop(ref.box_id, None)
            raise BoxLost(f"the box {ref.box_id} is gone" + (f": {live.reason}" if live else ""))
        return FakeBox(live)

    async def boxes(self) -> AsyncIterator[tuple[Labels, BoxRef]]:
        for live in list(self.store.live.values()):
            if live.labels.station == self._station_id:
                yield live.labels, live.ref

    async def remove_files(self, uid: str) -> None:
        """Raises Conflict while a box of that sandbox lives."""
        if any(live.labels.uid == uid and live.reason is None for live in self.store.live.values()):
            raise Conflict("the files of a sandbox that has a box cannot be removed")
        self.store.files.pop(uid, None)
