"""HD-K09, K11: services of the host, and setuid programs. The other attacks on the kernel: `test_programs.py`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess

import pytest

from station import Sandbox

from .conftest import Probe


def test_hd_k09_no_service_of_the_host_is_in_reach(confined: Sandbox, attack: Probe, control: Probe) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert f"127.0.0.1:{port}" in control("host_services", port)
        assert attack(confined, "host_services", port) == "refused: none in reach"


@pytest.mark.root
def test_hd_k11_a_setuid_root_program_gives_nothing(
    confined: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The control runs the same file as another user on the host, where it does become root."""
    directory = tmp_path_factory.mktemp("setuid")
    for parent in (directory, *directory.parents):
        if parent.stat().st_uid == os.geteuid() and str(parent).startswith(str(tmp_path_factory.getbasetemp().parent)):
            parent.chmod(0o755)
    program = directory / "id"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o4755)
    command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", str(program), "-u"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "0\n"

    confined.files.write("id", program.read_bytes(), mode=0o755)
    assert confined.exec("chmod u+s id; ./id -u").stdout == "1000\n"
