"""An engine that is away for long: nothing is decided meanwhile, callers are told, and what ran on is found again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from station.backends.docker import box as boxes
from station.core.endings import EndingKind
from station.core.errors import StationError, Unavailable
from station.core.principals import LOCAL
from station.core.states import State
from station.core.wire import ExecRequest, OpenRequest
from station.server import station as composition
from station.server.station import Station
from station.worker import boxes as live_boxes
from station.worker import reconcile, supervise
from tests.engine import Engine

from .proxy import FaultProxy
from .stationed import execute, opened, start, state_of, station_on, text_of, until

pytestmark = pytest.mark.docker
SCALE = 1 / 200
"""Of 60 s of patience and the times that an engine is away for."""
COUNT = "for i in $(seq {0}); do echo $i; sleep 0.05; done"


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes.DockerBox, "patience_seconds", boxes.PATIENCE_SECONDS * SCALE)
    for module in (live_boxes, composition):
        monkeypatch.setattr(module, "REACH_SECONDS", live_boxes.REACH_SECONDS * SCALE)
    monkeypatch.setattr(reconcile, "SETTLE_SECONDS", 0.05)


@pytest.fixture
async def station(proxy: FaultProxy, tmp_path: Path) -> AsyncIterator[Station]:
    async with station_on(proxy.url, tmp_path) as made:
        yield made
        await proxy.come_back()
        await made.delete_all()


async def tells_that_it_is_away(station: Station, uid: str) -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable, match="does not answer") as error:
        await execute(station, uid, "echo never")
    assert error.value.retryable
    assert time.monotonic() - began < 2 * live_boxes.REACH_SECONDS + 2


async def away_and_back(station: Station, proxy: FaultProxy, seconds: float) -> None:
    """The box and what runs in it go on, and those who ask meanwhile are told."""
    uid = await opened(station)
    live = await station.live(uid, LOCAL)
    process = await start(station, uid, COUNT.format(int(seconds / 0.05) + 20))
    await proxy.go_away()
    await until(lambda: live.session.away is not None)
    await tells_that_it_is_away(station, uid)
    assert live.session.away is not None
    assert "cannot be reached since 2" in live.session.away.error().message
    assert await state_of(station, uid) is State.RUNNING
    await asyncio.sleep(seconds)
    assert live.session.closed_reason is None
    await proxy.come_back()
    lines = (await text_of(station, uid, process.id)).split()
    assert lines == [str(number) for number in range(1, len(lines) + 1)]
    assert len(lines) >= seconds / 0.05
    assert (await execute(station, uid, "echo there")).ending is not None
    assert station.boxes.get(uid) is live


@pytest.mark.parametrize("seconds", [1, 30, 120])
@pytest.mark.usefixtures("scaled")
async def test_hd_d09_an_engine_that_is_away_and_back_costs_no_box(
    station: Station, proxy: FaultProxy, seconds: int
) -> None:
    await away_and_back(station, proxy, seconds * SCALE)


@pytest.mark.full
@pytest.mark.timeout(240)
async def test_hd_d09_two_minutes_without_an_engine_cost_no_box(station: Station, proxy: FaultProxy) -> None:
    await away_and_back(station, proxy, 120.0)


@pytest.mark.usefixtures("scaled")
async def test_hd_d09_control_without_the_rule_the_box_is_lost(
    station: Station, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boxes, "HostAway", ConnectionError)
    uid = await opened(station)
    process = await start(station, uid, "sleep 100")
    await proxy.go_away()
    ended = await station.processes.wait(uid, process.id, 10)
    assert ended.ending is not None
    assert ended.ending.kind is EndingKind.LOST


@pytest.mark.usefixtures("scaled")
async def test_hd_d09_a_command_whose_time_ends_while_the_engine_is_away_is_told_of_later(
    station: Station, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(station.processes._supervisor, "_guard_seconds", 0.2)
    uid = await opened(station)
    ask = ExecRequest(command="echo begun; exec sleep 100", timeout_seconds=1.0, id="prc_00000000000000000000000001")
    live = await station.live(uid, LOCAL)
    waiting = asyncio.create_task(station.processes.exec(live, ask))
    await until(lambda: any(each.record.pid for each in station.processes.running(uid)))
    await proxy.go_away()
    async with asyncio.timeout(15):
        with pytest.raises(Unavailable, match="cannot be reached since"):
            await waiting
    assert live.session.closed_reason is None, "the box was given up although nobody could ask for it"
    await proxy.come_back()
    async with asyncio.timeout(15):
        await until(lambda: live.session.away is None)
        ended = await station.processes.exec(live, ask)
    assert ended.ending is not None
    assert ended.ending.kind is EndingKind.TIMED_OUT
    assert station.boxes.get(uid) is live


@pytest.mark.usefixtures("scaled")
async def test_hd_d09_a_command_that_did_not_reach_its_box_is_told_of_and_runs_once_later(
    station: Station, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "START_SECONDS", 0.2)
    uid = await opened(station)
    live = await station.live(uid, LOCAL)
    await proxy.go_away()
    ask = ExecRequest(command="echo once >> ran; cat ran", id="prc_00000000000000000000000002")
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable):
            await station.processes.exec(live, ask)
        await proxy.come_back()
        await until(lambda: live.session.away is None, 25)
        ended = await station.processes.exec(live, ask)
    assert ended.stdout is not None
    assert ended.stdout.to_bytes() == b"once\n"


@pytest.mark.usefixtures("scaled")
async def test_hd_d09_a_delete_while_the_engine_is_away_is_refused_and_succeeds_later(
    station: Station, proxy: FaultProxy
) -> None:
    uid = await opened(station)
    live = await station.live(uid, LOCAL)
    await proxy.go_away()
    await until(lambda: live.session.away is not None)
    with pytest.raises(Unavailable, match="does not answer") as error:
        await station.sandboxes.delete(uid)
    assert error.value.retryable
    await proxy.come_back()
    await until(lambda: live.session.away is None)
    await station.sandboxes.delete(uid)
    assert [item async for item in station.backends["docker"].boxes()] == []


@pytest.mark.parametrize("ends", [False, True], ids=["box-lives", "box-ends"])
@pytest.mark.usefixtures("scaled")
async def test_hd_d09_a_station_that_starts_while_the_engine_is_away_decides_nothing_before_it_is_back(
    proxy: FaultProxy, engine: Engine, tmp_path: Path, *, ends: bool
) -> None:
    async with station_on(proxy.url, tmp_path) as first:
        uid = await opened(first)
        process = await start(
            first, uid, "echo first; sleep 1; echo second; exec sleep 100" if ends else COUNT.format(40)
        )
        record = await first.sandboxes.get(uid)
        assert record.box is not None
        container = str(record.box.data["container"])
        await proxy.go_away()
    async with station_on(proxy.url, tmp_path) as second:
        assert second.boxes.unsettled == {uid}
        assert await state_of(second, uid) is State.RUNNING
        with pytest.raises(Unavailable, match="does not answer") as error:
            await execute(second, uid, "true")
        assert error.value.retryable
        assert (await second.processes.get(uid, process.id)).ending is None
        if ends:
            os.kill(int(engine.docker("inspect", "-f", "{{.State.Pid}}", container)), signal.SIGKILL)
        await proxy.come_back()
        # Nobody uses it: the station finds out by itself.
        await until(lambda: not second.boxes.unsettled)
        if ends:
            assert await state_of(second, uid) is State.SAVED
            ended = await second.processes.get(uid, process.id)
            assert ended.ending is not None
            assert ended.ending.kind is EndingKind.LOST
            assert ended.ending.reason
        else:
            assert second.boxes.get(uid) is not None
            assert (await text_of(second, uid, process.id)).split() == [str(n) for n in range(1, 41)]
        await second.delete_all()


async def test_hd_d09_a_pool_box_that_cannot_be_reached_is_given_to_nobody(proxy: FaultProxy, tmp_path: Path) -> None:
    async with station_on(proxy.url, tmp_path) as station:
        spec = (await station.sandboxes.open(OpenRequest("kind")))[0].spec
        station.pool._size = 1
        station.pool.prepare(spec)
        await until(lambda: len(station.pool) == 1)
        (ready,) = station.pool.boxes
        await proxy.go_away()
        await until(lambda: ready.session.away is not None)
        with pytest.raises(StationError) as error:
            await station.pool.claim(spec)
        assert error.value.retryable
        await proxy.come_back()
        await until(lambda: ready.session.away is None)
        claim = await station.pool.claim(spec)
        assert claim.live is ready
        await station.delete_all()
