from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import station
from station.core.errors import BackendUnavailable
from station.guest.binary import GUEST_VERSION, guest_binary


@pytest.mark.parametrize(("machine", "architecture"), [("x86_64", "x86_64"), ("AMD64", "x86_64"), ("arm64", "aarch64")])
def test_the_guest_of_a_machine_is_found_by_its_architecture(tmp_path: Path, machine: str, architecture: str) -> None:
    path = tmp_path / f"stn-guest-{architecture}"
    path.write_bytes(b"")
    path.chmod(0o755)
    assert guest_binary(machine, directory=tmp_path) == path


def test_a_guest_that_is_not_built_has_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"run `python guest/build\.py") as caught:
        guest_binary("x86_64", directory=tmp_path)
    assert caught.value.detail["remedy"].startswith("python guest/build.py")


def test_the_remedy_with_its_relative_folder_builds_a_guest(tmp_path: Path) -> None:
    build = Path(__file__).parents[2] / "guest" / "build.py"
    subprocess.run([sys.executable, build, "--arch", "x86_64", "some/where"], cwd=tmp_path, check=True)
    assert guest_binary("x86_64", directory=tmp_path / "some" / "where").stat().st_size


def test_a_guest_that_is_not_executable_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "stn-guest-x86_64").write_bytes(b"")
    with pytest.raises(BackendUnavailable, match=r"chmod \+x"):
        guest_binary("x86_64", directory=tmp_path)


def test_a_machine_without_a_guest_is_named() -> None:
    with pytest.raises(BackendUnavailable, match="no guest for riscv64"):
        guest_binary("riscv64")


def test_the_package_and_the_guest_speak_of_one_version() -> None:
    header = (Path(__file__).parents[2] / "guest/src/guest.h").read_text(encoding="utf-8")
    assert f'#define GUEST_VERSION "{GUEST_VERSION}"' in header
    assert GUEST_VERSION == station.__version__
