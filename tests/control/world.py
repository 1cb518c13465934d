"""Control against boxes that are a dictionary, and a clock that tests turn."""

from __future__ import annotations

import asyncio

from station.control.decisions import Defaults
from station.control.sandboxes import Sandboxes
from station.core.errors import BoxLost, StationError
from station.core.ids import uid_of
from station.core.records import BoxRef, SandboxRecord
from station.core.spec import NETWORK_NONE, Spec
from station.core.states import State
from station.store.sqlite import SqliteRegistry


class Clock:
    """A second passes with each look."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        self.at += 1
        return self.at


class Killed(BaseException):
    """Passes every handler: what `kill -9` looks like from inside."""


class DictBoxes:
    def __init__(self) -> None:
        self.boxes: dict[str, tuple[str, int]] = {}
        self.live: dict[str, int] = {}
        self.files: set[str] = set()
        self.creates = 0
        self.most_at_once: dict[str, int] = {}
        self.fail: dict[str, StationError] = {}

    def restart(self) -> None:
        self.live.clear()

    def die(self, uid: str) -> None:
        self.boxes = {key: box for key, box in self.boxes.items() if box[0] != uid}
        self.live.pop(uid, None)

    def _strike(self, name: str) -> None:
        if name in self.fail:
            raise self.fail[name]

    async def check(self, spec: Spec) -> None:
        self._strike("check")

    async def default_network(self, backend: str) -> str:
        return NETWORK_NONE

    async def given(self, spec: Spec) -> dict[str, str]:
        return {}

    def is_live(self, record: SandboxRecord) -> bool:
        return self.live.get(record.uid) == record.generation

    async def create(self, record: SandboxRecord) -> tuple[BoxRef, str]:
        self._strike("create")
        self.creates += 1
        self.boxes[f"{record.uid}-{record.generation}"] = (record.uid, record.generation)
        self.files.add(record.uid)
        await asyncio.sleep(0)
        self._strike("create late")
        self.live[record.uid] = record.generation
        return BoxRef("fake", f"{record.uid}-{record.generation}"), "1"

    async def adopt(self, record: SandboxRecord) -> tuple[BoxRef, str]:
        key = f"{record.uid}-{record.generation}"
        if key not in self.boxes:
            raise BoxLost("its box is gone")
        self.live[record.uid] = record.generation
        return BoxRef("fake", key), "1"

    async def destroy(self, record: SandboxRecord) -> None:
        self._strike("destroy")
        self.die(record.uid)

    async def lose(self, record: SandboxRecord, reason: str) -> None:
        self.die(record.uid)

    async def remove_files(self, record: SandboxRecord) -> None:
        self.files.discard(record.uid)


class Strikes:
    def __init__(self) -> None:
        self.at: str | None = None

    def __call__(self, name: str) -> None:
        if name == self.at:
            raise Killed(name)


class World:
    def __init__(self) -> None:
        self.registry = SqliteRegistry(":memory:")
        self.boxes = DictBoxes()
        self.strikes = Strikes()
        self.clock = Clock()
        self.sandboxes = self.station()

    def station(self, *, max_sandboxes: int | None = None) -> Sandboxes:
        """Another one over the same facts: a restart."""
        self.boxes.restart()
        self.strikes.at = None
        return Sandboxes(
            self.registry,
            self.boxes,
            station="st-1",
            defaults=lambda: Defaults("fake"),
            now=self.clock,
            max_sandboxes=max_sandboxes,
            failpoint=self.strikes,
        )

    async def state(self, name: str = "a") -> State | None:
        found = await self.registry.get(uid_of("local", name))
        assert not hasattr(found, "raw")
        return found.state if isinstance(found, SandboxRecord) else None
