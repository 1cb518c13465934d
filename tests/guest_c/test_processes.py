"""What starts, how it ends, and what the guest says about it."""

from __future__ import annotations

import os
import struct

import pytest

from tests.guest_c import wire
from tests.guest_c.client import Client, Guest


def test_true_ends_with_zero_and_says_nothing(client: Client) -> None:
    output = client.run(["true"])
    assert output.ending
    assert (output.ending.kind, output.ending.value, output.ending.reason) == (1, 0, 0)
    assert output.pid
    assert output.ending.wall_us > 0
    assert output.ending.max_rss_kib > 0


def test_exit_codes_and_both_streams_arrive(client: Client) -> None:
    output = client.shell("echo out; echo err >&2; exit 42")
    assert output.ending
    assert (output.ending.kind, output.ending.value) == (1, 42)
    assert output.text() == ("out\n", "err\n")


def test_a_death_by_signal_is_told_as_such(client: Client) -> None:
    output = client.shell("kill -USR1 $$")
    assert output.ending
    assert (output.ending.kind, output.ending.value) == (2, 10)


@pytest.mark.parametrize(
    ("argv", "cwd", "kind", "errno"),
    [
        (["no-such-program"], "/", 4, 2),
        (["/no/such/program"], "/", 4, 2),
        (["/usr"], "/", 4, 13),
        (["true"], "/no/such/directory", 3, 2),
        (["true"], "/usr/bin/env", 3, 20),
    ],
)
def test_what_cannot_start_is_known_at_once_by_its_errno(
    client: Client, argv: list[str | bytes], cwd: str, kind: int, errno: int
) -> None:
    output = client.run(argv, cwd=cwd, timeout=2)
    assert output.ending
    assert (output.ending.kind, output.ending.value) == (kind, errno)
    assert output.pid is None, "STARTED is for programs that run"


def test_a_script_without_a_first_line_is_given_to_the_shell(client: Client, guest: Guest) -> None:
    script = guest.workspace / "script"
    script.write_text('echo "$0 $1"\n')
    script.chmod(0o755)
    output = client.run(["./script", "one"], cwd=guest.root)
    assert output.data[1] == b"./script one\n"


def test_the_environment_is_exactly_that_of_the_record(client: Client) -> None:
    assert client.run(["/usr/bin/env"], env=("A=1", "B=")).data[1] == b"A=1\nB=\n"


def test_arguments_are_bytes(client: Client) -> None:
    argument = bytes(range(1, 256))
    assert client.run([b"/usr/bin/printf", b"%s", argument]).data[1] == argument


def test_a_record_of_many_parts_is_joined(client: Client) -> None:
    words = ["x" * 500] * 2000
    output = client.run(["/bin/sh", "-c", "echo $#", "sh", *words])
    assert output.data[1] == b"2000\n"


def test_a_record_that_is_too_long_is_refused_once(client: Client) -> None:
    ident = client.start(["/bin/true", *["x" * 60_000] * 50])
    assert client.run(["true"]).ending
    assert client.errors == [(ident, 7)]


def test_user_code_has_a_clean_slate(client: Client) -> None:
    script = (
        "grep -E '^(Cap|NoNew|SigBlk|SigIgn)' /proc/self/status; ls /proc/self/fd; umask; "
        "cat /proc/self/oom_score_adj; ulimit -c; ps -o sid= -p $$ | tr -d ' '; echo $$"
    )
    lines = client.shell(script).data[1].decode().split("\n")
    status = dict(line.split(":\t") for line in lines if ":\t" in line)
    rest = [line for line in lines if ":\t" not in line]
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb", "SigBlk", "SigIgn"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    # 3 is the directory that ls itself has open.
    assert rest[:4] == ["0", "1", "2", "3"]
    assert rest[4:7] == ["0022", "1000", "0"]
    assert rest[7] == rest[8], "a session of its own"


def test_a_program_that_ignores_term_dies_after_the_grace(client: Client) -> None:
    output = client.run(
        ["/bin/sh", "-c", "trap '' TERM INT HUP; echo ready; while :; do sleep 1; done"], timeout_ms=300, grace_ms=200
    )
    assert output.ending
    assert (output.ending.kind, output.ending.value, output.ending.reason) == (2, 9, 2)
    assert 450_000 < output.ending.wall_us < 2_000_000
    assert output.data[1] == b"ready\n"


