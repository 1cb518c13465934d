"""What an adapter was told by its constructor: checked once, and what a station is to do because of it."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from station.client._build import Isolated
from station.core.wire import MAX_KEPT_BYTES, MAX_TIMEOUT_SECONDS

from .errors import invalid, unsupported

MOST = 1000
MOST_HISTORY = 10_000
MOST_OUTPUT_BYTES = MAX_KEPT_BYTES // 2
"""As many again are kept of its end."""
MOST_FILE_BYTES = 16 << 20
MOST_TIMEOUT_MS = int(MAX_TIMEOUT_SECONDS * 1000)
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


@dataclass(frozen=True)
class Bounds:
    """What both adapters have. Raises SandboxError (`invalid_input`) for a value that is not whole or out of bounds."""

    max_environments: int
    max_concurrent: int
    max_output_bytes: int
    max_timeout_ms: int
    max_history_per_sandbox: int
    max_file_bytes: int

    def __post_init__(self) -> None:
        whole("max_environments", self.max_environments, MOST)
        whole("max_concurrent", self.max_concurrent, MOST)
        whole("max_output_bytes", self.max_output_bytes, MOST_OUTPUT_BYTES)
        whole("max_timeout_ms", self.max_timeout_ms, MOST_TIMEOUT_MS, least=1000)
        whole("max_history_per_sandbox", self.max_history_per_sandbox, MOST_HISTORY)
        whole("max_file_bytes", self.max_file_bytes, MOST_FILE_BYTES)

    def settings(self) -> dict[str, Any]:
        """Keys of the section `sandbox:` of a station."""
        return {
            "max_sandboxes": self.max_environments,
            "max_processes": self.max_concurrent,
            "max_history": self.max_history_per_sandbox,
            "output_kept_bytes": 2 * self.max_output_bytes,
        }


@dataclass(frozen=True)
class Plan:
    """All that the shared body needs to know of one adapter."""

    name: str
    root: Path
    """The state directory of the adapter's station."""
    backend: str
    bounds: Bounds
    where: Isolated
    """What every new workspace is opened with, the backend too."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `sandbox:` beside those of the bounds."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Of every command."""
    shell: tuple[str, ...] | None = None
    """Before a command; `None`: the station's shell."""
    isolated: bool = True
    network: str | None = None
    """What `isolation.network` of a workspace must say; `None`: nothing is asked for."""
    network_restricted: bool | None = None
    tenant_id: str | None = None
    engine: str | None = None
    executable: str | None = None
    user: str | None = None
    """Asked for by name; `None`: nobody cares."""

    def document(self) -> dict[str, Any]:
        """The settings of the station."""
        return {"sandbox": {"backend": self.backend, **self.bounds.settings(), **self.settings}}


def place(root_dir: str | os.PathLike[str]) -> Path:
    """The root, absolute. Raises SandboxError where it is no path, or this is no machine for Station."""
    if sys.platform != "linux":
        raise unsupported(f"the adapters need Linux; this is {sys.platform}")
    named = os.fsdecode(root_dir)
    if not named or "\0" in named:
        raise invalid("root_dir must be a path")
    return Path(named).expanduser().absolute()


def whole(name: str, value: object, most: int, *, least: int = 1) -> int:
    """`value` itself. Raises SandboxError unless it is a whole number within the bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise invalid(f"{name} must be a whole number from {least} to {most}; it is {value!r}")
    return value


def number(name: str, value: object, most: float) -> float:
    """`value` itself. Raises SandboxError unless it is above zero and at most `most`."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= most or math.isnan(value):
        raise invalid(f"{name} must be a number above 0 and at most {most:g}; it is {value!r}")
    return value


def tenant(value: object) -> str | None:
    """`value` itself. Raises SandboxError for what is no tenant's id."""
    if value is None or (isinstance(value, str) and _TENANT.fullmatch(value)):
        return value
    raise invalid("tenant_id is a letter or digit and up to 127 letters, digits, '_' or '-'")


def environment(given: Mapping[Any, Any] | None, *, identifiers: bool) -> dict[str, str]:
    """A copy. Raises SandboxError for a name or value that cannot be; `identifiers`: names are those of C alone."""
    for key, value in (given or {}).items():
        if not isinstance(key, str) or not key or "=" in key or "\0" in key:
            raise invalid("the name of a variable in env must not be empty or contain '=' or NUL")
        if identifiers and not _C_IDENTIFIER.fullmatch(key):
            raise invalid(f"{key!r} in env is no name of a variable: letters, digits and '_', no digit first")
        if not isinstance(value, str) or "\0" in value:
            raise invalid(f"the value of {key} in env must be text without NUL")
    return dict(given or {})


def text(name: str, value: object, *, forbidden: str = "\0\r\n") -> str:
    """`value` itself. Raises SandboxError unless it is text, not empty, without the forbidden characters."""
    if not isinstance(value, str) or not value or any(character in value for character in forbidden):
        raise invalid(f"{name} must be text, not empty, without NUL or line breaks")
    return value
