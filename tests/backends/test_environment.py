"""What a box has of the station that made it: no variable, no terminal."""

from __future__ import annotations

import fcntl
import os
import subprocess
import termios
from collections.abc import Callable

import pytest

from station.backends._processes import marked
from station.backends.base import Labels
from station.backends.bubblewrap import BubblewrapBackend
from station.core.spec import Spec
from station.guest.binary import guest_binary
from tests.backends.conftest import STATION
from tests.observer import of_process, owner

CANARY = "canary-of-the-station"


def has_canary(pid: int) -> bool:
    return CANARY.encode() in of_process(pid, "environ")


def a_careless_child_has_it() -> bool:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(b"\n")
        child.stdout.readline()  # it runs
        return has_canary(child.pid)


@pytest.mark.root
async def test_no_variable_of_the_station_is_in_what_makes_a_box(
    bubblewrap: BubblewrapBackend, labels: Callable[[str], Labels], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from outside, of the launcher's, bwrap's and the guest's processes. The control: a child that is started
    without care has it."""
    monkeypatch.setenv("STN_TEST_SECRET", CANARY)
    assert a_careless_child_has_it()
    box = await bubblewrap.create(Spec("bubblewrap", ephemeral=True), labels("b1"))
    try:
        seen = {pid: has_canary(pid) for pid in marked(f"{STATION}:b1")}
        assert len([pid for pid in seen if owner(pid) is not None]) >= 2, "they were there to be looked at"
        assert not any(seen.values())
    finally:
        await box.destroy()


LOOK = "(: </dev/tty) 2>/dev/null && echo terminal || echo none"


def test_a_box_has_no_terminal_of_the_station() -> None:
    """What it types there would be the next command of whoever started the station. The control: a plain child has
    one."""
    controller, terminal = os.openpty()

    def at_the_terminal() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    def ask(*words: str) -> str:
        # A shell between, as the leader of the session cannot leave it.
        line = ["sh", "-c", '"$@"; :', "sh", *words, "sh", "-c", LOOK]
        done = subprocess.run(line, preexec_fn=at_the_terminal, pass_fds=(terminal,), capture_output=True, text=True)
        return done.stdout.strip()

    try:
        assert ask() == "terminal"
        assert ask(str(guest_binary()), "launch", "--", "/usr/bin/env") == "none"
    finally:
        os.close(controller)
        os.close(terminal)
