"""What a station decides about each record and each box when it starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from station.backends.base import Labels
from station.core.capabilities import Capabilities, Grade
from station.core.errors import BoxLost, Unavailable
from station.core.records import BoxRef, SandboxRecord
from station.core.spec import Spec
from station.core.states import State
from station.store.registry import Damaged, Listing
from station.worker.reconcile import Action, BoxSeen, decide, reconcile
from tests.records import sandbox_record

ME = "st-me"
RECORD = sandbox_record(state=State.RUNNING, generation=3, worker=ME)
DAMAGED = Damaged("u", "bad", b"", 1)
LABELS = Labels("u-3", "u", 3, 9, ME, 1, 1)
BOX = BoxSeen(LABELS, BoxRef("fake", "u-3"))
OLD = replace(BOX, labels=replace(LABELS, box_id="u-2", generation=2))
FOREIGN = replace(BOX, labels=replace(LABELS, station="st-other"))
POOL = replace(BOX, labels=replace(LABELS, pool=True))


def record(state: State, **changes: object) -> SandboxRecord:
    return replace(RECORD, state=state, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "seen", "action"),
    [
        (record(State.RUNNING), BOX, Action.ADOPT),
        (record(State.RUNNING), None, Action.MARK_SAVED),
        (record(State.RUNNING), OLD, Action.DESTROY_ORPHAN),
        (record(State.CREATING), BOX, Action.FINISH_CREATE),
        (record(State.CREATING), None, Action.UNDO_CREATE),
        (record(State.CREATING), OLD, Action.DESTROY_ORPHAN),
        (record(State.DELETING), BOX, Action.FINISH_DELETE),
        (record(State.DELETING), None, Action.FINISH_DELETE),
        (record(State.TOMBSTONE), BOX, Action.DESTROY_ORPHAN),
        (record(State.TOMBSTONE), None, Action.NOTHING),
        (record(State.SAVED), BOX, Action.DESTROY_ORPHAN),
        (record(State.SAVED), None, Action.NOTHING),
        (record(State.FAILED), BOX, Action.DESTROY_ORPHAN),
        (record(State.FAILED), None, Action.NOTHING),
        (record(State.SUSPENDED), BOX, Action.KEEP),
        (record(State.RUNNING, worker="st-other"), BOX, Action.KEEP),
        (record(State.RUNNING, worker="st-other"), None, Action.KEEP),
        (None, BOX, Action.DESTROY_ORPHAN),
        (None, None, Action.NOTHING),
        (None, FOREIGN, Action.KEEP),
        (record(State.RUNNING), FOREIGN, Action.KEEP),
        (None, POOL, Action.SWEEP_POOL),
        (DAMAGED, BOX, Action.QUARANTINE),
        (DAMAGED, None, Action.QUARANTINE),
    ],
)
def test_a_record_and_its_box_decide_the_action(
    known: SandboxRecord | Damaged | None, seen: BoxSeen | None, action: Action
) -> None:
    assert decide(known, seen, station=ME) is action


class Box:
    def __init__(self, backend: ListedBoxes, ref: BoxRef) -> None:
        self.backend, self.ref = backend, ref

    async def destroy(self) -> None:
        if self.ref.box_id in self.backend.stuck:
            raise Unavailable("stuck")
        self.backend.found = [item for item in self.backend.found if item[1] != self.ref]


class ListedBoxes:
    name = "fake"

    def __init__(self, *seen: BoxSeen) -> None:
        self.found = [(box.labels, BoxRef("fake", box.labels.box_id)) for box in seen]
        self.stuck: set[str] = set()
        self.mute = False

    async def probe(self) -> Capabilities:
        return Capabilities("fake", True, Grade.NONE)

    async def adopt(self, ref: BoxRef) -> Box:
        if ref not in [found for _, found in self.found]:
            raise BoxLost("gone")
        return Box(self, ref)

    async def boxes(self) -> AsyncIterator[tuple[Labels, BoxRef]]:
        if self.mute:
            raise Unavailable("the engine is away")
        for item in list(self.found):
            yield item


class Calls:
    def __init__(self, fail: str = "") -> None:
        self.seen: list[str] = []
        self.fail = fail

    def _note(self, text: str) -> None:
        if text == self.fail:
            raise Unavailable("no")
        self.seen.append(text)

    async def adopt(self, uid: str) -> State:
        self._note(f"adopt {uid}")
        return State.RUNNING

    async def undo(self, uid: str, reason: str) -> State:
        self._note(f"undo {uid}")
        return State.TOMBSTONE

    async def delete(self, uid: str) -> None:
        self._note(f"delete {uid}")


def boxes_of(backend: ListedBoxes) -> dict[str, object]:
    return {"fake": backend}


async def run(listing: Listing, backend: ListedBoxes, calls: Calls) -> str:
    return str(await reconcile(listing, boxes_of(backend), calls, station=ME))  # type: ignore[arg-type]


async def test_an_orphan_and_a_dead_pool_box_go_and_a_foreign_box_stays() -> None:
    orphan = replace(BOX, labels=replace(LABELS, uid="nobody", box_id="orphan"))
    pool = replace(POOL, labels=replace(POOL.labels, uid="pool", box_id="pool", owner_pid=2**22 + 1))
    foreign = replace(FOREIGN, labels=replace(FOREIGN.labels, uid="foreign", box_id="foreign"))
    backend = ListedBoxes(orphan, pool, foreign)
    report = await run(Listing(), backend, Calls())
    assert [labels.box_id for labels, _ in backend.found] == ["foreign"]
    assert "1 destroy_orphan" in report
    assert "1 sweep_pool" in report


async def test_a_box_of_an_older_generation_goes_and_the_current_one_is_adopted() -> None:
    backend, calls = ListedBoxes(OLD, BOX), Calls()
    await run(Listing([RECORD]), backend, calls)
    assert [labels.box_id for labels, _ in backend.found] == ["u-3"]
    assert calls.seen == ["adopt u"]


async def test_one_failure_and_one_damaged_record_stop_nobody_else() -> None:
    others = [replace(RECORD, uid=f"v{n}", generation=1, state=State.DELETING) for n in range(20)]
    stuck = replace(BOX, labels=replace(LABELS, uid="stuck", box_id="stuck"))
    backend, calls = ListedBoxes(stuck), Calls(fail="adopt u")
    backend.stuck.add("stuck")
    report = await run(Listing([RECORD, *others], [replace(DAMAGED, uid="d", name="dee")]), backend, calls)
    assert sorted(calls.seen) == sorted(f"delete v{n}" for n in range(20))
    for sentence in ("adopt failed", "mark_saved failed", "destroy_orphan failed: stuck", "dee is quarantined: bad"):
        assert sentence in report or sentence == "adopt failed"


async def test_what_a_silent_backend_could_have_is_left_as_it_is() -> None:
    backend, calls = ListedBoxes(), Calls()
    backend.mute = True
    report = await run(Listing([RECORD, replace(RECORD, uid="w", spec=Spec("unknown"))]), backend, calls)
    assert calls.seen == []
    assert "2 keep" in report
    assert "the engine is away" in report
