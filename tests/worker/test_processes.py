from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from station.core.endings import Ending, EndingKind
from station.core.errors import Conflict, InvalidInput, LimitReached, ProcessNotFound
from station.core.wire import DEFAULT_KEPT_BYTES, Content, ExecRequest, OutputEvent, SignalRequest
from station.worker.processes import Processes

from .box import UID, RealBox, Station, eventually, station

HALF = DEFAULT_KEPT_BYTES // 2


def sh(command: str, **fields: object) -> ExecRequest:
    return ExecRequest(command=command, **fields)  # type: ignore[arg-type]


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def collected(events: AsyncIterator[OutputEvent]) -> tuple[bytes, bytes, list[OutputEvent]]:
    data = {"stdout": b"", "stderr": b""}
    rest = []
    async for event in events:
        if event.event == "data":
            assert event.stream is not None
            assert event.content is not None
            data[event.stream] += event.content.to_bytes()
        else:
            rest.append(event)
    return data["stdout"], data["stderr"], rest


async def until(one: Station, process_id: str, expected: bytes) -> None:
    """Returns when the process has printed so much."""
    seen = b""
    async for event in one.processes.output(UID, process_id):
        if event.stream == "stdout" and event.content is not None:
            seen = seen[-len(expected) :] + event.content.to_bytes()
            if expected in seen:
                return
    raise AssertionError(f"{process_id} ended without {expected!r}")


async def test_a_command_gives_its_output_and_true_ending(one: Station) -> None:
    view = await one.processes.exec(one.live, sh("echo out; echo err >&2; exit 42"))
    assert (view.stdout, view.stderr) != (None, None)
    assert view.stdout is not None
    assert view.stderr is not None
    assert (view.stdout.to_bytes(), view.stderr.to_bytes()) == (b"out\n", b"err\n")
    assert (view.ending, view.exit_code, view.status, view.state) == (Ending.exited(42), 42, "failed", "ended")
    assert view.usage is not None
    assert view.usage.wall_seconds > 0


async def test_argv_is_taken_as_it_is_and_the_environment_is_the_layouts_and_the_requests(one: Station) -> None:
    request = ExecRequest(argv=["printf", "%s|", "a b", "$HOME", "", "é\n"])
    view = await one.processes.exec(one.live, request)
    assert view.stdout is not None
    assert view.stdout.to_bytes() == "a b|$HOME||é\n|".encode()
    view = await one.processes.exec(one.live, ExecRequest(argv=["env", "-0"], env={"LANG": "X", "MULTI": "a\nb"}))
    assert view.stdout is not None
    variables = set(view.stdout.to_bytes().split(b"\0"))
    assert variables >= {b"LANG=X", b"MULTI=a\nb", f"HOME={one.live.layout.home}".encode()}


async def test_the_shell_reads_no_start_up_file_and_stdin_is_empty(one: Station, box: RealBox) -> None:
    (box.directory / "home" / ".bashrc").write_text("echo rc")
    view = await one.processes.exec(one.live, sh("cat; echo $0 $-", env={"BASH_ENV": ""}))
    assert view.stdout is not None
    assert b"rc" not in view.stdout.to_bytes()
    assert view.exit_code == 0


async def test_a_relative_working_directory_is_below_the_workspace(one: Station, box: RealBox) -> None:
    (box.directory / "workspace" / "sub").mkdir()
    for cwd, expected in (("sub", "workspace/sub"), ("/workspace/sub/..", "workspace"), ("/home/node", "home")):
        view = await one.processes.exec(one.live, ExecRequest(argv=["pwd"], cwd=cwd))
        assert view.stdout is not None
        assert view.stdout.to_bytes().decode().strip() == str(box.directory / expected)
    view = await one.processes.exec(one.live, ExecRequest(argv=["pwd"], cwd="/usr"))
    assert view.stdout is not None
    assert view.stdout.to_bytes() == b"/usr\n"
    with pytest.raises(InvalidInput):
        await one.processes.exec(one.live, ExecRequest(argv=["pwd"], cwd="../.."))


async def test_a_missing_working_directory_is_named_and_leaves_no_record(one: Station) -> None:
    with pytest.raises(InvalidInput, match="/workspace/missing"):
        await one.processes.exec(one.live, sh("true", cwd="/workspace/missing", id="prc_1"))
    assert one.processes.list(UID) == []
    view = await one.processes.exec(one.live, sh("true", id="prc_1"))
    assert view.exit_code == 0


