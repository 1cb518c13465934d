"""How a command starts and ends, on every backend."""

from __future__ import annotations

import asyncio
import errno
import signal

import pytest

from station.core.endings import Ending, EndingKind
from station.core.errors import InvalidInput
from station.core.paths import resolve
from station.guest.endings import ExitKind, Reason
from station.guest.frames import OnFull

from .conftest import BOUND_SECONDS, Collector, Place
from .words import pattern


async def test_the_guest_says_hello_and_answers_a_ping(place: Place) -> None:
    hello = place.session.hello
    assert (hello.version, hello.last_id, hello.processes) == (1, 0, {})
    assert hello.capabilities & {"pidns", "subreaper"}
    assert 0 <= await place.session.ping() < BOUND_SECONDS


async def test_exit_code_and_stderr_come_apart(place: Place) -> None:
    """TC-12.2"""
    ran = await place.run(place.shell("echo out; echo err >&2; exit 42"))
    assert ran.exit.to_ending() == Ending.exited(42)
    assert (ran.stdout, ran.stderr) == (b"out\n", b"err\n")
    assert (ran.exit.stdout_total, ran.exit.stderr_total) == (4, 4)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGPIPE])
async def test_death_by_a_signal_is_told_as_one(place: Place, number: signal.Signals) -> None:
    ran = await place.run(place.word("die", str(int(number))))
    assert ran.exit.to_ending() == Ending.signalled(number)


async def test_fb_b35_a_missing_program_is_127_at_once(place: Place) -> None:
    """TC-12.2 and FB-B35: with a sentence, an end, and no output."""
    ran = await place.run(("no-such-program", "x"))
    ending = ran.exit.to_ending(program="no-such-program")
    assert (ending.exit_code, ran.stdout, ran.stderr) == (127, b"", b"")
    assert "no-such-program" in (ending.reason or "")
    assert (await place.run(("/workspace/no/such",))).code == 127


async def test_a_file_that_may_not_run_is_126(place: Place) -> None:
    await place.write("plain", b"#!/bin/sh\nexit 0\n", mode=0o644)
    ran = await place.run(("./plain",))
    assert (ran.code, ran.exit.kind, ran.exit.value) == (126, ExitKind.NO_PROGRAM, errno.EACCES)
    assert (await place.run((place.box.layout.workspace,))).code == 126


async def test_fb_b52_a_missing_working_directory_is_named(place: Place) -> None:
    ran = await place.run(("true",), cwd=f"{place.box.layout.workspace}/nowhere")
    assert (ran.exit.kind, ran.exit.value) == (ExitKind.NO_DIRECTORY, errno.ENOENT)
    with pytest.raises(InvalidInput, match="/workspace/nowhere"):
        ran.exit.to_ending(cwd="/workspace/nowhere")


async def test_a_file_is_no_working_directory(place: Place) -> None:
    await place.write("file", b"")
    ran = await place.run(("true",), cwd=f"{place.box.layout.workspace}/file")
    assert (ran.exit.kind, ran.exit.value) == (ExitKind.NO_DIRECTORY, errno.ENOTDIR)


async def test_a_program_starts_in_its_working_directory_and_home_is_set(place: Place) -> None:
    await place.files.mkdir(resolve("a/b"), parents=True)
    ran = await place.run(place.shell('pwd; echo "$HOME"'), cwd=f"{place.box.layout.workspace}/a/b")
    assert ran.stdout.decode().split() == [f"{place.box.layout.workspace}/a/b", place.box.layout.home]


