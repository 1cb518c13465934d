"""All settings of a station, from `station.yaml` in its state directory and the environment (docs/settings.md)."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator, ConfigDict

from station.backends.docker import OperatorNetwork, registries
from station.core import placeholders
from station.core.capabilities import Grade
from station.core.errors import InvalidInput
from station.core.spec import Limits
from station.core.suggest import near_name, slip_of, suggestion
from station.core.tenancy import MINIMUM
from station.core.wire import (
    DEFAULT_KEPT_BYTES,
    DEFAULT_SHOWN_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    MAX_KEPT_BYTES,
    MAX_TIMEOUT_SECONDS,
    MIN_TIMEOUT_SECONDS,
)
from station.store.directory import GIB
from station.validate import from_plain
from station.worker.journal import KEPT_FINISHED

from . import listen, yamlfile

FILE = "station.yaml"
MAX_SHOWN_BYTES = 512 * 1024
"""The head of each stream that a record keeps."""
_MOST_MINUTES = 1_000_000.0
_MOST_BYTES = 1 << 50
_FORBID = ConfigDict(extra="forbid", allow_inf_nan=False)
_VARIABLE = "variable"
"""In a field's metadata: the variable of a key that has another than its place says."""
AUTH = "sandbox.registry_auth"
# Of the environment, but of no station: who reads them says so.
_OTHERS = ("STN_HOME", "STN_TOKEN", "STN_FAIL", "STN_CODE_", "STN_TEST_")
_SECTIONS = ("STN_SANDBOX_", "STN_FILES_")
"""Ours alone: no other program's variables begin so."""


def _off(value: Any) -> Any:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


def _listed(value: Any) -> Any:
    """Variables hold strings alone."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


@dataclass(frozen=True)
class ImageSettings:
    """The section `sandbox.images:`; each unset: `sandbox.docker_image`, else the built-in one."""

    __pydantic_config__ = _FORBID

    linux: str | None = None
    """Of boxes whose caller names neither image nor runtime."""
    python: str | None = None
    node: str | None = None
    bash: str | None = None


@dataclass(frozen=True)
class RegistryAuthSettings:
    """The section `sandbox.registry_auth`: who the station is where the engine pulls images. Empty: nobody."""

    __pydantic_config__ = _FORBID

    username: str = field(default="", metadata={_VARIABLE: "STN_SANDBOX_REGISTRY_USERNAME"})
    password: str = field(default="", metadata={_VARIABLE: "STN_SANDBOX_REGISTRY_PASSWORD"}, repr=False)
    identity_token: str = field(default="", metadata={_VARIABLE: "STN_SANDBOX_REGISTRY_TOKEN"}, repr=False)
    server_address: str = field(default="", metadata={_VARIABLE: "STN_SANDBOX_REGISTRY_SERVER"})
    """The registry that they are for, and that alone gets them. Empty: Docker Hub."""
    docker_config_path: str = field(default="", metadata={_VARIABLE: "STN_SANDBOX_REGISTRY_CONFIG"})
    """A docker `config.json`, or its folder, for all other registries."""


@dataclass(frozen=True)
class SandboxSettings:
    """The section `sandbox:`."""

    __pydantic_config__ = _FORBID

    enabled: bool = True
    """False: nothing is opened or run; what is there can be looked at and deleted."""
    backend: str | None = None
    """Used where the caller names none. Unset: the strongest that works here."""
    allow_host: bool = False
    """Whether the backend `host`, which isolates nothing, may be asked for."""
    serves_others: bool = False
    """Whether this station runs code of others: backends with a missing required layer are refused then."""
    minimum_isolation: Grade = MINIMUM
    """The weakest grade that code of others may get."""
    limits: Limits = field(default_factory=Limits)
    """Limits of every new sandbox and run that names none of its own. They count as named: refused where they cannot
    be kept."""
    pool_size: Annotated[int, Ge(0), Le(64)] = 2
    """Boxes made ahead for each kind of run in use; 0: none."""
    max_processes: Annotated[int, Ge(1), Le(1000)] = 16
    """Commands that run at once in one sandbox."""
    max_sandboxes: Annotated[int, Ge(1), Le(1_000_000)] | None = None
    """Sandboxes that there may be at once. Unset: no bound."""
    max_history: Annotated[int, Ge(1), Le(10_000)] = KEPT_FINISHED
    """Commands that ended and are kept, with their output, of each sandbox."""
    output_kept_bytes: Annotated[int, Ge(2), Le(MAX_KEPT_BYTES)] = DEFAULT_KEPT_BYTES
    """Of each longer stream of a command in a sandbox, the first and the last half of so many are in the answers."""
    timeout_seconds: Annotated[float, Ge(MIN_TIMEOUT_SECONDS), Le(MAX_TIMEOUT_SECONDS)] = DEFAULT_TIMEOUT_SECONDS
    """Of runs, and of commands run to their end, where neither the caller nor the sandbox names one."""
    max_stdout_bytes: Annotated[int, Ge(1), Le(MAX_SHOWN_BYTES)] = DEFAULT_SHOWN_BYTES
    """Of each output stream, what the agent's tools show."""
    idle_timeout_minutes: Annotated[float, Gt(0), Le(_MOST_MINUTES)] = 30.0
    """How long a sandbox that is opened as temporary stays when nobody uses it. Of the time when it is made."""
    cleanup_interval_minutes: Annotated[float, Gt(0), Le(_MOST_MINUTES)] = 5.0
    """How often unused temporary sandboxes are looked for."""
    spare_uid: Annotated[int, Ge(1), Le(2**31)] | None = None
    """The user that boxes of a station of root run as. Unset: one that nobody has."""
    images: ImageSettings = field(default_factory=ImageSettings)
    """What the backend docker makes boxes from, by runtime, where the caller names no image."""
    docker_image: str | None = None
    """The same for every runtime that has none in `images`."""
    docker_runtime: str | None = None
    """The engine's runtime, by its name there. Unset: the engine's default. Never replaced by another."""
    docker_network: str = "none"
    """Of boxes in an engine whose caller names none: `none`, `bridge`, or a network that the engine has."""
    docker_network_restricted: bool = False
    """Whether the operator asserts that something else holds what that network reaches."""
    docker_seccomp: str | None = None
    """Absolute path of the seccomp profile of boxes in an engine. Unset: Station's own."""
    docker_workspace_quota: Annotated[Literal["auto", "off"], BeforeValidator(_off)] = "auto"
    """Whether home and workspace of a sandbox in an engine have a size, where that can be had. Of new sandboxes."""
    pull: Literal["never", "missing"] = "never"
    """Whether an image that the engine lacks is pulled."""
    pull_from: Annotated[tuple[str, ...], BeforeValidator(_listed)] | None = None
    """The registries that callers' images may come from; in a string, between commas. Unset: those of the operator's
    images and credentials, and Docker Hub."""
    registry_auth: RegistryAuthSettings = field(default_factory=RegistryAuthSettings)

    def __post_init__(self) -> None:
        OperatorNetwork(self.docker_network, self.docker_network_restricted)
        registries(self.pull_from or ())


