"""What is cancelled before it began, and what ends because nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from station.core.endings import Ending, EndingKind
from station.core.errors import BoxLost, Conflict, InvalidInput, ProcessNotFound
from station.core.records import ProcessState
from station.core.wire import RunRequest, SignalRequest
from station.worker import callers as module
from station.worker.callers import CANCELLED_SECONDS, LEFT_SECONDS, Callers, CancelledAhead
from station.worker.pool import Pool
from station.worker.runs import Runs

from .box import UID, RealBackend, RealBox, Station, eventually, station
from .test_processes import sh, until
from .test_runs import backend, spec_of

__all__ = ["backend"]

CANCEL = SignalRequest(cancel=True)
BEFORE = Ending(EndingKind.CANCELLED, reason="it was cancelled before it began")
LEFT = Ending(EndingKind.CANCELLED, reason="nobody had waited for it for 10 s, and it was to end then")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.001)
    return Clock()


@pytest.fixture
async def timed(home: Path, box: RealBox, clock: Clock) -> AsyncIterator[Station]:
    async with station(home, box, clock=clock) as started:
        yield started


@pytest.fixture
async def runs(backend: RealBackend, clock: Clock) -> AsyncIterator[Runs]:
    pool = Pool({"test": backend}, station="me", size=0)
    made = Runs(pool, spec_of, clock=clock)
    yield made
    await made.aclose()
    await pool.aclose()


async def looks(clock: Clock, seconds: float) -> None:
    """Time passes, and whoever looks at the clock has seen it."""
    clock.now += seconds
    await asyncio.sleep(0.02)


async def given_up(waiting: asyncio.Task[object]) -> None:
    waiting.cancel()
    await asyncio.wait([waiting])


# ── cancelled before it began ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_cancel_that_overtakes_its_command_keeps_it_from_starting(
    timed: Station, box: RealBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, go = asyncio.Event(), asyncio.Event()
    prepare = timed.processes._supervisor.prepare

    async def slowly(live: object) -> None:
        held.set()
        await go.wait()
        await prepare(live)  # type: ignore[arg-type]

    monkeypatch.setattr(timed.processes._supervisor, "prepare", slowly)
    executing = asyncio.ensure_future(timed.processes.exec(timed.live, sh("touch ran; sleep 600", id="prc_1")))
    await held.wait()
    await timed.processes.signal(UID, "prc_1", CANCEL)
    go.set()
    view = await executing
    assert (view.ending, view.status, view.exit_code, view.pid) == (BEFORE, "cancelled", 130, None)
    assert view.stdout is not None
    assert view.stdout.total_bytes == 0
    assert timed.processes.running() == []
    assert [(one.id, one.ending) for one in timed.processes.list(UID)] == [("prc_1", BEFORE)]
    # The id is used up, also when the cancellation itself is no longer remembered.
    clock = timed.processes._cancelled._clock
    assert isinstance(clock, Clock)
    clock.now += 2 * CANCELLED_SECONDS
    assert (await timed.processes.start(timed.live, sh("touch ran; sleep 600", id="prc_1"))).ending == BEFORE
    assert (await timed.processes.exec(timed.live, sh("true", id="prc_2"))).exit_code == 0
    assert not (box.directory / "workspace" / "ran").exists()


async def test_it_ends_cancelled_also_where_the_sandbox_has_no_room_for_it(home: Path, box: RealBox) -> None:
    async with station(home, box, max_running=0) as one:
        await one.processes.signal(UID, "prc_1", CANCEL)
        assert (await one.processes.start(one.live, sh("true", id="prc_1"))).ending == BEFORE
    async with station(home, box) as two:
        assert (await two.processes.get(UID, "prc_1")).ending == BEFORE


async def test_a_cancel_is_remembered_for_a_minute_and_for_its_sandbox(timed: Station, clock: Clock) -> None:
    await timed.processes.signal("another", "prc_1", CANCEL)
    await timed.processes.signal(UID, "prc_2", CANCEL)
    clock.now += CANCELLED_SECONDS + 1
    for name in ("prc_1", "prc_2"):
        assert (await timed.processes.exec(timed.live, sh("true", id=name))).exit_code == 0
    await timed.processes.signal(UID, "prc_1", CANCEL)  # has ended: nothing to remember
    assert len(timed.processes._cancelled) == 0
    with pytest.raises(InvalidInput):
        await timed.processes.signal(UID, "no id", CANCEL)


async def test_no_other_signal_is_remembered(timed: Station) -> None:
    for name in ("TERM", "KILL"):
        with pytest.raises(ProcessNotFound):
            await timed.processes.signal(UID, "prc_1", SignalRequest(name))
    assert (await timed.processes.exec(timed.live, sh("true", id="prc_1"))).exit_code == 0


async def test_a_run_that_was_cancelled_before_it_came_is_refused(
    runs: Runs, backend: RealBackend, clock: Clock
) -> None:
    runs.cancel("prc_1")
    with pytest.raises(Conflict, match="prc_1 was cancelled before it began") as caught:
        await runs.run(RunRequest("1", id="prc_1"))
    assert not caught.value.retryable
    assert (backend.boxes_made, runs.running()) == ([], [])
    assert (await runs.run(RunRequest("1", id="prc_2"))).ok
    clock.now += CANCELLED_SECONDS + 1
    assert (await runs.run(RunRequest("1", id="prc_1"))).ok


async def test_a_run_that_was_cancelled_before_it_had_a_box_does_not_begin_when_it_is_sent_again(
    runs: Runs, backend: RealBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, asked = RunRequest("1", id="prc_1"), asyncio.Event()

    async def never(_spec: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(runs._pool, "claim", never)
    running = asyncio.ensure_future(runs.run(request))
    await asked.wait()
    runs.cancel("prc_1")
    with pytest.raises(BoxLost):
        await running
    with pytest.raises(Conflict):
        await runs.run(request)
    assert backend.boxes_made == []


async def test_a_run_that_is_cancelled_in_the_moment_it_comes_tells_who_waits(runs: Runs) -> None:
    waiting = asyncio.ensure_future(runs.run(RunRequest("1", id="prc_1")))
    await asyncio.sleep(0)  # it is known, and nothing of it has been done
    assert list(runs._by_id) == [("local", "prc_1")]
    runs.cancel("prc_1")
    async with asyncio.timeout(30):
        with pytest.raises(BoxLost):
            await waiting
    assert runs._by_id == {}


def test_the_newest_of_each_are_remembered_and_no_more_than_the_bound() -> None:
    clock = Clock()
    noted = CancelledAhead(clock, seconds=60, most=3)
    noted.note(("other", "0"))
    for number in range(5):
        noted.note(("one", f"{number}"))
        clock.now += 1
    assert [("one", f"{number}") in noted for number in range(5)] == [False, False, True, True, True]
    noted.note(("one", "2"))  # again: it is the newest now
    noted.note(("one", "5"))
    assert [("one", f"{number}") in noted for number in range(6)] == [False, False, True, False, True, True]
    assert ("other", "0") in noted, "another's do not take its place"
    clock.now += 60
    assert ("one", "5") not in noted
    assert (len(noted), noted._noted) == (0, {}), "nothing is kept of who has none"


# ── left by all ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_who_is_left_alone_for_the_whole_time_is_told_once(clock: Clock) -> None:
    told: list[float] = []
    watched = Callers(lambda: told.append(clock.now), seconds=10, clock=clock)
    with watched.one():
        await looks(clock, 100)
    await looks(clock, 100)
    assert told == []  # nobody had asked to be told
    with watched.one(), watched.one():
        watched.watch()
        await looks(clock, 100)
    await looks(clock, 9)
    with watched.one():
        await looks(clock, 100)
    await looks(clock, 9)
    assert told == []
    await looks(clock, 1)
    with watched.one():
        await looks(clock, 100)
    await looks(clock, 100)
    assert told == [1000 + 100 + 100 + 100 + 9 + 100 + 10]
    stopped = Callers(lambda: told.append(0), seconds=10, clock=clock)
    stopped.watch()
    stopped.stop()
    await looks(clock, 100)
    assert 0 not in told


async def test_a_command_that_was_left_ends_with_its_whole_tree(timed: Station, clock: Clock) -> None:
    line = "trap '' TERM; sleep 600 & echo begun; sleep 600; sleep 600"
    request = sh(line, id="prc_1", end_when_left=True)
    waiting = asyncio.ensure_future(timed.processes.exec(timed.live, request))
    await eventually(lambda: timed.processes.running(UID))
    await until(timed, "prc_1", b"begun")
    await looks(clock, 10 * LEFT_SECONDS)  # it has a caller
    await given_up(waiting)
    await looks(clock, LEFT_SECONDS - 1)
    (running,) = timed.processes.running(UID)
    assert not running.left
    await looks(clock, 1)
    await eventually(lambda: not timed.processes.running(UID))
    view = await timed.processes.get(UID, "prc_1", output=True)
    assert (view.ending, view.status) == (LEFT, "cancelled")
    assert view.stdout is not None
    assert view.stdout.to_bytes() == b"begun\n"
    assert timed.journal.get(UID, "prc_1").ending == LEFT  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["exec", "wait", "output"])
async def test_to_join_it_in_time_keeps_it(timed: Station, clock: Clock, how: str) -> None:
    request = sh("read line; echo $line", stdin_open=True, id="prc_1", end_when_left=True)
    waiting = asyncio.ensure_future(timed.processes.exec(timed.live, request))
    await eventually(lambda: timed.processes.running(UID))
    await given_up(waiting)
    await looks(clock, LEFT_SECONDS - 1)
    follow = {
        "exec": lambda: timed.processes.exec(timed.live, request),
        "wait": lambda: timed.processes.get(UID, "prc_1", wait_seconds=30, output=True),
        "output": lambda: until(timed, "prc_1", b"kept\n"),
    }[how]
    again = asyncio.ensure_future(follow())  # type: ignore[no-untyped-call]
    await looks(clock, 10 * LEFT_SECONDS)

    async def line() -> AsyncIterator[bytes]:
        yield b"kept\n"

    await timed.processes.write_stdin(UID, "prc_1", line())
    await again
    assert (await timed.processes.wait(UID, "prc_1", 10)).ending == Ending.exited(0)


async def test_one_of_two_callers_is_enough_and_without_the_flag_none_is_needed(timed: Station, clock: Clock) -> None:
    flagged, plain = sh("sleep 600", id="prc_1", end_when_left=True), sh("sleep 600", id="prc_2")
    two = [asyncio.ensure_future(timed.processes.exec(timed.live, flagged)) for _ in range(2)]
    free = asyncio.ensure_future(timed.processes.exec(timed.live, plain))
    await eventually(lambda: len(timed.processes.running(UID)) == 2)
    await given_up(free)
    await given_up(two[0])
    await looks(clock, 10 * LEFT_SECONDS)
    # Whoever joins with the flag does not make it the other's.
    joined = asyncio.ensure_future(timed.processes.exec(timed.live, sh("sleep 600", id="prc_2", end_when_left=True)))
    await asyncio.sleep(0)
    await given_up(joined)
    await looks(clock, 10 * LEFT_SECONDS)
    assert len(timed.processes.running(UID)) == 2
    await given_up(two[1])
    await looks(clock, LEFT_SECONDS)
    await eventually(lambda: [one.record.id for one in timed.processes.running(UID)] == ["prc_2"])


async def test_what_was_started_without_waiting_is_left_from_its_start(timed: Station, clock: Clock) -> None:
    record = await timed.processes.start(timed.live, sh("sleep 600", end_when_left=True))
    await looks(clock, LEFT_SECONDS - 1)
    assert (await timed.processes.get(UID, record.id)).state == "running"
    await looks(clock, 1)
    await eventually(lambda: not timed.processes.running(UID))
    assert (await timed.processes.get(UID, record.id)).ending == LEFT


async def test_a_station_that_takes_it_over_begins_the_time_anew(home: Path, box: RealBox, clock: Clock) -> None:
    async with station(home, box, clock=clock) as one:
        await one.processes.start(one.live, sh("sleep 600", id="prc_1", end_when_left=True))
        await one.processes.start(one.live, sh("sleep 600", id="prc_2", end_when_left=True))
        await one.processes.start(one.live, sh("sleep 600", id="prc_3"))
        await looks(clock, LEFT_SECONDS - 1)
    clock.now += 10 * LEFT_SECONDS
    async with station(home, box, clock=clock) as two:
        back = asyncio.ensure_future(two.processes.exec(two.live, sh("sleep 600", id="prc_2", end_when_left=True)))
        await looks(clock, LEFT_SECONDS - 1)
        assert len(two.processes.running(UID)) == 3
        await looks(clock, 1)
        await eventually(lambda: len(two.processes.running(UID)) == 2)
        assert (await two.processes.get(UID, "prc_1")).ending == LEFT
        await looks(clock, 10 * LEFT_SECONDS)
        assert {each.record.id for each in two.processes.running(UID)} == {"prc_2", "prc_3"}
        await given_up(back)


async def test_whoever_cancels_it_first_is_the_reason(timed: Station, clock: Clock) -> None:
    await timed.processes.start(timed.live, sh("sleep 600", id="prc_1", end_when_left=True))
    await timed.processes.signal(UID, "prc_1", CANCEL)
    record = await timed.processes.wait(UID, "prc_1", 10)
    assert (record.state, record.ending) == (ProcessState.ENDED, Ending(EndingKind.CANCELLED))
    await looks(clock, 10 * LEFT_SECONDS)


async def test_a_run_that_was_left_ends_and_one_that_was_joined_does_not(runs: Runs, clock: Clock) -> None:
    code = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    request = RunRequest(code, id="prc_1", end_when_left=True)
    waiting = asyncio.ensure_future(runs.run(request))
    await eventually(lambda: any(one.output.streams[1].total for one in runs.running()))
    await given_up(waiting)
    await looks(clock, LEFT_SECONDS - 1)
    again = asyncio.ensure_future(runs.run(request))
    await looks(clock, 10 * LEFT_SECONDS)
    assert len(runs.running()) == 1
    await given_up(again)
    await looks(clock, LEFT_SECONDS)
    await eventually(lambda: not runs.running())
    result = await runs.run(request)
    assert (result.ending, result.stdout.to_bytes()) == (LEFT, b"begun\n")


async def test_a_run_that_was_left_before_it_had_a_box_never_begins(
    runs: Runs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, given_back = asyncio.Event(), asyncio.Event()

    async def never(_spec: object) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_back.set()

    monkeypatch.setattr(runs._pool, "claim", never)
    waiting = asyncio.ensure_future(runs.run(RunRequest("1", id="prc_1", end_when_left=True)))
    await asked.wait()
    await given_up(waiting)
    await looks(clock, LEFT_SECONDS)
    await given_back.wait()
    assert runs._by_id == {}