async def test_a_missing_program_is_127_at_once_with_a_reason(one: Station) -> None:
    view = await one.processes.exec(one.live, ExecRequest(argv=["no-such-program"]))
    assert view.exit_code == 127
    assert view.ending is not None
    assert view.ending.reason is not None
    assert "no-such-program" in view.ending.reason


async def test_a_time_out_keeps_the_partial_output(one: Station) -> None:
    view = await one.processes.exec(one.live, sh("echo before; sleep 60", timeout_seconds=1))
    assert (view.timed_out, view.exit_code, view.status) == (True, 124, "timed_out")
    assert view.stdout is not None
    assert view.stdout.to_bytes() == b"before\n"


async def test_children_left_running_are_ended_and_counted(one: Station) -> None:
    view = await one.processes.exec(one.live, sh("sleep 60 & sleep 60 & true"))
    assert (view.exit_code, view.ended_children) == (0, 2)


async def test_an_output_limit_ends_it_as_such(one: Station) -> None:
    view = await one.processes.exec(one.live, sh("yes", output_limit_bytes=100_000))
    assert view.ending == Ending(EndingKind.OUTPUT_LIMIT)


async def test_given_input_is_fed_whole_whatever_its_size(one: Station) -> None:
    data = bytes(range(256)) * 8192
    view = await one.processes.exec(one.live, sh("sha256sum; echo done", stdin=Content.of(data)))
    import hashlib

    assert view.stdout is not None
    assert view.stdout.to_bytes() == f"{hashlib.sha256(data).hexdigest()}  -\ndone\n".encode()
    assert not list((one.home / "spool" / UID).glob("*.in"))


async def test_input_that_nobody_reads_harms_nothing(one: Station) -> None:
    view = await one.processes.exec(one.live, sh("true", stdin=Content.of(bytes(2_000_000))))
    assert view.exit_code == 0


async def test_an_open_stdin_is_written_in_pieces_and_closed(one: Station) -> None:
    record = await one.processes.start(one.live, sh("cat", stdin_open=True))
    assert await one.processes.write_stdin(UID, record.id, pieces(b"one ", b"two ")) == 8
    assert await one.processes.write_stdin(UID, record.id, pieces(b"three"), eof=True) == 5
    view = await one.processes.get(UID, record.id, wait_seconds=30, output=True)
    assert view.stdout is not None
    assert (view.exit_code, view.stdout.to_bytes()) == (0, b"one two three")


async def test_writing_to_what_does_not_read_is_typed(one: Station) -> None:
    record = await one.processes.start(one.live, sh("exec <&-; echo closed; sleep 60", stdin_open=True))
    await until(one, record.id, b"closed")
    with pytest.raises(Conflict) as caught:
        await one.processes.write_stdin(UID, record.id, pieces(*[bytes(65536)] * 64))
    assert caught.value.detail["broken_pipe"] is True
    other = await one.processes.start(one.live, sh("sleep 60"))
    with pytest.raises(Conflict, match="not open"):
        await one.processes.write_stdin(UID, other.id, pieces(b"x"))


async def test_an_id_sent_again_joins_and_starts_nothing(one: Station, box: RealBox) -> None:
    request = sh("echo x >> log; cat log", id="prc_same")
    first, second = await asyncio.gather(one.processes.exec(one.live, request), one.processes.exec(one.live, request))
    third = await one.processes.exec(one.live, request)
    assert first == second == third
    assert (box.directory / "workspace" / "log").read_text() == "x\n"
    with pytest.raises(Conflict, match="another command"):
        await one.processes.exec(one.live, sh("other", id="prc_same"))


@pytest.mark.parametrize("bad", ["", "prc_", "prc_../x", "prc_a b", "abc", "prc_" + "a" * 65])
async def test_an_id_that_could_be_none_is_refused(one: Station, bad: str) -> None:
    if bad:
        with pytest.raises(InvalidInput):
            await one.processes.exec(one.live, sh("true", id=bad))


async def test_a_seventeenth_at_once_is_refused_and_room_comes_back(one: Station) -> None:
    records = [await one.processes.start(one.live, sh("sleep 60")) for _ in range(16)]
    with pytest.raises(LimitReached):
        await one.processes.start(one.live, sh("true"))
    await one.processes.signal(UID, records[0].id, SignalRequest("KILL"))
    await one.processes.wait(UID, records[0].id)
    assert (await one.processes.exec(one.live, sh("true"))).exit_code == 0