async def test_the_environment_is_the_records_and_nothing_else(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STN_TEST_LEAK", "1")
    ran = await place.run(("env", "-0"), env={"WORD": "a b"})
    names = {item.partition(b"=")[0].decode() for item in ran.stdout.split(b"\0") if item}
    assert names == {"WORD", *dict(place.box.layout.env)}


async def test_fb_b10_values_of_many_lines_and_odd_bytes_arrive_whole(place: Place) -> None:
    values = {"LINES": "one\ntwo\n\nthree=3\n", "ODD": "é\udcff 'quoted' \"$HOME\" \\n"}
    ran = await place.run(place.word("variables", *values), env=values)
    assert ran.stdout == "".join(f"{value}\0" for value in values.values()).encode("utf-8", "surrogateescape")


async def test_a_large_command_line_and_environment_arrive(place: Place) -> None:
    """Records of more than one frame."""
    words = tuple("w" * 1000 for _ in range(150))
    ran = await place.run(("echo", *words), env={f"V{number}": "v" * 1000 for number in range(50)})
    assert ran.stdout == " ".join(words).encode() + b"\n"


async def test_an_id_is_never_executed_twice(place: Place) -> None:
    first = place.start(place.shell("echo x >> count"))
    async with asyncio.timeout(BOUND_SECONDS):
        await first.exit()
        # A second start under the same id, as a lost answer would cause it; the host's own check is set aside.
        place.session._highest_id = first.guest_id - 1
        place.session.start(place.record(place.shell("echo x >> count")), guest_id=first.guest_id)
        await place.session.ping()
    assert await place.read("count") == b"x\n"


async def test_many_quick_commands_each_get_their_own_end(place: Place) -> None:
    """FB-B34: no exit is lost to another waiter."""
    async with asyncio.timeout(BOUND_SECONDS * 2), asyncio.TaskGroup() as group:
        tasks = [group.create_task(place.run(place.shell(f"echo {n}; exit {n}"))) for n in range(40)]
    assert [(task.result().code, task.result().stdout) for task in tasks] == [(n, b"%d\n" % n) for n in range(40)]


async def test_a_timeout_keeps_what_was_written(place: Place) -> None:
    """TC-12.2 and FB-B25: by the guest's own clock, two seconds as asked."""
    ran = await place.run(place.shell("echo partial; sleep 30"), timeout_seconds=2.0, grace_seconds=0.5)
    assert ran.exit.to_ending() == Ending(EndingKind.TIMED_OUT)
    assert ran.stdout == b"partial\n"
    assert 1.9e6 < ran.exit.wall_us < BOUND_SECONDS * 1e6


async def test_a_program_may_end_politely_within_the_grace(place: Place) -> None:
    ran = await place.run(place.word("polite"), timeout_seconds=1.0, grace_seconds=4.0)
    assert (ran.exit.reason, ran.exit.kind, ran.exit.value) == (Reason.TIMED_OUT, ExitKind.EXITED, 7)
    assert ran.stdout == b"ready\nbye\n"


async def test_cancel_ends_with_that_reason_and_after_the_end_does_nothing(place: Place) -> None:
    sink = Collector()
    process = place.start(place.word("stubborn"), sink=sink)
    async with asyncio.timeout(BOUND_SECONDS):
        await sink.until(b"ready")
        process.cancel(0.05)
        ended = await process.exit()
    assert (ended.to_ending().kind, ended.kind, ended.value) == (EndingKind.CANCELLED, ExitKind.SIGNALLED, 9)
    process.cancel(0)
    process.signal(signal.SIGTERM)
    assert (await place.run(("true",))).code == 0


async def test_a_signal_reaches_the_program(place: Place) -> None:
    sink = Collector()
    process = place.start(place.word("polite"), sink=sink)
    async with asyncio.timeout(BOUND_SECONDS):
        await sink.until(b"ready")
        process.signal(signal.SIGTERM)
        ended = await process.exit()
    assert ended.to_ending() == Ending.exited(7)
    assert bytes(sink.data[1]) == b"ready\nbye\n"


async def test_output_above_its_limit_ends_the_command(place: Place) -> None:
    ran = await place.run(place.word("babble"), output_limit=100_000, grace_seconds=0.1)
    assert ran.exit.to_ending() == Ending(EndingKind.OUTPUT_LIMIT)
    assert len(ran.stdout) == 100_000


async def test_a_full_ring_ends_a_command_that_asked_for_it(place: Place) -> None:
    process = place.start(place.word("babble"), ring_bytes=4096, on_full=OnFull.KILL, grace_seconds=0.1)
    async with asyncio.timeout(BOUND_SECONDS):
        chunks = process.chunks()
        assert (await anext(chunks)).data.startswith(b"yyyy")
        rest = [chunk async for chunk in chunks]
        ended = await process.exit()
    assert ended.to_ending().kind is EndingKind.OUTPUT_LIMIT
    assert sum(len(chunk.data) for chunk in rest) < 1 << 20


async def test_fb_b37_a_script_with_a_here_document_runs_from_a_file(place: Place) -> None:
    """No byte of it is changed, nothing is appended; quotes, tabs and a missing last newline stay."""
    script = b"#!/bin/sh\nprintf '%s|' \"$1\" 'it'\"'\"'s' \"\\t\"\nexit 3"
    await place.write("script.sh", script, mode=0o755)
    ran = await place.run(("./script.sh", "a  b"))
    assert (ran.code, ran.stdout) == (3, b"a  b|it's|\\t|")
    assert await place.read("script.sh") == script


async def test_fb_b19_b20_b22_b25_b26_a_timeout_ends_the_whole_tree(place: Place) -> None:
    """Also a daemon in a session of its own that ignores SIGTERM; FB-B23: holding the output delays nothing."""
    ran = await place.run(place.word("breed", "stay"), timeout_seconds=1.0, grace_seconds=0.2)
    assert (ran.exit.reason, ran.stdout) == (Reason.TIMED_OUT, b"daemon\n")
    assert (await place.run(place.word("pulse"))).stdout == b"gone\n"


async def test_fb_b23_a_child_left_behind_is_ended_and_counted(place: Place) -> None:
    sink = Collector()
    process = place.start(place.word("breed", "leave"), sink=sink)
    async with asyncio.timeout(BOUND_SECONDS):
        await sink.until(b"daemon")
        assert (await place.run(place.word("pulse"))).stdout == b"held\n"
        await place.write("go", b"")
        ended = await process.exit()
    assert (ended.to_ending(), ended.ended_children) == (Ending.exited(0), 1)
    assert (await place.run(place.word("pulse"))).stdout == b"gone\n"


async def test_fb_b23_a_background_sleep_does_not_hold_up_the_end(place: Place) -> None:
    ran = await place.run(place.shell("sleep 30 & echo done"))
    assert (ran.code, ran.stdout, ran.exit.ended_children) == (0, b"done\n", 1)


async def test_fb_b34_orphans_leave_no_zombie(place: Place) -> None:
    ran = await place.run(place.word("orphans", "50"))
    assert (ran.code, ran.stdout) == (0, b"0\n")


async def test_a_command_beside_one_that_is_killed_goes_on(place: Place) -> None:
    beside = place.start(("cat",), stdin=True)
    sink = Collector()
    victim = place.start(place.word("breed", "stay"), sink=sink)
    async with asyncio.timeout(BOUND_SECONDS):
        await sink.until(b"daemon")
        victim.signal(signal.SIGKILL)
        assert (await victim.exit()).to_ending() == Ending.signalled(signal.SIGKILL)
        await beside.write(b"still here")
        await beside.close_stdin()
        assert b"".join([chunk.data async for chunk in beside.chunks()]) == b"still here"
        assert (await beside.exit()).to_ending().ok


async def test_the_first_pid_is_told_before_the_end(place: Place) -> None:
    process = place.start(("cat",), stdin=True)
    async with asyncio.timeout(BOUND_SECONDS):
        assert (await process.pid() or 0) > 0
        await process.close_stdin()
        assert (await process.exit()).to_ending().ok


async def test_output_of_a_killed_flood_is_whole_up_to_its_total(place: Place) -> None:
    sink = Collector()
    process = place.start(place.word("count_to", "1", str(3 << 20)), sink=sink)
    async with asyncio.timeout(BOUND_SECONDS):
        ended = await process.exit()
    assert bytes(sink.data[1]) == pattern(3 << 20)[: ended.stdout_total]
    assert ended.stdout_total == 3 << 20
