"""What is attacked: each way of confining code, with the station that it needs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from station.server.settings import SandboxSettings

IMAGE = "python:3.11-slim"


@dataclass(frozen=True)
class Target:
    name: str
    """As the table of hardening 4 has it, and the list of backends that ran."""
    backend: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The section `sandbox:` of its station."""
    image: str | None = None
    own_kernel: bool = False
    """Its processes are none of the host's."""

    @property
    def engine(self) -> bool:
        return self.backend == "docker"

    @property
    def where(self) -> dict[str, Any]:
        """To `Client.open`."""
        return {"backend": self.backend, **({"image": self.image} if self.image else {})}


BUBBLEWRAP = Target("bubblewrap", "bubblewrap", {"allow_host": True})
HOST = Target("host", "host", {"allow_host": True})
DOCKER = Target("docker", "docker", {"docker_runtime": "runc"}, IMAGE)
GVISOR = Target("gvisor", "docker", {"docker_runtime": "runsc"}, IMAGE, own_kernel=True)


def confined(*, fast_docker: bool = True, fast_gvisor: bool = True) -> list[Any]:
    """As parameters of a test; those of an engine carry the mark `docker`, those that are not fast `full`."""
    found = [pytest.param(BUBBLEWRAP, id="bubblewrap")]
    if "docker_runtime" in {field.name for field in fields(SandboxSettings)}:
        full = pytest.mark.full
        found.append(pytest.param(DOCKER, id="docker", marks=[pytest.mark.docker, *(() if fast_docker else (full,))]))
        if shutil.which("runsc"):
            marks = [pytest.mark.docker, *(() if fast_gvisor else (full,))]
            found.append(pytest.param(GVISOR, id="gvisor", marks=marks))
    return found
