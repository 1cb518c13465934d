"""What the machine of a run is: versions, no names and no paths."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from station import __version__
from tests.engine import Engine


def about(engine: Engine | None) -> dict[str, str]:
    """For a page: what the run was made with. What is not there is `none`."""
    found = {
        "station": __version__,
        "tier": "full" if os.environ.get("STN_TEST_FULL") else "fast",
        "system": _system(),
        "kernel": re.match(r"[\d.]*\d", platform.release())[0],  # type: ignore[index]  # it begins with a number
        "machine": platform.machine(),
        "cgroup": "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1",
        "user": "root" if os.geteuid() == 0 else "unprivileged",
        "bubblewrap": _version("bwrap", "--version"),
        "runsc": _version("runsc", "--version"),
    }
    if engine:
        server = ("version", "--format", "{{.Server.Version}}, API {{.Server.APIVersion}}")
        found["engine"] = engine.docker(*server)
        found["runc"] = _version("runc", "--version")
    return found


def _version(*command: str) -> str:
    if not shutil.which(command[0]):
        return "none"
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.splitlines()[0].split()[-1] if done.stdout else "none"


def _system() -> str:
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    names = dict(line.split("=", 1) for line in lines if "=" in line)
    return f"{names.get('ID', 'Linux')} {names.get('VERSION_ID', '')}".strip().strip('"').replace('"', "")
