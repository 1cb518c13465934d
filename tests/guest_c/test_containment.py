"""A command ends with everything it started, and cannot reach the guest (attack suite R01, R08-R16)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.guest_c import wire
from tests.guest_c.client import NOBODY, Client, Guest
from tests.guest_c.conftest import MakeGuest


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return found  # it ended while we looked
    for child in children:
        found += [int(child), *descendants(int(child))]
    return found


def assert_empty(guest: Guest) -> None:
    """No process but the guest. A namespace is torn down a moment after its command was reported."""
    deadline = time.monotonic() + 5
    while descendants(guest.pid()):
        assert time.monotonic() < deadline, descendants(guest.pid())
        os.sched_yield()


DAEMON = """
import os, sys, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(0); os.close(1); os.close(2)
        os.execve('/usr/bin/sleep', ['innocent', '100'], {})
    os._exit(0)
os.wait()
"""


def test_a_daemon_of_its_own_session_and_name_ends_with_its_command(client: Client, guest: Guest) -> None:
    ending = client.run(["/usr/bin/python3", "-c", DAEMON]).ending
    assert ending
    assert (ending.kind, ending.value, ending.ended_children) == (1, 0, 1)
    assert_empty(guest)


def test_a_background_child_holding_stdout_does_not_delay_the_end(client: Client, guest: Guest) -> None:
    output = client.shell("sleep 100 & echo done", timeout=3)
    assert output.ending
    assert output.ending.wall_us < 500_000
    assert output.ending.ended_children == 1
    assert output.data[1] == b"done\n"
    assert_empty(guest)


def test_zombies_do_not_count_as_ended(client: Client) -> None:
    script = "import os,time\nfor _ in range(20):\n  if os.fork()==0: os._exit(0)\ntime.sleep(0.1)\n"
    ending = client.run(["/usr/bin/python3", "-c", script]).ending
    assert ending
    assert ending.ended_children == 0


def test_a_child_that_has_stopped_itself_is_ended(client: Client, guest: Guest) -> None:
    ending = client.shell("sh -c 'kill -STOP $$' & sleep 0.1").ending
    assert ending
    assert ending.ended_children == 1
    assert_empty(guest)


BOMB = """
import os, time, sys
end = time.monotonic() + 20
while time.monotonic() < end:
    try:
        os.fork()
    except OSError:
        pass
