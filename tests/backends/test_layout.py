"""docs/layout.md is true of a real box."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from station.backends._layout import etc_files, interpreters, look_at_usr, require_runtime, write_root_files
from station.backends.base import Labels
from station.backends.bubblewrap import BubblewrapBackend
from station.core.errors import InvalidInput
from station.core.interpreters import INTERPRETERS
from station.core.spec import RUNTIMES, Spec

PAGE = Path(__file__).parent.parent.parent / "docs" / "layout.md"


def rows(heading: str) -> list[list[str]]:
    """The body of the table below a heading, without back-ticks."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


async def test_a_box_is_as_its_page_says(bubblewrap: BubblewrapBackend, labels: Callable[..., Labels], sh) -> None:
    box = await bubblewrap.create(Spec("bubblewrap"), labels("b1"))
    env = dict(line.partition("=")[::2] for line in (await sh(box, "env")).splitlines())
    for name, value in rows("User and environment"):
        assert env.pop(name) == value or name == "SHELL"
    assert set(env) <= {"PWD", "OLDPWD", "SHLVL", "_"}
    for place, _, kept, *_ in rows("Places"):
        await sh(box, f"touch {place}/x")
        assert bool(kept == "yes") == (place in ("/workspace", "/home/node"))
    assert (await sh(box, "ls -di /workspace /home/node/workspace | cut -d' ' -f1 | uniq | wc -l")).strip() == "1"
    assert (await sh(box, "pwd; cd ~/workspace; /bin/pwd; readlink /var/tmp /var/run")).split() == [
        "/workspace", "/home/node/workspace", "/tmp", "/run",
    ]  # fmt: skip
    text = PAGE.read_text(encoding="utf-8")
    for name in (await sh(box, "ls /etc")).split():
        assert f"`{name}`" in text, name
    await sh(box, "grep -q nameserver /etc/resolv.conf", code=1)
    if Path("/etc/ssl/certs/ca-certificates.crt").exists():
        await sh(box, "test -s /etc/ssl/certs/ca-certificates.crt")
    names = {"python": ("python", "python3"), "node": ("node",), "bash": ("bash",)}
    assert set((await sh(box, "ls /.stn/bin")).split()) == {name for r in interpreters() for name in names[r]}
    await box.destroy()


def machine(root: Path, *programs: str) -> Path:
    for name in programs:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
    return root


def test_interpreters_are_found_in_usr_alone(tmp_path: Path) -> None:
    root = machine(tmp_path, "usr/bin/python3", "usr/bin/nodejs", "opt/bash/bash")
    (root / "usr/bin/bash").symlink_to(root / "opt/bash/bash")
    assert interpreters(root) == {"python": "/usr/bin/python3", "node": "/usr/bin/nodejs"}
    require_runtime("python", interpreters(root))


def test_a_missing_interpreter_is_named_by_the_package_that_runs_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(INTERPRETERS) == set(RUNTIMES)
    monkeypatch.setitem(INTERPRETERS, "node", replace(INTERPRETERS["node"], package="of-one-place"))
    with pytest.raises(InvalidInput, match="apt install of-one-place"):
        require_runtime("node", {})


def test_root_files_follow_the_machine(tmp_path: Path) -> None:
    root = machine(tmp_path / "m", "usr/bin/python3", "etc/ld.so.cache", "lib32/x")
    (root / "bin").symlink_to("usr/bin")
    (root / "etc/ssl").mkdir()
    usr = look_at_usr(root)
    assert (usr.links, usr.directories) == ((("usr/bin", "/bin"),), ("/lib32",))
    for found in (interpreters(root), {"node": "/usr/bin/node"}):
        write_root_files(tmp_path / "out", usr, found)
    assert sorted(p.name for p in (tmp_path / "out/links").iterdir()) == ["node"]
    assert (tmp_path / "out/etc/ssl").is_dir()
    assert (tmp_path / "out/etc/passwd").read_text() == etc_files("/bin/sh")["passwd"]
    assert re.search(r"^node:x:1000:1000", etc_files("/bin/sh")["passwd"], re.MULTILINE)
