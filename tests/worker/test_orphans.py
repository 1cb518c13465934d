"""Boxes without a record go while the station runs; one that is being made, or is in use, never does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from station.backends.base import Labels
from station.backends.fake import FakeBackend
from station.backends.fake.backend import FakeBox
from station.core.errors import StationError, Unavailable
from station.core.records import BoxRef, SandboxRecord
from station.core.spec import Spec
from station.core.states import State
from station.store.registry import Damaged
from station.worker.boxes import LiveBoxes, box_id_of
from station.worker.orphans import EVERY_SECONDS, GRACE_SECONDS, Orphans
from station.worker.pool import Pool
from tests.records import NoProcesses, sandbox_record

from .box import eventually

ME = "st-me"
UID = "u" * 26
RECORD = sandbox_record(uid=UID, worker=ME)
LABELS = Labels(box_id_of(UID, 1), UID, 1, 1, ME, 1, 1)


class Gate:
    """Where somebody waits until the test lets them go on."""

    def __init__(self) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.opened.wait()

    async def met(self) -> None:
        await asyncio.wait_for(self.reached.wait(), 10)


class SlowBackend(FakeBackend):
    """Its boxes are there, and listed, while `create` is still at work; `adopt` waits too."""

    after_create: Gate | None = None
    before_adopt: Gate | None = None

    async def create(self, spec: Spec, labels: Labels) -> FakeBox:
        box = await super().create(spec, labels)
        if self.after_create:
            await self.after_create()
        return box

    async def adopt(self, ref: BoxRef) -> FakeBox:
        if self.before_adopt:
            await self.before_adopt()
        return await super().adopt(ref)


class World:
    def __init__(self, backend: SlowBackend) -> None:
        self.backend = backend
        self.records: dict[str, SandboxRecord | Damaged] = {}
        self.failing: StationError | None = None
        self.now = 0.0
        self.boxes = LiveBoxes({"fake": backend}, station=ME, processes=NoProcesses(), on_lost=self._lost)
        self.pool = Pool({"fake": backend}, station=ME, size=1)
        self.orphans = Orphans(self.boxes, self.pool, self._get, station=ME, clock=lambda: self.now)

    async def _get(self, uid: str) -> SandboxRecord | Damaged | None:
        if self.failing:
            raise self.failing
        return self.records.get(uid)

    async def _lost(self, uid: str, generation: int, reason: str) -> None: ...

    async def sweeps(self) -> int:
        """Long enough after one another that an orphan of the first goes in the second."""
        async with asyncio.timeout(30):
            first = await self.orphans.sweep()
            self.now += GRACE_SECONDS
            return first + await self.orphans.sweep()

    @property
    def there(self) -> set[str]:
        return set(self.backend.store.live)

    async def orphan(self, **changes: Any) -> str:
        labels = replace(LABELS, **changes)
        await self.backend.create(Spec("fake"), labels)
        return labels.box_id


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    backend = SlowBackend(tmp_path, station_id=ME)
    made = World(backend)
    yield made
    await made.pool.aclose()
    await made.boxes.aclose()
    await backend.aclose()


@pytest.mark.parametrize("state", [None, State.TOMBSTONE, State.SAVED, State.FAILED])
async def test_a_box_whose_sandbox_has_none_goes(world: World, state: State | None) -> None:
    await world.orphan()
    if state is not None:
        world.records[UID] = replace(RECORD, state=state)
    assert await world.sweeps() == 1
    assert world.there == set()


async def test_a_box_of_an_older_generation_goes_and_the_live_one_stays(world: World) -> None:
    await world.orphan()
    world.records[UID] = replace(RECORD, generation=2)
    await world.boxes.create(replace(RECORD, generation=2))
    assert await world.sweeps() == 1
    assert world.there == {box_id_of(UID, 2)}


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, state=State.RUNNING),
        replace(RECORD, state=State.DELETING),
        replace(RECORD, state=State.RUNNING, worker="st-other"),
        Damaged(UID, "bad", b"", 1),
    ],
    ids=["creating", "running", "deleting", "another's", "damaged"],
)
async def test_a_box_that_a_record_may_want_stays(world: World, record: SandboxRecord | Damaged) -> None:
    await world.orphan()
    world.records[UID] = record
    assert await world.sweeps() == 0
    assert len(world.there) == 1


async def test_a_store_that_cannot_be_read_is_no_missing_record(world: World) -> None:
    await world.orphan()
    world.failing = Unavailable("the disk is away")
    assert await world.sweeps() == 0
    world.failing = None
    assert await world.sweeps() == 1


async def test_a_box_that_is_being_made_stays_even_where_no_record_is_seen(world: World) -> None:
    """The control: the same box, when nobody is at work on it, goes."""
    gate = world.backend.after_create = Gate()
    making = asyncio.create_task(world.boxes.create(RECORD))
    await gate.met()
    assert len(world.there) == 1
    assert await world.sweeps() == 0
    gate.opened.set()
    ref, _ = await making
    live = world.boxes.get(UID)
    assert live is not None
    await live.session.ping()
    assert await world.sweeps() == 0
    world.backend.after_create = None
    other = await world.orphan(uid="v" * 26, box_id="v-1")
    assert await world.sweeps() == 1
    assert world.there == {ref.box_id}
    assert other != ref.box_id


async def test_a_create_that_begins_during_the_sweep_waits_and_gets_its_own_box(world: World) -> None:
    """After the registry was lost: the orphan has the very id that the new box is to have."""
    box_id = await world.orphan()
    await world.orphans.sweep()
    world.now += GRACE_SECONDS
    gate = world.backend.before_adopt = Gate()
    sweeping = asyncio.create_task(world.orphans.sweep())
    await gate.met()
    world.records[UID] = RECORD
    making = asyncio.create_task(world.boxes.create(RECORD))
    await asyncio.wait([making], timeout=0.05)
    assert not making.done()
    gate.opened.set()
    assert await sweeping == 1
    await making
    assert world.there == {box_id}
    live = world.boxes.get(UID)
    assert live is not None
    await live.session.ping()


async def test_a_record_that_appears_at_the_last_moment_saves_the_box(world: World) -> None:
    await world.orphan()
    asked = 0

    async def get(uid: str) -> SandboxRecord | None:
        nonlocal asked
        asked += 1
        return RECORD if asked == 3 else None  # two sweeps have seen none; the third question is under the turn

    world.orphans._get_record = get
    assert await world.sweeps() == 0
    assert (asked, len(world.there)) == (3, 1)


async def test_pool_boxes_that_are_made_ready_or_claimed_stay_and_others_go(world: World) -> None:
    gate = world.backend.after_create = Gate()
    claiming = asyncio.create_task(world.pool.claim(Spec("fake")))
    await gate.met()
    assert await world.sweeps() == 0
    gate.opened.set()
    claim = await claiming
    await eventually(lambda: len(world.pool) == 2)
    assert await world.sweeps() == 0
    stray = await world.orphan(uid="stray", box_id="stray", pool=True)
    assert await world.sweeps() == 1
    assert stray not in world.there
    await claim.live.session.ping()


async def test_a_pool_box_that_could_not_be_destroyed_is_tried_again(world: World) -> None:
    claim = await world.pool.claim(Spec("fake"))
    world.backend.faults.destroy_failures = 2
    world.pool.release(claim.live)
    await eventually(lambda: world.backend.faults.destroy_failures == 1)
    await eventually(lambda: claim.live.uid in world.pool._left)
    assert await world.orphans.sweep() == 0
    assert await world.orphans.sweep() == 1
    assert claim.live.uid not in world.there


async def test_a_box_that_is_just_seen_gets_time(world: World) -> None:
    """Who else makes boxes, as a probe does for a trial, is not known here."""
    await world.orphan(uid="trial", box_id="trial", pool=True)
    for _ in range(3):
        assert await world.orphans.sweep() == 0
    world.now += GRACE_SECONDS
    assert await world.orphans.sweep() == 1


async def test_a_foreign_box_and_one_that_cannot_be_destroyed_stop_no_other(world: World) -> None:
    for number in range(6):
        await world.orphan(uid=f"u{number}", box_id=f"u{number}-1")
    await world.orphan(uid="foreign", box_id="foreign", station="st-other")
    await world.orphan(uid="foreign", box_id="foreign-pool", station="st-other", pool=True)
    world.backend._station_id, listed = "st-other", world.backend.boxes

    async def all_boxes() -> AsyncIterator[tuple[Labels, BoxRef]]:
        for live in list(world.backend.store.live.values()):
            yield live.labels, live.ref

    world.backend.boxes = all_boxes  # type: ignore[method-assign]
    world.backend.faults.destroy_failures = 2
    assert await world.sweeps() == 4
    assert await world.orphans.sweep() == 2
    assert world.there == {"foreign", "foreign-pool"}
    world.backend.boxes = listed  # type: ignore[method-assign]


async def test_it_sweeps_every_few_minutes_and_soon_again_where_it_saw_something(world: World) -> None:
    await world.orphan()
    await world.orphans.sweep_when_due()
    world.now = EVERY_SECONDS
    await world.orphans.sweep_when_due()
    assert len(world.there) == 1
    world.now += GRACE_SECONDS - 1
    await world.orphans.sweep_when_due()
    assert len(world.there) == 1
    world.now += 1
    await world.orphans.sweep_when_due()
    assert world.there == set()


async def test_a_sweep_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("station.worker.orphans.SWEEP_SECONDS", 0.01)
    await world.orphan()
    await world.orphans.sweep()
    world.now += EVERY_SECONDS
    world.backend.before_adopt = Gate()
    await world.orphans.sweep_when_due()
    assert len(world.there) == 1
    world.backend.before_adopt = None
    assert await world.orphans.sweep() == 1