async def test_signals_go_by_name_or_number_and_reach_the_tree(one: Station) -> None:
    for asked, number in (("TERM", 15), ("sigint", 2), (9, 9), ("10", 10)):
        record = await one.processes.start(one.live, ExecRequest(argv=["sleep", "60"]))
        await one.processes.signal(UID, record.id, SignalRequest(asked))
        ended = await one.processes.wait(UID, record.id)
        assert ended.ending == Ending.signalled(number)
    last = one.processes.list(UID)[-1].id
    for bad in ("NOPE", 0, 65, -1):
        with pytest.raises(InvalidInput):
            await one.processes.signal(UID, last, SignalRequest(bad))
    with pytest.raises(Conflict, match="has ended"):
        await one.processes.signal(UID, last, SignalRequest("TERM"))
    with pytest.raises(ProcessNotFound):
        await one.processes.signal(UID, "prc_none", SignalRequest("TERM"))


async def test_cancelling_ends_even_what_ignores_it_and_repeating_is_no_error(one: Station) -> None:
    record = await one.processes.start(one.live, sh("trap '' TERM; echo ready; sleep 60; sleep 60"))
    await until(one, record.id, b"ready")
    await one.processes.signal(UID, record.id, SignalRequest(cancel=True))
    ended = await one.processes.wait(UID, record.id)
    assert ended.ending == Ending(EndingKind.CANCELLED)
    await one.processes.signal(UID, record.id, SignalRequest(cancel=True))


async def test_who_stops_waiting_does_not_end_the_command(one: Station) -> None:
    request = sh("read line; echo $line", stdin_open=True, id="prc_1")
    waiting = asyncio.ensure_future(one.processes.exec(one.live, request))
    await eventually(lambda: [each for each in one.processes.running(UID) if each.record.pid])
    waiting.cancel()
    await asyncio.wait([waiting])
    await one.processes.write_stdin(UID, "prc_1", pieces(b"still here\n"))
    view = await one.processes.get(UID, "prc_1", wait_seconds=30, output=True)
    assert view.stdout is not None
    assert view.stdout.to_bytes() == b"still here\n"


async def test_many_readers_each_get_every_byte_from_their_offset(one: Station) -> None:
    record = await one.processes.start(one.live, sh("read go; seq 1 50000; seq 5 >&2; read end", stdin_open=True))
    expected = b"".join(b"%d\n" % number for number in range(1, 50001))
    readers = [
        asyncio.ensure_future(collected(one.processes.output(UID, record.id, after_stdout=after)))
        for after in (0, 1, 65536, 100_001, len(expected))
    ]
    await one.processes.write_stdin(UID, record.id, pieces(b"go\n"))
    await until(one, record.id, b"50000\n")
    late = asyncio.ensure_future(collected(one.processes.output(UID, record.id)))
    await one.processes.write_stdin(UID, record.id, pieces(b"end\n"))
    for reader, after in zip(readers, (0, 1, 65536, 100_001, len(expected)), strict=True):
        stdout, stderr, rest = await reader
        assert stdout == expected[after:]
        assert stderr == b"1\n2\n3\n4\n5\n"
        assert [event.event for event in rest] == ["end"]
    assert (await late)[0] == expected
    stdout, _, rest = await collected(one.processes.output(UID, record.id, after_stdout=7))
    assert (stdout, rest[-1].event) == (expected[7:], "end")


async def test_without_following_a_reader_gets_what_is_there(one: Station) -> None:
    record = await one.processes.start(one.live, sh("echo there; sleep 60"))
    await until(one, record.id, b"there")
    stdout, _, rest = await collected(one.processes.output(UID, record.id, follow_on=False))
    assert (stdout, rest) == (b"there\n", [])


async def test_fb_b29_a_silent_process_keeps_its_readers_with_signs_of_life(home: Path, box: RealBox) -> None:
    async with station(home, box, keepalive_seconds=0.01) as one:
        record = await one.processes.start(one.live, sh("sleep 60"))
        events = one.processes.output(UID, record.id)
        assert [(await anext(events)).event for _ in range(3)] == ["keepalive"] * 3


async def test_large_output_is_kept_as_head_and_tail_with_exact_offsets(one: Station) -> None:
    view = await one.processes.exec(one.live, sh("seq 1 1000000"))
    expected = b"".join(b"%d\n" % number for number in range(1, 1_000_001))
    assert view.stdout is not None
    assert view.stdout.tail is not None
    assert view.stdout.head.to_bytes() == expected[:HALF]
    assert view.stdout.tail.to_bytes() == expected[-HALF:]
    assert view.stdout.omitted_bytes == len(expected) - DEFAULT_KEPT_BYTES
    assert view.stdout.total_bytes == len(expected)


