"""HD-S01, S04, S05: nothing of the platform is readable inside; an environment is what the caller gave."""

from __future__ import annotations

import subprocess

import pytest

from station import Sandbox
from station.core.errors import InvalidInput

from .conftest import Probe
from .targets import Target

CANARY = "canary-3f1c-not-for-the-sandbox"


def test_hd_s01_no_variable_of_the_station_is_readable_anywhere_inside(
    confined: Sandbox, target: Target, monkeypatch: pytest.MonkeyPatch, attack: Probe, control: Probe
) -> None:
    monkeypatch.setenv("STN_CANARY", CANARY)
    search = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c -e '[c]anary' -e 'STN_[H]OME'"
    found = subprocess.run(search, shell=True, capture_output=True, text=True, check=True).stdout
    assert found.strip() != "0", "the control finds it outside"
    assert confined.exec(search).stdout.strip() == "0"
    assert control("read_init").startswith("succeeded")
    if not target.own_kernel:  # that of gVisor shows it to all: what it may show was searched above
        assert attack(confined, "read_init") == "refused: nothing of PID 1 can be read"


def test_hd_s04_the_environment_is_exactly_what_was_given_beside_the_layout(anywhere: Sandbox) -> None:
    result = anywhere.exec(["env", "-0"], env={"MULTI": "a\nb\n", "EMPTY": "", "LD_X": "é", "BASH_FUNC": "() { :;}"})
    got = dict(line.split("=", 1) for line in result.stdout.split("\0") if line)
    assert (got["MULTI"], got["EMPTY"], got["LD_X"], got["BASH_FUNC"]) == ("a\nb\n", "", "é", "() { :;}")
    assert {key for key in got if key.startswith(("STN_", "STATION_"))} == set()
    assert {"HOME", "PATH", "LANG"} <= set(got)


@pytest.mark.parametrize("env", [{"": "x"}, {"=x": "y"}, {"A\nB": "x"}, {"A\0": "x"}, {"A": "x\0"}, {"A": "x" * 2**20}])
def test_hd_s04_a_variable_that_cannot_be_is_refused(anywhere: Sandbox, env: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        anywhere.exec("true", env=env)


def test_hd_s04_start_up_files_and_variables_of_a_shell_do_not_run(anywhere: Sandbox) -> None:
    anywhere.files.write("/home/node/.bashrc", b"echo from-bashrc")
    anywhere.files.write("/home/node/.profile", b"echo from-profile")
    assert anywhere.exec("echo plain").stdout == "plain\n"


def test_hd_s05_a_crash_leaves_no_core(anywhere: Sandbox) -> None:
    result = anywhere.exec("ulimit -c; python3 -c 'import os; os.kill(os.getpid(), 11)'; ls -A; ls -A /tmp | grep core")
    assert result.stdout.splitlines()[0] == "0"
    assert "core" not in result.stdout
