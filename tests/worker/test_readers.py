from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from station.core.wire import ExecRequest, OutputEvent
from station.worker.readers import Readers

from .box import UID, RealBox, Station, eventually, station

MUCH = 200_000_000
PRINT = ExecRequest(argv=["head", "-c", str(MUCH), "/dev/zero"], id="prc_much")


async def rest(events: AsyncGenerator[OutputEvent, None], at: int) -> tuple[int, list[OutputEvent]]:
    """Where the unbroken output ends, and what else came."""
    others = []
    async for event in events:
        if event.event == "data" and event.offset == at:
            at = event.to
        else:
            others.append(event)
    return at, others


async def first(one: Station) -> tuple[AsyncGenerator[OutputEvent, None], int]:
    events = one.processes.output(UID, "prc_much")
    event = await anext(events)
    assert (event.event, event.offset) == ("data", 0)
    return events, event.to


async def test_who_follows_slowly_gets_every_byte(one: Station) -> None:
    await one.processes.start(one.live, PRINT)
    (running,) = one.processes.running(UID)
    events, at = await first(one)
    await eventually(lambda: running._held)
    at, others = await rest(events, at)
    assert (at, [event.event for event in others]) == (MUCH, ["end"])


async def test_without_a_reader_nothing_is_held_up(one: Station) -> None:
    view = await one.processes.exec(one.live, PRINT)
    assert view.stdout is not None
    assert (view.exit_code, view.stdout.total_bytes) == (0, MUCH)


async def test_a_reader_who_left_holds_nothing_up(one: Station) -> None:
    await one.processes.start(one.live, PRINT)
    (running,) = one.processes.running(UID)
    events, _ = await first(one)
    await eventually(lambda: running._held)
    await events.aclose()
    record = await one.processes.wait(UID, "prc_much")
    assert record.stdout.total_bytes == MUCH


async def test_who_takes_nothing_for_too_long_is_told_of_a_gap(home: Path, box: RealBox) -> None:
    async with station(home, box, patience_seconds=0.01) as one:
        await one.processes.start(one.live, PRINT)
        events, at = await first(one)
        await one.processes.wait(UID, "prc_much")
        _, others = await rest(events, at)
        assert [event.event for event in others if event.event != "data"] == ["gap", "end"]


@pytest.mark.parametrize("seconds", [59.0, 61.0])
async def test_patience_is_counted_from_the_last_piece(seconds: float) -> None:
    now = 1000.0
    released = asyncio.Event()
    readers = Readers(released.set, now=lambda: now)
    reader = readers.enter((7, 0))
    now += 5000  # it waited for output all the time, which is no fault of its own
    assert readers.slowest(1) == 7
    readers.gives(reader)
    now += seconds
    assert (readers.slowest(1) == 7) is (seconds < 60)
    readers.leave(reader)
    assert released.is_set()
    assert readers.slowest(1) == float("inf")
