"""Deleting a tree that hostile code has made: any depth, any mode, no link followed, no mount crossed."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class _Level:
    name: str
    """In its parent."""
    identity: tuple[int, int]
    directories: list[str] = field(default_factory=list)
    """Still to be removed."""


def remove_below(parent: Path, name: str) -> None:
    """As `remove_tree`, by the path of the parent; where that is missing, there is nothing to remove."""
    try:
        fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        remove_tree(fd, name)
    finally:
        os.close(fd)


def remove_tree(parent: int, name: str) -> None:
    """Removes `name` below the directory descriptor `parent` with everything in it; a missing one is no error.

    One descriptor is open at a time, whatever the depth; going up is by `..`, and only into the one that was left.
    Raises OSError where something cannot be removed, or moved while it was.
    """
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
    except FileNotFoundError:
        return
    current = _enter(parent, name)
    levels = [_Level(name, _identity(current))]
    device = levels[0].identity[0]
    try:
        levels[0].directories = _empty(current)
        while levels:
            level = levels[-1]
            if level.directories:
                child = level.directories[-1]
                current = _replace(current, _enter(current, child))
                levels.append(_Level(child, _identity(current)))
                if levels[-1].identity[0] != device:
                    raise OSError(f"{name} has another file system mounted inside")
                levels[-1].directories = _empty(current)
                continue
            levels.pop()
            if levels:
                current = _replace(current, os.open("..", _OPEN, dir_fd=current))
                if _identity(current) != levels[-1].identity:
                    raise OSError(f"{name} was moved while it was removed")
                os.rmdir(level.name, dir_fd=current)
                levels[-1].directories.pop()
    finally:
        os.close(current)
    os.rmdir(name, dir_fd=parent)


def _identity(fd: int) -> tuple[int, int]:
    facts = os.fstat(fd)
    return facts.st_dev, facts.st_ino


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new


def _enter(parent: int, name: str) -> int:
    """Opens a directory, even one whose owner may not (mode 0)."""
    try:
        fd = os.open(name, _OPEN, dir_fd=parent)
    except PermissionError:
        return _open_by_force(parent, name)
    facts = os.fstat(fd)
    if facts.st_mode & 0o700 != 0o700 and facts.st_uid == os.geteuid():
        os.fchmod(fd, 0o700)
    return fd


def _open_by_force(parent: int, name: str) -> int:
    """A mode is changed by descriptor: the name may be a link to elsewhere by then."""
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(place)


def _empty(fd: int) -> list[str]:
    """Removes all that is no directory, and gives the directories that are not empty."""
    directories = []
    with os.scandir(fd) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in names:
        if not is_directory:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
            continue
        try:
            os.rmdir(name, dir_fd=fd)
        except OSError:
            directories.append(name)
    return directories
