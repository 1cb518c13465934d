"""Makes facts match records when a station starts: decided purely by `decide`, acted on one sandbox at a time. What
cannot be decided then is settled later, while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from station.backends.base import Backend, Labels
from station.core.errors import StationError
from station.core.records import BoxRef, SandboxRecord
from station.core.states import State
from station.store.registry import Damaged, Listing

from .boxes import destroy_by_ref

log = logging.getLogger(__name__)

AT_ONCE = 16
SETTLE_SECONDS = 5.0


class Action(StrEnum):
    ADOPT = "adopt"
    FINISH_CREATE = "finish_create"
    UNDO_CREATE = "undo_create"
    FINISH_DELETE = "finish_delete"
    MARK_SAVED = "mark_saved"
    DESTROY_ORPHAN = "destroy_orphan"
    SWEEP_POOL = "sweep_pool"
    QUARANTINE = "quarantine"
    KEEP = "keep"
    """Foreign, unknown, or still another's: the living are never reaped."""
    NOTHING = "nothing"


@dataclass(frozen=True)
class BoxSeen:
    """A box that a backend listed."""

    labels: Labels
    ref: BoxRef


@dataclass
class Report:
    """What a reconcile did; logged."""

    actions: Counter[Action] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """A sentence for each thing that could not be done, quarantined records included."""
    unsettled: set[str] = field(default_factory=set)
    """Uids of records that were left as they are because nothing could be asked, or because acting failed."""

    def __str__(self) -> str:
        done = ", ".join(f"{count} {name.value}" for name, count in sorted(self.actions.items())) or "nothing to do"
        return done + "".join(f"; {problem}" for problem in self.problems)


class Records(Protocol):
    """What reconcile needs of control, which alone writes records."""

    async def adopt(self, uid: str) -> State: ...

    async def undo(self, uid: str, reason: str) -> State: ...

    async def delete(self, uid: str) -> None: ...


def decide(record: SandboxRecord | Damaged | None, seen: BoxSeen | None, *, station: str) -> Action:
    """What to do about one record and the box of its generation, or about a box that has no place in a record."""
    if seen is not None and seen.labels.station != station:
        return Action.KEEP
    if seen is not None and seen.labels.pool:
        # Its owner is gone: whoever reconciles holds the state directory's lock, and no other station can.
        return Action.SWEEP_POOL
    if isinstance(record, Damaged):
        return Action.QUARANTINE
    if record is not None and record.worker not in (None, station):
        return Action.KEEP
    if record is None or record.state in (State.TOMBSTONE, State.SAVED, State.FAILED):
        return Action.NOTHING if seen is None else Action.DESTROY_ORPHAN
    if record.state is State.DELETING:
        return Action.FINISH_DELETE
    if seen is not None and seen.labels.generation != record.generation:
        return Action.DESTROY_ORPHAN
    if record.state is State.CREATING:
        return Action.UNDO_CREATE if seen is None else Action.FINISH_CREATE
    if record.state is State.RUNNING:
        return Action.MARK_SAVED if seen is None else Action.ADOPT
    return Action.KEEP


async def reconcile(listing: Listing, backends: Mapping[str, Backend], records: Records, *, station: str) -> Report:
    """Acts on every record and every labelled box. A damaged record, a backend that cannot list or one failing box
    never stops the rest; what a backend could not tell about is kept as it is."""
    report = Report()
    boxes, silent = await _look(backends, report)
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(uid: str, record: SandboxRecord | Damaged | None) -> None:
        async with limit:
            await _reconcile_one(uid, record, boxes[uid], _Acting(backends, records, report, station, silent))

    known: dict[str, SandboxRecord | Damaged] = {record.uid: record for record in listing.records}
    known |= {damaged.uid: damaged for damaged in listing.damaged}
    async with asyncio.TaskGroup() as group:
        for uid in known.keys() | set(boxes):
            group.create_task(one(uid, known.get(uid)))
    return report


@dataclass(frozen=True)
class _Acting:
    backends: Mapping[str, Backend]
    records: Records
    report: Report
    station: str
    silent: frozenset[str]
    """Backends that did not list their boxes."""


