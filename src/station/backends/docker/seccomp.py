"""Which seccomp profile a container gets: Station's, or one of the operator's that keeps the rules."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from station.backends.docker.profile import own_profile
from station.core.display import escape
from station.core.errors import CannotEnforce
from station.durable import write_private

SETTING = "sandbox.docker_seccomp"
MOST_BYTES = 1 << 20
_REFUSING = ("SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_TRAP")
_ACTIONS = (*_REFUSING, "SCMP_ACT_KILL_THREAD", "SCMP_ACT_ALLOW", "SCMP_ACT_LOG")
_KEYS = frozenset({"defaultAction", "defaultErrnoRet", "architectures", "archMap", "syscalls", "flags"})
_RULE_KEYS = frozenset({"names", "name", "action", "errnoRet", "args", "comment", "includes", "excludes"})
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST_STEPS = 200
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
        with _opened(path) as fd:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                _refuse("it is no regular file")
            _check_owner(found, "it")
            if found.st_mode & _BY_OTHERS:
                _refuse(f"its group or others may write it (mode {stat.S_IMODE(found.st_mode):04o}; chmod go-w)")
            data = _content(fd)
    except OSError as error:
        link = "it is a symbolic link, or " if os.path.islink(path) else ""
        _refuse(f"{link}it cannot be read: {error.strerror}")
    if len(data) > MOST_BYTES:
        _refuse(f"it has more than {MOST_BYTES} bytes")
    return data


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """The file, reached step by step from the root: whoever may write in a directory on the way, or owns one, could put
    another file there. Links on the way are followed where nobody else could have made them; the file is none."""
    todo = _steps(path)
    at = os.open("/", _DIRECTORY)
    try:
        for _ in range(_MOST_STEPS):
            _check_directory(at)
            if len(todo) < 2:
                at = _instead(at, os.open(todo.pop() if todo else ".", _FILE, dir_fd=at))
                yield at
                return
            name = todo.pop()
            found = os.stat(name, dir_fd=at, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                _check_owner(found, f"the link {escape(name)[:80]} above it")
                target = os.readlink(name, dir_fd=at)
                todo += _steps(target)
                if target.startswith("/"):
                    at = _instead(at, os.open("/", _DIRECTORY))
            else:
                at = _instead(at, os.open(name, _DIRECTORY, dir_fd=at))
        _refuse("too many directories and links lead to it")
    finally:
        os.close(at)


def _steps(path: str) -> list[str]:
    """Its parts, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _instead(old: int, new: int) -> int:
    os.close(old)
    return new


def _check_directory(fd: int) -> None:
    """One with the sticky bit (`/tmp`) may be written by all: what is in it can be replaced by its owner alone, and of
    that each step is checked."""
    found = os.fstat(fd)
    where = f"the directory {escape(os.readlink(f'/proc/self/fd/{fd}'))[:200]} above it"
    _check_owner(found, where)
    if found.st_mode & _BY_OTHERS and not found.st_mode & stat.S_ISVTX:
        _refuse(f"the group or others may write in {where} (mode {stat.S_IMODE(found.st_mode):04o}; chmod go-w)")


def _check_owner(found: os.stat_result, what: str) -> None:
    if found.st_uid not in (0, os.geteuid()):
        _refuse(f"{what} belongs to the user with uid {found.st_uid}, not to root or the station's own user")


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
        write_private(copy, profile.text.encode(), replace=False)
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
