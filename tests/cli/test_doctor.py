"""What `stn doctor` prints and how it ends, of answers that a machine here need not give."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from station.cli import stations
from station.cli.app import run_app
from station.cli.diagnosis import report
from station.core.audit import Check, Status
from station.core.capabilities import Capabilities, Grade
from station.core.tenancy import Missing
from station.core.wire import Diagnosis, StationView

from .conftest import Stn, ended

WORKS = Capabilities("bubblewrap", True, Grade.PROCESS)
BROKEN = Capabilities("docker", False, Grade.CONTAINER, reason="no \x1b[31mengine", remedy="apt install docker.io")
CHECKS = [
    Check("kernel", "kernel", Status.OK, "Linux 6"),
    Check("ksm", "KSM", Status.WARNING, "on", "switch it off"),
    Check("docker.runtime", "runtime", Status.RED, "old", "a new one", required=True, backend="docker"),
    Check("disk", "room", Status.RED, "full\nRED  forged", "free some"),
    Check("clock", "clock", Status.UNKNOWN, "nobody tells"),
]
FOUND = Diagnosis(
    [WORKS, BROKEN], CHECKS, {"bubblewrap": [], "docker": [Missing("docker.runtime", "old", "a new one")]}
)


def test_every_state_is_a_word_with_what_would_help() -> None:
    lines = report(FOUND).splitlines()
    assert "  ok       kernel: Linux 6" in lines
    at = lines.index("  RED      runtime: old (required to serve others)")
    assert lines[at + 1].strip() == "to change that: a new one"
    assert "  warning  KSM: on" in lines
    assert "  unknown  clock: nobody tells" in lines
    assert "  RED      room: full\\x0aRED  forged" in lines, "required by nobody, and it forges no line"
    assert "  bubblewrap: may run it" in lines
    assert "  docker: may not run it; missing: docker.runtime" in lines
    assert "\x1b" not in "".join(lines)


def test_a_declared_station_says_that_it_refuses() -> None:
    assert "is not set: nothing is refused" in report(FOUND)
    text = report(replace(FOUND, refuses=True, minimum_isolation=Grade.VM))
    assert "is set: what is missing is refused" in text
    assert "isolation vm or stronger" in text


def test_colours_say_nothing_that_words_do_not() -> None:
    coloured = report(FOUND, colours=True)
    assert "\x1b[31mRED    \x1b[0m  runtime" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == report(FOUND)


class Answers:
    """In the place of a client."""

    home = "/nowhere"

    def __init__(self, found: Diagnosis) -> None:
        self.found = found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def doctor(self) -> Diagnosis:
        return self.found

    def info(self) -> StationView:
        return StationView("1", 1, self.home, 0.0, None, 0, 0, 0, 0)


@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"]])
def test_it_exits_with_1_only_where_nothing_works(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = FOUND
    monkeypatch.setattr(stations, "connect", lambda **_: Answers(found))
    assert run_app(words) == 0, "red checks are no failure of the command"
    found = replace(FOUND, backends=[BROKEN])
    assert run_app(words) == 1


def test_settings_that_were_edited_since_the_start_are_told_of(tmp_path: Path, stn: Stn) -> None:
    home, hint = tmp_path / "home", b"stn: its settings (station.yaml or .env) were changed since the station"
    home.mkdir()
    told = []
    try:
        for text in ("{}", "{}", "idle_minutes: 3"):
            (home / "station.yaml").write_text(text, encoding="utf-8")
            looks = [stn("--home", str(home), word) for word in ("doctor", "status")]
            assert [done.returncode for done in looks] == [0, 0]
            told.append([hint in done.stderr for done in looks])
        assert told == [[False, False], [False, False], [True, True]]
    finally:
        stn("--home", str(home), "stop")
        ended(home)


def test_a_terminal_gets_colours(real: str, tmp_path: Path) -> None:
    """The control of every answer without them."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "station", "doctor"], stdout=theirs, env=dict(os.environ)) as running:
        os.close(theirs)
        seen = bytearray()
        while chunk := _read(ours):
            seen += chunk
        assert running.wait(50) == 0
    os.close(ours)
    assert b"\x1b[32mok     \x1b[0m  kernel: Linux" in seen


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # the other side is closed
        return b""


def test_what_the_machine_tells_is_in_json_where_no_station_starts(stn: Stn, tmp_path: Path) -> None:
    (tmp_path / "station.yaml").write_text("nonsense: 1\n")
    done = stn("--home", str(tmp_path), "doctor", "--json")
    body: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, body["code"]) == (125, "station_unreachable")
    assert {check["id"] for check in body["detail"]["checks"]} >= {"kernel", "user_namespaces", "disk"}
