"""HD-N01, N02, N03, N05: a box reaches nobody. The other cases of hardening 4 are about the door, of a later part.

The program sends nothing where it finds a way out: that is harm enough. The control has every address of the world on
its own loopback.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from station import Sandbox
from station.core.attacks import Line

from . import program
from .conftest import Attack

WHOLE_WORLD = 'ip link set lo up && ip route add local default dev lo; ip -6 route add local default dev lo; exec "$@"'
COMMON = ("10.0.2.2", "172.17.0.1", "192.168.0.1")
"""Gateways of bridges and virtual machines."""


def _unhardened(binary: Path, case: str, *arguments: str) -> Line:
    argv = ["unshare", "--net", *(() if os.geteuid() == 0 else ("--user", "--map-root-user"))]
    argv += ["sh", "-c", WHOLE_WORLD, "sh", str(binary), case, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.stdout, done.stderr
    return Line.read(done.stdout)


def _own_addresses() -> tuple[str, ...]:
    found = {str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    return tuple(address for address in found if not address.startswith("127."))


@pytest.mark.parametrize("case", ["N01", "N02", "N05"])
def test_hd_no_address_outside_is_in_reach(confined: Sandbox, strike: Attack, binary: Path, case: str) -> None:
    arguments = COMMON if case == "N02" else ()
    assert len(_unhardened(binary, case, *arguments).harmful()) > 2
    line = strike(confined, case, *arguments)
    assert len(line.tries) > 2
    assert line.harmful() == []


def test_hd_n02_no_address_of_this_machine_is_in_reach(confined: Sandbox, binary: Path) -> None:
    """They are in no table that is published."""
    own = _own_addresses()
    assert program.run(confined, binary, "N02", *own).harmful() == []


def test_hd_n03_what_one_sandbox_listens_on_no_other_reaches(
    confined: Sandbox, second: Sandbox, binary: Path, strike: Attack
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with program.control_holding(binary, "N03", "listen", port):
        plain = subprocess.run([binary, "N03", port], capture_output=True, text=True).stdout
        assert len(Line.read(plain).harmful()) >= 4, "the control's listener is in reach by its names"
        assert program.run(confined, binary, "N03", port).harmful() == []
    with program.holding(confined, binary, "N03", "listen", port):
        assert len(program.run(confined, binary, "N03", port).harmful()) >= 4, "within, it is in reach"
        assert strike(second, "N03", port).harmful() == []


def test_hd_n05_a_name_is_not_found_at_once(confined: Sandbox) -> None:
    begun = time.monotonic()
    result = confined.exec(["python3", "-c", "import socket\nsocket.getaddrinfo('station-attack.example', 80)"])
    assert "gaierror" in result.stderr
    assert time.monotonic() - begun < 5