"""


@pytest.mark.root
def test_a_fork_bomb_under_a_limit_is_swept_by_its_timeout(client: Client, guest: Guest) -> None:
    ident = client.start(["/usr/bin/python3", "-c", BOMB], timeout_ms=700, grace_ms=0)
    other = client.run(["true"]).ending
    ending = client.wait(ident, 15).ending
    assert ending
    assert ending.reason == 2
    assert other
    assert_empty(guest)
    after = client.run(["true"]).ending
    assert after
    assert (after.kind, after.value) == (1, 0)


@pytest.mark.root
def test_comets_that_fork_and_exit_for_ever_are_swept(client: Client, guest: Guest) -> None:
    comet = (
        "import os,time\n"
        "for _ in range(8):\n"
        "  if os.fork()==0:\n"
        "    end=time.monotonic()+20\n"
        "    while time.monotonic()<end:\n"
        "      try:\n"
        "        os.setsid()\n"
        "      except OSError: pass\n"
        "      try:\n"
        "        if os.fork(): os._exit(0)\n"
        "      except OSError: pass\n"
        "    os._exit(0)\n"
    )
    ending = client.run(["/usr/bin/python3", "-c", comet]).ending
    assert ending
    assert (ending.kind, ending.value) == (1, 0)
    assert_empty(guest)


@pytest.mark.parametrize("number", [9, 19])
def test_signals_to_everybody_harm_only_their_own_command(boxed: Client, number: int) -> None:
    sibling = boxed.start(["/bin/sh", "-c", "sleep 0.5; echo alive"])
    attack = boxed.start(["/bin/sh", "-c", f"kill -{number} -1; kill -{number} 1; echo here"], timeout_ms=2000)
    boxed.wait(attack)
    assert boxed.wait(sibling).data[1] == b"alive\n"
    assert boxed.run(["true"]).ending


def test_one_command_does_not_see_another_or_the_guest(boxed: Client) -> None:
    sibling = boxed.start(["/bin/sleep", "5"])
    listing = boxed.shell("ls -d /proc/[0-9]* | wc -l; tr '\\0' ' ' < /proc/1/cmdline").data[1].decode()
    assert int(listing.split()[0]) <= 5
    assert boxed.output(sibling).ending is None


def test_the_supervisor_cannot_be_read_or_changed(boxed: Client) -> None:
    script = (
        "for f in environ mem maps fd cwd exe; do cat /proc/1/$f >/dev/null 2>&1 || ls /proc/1/$f/ >/dev/null 2>&1 "
        "&& echo readable $f; done; echo 0 2>/dev/null > /proc/1/oom_score_adj && echo writable; true"
    )
    assert boxed.shell(script).data[1] == b""


def test_killing_the_supervisor_is_typed_and_the_tree_ends(make_guest: MakeGuest) -> None:
    """Without namespaces and uids, user code can end its own supervisor: its last deed."""
    guest = make_guest("--containment", "subreaper", boxed=False)
    with guest.connect() as client:
        for number in (9, 19):
            ending = client.shell(f"setsid sleep 100 & kill -{number} $PPID; sleep 100").ending
            assert ending
            assert (ending.kind, ending.value) == (6, 0)
            assert ending.ended_children >= 1
            assert_empty(guest)
        assert client.run(["true"]).ending


def test_the_guest_ends_politely_with_everything_it_started(make_guest: MakeGuest) -> None:
    guest = make_guest("--containment", "subreaper", boxed=False)
    with guest.connect() as client:
        ident = client.start(["/bin/sh", "-c", "trap '' TERM; setsid sleep 100 & echo $!; sleep 100"])
        client.expect(wire.OUTPUT, ident)
        daemon = int(client.output(ident).data[1])
        children = descendants(guest.pid())
        assert len(children) >= 3
        guest.process.terminate()
        assert guest.process.wait(5) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in [daemon, *children])


def test_proc_is_fresh_and_its_settings_cannot_be_written(boxed: Client) -> None:
    script = (
        "find /proc/sys -type f -writable 2>/dev/null | head -3; "
        "(echo x > /proc/sys/kernel/core_pattern) 2>/dev/null && echo written; "
        "(echo b > /proc/sysrq-trigger) 2>/dev/null && echo written; echo $$"
    )
    assert boxed.shell(script).data[1] == b"2\n"


@pytest.mark.root
@pytest.mark.parametrize("containment", ["pidns", "subreaper"])
def test_a_guest_of_another_user_cannot_be_touched(binary: Path, tmp_path: Path, containment: str) -> None:
    """As in a container: the guest is root there, user code is not."""
    options = ("--containment", containment, "--uid", str(NOBODY), "--gid", str(NOBODY))
    guest = Guest(binary, tmp_path, boxed=False, options=options, user=None)
    with guest.connect() as client:
        assert client.capabilities & wire.SEPARATE_UID
        script = f"kill -9 $PPID {guest.pid()}; cat /proc/$PPID/environ; id -u; id -G; grep CapBnd /proc/self/status"
        output = client.shell(script)
        assert output.ending
        assert (output.ending.kind, output.ending.value) == (1, 0)
        assert output.text()[0] == f"{NOBODY}\n{NOBODY}\nCapBnd:\t{0:016x}\n"
        killed = client.shell("trap '' TERM; sleep 100 & sleep 100", timeout_ms=200, grace_ms=100).ending
        assert killed
        assert (killed.kind, killed.value, killed.reason) == (2, 9, 2)
        assert_empty(guest)
    guest.stop()
