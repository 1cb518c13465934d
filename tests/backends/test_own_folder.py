"""What code does in a mounted folder, so that the user's own git runs something later: with and without the guard."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from station.backends._mounts import plan_mount
from station.backends.base import Labels
from station.backends.bubblewrap import BubblewrapBackend
from station.core.errors import InvalidInput
from station.core.spec import Mount, Spec

MakeLabels = Callable[..., Labels]
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


@dataclass
class Folder:
    """A repository of the user's, and his git."""

    path: Path

    def git(self, *words: str, at: str = ".") -> str:
        names = {"GIT_CONFIG_GLOBAL": str(self.path.parent / "gitconfig"), "GIT_CONFIG_NOSYSTEM": "1"}
        who = {f"GIT_{role}_{what}": "x" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.path.parent), **names, **who}
        told = subprocess.run(
            ["git", *words], cwd=self.path / at, env=environ, capture_output=True, text=True, timeout=20
        )
        return told.stdout + told.stderr

    def give(self) -> None:
        if os.geteuid() == 0:
            for path in [self.path, *self.path.rglob("*")]:
                os.lchown(path, 4321, 4321)

    @property
    def harmed(self) -> bool:
        return (self.path.parent / "harm").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "work")
    made.path.mkdir()
    (tmp_path / "gitconfig").write_text('[safe]\n\tdirectory = *\n[protocol "file"]\n\tallow = always\n')
    made.git("init", "-q", "-b", "main")
    made.git("commit", "-q", "--allow-empty", "-m", "1")
    return made


EVIL = "mkdir -p e/objects e/refs; printf '[core]\\nfsmonitor = \"touch %s; false\"\\n' HARM > e/config"
HOOK = "printf '#!/bin/sh\\ntouch HARM' > {0}; chmod +x {0}"
TAKER = f"git init -q e; {HOOK.format('e/.git/hooks/pre-receive')}"
LIB = ("init -q ../lib", "-C ../lib commit -q --allow-empty -m 1", "submodule --quiet add ../lib sub")
ATTACKS = {
    "commondir": ((), f"{EVIL}; echo ../e > .git/commondir", "status"),
    "the commondir of a worktree": (
        ("worktree add -q ../tree",),
        f"{EVIL}; echo ../../../e > .git/worktrees/tree/commondir",
        "-C ../tree status",
    ),
    "the settings of a worktree": (
        ("config extensions.worktreeConfig true", "worktree add -q ../tree"),
        f"{EVIL}; cp e/config .git/worktrees/tree/config.worktree",
        "-C ../tree status",
    ),
    "config.worktree": (
        ("config extensions.worktreeConfig true",),
        f"{EVIL}; cp e/config .git/config.worktree",
        "status",
    ),
    "remotes": (
        (),
        f"{TAKER}; mkdir -p .git/remotes; printf 'URL: ./e\\nPush: HEAD:refs/heads/x\\n' > .git/remotes/origin",
        "push",
    ),
    "branches": (
        (),
        f"{TAKER}; mkdir -p .git/branches; echo ./e > .git/branches/origin",
        "push origin main:refs/heads/x",
    ),
    "hooks in the tree": (
        ("config core.hooksPath .husky/_",),
        f"mkdir -p .husky/_; {HOOK.format('.husky/_/pre-commit')}",
        "commit --allow-empty -m 2",
    ),
    "settings in the tree": (
        ("config include.path ../tools/settings",),
        f"{EVIL}; mkdir -p tools; cp e/config tools/settings",
        "status",
    ),
    "the commondir of a submodule": (LIB, f"{EVIL}; echo ../../../e > .git/modules/sub/commondir", "status"),
    "the git file of a submodule": (
        LIB,
        f"{EVIL}; cp -r .git/modules/sub g; cat e/config > g/config; echo gitdir: ../g > sub/.git",
        "status",
    ),
    "a repository beside its git file": (
        ("init -q --separate-git-dir=real",),
        f"{EVIL}; cat e/config >> real/config",
        "status",
    ),
}  # fmt: skip


@pytest.mark.parametrize("protect", [True, False], ids=["guarded", "control"])
@pytest.mark.parametrize("name", ATTACKS)
async def test_git_outside_runs_nothing_of_what_code_in_the_folder_made(
    bubblewrap: BubblewrapBackend, labels: MakeLabels, sh, folder: Folder, name: str, protect: bool
) -> None:
    before, attack, command = ATTACKS[name]
    for line in before:
        folder.git(*line.split())
    folder.git(*command.split())
    assert not folder.harmed
    folder.give()
    box = await bubblewrap.create(Spec("bubblewrap", mount=Mount(str(folder.path), protect=protect)), labels("b1"))
    await sh(box, f"({attack.replace('HARM', str(folder.path.parent / 'harm'))}) 2>/dev/null; true")
    await box.destroy()
    told = folder.git(*command.split())
    assert folder.harmed is not protect, told


