"""A hint says what is known to help, and nothing where nothing is known."""

from __future__ import annotations

import pytest

from station.core.endings import EndingKind
from station.mcp.hints import after

EXITED = EndingKind.EXITED
APT = "E: List directory /var/lib/apt/lists/partial is missing. - Acquire (30: Read-only file system)"


def test_what_ran_out_of_time_learns_how_to_get_more() -> None:
    hint = after(EndingKind.TIMED_OUT, "make", "", "none")
    assert hint is not None
    assert "timeout_seconds" in hint
    assert "3600" in hint
    assert "sandbox_start" in hint


@pytest.mark.parametrize(
    "command",
    ["npm install left-pad", "pip install x", "git clone there", "curl example.com", "uv pip install x", "npm ci"],
)
def test_what_waited_for_the_network_is_not_told_to_wait_longer(command: str) -> None:
    hint = after(EndingKind.TIMED_OUT, command, "", "none") or ""
    assert "no network" in hint
    assert "timeout_seconds" not in hint
    assert "timeout_seconds" in (after(EndingKind.TIMED_OUT, command, "", "unrestricted") or "")


def test_what_ran_out_of_memory_learns_so() -> None:
    assert "memory" in (after(EndingKind.OOM, "", "", "none") or "")


@pytest.mark.parametrize(
    "command",
    ["apt-get update", "apt install curl", "sudo apt-get -y install x", "dpkg -i x.deb", "cd /; apk add curl"],
)
def test_installing_system_packages_without_a_network_names_the_operators_setting(command: str) -> None:
    assert "allow_network: true" in (after(EXITED, command, APT, "none") or "")


@pytest.mark.parametrize(
    "said",
    [
        "curl: (6) Could not resolve host: example.com",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "ping: connect: Network is unreachable",
        "NewConnectionError: Failed to establish a new connection",
        "fatal: unable to look up example.com (port 9418) (Name or service not known)",
        "getaddrinfo EAI_AGAIN registry.example.org",
        "error: externally-managed-environment",
    ],
)
def test_what_needed_the_network_learns_that_there_is_none(said: str) -> None:
    assert "network: none" in (after(EXITED, "pip install x", said, "none") or "")
    assert after(EXITED, "pip install x", said, "unrestricted") is None


@pytest.mark.parametrize(
    ("ending", "command", "said"),
    [
        (EXITED, "false", ""),
        (EXITED, "grep apt file", ""),
        (EXITED, "aptitude-like", "are you root?"),
        (EndingKind.SIGNALLED, "apt-get", APT),
        (EndingKind.CANCELLED, "apt-get", APT),
    ],
)
def test_nothing_is_said_where_nothing_is_known(ending: EndingKind, command: str, said: str) -> None:
    assert after(ending, command, said, "none") is None
