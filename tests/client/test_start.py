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
