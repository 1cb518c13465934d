"""The variables that a station is started with: those of its process, over those of `.env` files; and the names that
the reference program has for some of them."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from station.core.errors import InvalidInput, Refused

FILE = ".env"
OURS = "STN_"
"""Only what begins so is taken from a file: the rest of it is other programs'."""
_REFERENCE = "STATION_"
_MOST_BYTES = 1 << 20
_NOT_HERE = ("STN_HOME", "STN_FAIL")
_OPERATORS = frozenset(
    {
        "STN_TOKEN",
        "STN_NATS_BIN",
        "STN_SANDBOX_ALLOW_HOST",
        "STN_SANDBOX_DOCKER_SECCOMP",
        "STN_SANDBOX_REGISTRY_CONFIG",
    }
)
"""What runs programs as the user of the station, says who is its operator, or opens the machine to sandboxes: never
from the working directory, which may be a project of somebody else."""
_BLANK = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_ENTRY = re.compile(
    r"""
    [ \t]* (?:export[ \t]+)? (?P<name>[A-Za-z_][A-Za-z0-9_]*) [ \t]* =
    (?: [ \t]*'(?P<single>[^']*)' | [ \t]*"(?P<double>(?:[^"\\]|\\.)*)"
      | (?![ \t]*['"])(?P<bare>(?:(?![ \t]\#)[^\n])*) )
    [ \t]* (?:(?<=[ \t])\#[^\n]*)? (?:\n|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "$": "$", "\n": ""}

Sources: TypeAlias = tuple[tuple[Path, str], ...]
"""Files that settings come from, each with its SHA-256; that of nothing where there was none."""


@dataclass(frozen=True)
class Alias:
    """Another name for a variable, read where that is unset."""

    variable: str
    values: Mapping[str, str] = field(default_factory=dict)
    """Where what it says is said otherwise there; a value that is not among them says nothing. Empty: as it is."""


ALIASES: Mapping[str, Alias] = {
    "WORKFLOW_NATS_ENABLED": Alias("STN_STORE", {"true": "nats", "1": "nats"}),
    "WORKFLOW_NATS_URL": Alias("STN_NATS_URL"),
}
"""Beside `STATION_X`, which stands for every `STN_X`."""


@dataclass(frozen=True)
class Gathered:
    values: Mapping[str, str] = field(repr=False)
    sources: Sources


def gather(environ: Mapping[str, str], home: Path, directory: Path | None = None) -> Gathered:
    """`environ` over the `.env` of `directory`, the working one, over that of the state directory `home`. An empty
    variable counts as unset.

    Raises Refused for a file that another user could have written, and for one of `directory` that has what is the
    operator's alone to say; InvalidInput for a file that is none.
    """
    values = {name: value for name, value in environ.items() if value}
    sources = []
    same = directory is None or os.path.realpath(directory) == os.path.realpath(home)
    for folder in (home,) if same or directory is None else (directory, home):
        file = folder / FILE
        raw = _read(file)
        sources.append((file, digest(raw)))
        found = {name: value for name, value in parse(raw, where=f"{file}: ").items() if value}
        if folder is not home:
            _check_operators(found, file, home)
        values = found | values
    return Gathered(values, tuple(sources))


def with_aliases(environ: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """`environ`, and the `known` variables that are unset in it, of which it has another name."""
    known = set(known)
    found = {name: value for name, value in environ.items() if value}
    for name, value in list(found.items()):
        alias = _alias(name)
        if alias is not None and alias.variable in known:
            said = alias.values.get(value.lower()) if alias.values else value
            if said is not None:
                found.setdefault(alias.variable, said)
    return found


def digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def parse(raw: bytes, *, where: str) -> dict[str, str]:
    r"""The variables of ours in a file of lines `NAME=VALUE`.

    `export` before a name, blank lines and comments are passed over. A value ends with its line, or at a `#` after a
    blank; in single quotes it is as it stands, in double quotes `\n`, `\t`, `\"`, `\\` and `\$` are what they are in
    most programs, and both may go on over lines. Nothing is expanded. Raises InvalidInput with the number of a line
    that is none of these, and never with what stands there: it may be a secret.
    """
    try:
        text = raw.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where}no UTF-8, from byte {error.start} on", field=FILE) from None
    values, at = {}, 0
    while at < len(text):
        if (found := _BLANK.match(text, at)) is None:
            line = text.count("\n", 0, at) + 1
            if (found := _ENTRY.match(text, at)) is None:
                raise InvalidInput(
                    f"{where}line {line} is not NAME=VALUE, or has a quote without its end", field=FILE, line=line
                )
            if found["name"].startswith(OURS):
                _check_name(found["name"], f"{where}line {line}: ")
                values[found["name"]] = _value(found)
        at = found.end()
    return values


def _value(entry: re.Match[str]) -> str:
    if entry["double"] is not None:
        return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), entry["double"])
    return entry["single"] if entry["single"] is not None else entry["bare"].strip()


def _check_name(name: str, where: str) -> None:
    if name in _NOT_HERE:
        raise InvalidInput(
            f"{where}{name} is for all commands, which do not read this file: set it outside, or give --home",
            field=name,
        )


def _check_operators(found: Iterable[str], file: Path, home: Path) -> None:
    if named := sorted(_OPERATORS.intersection(found)):
        raise Refused(
            f"{file}: {named[0]} is not taken from the working directory, which may be a project of others: set it in "
            f"the environment, or in {home / FILE}",
            file=str(file),
            variable=named[0],
        )


def _alias(name: str) -> Alias | None:
    if name.startswith(_REFERENCE):
        return Alias(OURS + name.removeprefix(_REFERENCE))
    return ALIASES.get(name)


def _read(file: Path) -> bytes:
    """Empty where there is none. What is looked at is what is read, whatever happens to its name."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}", field=FILE) from error
    with open(fd, "rb") as opened:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidInput(f"{file} is no regular file", field=FILE)
        if found.st_uid not in (0, os.geteuid()):
            raise Refused(
                f"{file} belongs to the user with uid {found.st_uid}, this is uid {os.geteuid()}: what it says is not "
                "taken; start the station in another directory, or make the file yours",
                file=str(file),
            )
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Refused(
                f"others may write to {file} (mode {stat.S_IMODE(found.st_mode):03o}), so what it says is not taken: "
                f"chmod go-w {file}",
                file=str(file),
            )
        raw = opened.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise InvalidInput(f"{file} has more than {_MOST_BYTES} bytes", field=FILE)
    return raw
