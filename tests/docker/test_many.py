"""Many boxes at once, and what fails many times: the engine is not overrun, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from station.backends.docker import engine as engines
from station.core.errors import StationError
from station.core.spec import Spec
from tests.engine import Engine
from tests.observer import command_line, descendants, pids

from .conftest import Bed, run, session_of
from .proxy import FaultProxy
from .stationed import IMAGE, execute, opened, start, station_on, until, until_saved

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]
FULL = bool(os.environ.get("STN_TEST_FULL"))
CREATES = 100
FAILURES = 100 if FULL else 24


async def make_all(proxy: FaultProxy, home: Path, count: int) -> None:
    """So many sandboxes at once, each of which runs a command; gone again afterwards."""
    async with station_on(proxy.url, home) as station:
        await station.boxes.capabilities("docker")

        async def one(number: int) -> int | None:
            uid = await opened(station, f"n{number}")
            return (await execute(station, uid, f"exit {number}")).exit_code

        async with asyncio.timeout(120):
            assert await asyncio.gather(*(one(number) for number in range(count))) == list(range(count))
        assert len(station.boxes) == count
        await asyncio.gather(*(station.sandboxes.delete(r.uid) for r in (await station.records())[0]))
        assert [item async for item in station.backends["docker"].boxes()] == []


async def test_hd_l_a_hundred_creates_at_once_are_all_ready_and_the_engine_is_not_overrun(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    await make_all(proxy, tmp_path, CREATES)
    assert 1 < proxy.most_under_way <= engines.AT_ONCE


async def test_hd_l_control_without_the_bound_the_engine_gets_them_all(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engines.Engine.__init__.__kwdefaults__ or {}, "at_once", 1000)
    await make_all(proxy, tmp_path, 3 * engines.AT_ONCE)
    assert proxy.most_under_way > engines.AT_ONCE


async def test_hd_l_a_slow_create_holds_up_no_other(proxy: FaultProxy, tmp_path: Path) -> None:
    async with station_on(proxy.url, tmp_path, call_seconds=30.0) as station:
        await opened(station, "first")
        proxy.delays[r"POST \S+containers/create"] = 12.0
        slow = asyncio.create_task(opened(station, "slow"))
        await until(lambda: proxy.under_way > 0)
        proxy.delays.clear()
        for number in range(2):
            await opened(station, f"quick{number}")
        assert not slow.done(), "the others waited for it"
        await slow
        await station.delete_all()


async def test_hd_5_creates_that_fail_leave_no_process(bed: Bed, proxy: FaultProxy, engine: Engine) -> None:
    backend = bed.backend(url=proxy.url, image=IMAGE, call_seconds=5.0)
    await backend.probe()
    assert _guests(bed.station) == set()

    async def fails(number: int) -> None:
        with pytest.raises(StationError):
            await backend.create(Spec("docker"), bed.labels(f"u{number}"))

    faults = ("lost create", "lost start", "no attach", "no start")
    for number in range(FAILURES):
        match faults[number % len(faults)]:
            case "lost create":
                proxy.lost.append(r"POST \S+containers/create")
            case "lost start":
                proxy.lost.append(r"POST \S+/start")
            case "no attach":
                proxy.answer(r"POST \S+/attach", "500 Oops", b'{"message": "no"}')
            case "no start":
                proxy.answer(r"POST \S+/start", "500 Oops", b'{"message": "no"}')
        await fails(number)
        proxy.lies.clear()
    assert engine.docker("ps", "-aq", "--filter", f"label=station.station={bed.station}") == ""
    await until(lambda: not _guests(bed.station))
    box = await backend.create(Spec("docker"), bed.labels("control"))
    await until(lambda: len(_guests(bed.station)) == 1)  # the control: a box has a process that is seen
    await box.destroy()


def _guests(station: str) -> set[int]:
    """Of that station's containers: their command line names it."""
    return {pid for pid in pids() if f"--box {station}:" in command_line(pid)}


async def test_hd_5_a_box_removed_behind_our_back_changes_state_soon(engine: Engine, tmp_path: Path) -> None:
    async with station_on(engine.url, tmp_path) as station:
        uid = await opened(station)
        process = await start(station, uid, "exec sleep 1000")
        record = await station.sandboxes.get(uid)
        assert record.box is not None
        engine.docker("rm", "-f", str(record.box.data["container"]))
        await until_saved(station, uid)
        ended = await station.processes.get(uid, process.id)
        assert ended.ending is not None
        assert ended.ending.reason
        await station.delete_all()


async def test_hd_5_a_gvisor_box_whose_stub_was_killed_is_deleted_soon(bed: Bed, engine: Engine) -> None:
    if not engine.works("runsc"):
        pytest.skip(f"the engine cannot run runsc: {engine.runtimes.get('runsc')}")
    backend = bed.backend(image=IMAGE, runtime="runsc")
    await backend.probe()
    box = await backend.create(Spec("docker"), bed.labels())
    async with session_of(box) as session:
        assert (await run(session, box, "echo", "well")) == (0, "well\n")
        sandbox = int(engine.docker("inspect", "-f", "{{.State.Pid}}", box.container))
        stubs = descendants({sandbox}) - {sandbox}
        assert stubs, "the control: gVisor runs code in processes of its own"
        for pid in stubs:
            _kill(pid)
    await box.destroy()  # which fails if it is not gone in time
    assert [item async for item in backend.boxes()] == []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it went with another one
