"""HD-K01 to K08, K10, K12 to K14, K16, N04, R11, R12, R14, R16: the kernel attacked by a static program.

Each case is one test on every confining target. What it tries, it says in one line; what it would have changed outside
is looked at from the host; and the same program succeeds on an unhardened target.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from station import Client, Sandbox
from station.core.attacks import Line, guaranteed
from station.core.endings import EndingKind
from station.core.errors import BoxLost, Conflict

from . import program
from .conftest import Attack
from .host import HostState
from .targets import Target

# A user namespace's root shows the harm of these too; the rest need the real one for their control.
WITHOUT_ROOT = ("K01", "K02", "K03", "K05", "K13")
WITH_ROOT = ("K04", "K06", "K08", "K10", "K14", "N04")
CASES = [*WITHOUT_ROOT, *(pytest.param(case, marks=pytest.mark.root) for case in WITH_ROOT)]


@pytest.fixture
def host() -> Iterator[None]:
    """Nothing of the host has changed meanwhile."""
    before = HostState.look()
    yield
    assert HostState.look().changed(before) == []


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("case", CASES)
def test_hd_every_try_of_the_program_comes_to_nothing(
    confined: Sandbox, target: Target, strike: Attack, unhardened: Attack, case: str
) -> None:
    assert unhardened(case).harmful()
    line = strike(confined, case)
    assert line.tries
    assert line.harmful_on(target.name) == [] or not guaranteed(case, target.name)


def test_hd_k07_what_one_sandbox_puts_into_a_keyring_no_other_finds(
    confined: Sandbox, second: Sandbox, strike: Attack, unhardened: Attack
) -> None:
    name = f"station-attack-{os.getpid()}"
    unhardened("K07", "put", name)
    assert unhardened("K07", "find", name).harmful()
    unhardened("K07", "remove", name)
    assert strike(confined, "K07", "put", name).harmful() == []
    assert strike(second, "K07", "find", name).harmful() == []


def test_hd_k16_two_sandboxes_meet_nowhere(confined: Sandbox, second: Sandbox, binary: Path, strike: Attack) -> None:
    name, key = f"station-attack-{os.getpid()}", str(0x53540000 + os.getpid() % 0xFFFF)
    with program.control_holding(binary, "K16", "put", name, key):
        found = Line.read(subprocess.run([binary, "K16", "find", name, key], capture_output=True, text=True).stdout)
        assert len(found.harmful()) == 4
    with program.holding(confined, binary, "K16", "put", name, key):
        assert strike(second, "K16", "find", name, key).harmful() == []


def test_hd_k12_a_lock_on_what_all_boxes_share_is_seen_by_none(
    confined: Sandbox, second: Sandbox, target: Target, binary: Path, strike: Attack
) -> None:
    """Not guaranteed where boxes share the host's own /usr."""
    with program.control_holding(binary, "K12", "hold"):
        seen = Line.read(subprocess.run([binary, "K12", "find"], capture_output=True, text=True).stdout)
        assert "/bin/sh: EAGAIN" in seen.harmful()
    with program.holding(confined, binary, "K12", "hold"):
        assert strike(second, "K12", "find").harmful() == [] or not guaranteed("K12", target.name)


def test_hd_r11_zombies_are_bounded_and_gone_at_the_end(
    confined: Sandbox, target: Target, binary: Path, unhardened: Attack
) -> None:
    limit = int(confined.info().isolation.limits["pids"].value or 0)
    assert limit
    assert unhardened("R11", str(limit + 100), str(limit)).harmful()
    program.put(confined, binary)
    result = confined.exec([f"./{program.NAME}", "R11", "10000", str(limit)], timeout_seconds=30)
    if guaranteed("R11", target.name):
        assert Line.read(result.stdout).harmful() == []
    else:  # without a limit within, the box itself may end, and says so, also to who comes in that moment
        assert result.ending.kind in (EndingKind.EXITED, EndingKind.LOST)
        with contextlib.suppress(BoxLost):
            confined.exec("true")
    assert confined.exec("echo still").stdout == "still\n"


def test_hd_r12_running_out_of_descriptors_fails_only_there(
    client: Client, anywhere: Sandbox, target: Target, binary: Path
) -> None:
    limit = int(anywhere.info().isolation.limits["open_files"].value or 0)
    assert limit
    count = limit + 200
    with program.control_holding(binary, "R12", str(count), str(limit // 2)) as line:
        assert line.harm
    with client.open(f"second-{uuid.uuid4()}", **target.where) as second:
        with program.holding(anywhere, binary, "R12", str(count), str(limit)) as line:
            assert line.harmful() == []
            assert line.value("sockets at once") < count
            for sandbox in (anywhere, second):
                assert sandbox.exec("cat /etc/hostname >/dev/null; echo fine").stdout == "fine\n"
        second.delete()


@pytest.mark.parametrize("number", ["9", "19"])
def test_hd_r14_neither_pid_1_nor_another_command_is_harmed(
    confined: Sandbox, binary: Path, strike: Attack, unhardened: Attack, number: str
) -> None:
    assert "prlimit(1): 0" in unhardened("R14").harmful()
    sibling = confined.start("echo up; read x; echo $x", stdin_open=True)
    next(iter(sibling.output()))
    assert strike(confined, "R14").harmful() == []
    result = confined.exec([f"./{program.NAME}", "R14", number], timeout_seconds=5)
    assert Line.read(result.stdout).harmful() == []
    begun = time.monotonic()
    assert confined.exec("echo still").stdout == "still\n"
    assert time.monotonic() - begun < 5
    if confined.info().isolation.containment == "pidns":  # else all commands of a box are one user's
        sibling.write(b"unharmed\n")
        assert sibling.wait().stdout.endswith("unharmed\n")
    else:
        with contextlib.suppress(Conflict):
            sibling.kill()


def test_hd_r16_a_command_is_not_over_while_a_thread_of_it_runs(anywhere: Sandbox, binary: Path) -> None:
    """The first thread exits alone; the ending comes only after the second one has left its mark."""
    program.put(anywhere, binary)
    result = anywhere.exec([f"./{program.NAME}", "R16", "second-thread-ran"], timeout_seconds=20)
    assert (result.ending.kind, result.exit_code) == (EndingKind.EXITED, 7)
    assert anywhere.files.read("second-thread-ran") == b"yes"
