"""What the operator says about boxes in an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from station.backends.docker.images import Pull
from station.backends.docker.networks import OperatorNetwork
from station.backends.docker.registry import RegistryAuth


@dataclass(frozen=True)
class DockerSettings:
    image: str | None = None
    """Of boxes whose caller names none and whose runtime has none in `images`. `None`: the built-in ones."""
    images: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By runtime: `python`, `node`, `bash`, and `linux` for none."""
    runtime: str | None = None
    """The engine's runtime by its name there. `None`: the engine's default."""
    pull: Pull = Pull.NEVER
    auth: RegistryAuth = field(default_factory=RegistryAuth)
    """Who the station is where images are pulled from."""
    network: OperatorNetwork = field(default_factory=OperatorNetwork)
    """Of boxes whose caller names none."""
    seccomp: str | None = None
    """The path of a profile of the operator's. `None`: Station's own."""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The operator's own, on every container beside ours."""
    call_seconds: float = 30.0
    guest: Path | None = None
    guest_options: tuple[str, ...] = ()
    """Of tests alone."""