async def _look(backends: Mapping[str, Backend], report: Report) -> tuple[dict[str, list[BoxSeen]], frozenset[str]]:
    found: dict[str, list[BoxSeen]] = defaultdict(list)
    silent = set()
    for name, backend in backends.items():
        try:
            async for labels, ref in backend.boxes():
                found[labels.uid].append(BoxSeen(labels, ref))
        except (StationError, OSError) as error:
            silent.add(name)
            report.problems.append(f"backend {name} could not list its boxes: {error}")
    return found, frozenset(silent)


async def _reconcile_one(
    uid: str, record: SandboxRecord | Damaged | None, boxes: list[BoxSeen], acting: _Acting
) -> None:
    current, others = _split(record, boxes)
    # Leftovers go first: a sandbox has at most one running box at any time.
    plan: list[tuple[Action, BoxSeen | None]] = [(decide(record, box, station=acting.station), box) for box in others]
    if record is not None or current is not None:
        plan.append((_unless_silent(decide(record, current, station=acting.station), record, acting), current))
    for action, box in plan:
        try:
            await _act(action, uid, record, box, acting)
            acting.report.actions[action] += 1
        except (StationError, OSError) as error:
            acting.report.problems.append(f"sandbox {uid}: {action.value} failed: {error}")
            acting.report.unsettled.add(uid)


def _split(record: SandboxRecord | Damaged | None, boxes: list[BoxSeen]) -> tuple[BoxSeen | None, list[BoxSeen]]:
    """The box of the record's own generation, and all the rest."""
    generation = record.generation if record is not None else None
    current = next((box for box in boxes if not box.labels.pool and box.labels.generation == generation), None)
    return current, [box for box in boxes if box is not current]


def _unless_silent(action: Action, record: SandboxRecord | Damaged | None, acting: _Acting) -> Action:
    """That nothing was seen proves nothing where nobody looked."""
    if isinstance(record, SandboxRecord) and action in (Action.MARK_SAVED, Action.UNDO_CREATE, Action.FINISH_DELETE):
        backend = record.spec.backend
        if backend in acting.silent or backend not in acting.backends:
            acting.report.problems.append(f"sandbox {record.uid}: backend {backend} cannot be asked; left as it is")
            acting.report.unsettled.add(record.uid)
            return Action.KEEP
    return action


async def _act(
    action: Action, uid: str, record: SandboxRecord | Damaged | None, box: BoxSeen | None, acting: _Acting
) -> None:
    match action:
        case Action.ADOPT | Action.FINISH_CREATE | Action.MARK_SAVED:
            # One door for all three: control asks for the box, and decides by what it gets.
            await acting.records.adopt(uid)
        case Action.UNDO_CREATE:
            await acting.records.undo(uid, "the station ended while its box was being made")
        case Action.FINISH_DELETE:
            await acting.records.delete(uid)
        case Action.DESTROY_ORPHAN | Action.SWEEP_POOL:
            assert box is not None
            await destroy_by_ref(acting.backends[box.ref.backend], box.ref)
        case Action.QUARANTINE:
            assert isinstance(record, Damaged)
            acting.report.problems.append(f"sandbox {record.name or uid} is quarantined: {record.reason}")
        case Action.KEEP | Action.NOTHING:
            pass


class Settling:
    """Tries again, while the station runs, what could not be decided because nothing could be asked."""

    def __init__(
        self,
        uids: set[str],
        get_record: Callable[[str], Awaitable[SandboxRecord | Damaged | None]],
        records: Records,
        *,
        seconds: float = SETTLE_SECONDS,
    ) -> None:
        """`uids` is shared: whoever leaves a sandbox unsettled adds it, and this takes it out again."""
        self._uids = uids
        self._get_record = get_record
        self._records = records
        self._seconds = seconds

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            await self.once()

    async def once(self) -> None:
        """One that still cannot be decided stops no other, and stays."""
        for uid in list(self._uids):
            try:
                state = await self._settle(uid)
            except (StationError, OSError) as error:
                log.debug("sandbox %s is not settled yet: %s", uid, error)
            else:
                if state is not State.CREATING:
                    self._uids.discard(uid)

    async def _settle(self, uid: str) -> State | None:
        record = await self._get_record(uid)
        if isinstance(record, Damaged) or record is None:
            return None
        if record.state is State.DELETING:
            await self._records.delete(uid)
            return State.TOMBSTONE
        return await self._records.adopt(uid)