@dataclass(frozen=True)
class FileSettings:
    """The section `files:`, the file store."""

    __pydantic_config__ = _FORBID

    max_file_bytes: Annotated[int, Ge(1), Le(_MOST_BYTES)] = 5 * GIB
    """Of one stored file."""
    max_bytes: Annotated[int, Ge(1), Le(_MOST_BYTES)] = 10 * GIB
    """Of all of them, equal contents counted once."""


@dataclass(frozen=True)
class Settings:
    __pydantic_config__ = _FORBID

    home: Path
    """The state directory; from `--home`, STN_HOME or the default, never from the file."""
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    files: FileSettings = field(default_factory=FileSettings)
    listen: str | None = None
    """`HOST:PORT` of loopback, where TCP is answered beside the socket, to those with the operator's token. Unset: not
    at all."""
    idle_minutes: Annotated[float, Ge(0)] = 10.0
    """After so long without a live box and without a request, a station that was started by itself ends. 0: never."""
    log_megabytes: Annotated[int, Ge(1), Le(1024)] = 8
    """Size of `station.log` before a new one begins; the two before it are kept."""
    digest: str = ""
    """SHA-256 of `station.yaml` as it was read, another where variables go before its section `sandbox:`, credentials
    aside; never from the file."""

    def __post_init__(self) -> None:
        if self.listen is not None:
            listen.parse(self.listen)


