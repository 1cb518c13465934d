"""What was asked for: frozen, checked once. `None` in a limit means the default, and that nobody named it."""

from __future__ import annotations

import math
import posixpath
import re
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from .errors import InvalidInput

RUNTIMES = ("python", "node", "bash")
NETWORK_NONE = "none"
NETWORK_OPERATOR = "operator"
"""What the operator has given to boxes whose caller names no network; it follows the operator's setting."""
ENGINE_NETWORKS = ("host", "default", "private", "slirp4netns", "pasta")
"""Words of engines for the machine's own network, or for one that nobody has named: never a box's."""
_NETWORK_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
FORBID_EXTRA = {"extra": "forbid"}
"""How pydantic is to treat unknown keys, where untrusted input becomes one of these classes."""


def may_be_given(network: str) -> bool:
    """Whether an operator may give that network of an engine to boxes: none, or one with a plain name that is not the
    machine's own."""
    return _NETWORK_NAME.fullmatch(network) is not None and network.lower() not in ENGINE_NETWORKS


def check_network(network: str | None) -> None:
    """Raises InvalidInput where a caller names a network of the machine or of an engine: those are not theirs."""
    if network is None:
        return
    word = network.strip().lower()
    if not word or word in (*ENGINE_NETWORKS, "bridge") or word.startswith(("container:", "ns:")):
        raise InvalidInput(
            f"the network {network[:80]!r} is nobody's to ask for; name none, or nothing for what the operator gives",
            field="network",
        )


class LifecycleClass(StrEnum):
    """What ends a sandbox."""

    RUN = "run"
    KEPT = "kept"
    ATTACHED = "attached"


@dataclass(frozen=True)
class Limits:
    """Bounds of one sandbox. Each is `None` (the default holds, as far as the backend can) or above zero."""

    __pydantic_config__ = FORBID_EXTRA

    memory_mb: int | None = None
    """MiB of memory; swap is not had beside it."""
    cpus: float | None = None
    """Processors, also parts of one."""
    pids: int | None = None
    """Processes and threads at once, at least 16."""
    open_files: int | None = None
    """Descriptors of one process."""
    workspace_mb: int | None = None
    """MiB of the workspace."""
    tmp_mb: int | None = None
    """MiB of `/tmp`, which is memory."""
    shm_mb: int | None = None
    """MiB of `/dev/shm`, which is memory."""
    max_file_size_bytes: int | None = None
    """Bytes of one file. Unset by default: binds only where it is named."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not 0 < value < math.inf:
                raise InvalidInput(
                    f"limits.{item.name} must be above zero and finite; it is {value}", field=f"limits.{item.name}"
                )
        if self.pids is not None and self.pids < 16:
            raise InvalidInput("limits.pids must be at least 16: a shell with a few children", field="limits.pids")

    def named(self) -> dict[str, float]:
        """The limits that somebody named."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}

    def over(self, defaults: Limits) -> Limits:
        """These, and the defaults where nothing is named."""
        named: dict[str, Any] = self.named()
        return replace(defaults, **named)


DEFAULT_LIMITS = Limits(memory_mb=1024, cpus=1.0, pids=256, open_files=1024, workspace_mb=2048, tmp_mb=256, shm_mb=64)


@dataclass(frozen=True)
class Mount:
    """A folder of the user's as the workspace."""

    __pydantic_config__ = FORBID_EXTRA

    source: str
    """Absolute path on this machine."""
    read_only: bool = False
    protect: bool = True
    """Whether git hooks and settings, shell and editor start-up files in it are read-only inside."""

    def __post_init__(self) -> None:
        if not posixpath.isabs(self.source) or "\0" in self.source or "\n" in self.source:
            raise InvalidInput("a mount needs an absolute path without NUL or newline", field="mount")


@dataclass(frozen=True)
class Spec:
    """What a box is made from."""

    backend: str
    image: str | None = None
    """`None`: the host's /usr, or the backend's default image."""
    runtime: str | None = None
    network: str = NETWORK_NONE
    """`none`, `operator`, `public`, or a comma-separated allow list."""
    limits: Limits = field(default_factory=Limits)
    best_effort: bool = False
    """Accepts a named limit that cannot be enforced."""
    mount: Mount | None = None
    ephemeral: bool = False
    """Home and workspace vanish with the box: compute mode and pools."""

    @property
    def effective(self) -> Limits:
        """The limits that the backend is to hold."""
        return self.limits.over(DEFAULT_LIMITS)
