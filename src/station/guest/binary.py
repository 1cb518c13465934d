"""Where the guest for this machine is. It ships in the wheel, and `guest/build.py` makes it in a checkout."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from station.core.errors import BackendUnavailable

GUEST_VERSION = "0.1.0"
"""What the hello of a guest of this release says; an older box answers with its own."""

_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_DIRECTORY = Path(__file__).parent / "bin"


def guest_binary(machine: str | None = None, *, directory: Path = _DIRECTORY) -> Path:
    """The guest's static executable for `machine` (`None`: this one).

    Raises BackendUnavailable, with a remedy in its detail, where there is none.
    """
    machine = (machine or platform.machine()).lower()
    architecture = _ARCHITECTURES.get(machine)
    if architecture is None:
        raise BackendUnavailable(f"Station has no guest for {machine}; it runs on x86_64 and aarch64")
    path = directory / f"stn-guest-{architecture}"
    if not path.is_file():
        remedy = "python guest/build.py src/station/guest/bin"
        raise BackendUnavailable(f"the guest for {architecture} is not built; run `{remedy}`", remedy=remedy)
    if not os.access(path, os.X_OK):
        remedy = f"chmod +x {path}"
        raise BackendUnavailable(f"the guest for {architecture} is not executable; run `{remedy}`", remedy=remedy)
    return path
