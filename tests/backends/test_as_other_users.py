"""The same boxes as other users of this machine: one with, one without subordinate ids. Only root can become them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NOBODY = 65534


def interpreter() -> str | None:
    """A Python of our version that everybody may start: ours, else the system's."""
    for path in (sys.executable, "/usr/bin/python3"):
        real = Path(path).resolve()
        if Path(path).exists() and all(os.stat(p).st_mode & 1 for p in (real, *real.parents)):
            version = subprocess.run(
                [path, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True
            )
            if version.stdout.strip() == str(sys.version_info[:2]):
                return path
    return None


def with_subordinate_ids() -> tuple[int, int] | None:
    if not shutil.which("newuidmap"):
        return None
    for line in Path("/etc/subuid").read_text().splitlines():
        try:
            entry = pwd.getpwnam(line.partition(":")[0])
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    return None


def run_as(uid: int, gid: int, guest_uid: str) -> None:
    python = interpreter()
    if python is None or not all(os.stat(p).st_mode & 1 for p in (ROOT, *ROOT.parents)):
        pytest.skip("no Python of this version, or not this directory, is open to other users")
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *(p for p in sys.path if p.endswith("site-packages"))]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "STN_TEST_GUEST_UID": guest_uid,
    }
    command = [
        "setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups",
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "tests/backends/test_launch.py", "tests/backends/test_boxes.py", "tests/backends/test_crash.py",
        "tests/backends/test_own_folder.py",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.root
@pytest.mark.timeout(240)
def test_a_user_without_subordinate_ids_has_boxes_with_one_user() -> None:
    run_as(NOBODY, NOBODY, "shared")


@pytest.mark.root
@pytest.mark.timeout(240)
def test_a_user_with_subordinate_ids_has_boxes_with_two_users() -> None:
    who = with_subordinate_ids()
    if who is None:
        pytest.skip("nobody has subordinate ids here, or newuidmap is missing")
    run_as(*who, "separate")