async def test_the_history_keeps_a_hundred_and_their_output_alone(one: Station) -> None:
    for number in range(130):
        await one.processes.exec(one.live, ExecRequest(argv=["echo", str(number)], id=f"prc_{number}"))
    one.processes.sweep()
    views = one.processes.list(UID)
    assert [view.command[1] for view in views] == [str(number) for number in range(30, 130)]
    assert len(list((one.home / "spool" / UID).iterdir())) == 100
    with pytest.raises(Conflict, match="ran before"):
        await one.processes.exec(one.live, ExecRequest(argv=["echo", "1"], id="prc_1"))
    with pytest.raises(ProcessNotFound):
        await one.processes.get(UID, "prc_1")


async def test_a_deleted_sandbox_leaves_nothing(one: Station) -> None:
    await one.processes.exec(one.live, sh("echo x"))
    await one.processes.start(one.live, sh("sleep 60"))
    one.processes.forget_sandbox(UID)
    assert one.processes.list(UID) == []
    await eventually(lambda: list((one.home / "spool").iterdir()) == [])
    one.processes.forget_sandbox(UID)


async def test_a_box_that_dies_ends_its_commands_as_lost(one: Station, box: RealBox) -> None:
    record = await one.processes.start(one.live, sh("sleep 60"))
    await one.processes.box_lost(UID, 1, "the kernel ended it")
    ended = await one.processes.wait(UID, record.id)
    assert ended.ending == Ending.lost("the kernel ended it")
    assert ended.ending.exit_code is None
    assert one.processes.running() == []


async def test_an_end_that_cannot_be_written_down_is_told_all_the_same(
    one: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    from station.core.errors import StorageFull

    def full(*_: object) -> None:
        raise StorageFull("full")

    record = await one.processes.start(one.live, sh("read line; echo $line", stdin_open=True))
    monkeypatch.setattr(one.journal, "update", full)
    await one.processes.write_stdin(UID, record.id, pieces(b"hello\n"))
    view = await one.processes.get(UID, record.id, wait_seconds=30, output=True)
    assert view.exit_code == 0
    assert (await one.processes.get(UID, record.id)).exit_code == 0
    assert one.processes.list(UID)[0].exit_code == 0


async def test_a_mark_that_could_not_be_written_is_no_news_once_the_end_is(
    one: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full for a moment while it starts, and has room again before it ends."""
    from station.core.errors import StorageFull

    refused = asyncio.Event()

    def full(*_: object) -> None:
        refused.set()
        raise StorageFull("full")

    monkeypatch.setattr(one.journal, "update", full)
    record = await one.processes.start(one.live, sh("read line; exit 3", stdin_open=True))
    await refused.wait()
    monkeypatch.undo()
    await one.processes.write_stdin(UID, record.id, pieces(b"go\n"))
    for _ in range(2):
        assert (await one.processes.get(UID, record.id, wait_seconds=30)).exit_code == 3
        one.processes.sweep()


async def test_the_kernels_word_makes_a_kill_an_oom(home: Path) -> None:
    import tempfile

    from station.core.capabilities import Level

    with tempfile.TemporaryDirectory(prefix="stn-") as directory:
        box = RealBox(Path(directory), memory=Level.ENFORCED)
        try:
            async with station(home, box) as one:
                plain = await one.processes.exec(one.live, sh("kill -9 $$"))
                assert plain.ending == Ending.signalled(signal.SIGKILL)
                record = await one.processes.start(one.live, sh("read x; kill -9 $$", stdin_open=True))
                box.kills = 1
                await one.processes.write_stdin(UID, record.id, pieces(b"\n"))
                assert (await one.processes.wait(UID, record.id)).ending == Ending(EndingKind.OOM)
                later = await one.processes.exec(one.live, sh("kill -9 $$"))
                assert later.ending == Ending.signalled(signal.SIGKILL)
        finally:
            box.kill()


async def test_a_hundred_megabytes_pass_in_bounded_memory(one: Station) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    view = await one.processes.exec(one.live, sh("head -c 100000000 /dev/zero"))
    assert view.stdout is not None
    assert view.stdout.total_bytes == 100_000_000
    kept = sum(path.stat().st_size for path in (one.home / "spool" / UID).iterdir())
    assert kept <= 64 * 1024 * 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_processes_need_no_loop_to_be_made(tmp_path: Path) -> None:
    from station.worker.journal import Journal

    journal = Journal(tmp_path / "worker.sqlite")
    assert Processes(journal, tmp_path / "spool").list("uid-without-any") == []
    journal.close()
