"""A station dies at every step and the next one takes over: nothing lost, nothing twice, nothing "running" for ever."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from station.core.endings import Ending, EndingKind
from station.core.errors import InternalError
from station.core.paths import SandboxPath
from station.core.records import ProcessRecord, ProcessState
from station.core.wire import Content, ExecRequest
from station.guest.packs import Entry
from station.worker import failpoints
from station.worker.journal import Journal

from .box import UID, RealBox, Station, eventually, station
from .test_processes import collected, pieces, sh, until

SEQUENCE = b"".join(b"%d\n" % number for number in range(1, 200_001))


def record_of(guest_id: int, name: str = "prc_old", **changes: object) -> ProcessRecord:
    made = ProcessRecord(name, UID, 1, guest_id, ("true",), True, "/workspace", ProcessState.ACCEPTED, 1.0)
    return replace(made, **changes)  # type: ignore[arg-type]


async def ended(one: Station, name: str) -> ProcessRecord:
    async with asyncio.timeout(30):
        return await one.processes.wait(UID, name)


async def test_a_command_and_its_output_go_on_over_three_deaths_of_the_station(home: Path, box: RealBox) -> None:
    line = "for step in 1 2 3; do read go; seq 1 200000; done; exit 7"
    async with station(home, box) as one:
        await one.processes.start(one.live, sh(line, stdin_open=True, id="prc_long"))
        await one.processes.write_stdin(UID, "prc_long", pieces(b"go\n"))
        await until(one, "prc_long", b"1\n2\n")  # in the middle of it
    async with station(home, box) as two:
        await two.processes.write_stdin(UID, "prc_long", pieces(b"go\n"))
        await until(two, "prc_long", b"200000\n")
    async with station(home, box) as three:
        view = await three.processes.get(UID, "prc_long")
        assert (view.state, view.pid is not None) == ("running", True)
        await three.processes.write_stdin(UID, "prc_long", pieces(b"go\n"))
        await three.die()
    async with station(home, box) as four:
        assert (await ended(four, "prc_long")).ending == Ending.exited(7)
        stdout, stderr, rest = await collected(four.processes.output(UID, "prc_long"))
        assert stdout == SEQUENCE * 3
        assert (stderr, rest[-1].event) == (b"", "end")


async def test_a_command_that_ended_while_no_station_was_there_has_its_ending_and_output(
    home: Path, box: RealBox
) -> None:
    done = box.directory / "workspace" / "done"
    async with station(home, box) as one:
        await one.processes.start(one.live, sh("read x; seq 1 50000; exit 3", stdin_open=True, id="prc_1"))
        await one.processes.write_stdin(UID, "prc_1", pieces(b"go\n"))
        await one.processes.start(one.live, sh("seq 1 1000; touch done; exit 4", id="prc_2"))
    await eventually(done.exists)
    async with station(home, box) as two:
        assert (await ended(two, "prc_1")).ending == Ending.exited(3)
        assert (await ended(two, "prc_2")).ending == Ending.exited(4)
        stdout, _, _ = await collected(two.processes.output(UID, "prc_1"))
        assert stdout == b"".join(b"%d\n" % number for number in range(1, 50_001))


async def test_given_input_goes_on_where_the_process_had_got_to(home: Path, box: RealBox) -> None:
    data = os.urandom(3_000_000)
    request = ExecRequest(command="head -c 10; read -n 1 pause < pipe; cat", stdin=Content.of(data), id="prc_1")
    os.mkfifo(box.directory / "workspace" / "pipe")
    async with station(home, box) as one:
        await one.processes.start(one.live, request)
        await until(one, "prc_1", data[:10])
    writer = os.open(box.directory / "workspace" / "pipe", os.O_RDWR)
    try:
        async with station(home, box) as two:
            os.write(writer, b"x")
            assert (await ended(two, "prc_1")).ending == Ending.exited(0)
            stdout, _, _ = await collected(two.processes.output(UID, "prc_1"))
            assert stdout == data
    finally:
        os.close(writer)


async def test_what_was_accepted_and_never_reached_the_guest_runs_once_on_a_retry(home: Path, box: RealBox) -> None:
    async with station(home, box) as one:
        await one.processes.exec(one.live, sh("true"))
        one.journal.accept(record_of(one.live.session.next_id(), "prc_retry"))
    async with station(home, box) as two:
        assert [view.id for view in two.processes.list(UID) if view.id == "prc_retry"] == []
        view = await two.processes.exec(two.live, sh("echo ran >> log", id="prc_retry"))
        assert view.exit_code == 0
    assert (box.directory / "workspace" / "log").read_text() == "ran\n"


@pytest.mark.parametrize("state", [ProcessState.ACCEPTED, ProcessState.RUNNING])
async def test_what_may_have_run_and_the_guest_does_not_know_is_lost_and_never_run_again(
    home: Path, box: RealBox, state: ProcessState
) -> None:
    async with station(home, box) as one:
        await one.processes.exec(one.live, sh("true"))
        one.journal.accept(record_of(1, "prc_gone", state=state))
    async with station(home, box) as two:
        view = await two.processes.exec(two.live, sh("true", id="prc_gone"))
        assert (view.status, view.exit_code) == ("interrupted", None)
        assert view.ending is not None
        assert view.ending.kind is EndingKind.LOST


async def test_what_ran_in_an_earlier_box_is_lost(home: Path, box: RealBox) -> None:
    journal = Journal(home / "worker.sqlite")
    journal.accept(record_of(5, "prc_old", generation=0, state=ProcessState.RUNNING))
    journal.close()
    async with station(home, box) as one:
        found = await one.processes.wait(UID, "prc_old")
        assert found.ending is not None
        assert found.ending.kind is EndingKind.LOST


async def test_what_the_journal_has_as_ended_is_forgotten_by_the_guest(home: Path, box: RealBox) -> None:
    """A death between the record and FORGET."""
    async with station(home, box) as one:
        await one.processes.start(one.live, sh("sleep 60", id="prc_1"))
        record = await one.processes.start(one.live, sh("read x", stdin_open=True, id="prc_2"))
        one.journal.update(replace(record, state=ProcessState.ENDED, ended_at=time.time(), ending=Ending.exited(0)))
    async with station(home, box) as two:
        assert {view.id: view.state for view in two.processes.list(UID)} == {"prc_1": "running", "prc_2": "ended"}
        await eventually(lambda: len(two.live.session._processes) == 1)
    async with station(home, box) as three:
        assert list(three.live.session.hello.processes) == [three.processes.running(UID)[0].record.guest_id]


@pytest.mark.parametrize("step", ["exec.after_accept", "exec.after_start", "exec.after_end"])
async def test_a_fault_at_any_step_leaves_a_typed_end_and_a_usable_sandbox(home: Path, box: RealBox, step: str) -> None:
    failpoints.arm(f"{step}:error")
    try:
        async with station(home, box) as one:
            try:
                view = await one.processes.exec(one.live, sh("true", id="prc_1"))
            except InternalError:
                assert step == "exec.after_accept"
            else:
                assert view.ending is not None
            failpoints.arm(None)
            assert (await one.processes.exec(one.live, sh("echo ok"))).exit_code == 0
            assert one.processes.running() == []
    finally:
        failpoints.arm(None)


async def test_a_lost_connection_is_not_seen(home: Path, box: RealBox) -> None:
    async with station(home, box) as one:
        await one.processes.start(one.live, sh("read x; seq 1 200000", stdin_open=True, id="prc_1"))
        stream = await box.connect()  # the newest hello wins: the guest closes the older connection
        await stream.send(b"")
        await stream.aclose()
        await one.processes.write_stdin(UID, "prc_1", pieces(b"go\n"))
        assert (await ended(one, "prc_1")).ending == Ending.exited(0)
        stdout, _, _ = await collected(one.processes.output(UID, "prc_1"))
        assert stdout == SEQUENCE


async def test_readers_of_a_dying_station_go_on_in_the_next_from_their_offset(home: Path, box: RealBox) -> None:
    received = b""

    async def read(one: Station, enough: int) -> AsyncIterator[bytes]:
        async for event in one.processes.output(UID, "prc_1", after_stdout=len(received)):
            if event.content is not None:
                yield event.content.to_bytes()
            if len(received) >= enough:
                return

    async with station(home, box) as one:
        await one.processes.start(one.live, sh("seq 1 200000", id="prc_1"))
        async for data in read(one, 1):
            received += data
    async with station(home, box) as two:
        async for data in read(two, len(SEQUENCE) + 1):
            received += data
    assert received == SEQUENCE


async def test_empty_given_input_is_still_ended_after_a_death(home: Path, box: RealBox) -> None:
    """The end of file was queued, and its station died before it went out."""
    async with station(home, box) as one:
        record = await one.processes.start(one.live, sh("cat; echo ended", stdin_open=True, id="prc_1"))
        one.processes.running(UID)[0].spool.keep_stdin(b"")
        assert record.state is ProcessState.RUNNING
    async with station(home, box) as two:
        assert (await ended(two, "prc_1")).ending == Ending.exited(0)


async def test_the_output_of_a_deleted_sandbox_that_a_crash_left_is_swept(home: Path, box: RealBox) -> None:
    left = home / "spool" / "other.gone-12345678"
    left.mkdir(parents=True)
    (left / "prc_1.out").write_text("old")
    async with station(home, box) as one:
        one.processes.sweep()
        await eventually(lambda: not left.exists())
    assert not left.exists()


async def test_an_upload_that_a_station_left_half_done_leaves_nothing(home: Path, box: RealBox) -> None:
    sent = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield Entry("f", 0o644, 1_000_000, 0, 1, "half").encode() + bytes(1000)
        sent.set()
        await asyncio.Event().wait()

    workspace = box.directory / "workspace"
    async with station(home, box) as one:
        uploading = asyncio.ensure_future(one.live.files.unpack(SandboxPath("/workspace", "."), stuck()))
        await sent.wait()
        await eventually(lambda: list(workspace.iterdir()))
        # A kill leaves no time to say anything: the connection is gone before the task ends.
        assert one.live.session._task is not None
        one.live.session._task.cancel()
        await asyncio.wait([one.live.session._task])
        uploading.cancel()
        await asyncio.wait([uploading])
    async with station(home, box):
        await eventually(lambda: list(workspace.iterdir()) == [])
