"""Which seccomp profile a container gets: Station's, or one of the operator's that keeps the rules."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from station.backends.docker.profile import own_profile
from station.core.display import escape
from station.core.errors import CannotEnforce

SETTING = "sandbox.docker_seccomp"
MOST_BYTES = 1 << 20
_REFUSING = ("SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_TRAP")
_ACTIONS = (*_REFUSING, "SCMP_ACT_KILL_THREAD", "SCMP_ACT_ALLOW", "SCMP_ACT_LOG")
_KEYS = frozenset({"defaultAction", "defaultErrnoRet", "architectures", "archMap", "syscalls", "flags"})
_RULE_KEYS = frozenset({"names", "name", "action", "errnoRet", "args", "comment", "includes", "excludes"})
_CALL = re.compile(r"[a-z_][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class Profile:
    """One that a container may be made with."""

    text: str
    """JSON, as an engine takes it."""
    operators: bool = False

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of its bytes, in the label `station.seccomp`."""
        return hashlib.sha256(self.text.encode()).hexdigest()


OWN = Profile(own_profile())
OWN_KERNEL = Profile(own_profile(own_kernel=True))


def operators(path: str, copies: Path) -> Profile:
    """The profile of that file, of which a copy now is in the directory `copies`, named by its SHA-256. Raises
    CannotEnforce, with the reason and the setting's name, for a file that another user could have written, for what is
    no profile, or does not refuse what it does not name, and for a copy that differs."""
    data = _read(path)
    text = _checked(data)
    profile = Profile(text, operators=True)
    keep(copies, profile)
    return profile


def _refuse(why: str) -> NoReturn:
    raise CannotEnforce(
        f"the seccomp profile of {SETTING} cannot be used: {why}",
        setting=SETTING,
        remedy=f"correct the file that {SETTING} names, or leave the setting out: Station's own profile holds then",
    )


def _read(path: str) -> bytes:
    """What the file holds that was looked at: it is opened once, and its name is not asked again."""
    if any(character in path for character in "\r\n\0") or not os.path.isabs(path):
        _refuse("its path must be absolute, without line breaks and NUL")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        link = "it is a symbolic link, or " if os.path.islink(path) else ""
        _refuse(f"{link}it cannot be opened: {error.strerror}")
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            _refuse("it is no regular file")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            _refuse(f"its group or others may write it (mode {stat.S_IMODE(found.st_mode):04o}; chmod go-w)")
        data = _content(fd)
    except OSError as error:
        _refuse(f"it cannot be read: {error.strerror}")
    finally:
        os.close(fd)
    if len(data) > MOST_BYTES:
        _refuse(f"it has more than {MOST_BYTES} bytes")
    return data


def _content(fd: int) -> bytes:
    """At most one byte more than a profile may have."""
    data = b""
    while len(data) <= MOST_BYTES and (piece := os.read(fd, MOST_BYTES + 1 - len(data))):
        data += piece
    return data


def _checked(data: bytes) -> str:
    try:
        text = data.decode()
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        _refuse(f"it is no JSON of UTF-8: {escape(str(error))[:200]}")
    if not isinstance(found, dict):
        _refuse("it is no JSON object")
    _only(found, _KEYS, "it")
    if found.get("defaultAction") not in _REFUSING:
        _refuse(f"its defaultAction must be one of {', '.join(_REFUSING)}")
    rules = found.get("syscalls")
    if not isinstance(rules, list) or not rules:
        _refuse("it has no list of syscalls")
    for number, rule in enumerate(rules):
        _check_rule(rule, f"syscalls[{number}]")
    return text


def _check_rule(rule: Any, where: str) -> None:
    if not isinstance(rule, dict):
        _refuse(f"{where} is no object")
    _only(rule, _RULE_KEYS, where)
    names = rule["names"] if "names" in rule else [rule.get("name")]
    if not isinstance(names, list) or not names or ("name" in rule and "names" in rule):
        _refuse(f"{where} must have names, a list of system calls")
    for name in names:
        if not isinstance(name, str) or not _CALL.fullmatch(name):
            _refuse(f"{where} must name each system call in full; {escape(repr(name))[:80]} is no name of one")
    if rule.get("action") not in _ACTIONS:
        _refuse(f"the action of {where} must be one of {', '.join(_ACTIONS)}")


def _only(found: dict[str, Any], known: frozenset[str], where: str) -> None:
    """Engines read keys in any case: what looks unknown here could replace what was checked there."""
    unknown = sorted(set(found) - known)
    if unknown:
        _refuse(f"{where} has the key {escape(repr(unknown[0]))[:80]}, which no profile has")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def keep(copies: Path, profile: Profile) -> Path:
    """Its copy. Raises CannotEnforce where there is one of that name that is not this profile, for this user alone."""
    copy = copies / f"{profile.fingerprint}.json"
    try:
        copies.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_new(copy, profile.text.encode())
        fd = os.open(copy, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            same = stat.S_ISREG(found.st_mode) and _content(fd) == profile.text.encode()
        finally:
            os.close(fd)
    except OSError as error:
        _refuse(f"its copy cannot be kept: {error.strerror}")
    if not same or stat.S_IMODE(found.st_mode) != 0o600 or found.st_uid != os.geteuid():
        _refuse(f"its copy boxes/docker/seccomp/{copy.name} in the state directory was changed; remove the copy")
    return copy


def _write_new(file: Path, data: bytes) -> None:
    """Whole or not at all; one that is there stays. Raises OSError."""
    half = file.with_name(f".stn-{secrets.token_hex(8)}")
    try:
        with open(
            os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb"
        ) as new:
            new.write(data)
            new.flush()
            os.fsync(new.fileno())
        with suppress(FileExistsError):
            os.link(half, file)
    finally:
        with suppress(OSError):  # it never came to be; what went wrong is told already
            half.unlink()
