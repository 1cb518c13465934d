"""Reads settings from where they come from: the environment over `station.yaml` over the defaults."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from station.core import placeholders
from station.core.errors import InvalidInput
from station.core.suggest import near_name, slip_of, suggestion
from station.validate import from_plain

from . import environment, yamlfile
from .environment import Sources
from .settings import AUTH, FILE, TOLD, NatsSettings, RegistryAuthSettings, Settings, sections, variables

BESIDE_SECRETS: Mapping[str, type] = {AUTH: RegistryAuthSettings, "nats": NatsSettings}
"""Sections that hold secrets, by their keys."""
# Of the environment, but of no station: who reads them says so.
_OTHERS = ("STN_HOME", "STN_TOKEN", "STN_CA_FILE", "STN_FAIL", "STN_CODE_", "STN_TEST_")


def load(
    home: Path, environ: Mapping[str, str] = os.environ, *, config: Path | None = None, sources: Sources = ()
) -> Settings:
    """Environment over file over defaults. `config`: another file than the `station.yaml` of `home`, which must be
    there; `sources`: the files that went into `environ`.

    Raises InvalidInput for an unknown key, with a suggestion, or a value that is out of bounds; the sentence begins
    with where it stands.
    """
    path = config or home / FILE
    raw = _bytes(path) if config is not None or path.exists() else b""
    environ = environment.with_aliases(environ, dict(variables()))
    read = _read(path, raw)
    _check_names_beside_secrets(read, f"{path}: ")
    values = expanded(read, environ, where=f"{path}: ")
    if "home" in values:
        raise InvalidInput(f"{path}: home is set by --home or STN_HOME", field="home")
    for name in TOLD & values.keys():
        raise InvalidInput(f"{path}: {name} is told by a station, not to it", field=name)
    from_plain(Settings, {**values, "home": home}, where=f"{path}: ")
    _lay_over(values, environ)
    settings = from_plain(Settings, {**values, "home": home}, where="environment over station.yaml: ")
    read_from = ((path, environment.digest(raw)), *sources)
    return dataclasses.replace(settings, digest=_digest(raw, environ), sources=read_from)


def is_changed(settings: Settings) -> bool:
    """Whether a file that these were read from is another now than it was then."""
    return any(_digest_now(file) != then for file, then in settings.sources)


def _digest_now(file: Path) -> str | None:
    """`None`: it cannot be read any more."""
    try:
        return environment.digest(file.read_bytes() if file.exists() else b"")
    except OSError:
        return None


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
    named = not key.startswith(tuple(BESIDE_SECRETS)) or placeholders.is_name_alone(value)

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


def _lay_over(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Raises InvalidInput for a variable that is none of ours and was meant to be."""
    known = dict(variables())
    # Ours alone: no other program's variables begin so.
    ours = tuple(f"STN_{section.upper()}_" for section in sections())
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
            if slip or name.startswith(ours):
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
    return {str(key): {} if value is None and key in sections() else value for key, value in found.items()}


def _check_names_beside_secrets(values: Mapping[str, Any], where: str) -> None:
    """Raises InvalidInput for an unknown key of a section with secrets that no slip explains: it may be one of them,
    in the wrong place, and is not named."""
    for place, cls in BESIDE_SECRETS.items():
        section: Any = values
        for key in place.split("."):
            section = section.get(key) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            continue
        known = sorted(item.name for item in dataclasses.fields(cls))
        if any(not isinstance(name, str) or (name not in known and not near_name(name, known)) for name in section):
            raise InvalidInput(
                f"{where}{place} has an unknown key, which is not repeated here; known are {', '.join(known)}",
                field=place,
            )
