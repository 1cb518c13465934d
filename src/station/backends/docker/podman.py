"""What Podman's Docker API takes otherwise than Docker's, and says nothing of. Tried with Podman 4.3.1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from station.backends.docker import seccomp
from station.core.errors import BackendUnavailable
from station.core.paths import TMP

HEADER = "Libpod-Api-Version"
"""Podman alone answers with it."""
_PROFILE = "seccomp={"
_FILES = re.compile(r"nr_inodes=\d+,?")
_OWN_TMPFS = "/var/tmp"  # noqa: S108 - a place in boxes
"""Podman mounts a tmpfs there, without a size, where a root file system is read-only."""


def body_for(body: Mapping[str, Any], profiles: Path | None) -> dict[str, Any]:
    """A create body as Podman understands it. `profiles`: a directory that the engine reads too; `None`: there is
    none. Raises BackendUnavailable without one, as Podman takes the path of a seccomp profile for the profile."""
    host = dict(body.get("HostConfig") or {})
    if "Tmpfs" in host:
        host["Tmpfs"] = {place: _FILES.sub("", options) for place, options in host["Tmpfs"].items()}
        if TMP in host["Tmpfs"]:
            host["Tmpfs"].setdefault(_OWN_TMPFS, host["Tmpfs"][TMP])
    if "SecurityOpt" in host:
        host["SecurityOpt"] = [_by_path(option, profiles) for option in host["SecurityOpt"]]
    return {**body, "HostConfig": host}


def _by_path(option: str, profiles: Path | None) -> str:
    if not option.startswith(_PROFILE):
        return option
    if profiles is None:
        raise BackendUnavailable(
            "this engine is Podman, which reads seccomp profiles from its own disk: it must be on this machine",
            remedy="set DOCKER_HOST to Podman's socket, unix:///run/podman/podman.sock",
        )
    profile = seccomp.Profile(option.removeprefix("seccomp="))
    return f"seccomp={seccomp.keep(profiles, profile)}"
