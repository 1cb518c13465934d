"""HD-K01 to K05, K08 to K11: the kernel's own powers are out of reach."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess

import pytest

from station import Sandbox

from .conftest import Probe


@pytest.mark.parametrize("name", ["mount", "mount_api", "umount"])
def test_hd_k01_user_code_changes_no_mount(confined: Sandbox, attack: Probe, control: Probe, name: str) -> None:
    assert control(name, mounts=True).startswith("succeeded")
    assert attack(confined, name).startswith("refused")


@pytest.mark.parametrize("name", ["unshare_user", "clone_user", "setns_init"])
def test_hd_k02_user_code_makes_and_enters_no_namespace(
    confined: Sandbox, attack: Probe, control: Probe, name: str
) -> None:
    assert control(name).startswith("succeeded")
    assert attack(confined, name).startswith("refused")


@pytest.mark.parametrize("name", ["ptrace_other", "vm_read", "read_init"])
def test_hd_k03_user_code_reads_no_other_process(confined: Sandbox, attack: Probe, control: Probe, name: str) -> None:
    assert control(name).startswith("succeeded")
    assert attack(confined, name).startswith("refused")


def test_hd_k04_privileged_calls_are_denied_before_their_arguments_are_looked_at(
    confined: Sandbox, attack: Probe, control: Probe
) -> None:
    assert control("privileged").startswith("succeeded")
    assert attack(confined, "privileged") == "refused: EPERM or ENOSYS for every call"


def test_hd_k05_there_is_no_io_uring(confined: Sandbox, attack: Probe, control: Probe) -> None:
    assert control("io_uring").startswith("succeeded")
    assert attack(confined, "io_uring") == "refused: EPERM"


@pytest.mark.root
def test_hd_k08_kernel_settings_cannot_be_opened_for_writing(confined: Sandbox, attack: Probe, control: Probe) -> None:
    assert "/proc/sys/kernel/core_pattern" in control("kernel_files")
    assert attack(confined, "kernel_files") == "refused: none opened"


def test_hd_k09_no_service_of_the_host_is_in_reach(confined: Sandbox, attack: Probe, control: Probe) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert f"127.0.0.1:{port}" in control("host_services", port)
        assert attack(confined, "host_services", port) == "refused: none in reach"


@pytest.mark.root
def test_hd_k10_devices_are_neither_made_nor_opened(confined: Sandbox, attack: Probe, control: Probe) -> None:
    assert "probe-" in control("devices")
    assert attack(confined, "devices") == "refused: none made, none opened"


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
