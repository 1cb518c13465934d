"""A suggestion mends a slip; it never leads anybody towards less isolation."""

from __future__ import annotations

import pytest

from station.core.suggest import near_name, slip_of

NAMES = ["allow_host", "backend", "timeout_seconds"]


@pytest.mark.parametrize(("said", "meant"), [("allow_hosts", "allow_host"), ("bakend", "backend"), ("timeout", "time")])
def test_a_slip_is_mended(said: str, meant: str) -> None:
    assert meant in near_name(said, NAMES)


@pytest.mark.parametrize("said", ["allow_network", "allow", "allow_hot_reload", "host"])
def test_nothing_unlike_it_is_taken_for_allow_host(said: str) -> None:
    assert "allow_host" not in near_name(said, NAMES)


VARIABLES = ["STN_SANDBOX_ALLOW_HOST", "STN_SANDBOX_SERVES_OTHERS", "STN_IDLE_MINUTES", "STN_LISTEN"]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("STN_IDLE_MINUTE", "STN_IDLE_MINUTES"),
        ("STN_LISTEM", "STN_LISTEN"),
        ("STN_SANDBOX_SERVE_OTHERS", "STN_SANDBOX_SERVES_OTHERS"),
        ("STN_SANDBOX_ALLOW_HOSTS", "STN_SANDBOX_ALLOW_HOST"),
        ("STN_DEMO_SECRET", None),
        ("STN_DEMO_SERVES", None),
        ("STN_SANDBOX_ALLOW_HOT", "STN_SANDBOX_ALLOW_HOST"),
        ("STN_SANDBOX_ALLOW_H", "STN_SANDBOX_ALLOW_HOST"),
        ("STN_SANDBOX_ALLOWED", None),
        ("STN", None),
    ],
)
def test_a_variable_is_taken_for_another_by_a_slip_alone(said: str, meant: str | None) -> None:
    assert slip_of(said, VARIABLES) == meant
