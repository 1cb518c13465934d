"""Where a station is looked for and started, without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import station
from station.client import _start
from station.client._home import SocketAddress
from station.core.errors import StationUnreachable


@pytest.mark.parametrize("there", [False, True])
def test_in_a_long_home_without_a_station_nothing_listens(tmp_path: Path, there: bool) -> None:
    home = tmp_path / ("x" * 120) / "home"
    if there:
        home.mkdir(parents=True)
    assert not _start.listens(home)
    with station.connect(home, start=False) as client, pytest.raises(StationUnreachable, match="no station runs"):
        client.info()


def test_a_home_that_is_a_file_is_no_station_however_long_its_name(tmp_path: Path) -> None:
    home = tmp_path / ("x" * 120)
    home.touch()
    assert not _start.listens(home)
    address = SocketAddress(home)
    address.close()
    address.close()


def test_nothing_is_written_into_a_state_directory_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    with pytest.raises(StationUnreachable, match=f"belongs to the user with uid {ours}"):
        _start.ensure_station(home)
    assert list(home.iterdir()) == []


def test_our_own_state_directory_is_closed_to_others_before_anything_is_written_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)
    modes: list[int] = []
    monkeypatch.setattr(_start, "_spawn", lambda *_: modes.append(home.stat().st_mode & 0o777))
    monkeypatch.setattr(_start, "_wait_ready", lambda _: True)
    assert _start.ensure_station(home)
    assert modes == [0o700]


def test_what_a_station_said_last_is_told_without_the_marks_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "station.log"
    log.write_text(
        "2026-01-02T03:04:05.678Z error station.server.serve: the station could not start: no room\n"
        "stn: a word of its own\n  | at 2026-01-02T03:04:05.678Z error it said: so\n",
        encoding="utf-8",
    )
    assert _start._last_words(log, 0).splitlines()[1:-1] == [
        "  the station could not start: no room",
        "  a word of its own",
        "    | at 2026-01-02T03:04:05.678Z error it said: so",
    ]