def load(home: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """Environment over file over defaults. Raises InvalidInput for an unknown key, with a suggestion, or a value
    that is out of bounds; the sentence begins with where it stands."""
    path = home / FILE
    raw = _bytes(path) if path.exists() else b""
    read = _read(path, raw)
    _check_names_beside_secrets(read, f"{path}: ")
    values = expanded(read, environ, where=f"{path}: ")
    if "home" in values:
        raise InvalidInput(f"{path}: home is set by --home or STN_HOME", field="home")
    if "digest" in values:
        raise InvalidInput(f"{path}: digest is told by a station, not to it", field="digest")
    from_plain(Settings, {**values, "home": home}, where=f"{path}: ")
    _lay_over(values, environ)
    digest = _digest(raw, environ)
    return from_plain(Settings, {**values, "home": home, "digest": digest}, where="environment over station.yaml: ")


def is_changed(settings: Settings, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `station.yaml` is another now than it was when `load` read these from it, with the same `environ`."""
    if not settings.digest:  # made by a program, from no file
        return False
    path = settings.home / FILE
    try:
        raw = path.read_bytes() if path.exists() else b""
    except OSError:  # it could be read then
        return True
    return settings.digest != _digest(raw, environ)


def _digest(raw: bytes, environ: Mapping[str, str]) -> str:
    """No credentials are in it."""
    policy = {name for name, place in variables() if place[0] == "sandbox" and place[1] != "registry_auth"}
    laid = sorted((name, value) for name, value in environ.items() if name in policy and value)
    return hashlib.sha256(raw + "".join(f"\0{name}={value}" for name, value in laid).encode()).hexdigest()


def expanded(value: Any, environ: Mapping[str, str], *, where: str, key: str = "") -> Any:
    """`value` with `${VAR}` and `${VAR:-default}` in its strings replaced, `$${VAR}` by `${VAR}`. Raises InvalidInput,
    which names the key and the variable, for one that is not set; a name that may be a piece of a secret is left out.
    """
    if isinstance(value, dict):
        return {
            name: expanded(item, environ, where=where, key=f"{key}.{name}" if key else str(name))
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [expanded(item, environ, where=where, key=key) for item in value]
    if not isinstance(value, str):
        return value
    named = not key.startswith(AUTH) or placeholders.is_name_alone(value)

    def one(name: str, default: str | None) -> str:
        if given := environ.get(name) or default:
            return given
        if default is None:
            which, form = (f"the variable {name}", name) if named else ("a variable", "VAR")
            raise InvalidInput(
                f"{where}{key} is to come from {which}, which is not set; set it where the station starts, or write "
                f"${{{form}:-DEFAULT}}; $${{{form}}} stands for ${{{form}}} itself",
                field=key,
                variable=name if named else None,
            )
        return ""

    return placeholders.filled(value, one)


def variables(cls: type = Settings, prefix: str = "STN") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every variable, and the place of its key."""
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        if item.name in ("home", "digest"):
            continue
        name = item.metadata.get(_VARIABLE) or f"{prefix}_{item.name.upper()}"
        if dataclasses.is_dataclass(kind := hints[item.name]) and isinstance(kind, type):
            yield from ((inner, (item.name, *place)) for inner, place in variables(kind, name))
        else:
            yield name, (item.name,)


def _lay_over(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Raises InvalidInput for a variable that is none of ours and was meant to be."""
    known = dict(variables())
    for name, value in environ.items():
        if name in known and value:
            section = values
            for key in known[name][:-1]:
                section = section.setdefault(key, {})
            section[known[name][-1]] = value
        elif name.startswith("STN_") and name not in known and not name.startswith(_OTHERS):
            slip = slip_of(name, known)
            hint = f"; did you mean {slip!r}?" if slip else suggestion(name, known)
            # What is a slip of none of ours may be another program's.
            if slip or name.startswith(_SECTIONS):
                raise InvalidInput(f"environment: unknown variable {name}{hint}", field=name)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error}", field=FILE) from error


def _read(path: Path, raw: bytes) -> dict[str, Any]:
    names = {name for _, place in variables() for name in place}
    found = yamlfile.read(raw, names, where=f"{path} ")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} must hold keys and values", field=FILE)
    # An empty section means its defaults.
    return {str(key): {} if value is None and key in ("sandbox", "files") else value for key, value in found.items()}


def _check_names_beside_secrets(values: Mapping[str, Any], where: str) -> None:
    """Raises InvalidInput for an unknown key of `sandbox.registry_auth` that no slip explains: it may be a secret that
    stands in the wrong place, and is not named."""
    sandbox = values.get("sandbox")
    section = sandbox.get("registry_auth") if isinstance(sandbox, dict) else None
    if not isinstance(section, dict):
        return
    known = sorted(item.name for item in dataclasses.fields(RegistryAuthSettings))
    if any(not isinstance(name, str) or (name not in known and not near_name(name, known)) for name in section):
        raise InvalidInput(
            f"{where}{AUTH} has an unknown key, which is not repeated here; known are {', '.join(known)}", field=AUTH
        )
