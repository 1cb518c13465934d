"""The sweep of boxes without a record, beside boxes that are made at that very moment. On every backend."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from station.core.records import Owner, SandboxRecord
from station.core.spec import LifecycleClass, Spec
from station.core.states import State
from station.worker import orphans
from station.worker.boxes import LiveBoxes
from station.worker.live import LiveBox
from station.worker.orphans import Orphans
from station.worker.pool import Pool

from .conftest import BOUND_SECONDS, STATION, World

MANY = 6


class NoProcesses:
    def wanted(self, uid: str, generation: int) -> Mapping[int, tuple[int, int]]:
        return {}

    async def recover(self, live: LiveBox) -> None: ...

    async def box_lost(self, uid: str, generation: int, reason: str) -> None: ...

    def forget_sandbox(self, uid: str) -> None: ...


def record(world: World, number: int) -> SandboxRecord:
    return SandboxRecord(
        uid=f"sweep{number}",
        name="a",
        owner=Owner(),
        spec=Spec(world.name),
        class_=LifecycleClass.KEPT,
        state=State.CREATING,
        generation=1,
        created_at=1.0,
        updated_at=1.0,
        last_active_at=1.0,
        worker=STATION,
    )


async def nobody(_uid: str) -> None:
    """No record of any sandbox can be seen."""


async def not_lost(uid: str, _generation: int, reason: str) -> None:
    raise AssertionError(f"{uid}: {reason}")


async def test_boxes_in_the_making_outlive_a_sweep_that_sees_no_record_and_orphans_do_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = world.backend()
    await backend.probe()  # whose trial box is spared by the time alone
    monkeypatch.setattr(orphans, "GRACE_SECONDS", 0.0)

    def station() -> tuple[LiveBoxes, Orphans]:
        backends = {world.name: backend}
        boxes = LiveBoxes(backends, station=STATION, processes=NoProcesses(), on_lost=not_lost)
        return boxes, Orphans(boxes, Pool(backends, station=STATION, size=0), nobody, station=STATION)

    boxes, sweep = station()
    making = [asyncio.create_task(boxes.create(record(world, number))) for number in range(MANY)]
    looks = 0
    async with asyncio.timeout(4 * BOUND_SECONDS):
        while not all(task.done() for task in making):
            assert await sweep.sweep() == 0
            looks += 1
            await asyncio.sleep(0)
        await asyncio.gather(*making)
    assert looks > 0
    for number in range(MANY):
        live = boxes.get(f"sweep{number}")
        assert live is not None
        await live.session.ping()
    await boxes.aclose()

    _, later = station()  # to whom nobody has told of them
    async with asyncio.timeout(4 * BOUND_SECONDS):
        assert await later.sweep() == MANY
    assert await world.boxes() == []
    for number in range(MANY):
        await backend.remove_files(f"sweep{number}")