async def test_git_works_in_a_guarded_folder_and_outside_of_it_afterwards(
    bubblewrap: BubblewrapBackend, labels: MakeLabels, sh, folder: Folder
) -> None:
    for line in LIB:
        folder.git(*line.split())
    folder.git("commit", "-qm", "sub")
    folder.give()
    box = await bubblewrap.create(Spec("bubblewrap", mount=Mount(str(folder.path))), labels("b1"))
    who = "export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x; set -e"
    work = (
        "echo 1 > f; git add f; git commit -qm 2; git checkout -q -b x; echo 2 > f; git stash -q; git stash pop -q; "
        "git commit -qam 3; git checkout -q main; git merge -q x; git rebase -q x; git gc -q; "
        "git fsck --no-dangling; git tag t; cd sub; echo 1 > g; git add g; git commit -qm 4; "
        "cd ..; git commit -qam 5; git status --porcelain"
    )
    assert (await sh(box, f"{who}; {work}")).strip() == ""
    await box.destroy()
    assert folder.git("status", "--porcelain") == ""
    assert folder.git("fsck", "--no-dangling") == ""
    assert folder.git("rev-parse", "--show-toplevel", "--is-bare-repository").split() == [str(folder.path), "false"]
    assert folder.git("rev-parse", "--show-toplevel", at="sub").split() == [str(folder.path / "sub")]
    assert folder.git("log", "--format=%s").split() == ["5", "3", "2", "sub", "1"]
    folder.git("worktree", "add", "-q", "../tree")
    assert folder.git("status", "--porcelain", at="../tree") == ""
    owners = {
        path.lstat().st_uid for name in ("commondir", "hooks", "worktrees") for path in [folder.path / ".git" / name]
    }
    assert owners == {folder.path.stat().st_uid}


@pytest.mark.parametrize(
    ("command", "harmed"),
    [("status", True), ("diff", True), ("status --ignore-submodules=all", False),
     ("diff --ignore-submodules=all", False)],
)  # fmt: skip
async def test_a_repository_that_code_links_in_the_index_is_entered_unless_git_is_told_not_to(
    bubblewrap: BubblewrapBackend, labels: MakeLabels, sh, folder: Folder, command: str, harmed: bool
) -> None:
    """What docs/mcp.md advises: the index stays writable, so that git works in the box."""
    folder.give()
    box = await bubblewrap.create(Spec("bubblewrap", mount=Mount(str(folder.path))), labels("b1"))
    await sh(
        box,
        "git clone -q . s 2>&1; git -C s config core.fsmonitor "
        f"'touch {folder.path.parent}/harm; false'; "
        "git update-index --add --cacheinfo 160000,$(git -C s rev-parse HEAD),s; "
        "printf '[submodule \"s\"]\\npath = s\\nurl = ./s\\nignore = none\\n' > .gitmodules",
    )
    await box.destroy()
    assert not folder.harmed
    folder.git(*command.split())
    assert folder.harmed is harmed


def plan(folder: Folder) -> set[str]:
    return set(plan_mount(Mount(str(folder.path)), state=Path("/srv/state"), homes=[]).protected)


@pytest.mark.parametrize(("key", "value"), [("core.bare", "true"), ("core.worktree", "/elsewhere")])
def test_settings_that_git_passes_over_beside_a_commondir_make_all_of_git_read_only(
    folder: Folder, key: str, value: str
) -> None:
    folder.git("config", key, value)
    assert ".git" in plan(folder)
    assert not (folder.path / ".git" / "commondir").exists()


def test_git_that_cannot_be_completed_is_read_only_altogether(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "mkdir", refused)
    assert ".git" in plan(folder)


def a_link(folder: Folder) -> None:
    (folder.path / ".git").rename(folder.path / "real")
    (folder.path / ".git").symlink_to("real")


def hooks_over_a_link(folder: Folder) -> None:
    (folder.path / "a").mkdir()
    (folder.path / "b").symlink_to("a")
    folder.git("config", "core.hooksPath", "b")


@pytest.mark.parametrize(
    ("prepare", "word"),
    [
        (a_link, r"\.git cannot be guarded: it is a link"),
        (hooks_over_a_link, "b cannot be guarded: it is named by .git/config"),
        (lambda folder: folder.git("config", "core.hooksPath", "."), "the folder itself"),
        (lambda folder: folder.git("init", "-q", "--bare", "."), "bare"),
        (lambda folder: (folder.path / ".git" / "commondir").write_text("../e\n"), "leads git to ../e"),
        (lambda folder: (folder.path / ".git" / "config").write_text("[core]\n\0"), "cannot be guarded"),
    ],
    ids=["link", "hooks over a link", "hooks in the folder itself", "bare", "commondir", "damaged settings"],
)
def test_a_folder_that_cannot_be_guarded_is_refused(
    folder: Folder, prepare: Callable[[Folder], object], word: str
) -> None:
    plan(folder)
    (folder.path / ".git" / "commondir").unlink()
    prepare(folder)
    with pytest.raises(InvalidInput, match=word):
        plan(folder)
    plan_mount(Mount(str(folder.path), protect=False), state=Path("/srv/state"), homes=[])


async def test_a_guarded_file_that_is_replaced_outside_loses_its_guard_and_a_folder_keeps_it(
    bubblewrap: BubblewrapBackend, labels: MakeLabels, sh, folder: Folder
) -> None:
    """What SECURITY.md warns of: the kernel takes the mount off a name that is renamed over elsewhere."""
    folder.give()
    box = await bubblewrap.create(Spec("bubblewrap", mount=Mount(str(folder.path))), labels("b1"))
    write = "echo >> .git/config && exit 0; exit 9"
    await sh(box, write, code=9)
    folder.git("config", "a.b", "c")
    folder.give()
    (folder.path / ".git" / "hooks" / "new").touch()
    await sh(box, write)
    await sh(box, "echo > .git/hooks/pre-commit && exit 0; exit 9", code=9)
    await box.destroy()
    box = await bubblewrap.create(Spec("bubblewrap", mount=Mount(str(folder.path))), labels("b2"))
    await sh(box, write, code=9)
    await box.destroy()
