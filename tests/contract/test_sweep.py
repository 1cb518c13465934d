"""The sweep of boxes without a record, beside boxes that are made at that very moment. On every backend."""

from __future__ import annotations

import asyncio

import pytest

from station.core.records import SandboxRecord
from station.core.spec import Spec
from station.worker import orphans
from station.worker.boxes import LiveBoxes
from station.worker.orphans import Orphans
from station.worker.pool import Pool
from tests.records import NoProcesses, sandbox_record

from .conftest import BOUND_SECONDS, STATION, World

MANY = 6


def record(world: World, number: int) -> SandboxRecord:
    return sandbox_record(uid=f"sweep{number}", spec=Spec(world.name), worker=STATION)


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