def test_a_timed_out_program_may_end_politely(client: Client) -> None:
    output = client.shell("trap 'echo bye; exit 5' TERM; while :; do sleep 0.05; done", timeout_ms=300, grace_ms=5000)
    assert output.ending
    assert (output.ending.kind, output.ending.value, output.ending.reason) == (1, 5, 2)
    assert output.data[1] == b"bye\n"


def test_cancel_reaches_a_stopped_program(client: Client) -> None:
    ident = client.start(["/bin/sh", "-c", "echo ready; kill -STOP $$; sleep 100"])
    client.expect(wire.OUTPUT, ident)
    client.send(wire.CANCEL, ident, struct.pack("<II", 5000, 1))
    ending = client.wait(ident, 3).ending
    assert ending
    assert (ending.kind, ending.value, ending.reason) == (2, 15, 1)


def test_a_signal_reaches_the_whole_tree(client: Client) -> None:
    inner = "trap 'echo inner; exit' USR1; while :; do sleep 0.02; done"
    outer = f"setsid sh -c \"{inner}\" & trap 'wait; echo outer; exit' USR1; echo ready; while :; do sleep 0.02; done"
    ident = client.start(["/bin/sh", "-c", outer])
    client.expect(wire.OUTPUT, ident)
    # The inner shell may not have set its trap yet: a round trip of another command gives it time.
    client.shell("sleep 0.1")
    client.send(wire.SIGNAL, ident, struct.pack("<I", 10))
    assert b"inner" in client.wait(ident).data[1]


def test_a_repeated_id_is_refused_and_nothing_runs(client: Client) -> None:
    first = client.start(["true"])
    client.wait(first)
    client.start(["true"], ident=first)
    client.expect(wire.ERROR, first)
    assert client.errors == [(first, 17)]
    client.send(wire.FORGET, first)
    client.start(["true"], ident=first)
    client.expect(wire.ERROR, first)


@pytest.mark.parametrize("cut", [0, 10, 36, 38])
def test_a_record_that_is_cut_is_refused(client: Client, cut: int) -> None:
    client.send(wire.START, 1, wire.record(["true"])[:cut])
    client.expect(wire.ERROR, 1)
    assert client.errors == [(1, 22)]
    assert client.run(["true"]).ending


def test_an_empty_program_name_is_refused(client: Client) -> None:
    client.start([""])
    client.expect(wire.ERROR)
    assert client.errors[0][1] == 22


def test_unknown_processes_and_frames_are_answered(client: Client) -> None:
    client.send(wire.SIGNAL, 77, struct.pack("<I", 9))
    client.send(0x55, 5)
    client.send(wire.PING, 6, b"x" * 48)
    assert client.expect(wire.PONG, 6).payload == b"x" * 48
    assert client.errors == [(77, 3), (5, 38)]


def test_a_full_process_limit_is_told_and_passes(client: Client) -> None:
    """`--nproc` is 80 here. The guest itself is not bound by it, so that the box can still be told to stop."""
    if os.geteuid() != 0:
        pytest.skip("the limit counts every process of this user")
    # A shell would retry its forks for long; this one tells of each failure and then stays.
    script = (
        "import os,time\n"
        "n=0\n"
        "while n<200:\n"
        "    try:\n"
        "        if os.fork()==0: time.sleep(100); os._exit(0)\n"
        "        n+=1\n"
        "    except BlockingIOError: break\n"
        "print(n,flush=True)\n"
        "time.sleep(100)\n"
    )
    bomb = client.start(["/usr/bin/python3", "-c", script])
    client.expect(wire.OUTPUT, bomb)
    assert 10 < int(client.output(bomb).data[1]) < 80
    ending = client.run(["true"]).ending
    assert ending
    assert (ending.kind, ending.value) in ((5, 11), (1, 0))
    client.send(wire.CANCEL, bomb, struct.pack("<II", 0, 1))
    ending = client.wait(bomb).ending
    assert ending
    assert (ending.kind, ending.value, ending.reason) == (2, 9, 1)
    after = client.run(["true"]).ending
    assert after
    assert (after.kind, after.value) == (1, 0)
