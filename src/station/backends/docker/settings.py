"""What the operator says about boxes in an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from station.backends.docker.images import Pull
from station.backends.docker.networks import OperatorNetwork
from station.backends.docker.quota import QuotaMode
from station.backends.docker.registry import RegistryAuth


@dataclass(frozen=True)
class DockerSettings:
    """Checked by its parts, when it is made."""

    image: str | None = None
    """Of boxes whose caller names none and whose runtime has none in `images`. `None`: the built-in ones."""
    images: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By runtime: `python`, `node`, `bash`, and `linux` for none."""
    runtime: str | None = None
    """The engine's runtime by its name there. `None`: the engine's default."""
    pull: Pull = Pull.NEVER
    pull_from: Sequence[str] | None = None
    """The registries that callers' images may come from. `None`: see `registry.allowed`."""
    auth: RegistryAuth = field(default_factory=RegistryAuth)
    """Who the station is where images are pulled from."""
    network: OperatorNetwork = field(default_factory=OperatorNetwork)
    """Of boxes whose caller names none."""
    seccomp: str | None = None
    """The path of a profile of the operator's. `None`: Station's own."""
    workspace_quota: QuotaMode = QuotaMode.AUTO
    """Whether home and workspace of a new kept sandbox have a size, where that can be had."""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The operator's own, on every container beside ours."""
    call_seconds: float = 30.0
    """How long one call of the engine may take; pulls have a bound of their own."""
    guest: Path | None = None
    """The guest's binary. `None`: the one for the engine's machine."""
    guest_options: tuple[str, ...] = ()
    """Of tests alone."""

    def notes(self) -> tuple[str, ...]:
        """What `stn doctor` says of settings that change nothing."""
        if self.pull is Pull.NEVER and self.auth != RegistryAuth():
            return ("sandbox.registry_auth is set and not used: sandbox.pull is never; `missing` would use it",)
        return ()

    def own_images(self) -> tuple[str, ...]:
        """Those that the operator has named."""
        return (*self.images.values(), *([self.image] if self.image is not None else ()))
