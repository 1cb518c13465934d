"""HD-T2, T10: a folder of the user's leads nowhere else, although other boxes write in it while a box is made."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from station import Client
from station.core.errors import StationError

SECRET = "of-the-user-and-not-in-the-folder"
NAME = ".vscode"
TRIES = 60


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below /tmp: a box's stage hides that, and so much of the harm."""
    base = Path(tempfile.mkdtemp(prefix="stn-mount-", dir="/var/tmp"))
    for name in ("work/.vscode", "secret"):
        (base / name).mkdir(parents=True)
    (base / "secret" / "key").write_text(SECRET)
    (base / "work" / "other").symlink_to(base / "secret")
    if os.geteuid() == 0:
        base.chmod(0o755)
        for path in [base, *base.rglob("*")]:
            os.chown(path, 4321, 4321, follow_symlinks=False)
    yield base / "work"
    shutil.rmtree(base)


@contextmanager
def swapping(folder: Path) -> Iterator[None]:
    """As code in another box of the same folder does: exchanges a directory with a link, again and again."""
    libc, stop = ctypes.CDLL(None), threading.Event()
    one, other = os.fsencode(folder / NAME), os.fsencode(folder / "other")

    def swap() -> None:
        while not stop.wait(0.002):
            libc.renameat2(-100, one, -100, other, 2)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def bound_by_name(folder: Path) -> str:
    """The control: what was a directory when it was looked at is bound by its name, as bwrap does it."""
    while not (folder / NAME).is_dir() or (folder / NAME).is_symlink():
        pass
    argv = ["bwrap", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]
    argv += ["--ro-bind", str(folder / NAME), "/bound", "/usr/bin/cat", "/bound/key"]
    return subprocess.run(argv, capture_output=True, text=True).stdout


def test_hd_t10_a_guarded_name_that_becomes_a_link_is_never_mounted_from_there(
    client: Client, folder: Path, ran: Callable[[str], None]
) -> None:
    ran("bubblewrap")
    made, refusals = 0, set[int]()
    with swapping(folder):
        assert any(bound_by_name(folder) == SECRET for _ in range(50 * TRIES)), "the control never met the link"
        for _ in range(TRIES):
            try:
                box = client.open(f"mounted-{uuid.uuid4()}", backend="bubblewrap", mount=str(folder))
            except StationError as error:
                refusals.add(error.status)
                continue
            made += 1
            assert SECRET not in box.exec(f"cat {NAME}/key other/key ~/workspace/{NAME}/key").stdout
            box.delete()
    assert made > 0
    assert refusals <= {400, 503}


def test_hd_t2_a_directory_above_hooks_cannot_be_replaced(
    client: Client, folder: Path, ran: Callable[[str], None]
) -> None:
    """The control: with the same names, only not above anything guarded, it can."""
    ran("bubblewrap")
    for name in (".git/modules/libs/sub", ".git/other/libs/sub"):
        (folder / name / "hooks").mkdir(parents=True)
        (folder / name / "hooks" / "post-checkout").write_text("good")
    (folder / ".git/modules/libs/sub/HEAD").touch()
    if os.geteuid() == 0:
        for path in folder.rglob("*"):
            os.chown(path, 4321, 4321, follow_symlinks=False)
    attack = "cp -r .git/{0} evil-{0}; echo bad > evil-{0}/libs/sub/hooks/post-checkout; "
    attack += "mv .git/{0} old-{0} && mv evil-{0} .git/{0}"
    with client.open(f"modules-{uuid.uuid4()}", backend="bubblewrap", mount=str(folder)) as box:
        for name in ("modules", "other"):
            box.exec(attack.format(name))
        for name in (".git/modules/libs", ".git/modules/libs/sub", ".git"):
            assert box.exec(f"mv {name} gone").exit_code != 0
        box.delete()
    assert (folder / ".git/other/libs/sub/hooks/post-checkout").read_text() == "bad\n"
    assert (folder / ".git/modules/libs/sub/hooks/post-checkout").read_text() == "good"
