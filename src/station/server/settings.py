"""All settings of a station, from `station.yaml` in its state directory and the environment (docs/settings.md)."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge, Gt, Le
from pydantic import ConfigDict

from station.core.errors import InvalidInput
from station.core.spec import Limits
from station.core.suggest import suggestion
from station.core.wire import DEFAULT_SHOWN_BYTES, DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS, MIN_TIMEOUT_SECONDS
from station.store.directory import GIB
from station.validate import from_plain

from . import listen

FILE = "station.yaml"
MAX_SHOWN_BYTES = 512 * 1024
"""The head of each stream that a record keeps."""
_MOST_MINUTES = 1_000_000.0
_MOST_BYTES = 1 << 50
_FORBID = ConfigDict(extra="forbid", allow_inf_nan=False)
# Of the environment, but of no station: who reads them says so.
_OTHERS = ("STN_HOME", "STN_TOKEN", "STN_FAIL", "STN_CODE_", "STN_TEST_")


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
class SandboxSettings:
    """The section `sandbox:`."""

    __pydantic_config__ = _FORBID

    enabled: bool = True
    """False: nothing is opened or run; what is there can be looked at and deleted."""
    backend: str | None = None
    """Used where the caller names none. Unset: the strongest that works here."""
    allow_host: bool = False
    """Whether the backend `host`, which isolates nothing, may be asked for."""
    limits: Limits = field(default_factory=Limits)
    """Limits of every new sandbox and run that names none of its own. They count as named: refused where they cannot
    be kept."""
    pool_size: Annotated[int, Ge(0), Le(64)] = 2
    """Boxes made ahead for each kind of run in use; 0: none."""
    max_processes: Annotated[int, Ge(1), Le(1000)] = 16
    """Commands that run at once in one sandbox."""
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
    pull: Literal["never", "missing"] = "never"
    """Whether an image that the engine lacks is pulled."""


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

    def __post_init__(self) -> None:
        if self.listen is not None:
            listen.parse(self.listen)


def load(home: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """Environment over file over defaults. Raises InvalidInput for an unknown key, with a suggestion, or a value
    that is out of bounds; the sentence begins with where it stands."""
    path = home / FILE
    values = _read(path) if path.exists() else {}
    if "home" in values:
        raise InvalidInput(f"{path}: home is set by --home or STN_HOME", field="home")
    from_plain(Settings, {**values, "home": home}, where=f"{path}: ")
    _lay_over(values, environ)
    return from_plain(Settings, {**values, "home": home}, where="environment over station.yaml: ")


def variables(cls: type = Settings, prefix: str = "STN") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every variable, and the place of its key."""
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        if item.name == "home":
            continue
        name = f"{prefix}_{item.name.upper()}"
        if dataclasses.is_dataclass(kind := hints[item.name]) and isinstance(kind, type):
            yield from ((inner, (item.name, *place)) for inner, place in variables(kind, name))
        else:
            yield name, (item.name,)


def _lay_over(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    known = dict(variables())
    for name, value in environ.items():
        if name in known and value:
            section = values
            for key in known[name][:-1]:
                section = section.setdefault(key, {})
            section[known[name][-1]] = value
        elif name.startswith("STN_") and name not in known and not name.startswith(_OTHERS):
            hint = suggestion(name, known)
            # What is close to none of ours may be another program's, but the section is ours alone.
            if "did you mean" in hint or name.startswith("STN_SANDBOX_"):
                raise InvalidInput(f"environment: unknown variable {name}{hint}", field=name)


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice: one of the two would be lost silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]} is given twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        found = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}", field=FILE) from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} must hold keys and values", field=FILE)
    # An empty section means its defaults.
    return {str(key): {} if value is None and key in ("sandbox", "files") else value for key, value in found.items()}
