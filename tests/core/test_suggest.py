"""A suggestion mends a slip; it never leads anybody towards less isolation."""

from __future__ import annotations

import pytest

from station.core.suggest import near_name

NAMES = ["allow_host", "backend", "timeout_seconds"]


@pytest.mark.parametrize(("said", "meant"), [("allow_hosts", "allow_host"), ("bakend", "backend"), ("timeout", "time")])
def test_a_slip_is_mended(said: str, meant: str) -> None:
    assert meant in near_name(said, NAMES)


@pytest.mark.parametrize("said", ["allow_network", "allow", "allow_hot_reload", "host"])
def test_nothing_unlike_it_is_taken_for_allow_host(said: str) -> None:
    assert "allow_host" not in near_name(said, NAMES)
