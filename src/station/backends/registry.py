"""Which backends there are, and which one is used where nobody names one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from station.backends.base import Backend
from station.backends.bubblewrap import BubblewrapBackend, BubblewrapSettings
from station.backends.docker import DockerBackend, DockerSettings
from station.backends.host import HostBackend, HostSettings
from station.core.capabilities import Capabilities

DEFAULTS = (BubblewrapBackend.name,)
"""Best first. `host` and `fake` are never chosen by themselves, and `docker`, which needs an engine of root's, is only
where the operator says so."""


def make_backends(
    state_dir: Path,
    station_id: str,
    *,
    bubblewrap: BubblewrapSettings | None = None,
    docker: DockerSettings | None = None,
    host: HostSettings | None = None,
    allow_host: bool = False,
) -> dict[str, Backend]:
    """By name. `host` only where the operator allows it. Nothing is tried or written yet; whoever called this ends the
    backends by `aclose`."""
    confined = BubblewrapBackend(state_dir, station_id=station_id, settings=bubblewrap or BubblewrapSettings())
    made: list[Backend] = [confined]
    made.append(DockerBackend(state_dir, station_id=station_id, settings=docker or DockerSettings()))
    if allow_host:
        made.append(HostBackend(state_dir, station_id=station_id, settings=host or HostSettings()))
    return {backend.name: backend for backend in made}


def choose_default(probes: Mapping[str, Capabilities]) -> str | None:
    """The best that works here without root; `None`: there is none, and the caller says why from the probes."""
    return next((name for name in DEFAULTS if name in probes and probes[name].available), None)
