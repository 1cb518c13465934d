"""The repository's own promises: what is installed is pinned by hash, and no file tells where it came from."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "requirements").rglob("*.txt"))
LOCK = ROOT / "tests" / "interop" / "node" / "package-lock.json"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", text, re.MULTILINE))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", line)[0].lower().replace("_", "-") for line in requirements}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_pin_has_hashes_and_no_address(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "://" not in text
    blocks = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    assert [block for block in blocks if block and ("==" not in block or "--hash=sha256:" not in block)] == []


def test_what_the_project_names_is_pinned() -> None:
    assert names(PROJECT["project"]["dependencies"]) <= pins("run").keys()
    assert names(PROJECT["build-system"]["requires"]) <= pins("build").keys()
    assert names(PROJECT["dependency-groups"]["dev"]) <= pins("dev").keys()


def test_a_package_has_one_version_everywhere() -> None:
    assert {**pins("dev"), **pins("run"), **pins("build")} == pins("dev")


def test_the_node_packages_have_hashes_and_no_address() -> None:
    packages = json.loads(LOCK.read_text(encoding="utf-8"))["packages"]
    installed = {name: package for name, package in packages.items() if name}
    assert [name for name, package in installed.items() if not package["integrity"].startswith("sha512-")] == []
    assert [name for name, package in installed.items() if "resolved" in package] == []
    manifest = json.loads((LOCK.parent / "package.json").read_text(encoding="utf-8"))
    assert packages[""]["dependencies"] == manifest["dependencies"]
    assert all(re.fullmatch(r"[0-9.]+", version) for version in manifest["dependencies"].values())


@pytest.mark.parametrize("name", ["attacks", "clients", "demo", "image", "install", "mutants", "requirements"])
def test_a_script_that_is_asked_for_help_does_nothing_else(name: str, tmp_path: Path) -> None:
    """In a folder that has nothing of what it works on."""
    (tmp_path / "scripts").mkdir()
    copy = shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    done = subprocess.run([copy, "--help"], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    first = (ROOT / "scripts" / name).read_text(encoding="utf-8").splitlines()[1]
    assert done.stdout.splitlines()[0] == first.removeprefix("# ")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [name]
