"""Looks through trees that hostile code has made, and may be changing: no link is followed, no mount crossed, and what
is gone or cannot be opened stops nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

MOST_LEVELS = 200
"""Each holds a descriptor."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Folder:
    path: str
    """Below the top, which is itself empty."""
    fd: int
    """Open until the next folder is asked for."""
    entries: list[tuple[str, os.stat_result]]
    """All that is in it, by name."""

    def below(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name


def folders(top: Path, missed: Callable[[str], object] = lambda _path: None) -> Iterator[Folder]:
    """`top` and every folder below it, each before those in it. `missed` is told of what cannot be looked at or into,
    and of folders that lie deeper than `MOST_LEVELS`. Nothing where there is no `top`."""
    with ExitStack() as held:
        try:
            first = _look("", os.open(top, _OPEN), missed)
        except (FileNotFoundError, NotADirectoryError):
            return
        levels = [first]
        held.callback(_close, levels)
        device = os.fstat(first.fd).st_dev
        waiting = [_folders_in(first)]
        yield first
        while levels:
            if not waiting[-1]:
                waiting.pop()
                os.close(levels.pop().fd)
                continue
            path = levels[-1].below(name := waiting[-1].pop())
            try:
                fd = os.open(name, _OPEN, dir_fd=levels[-1].fd)
            except FileNotFoundError:
                continue
            except OSError:
                missed(path)
                continue
            if len(levels) >= MOST_LEVELS or os.fstat(fd).st_dev != device:
                os.close(fd)
                missed(path)
                continue
            levels.append(_look(path, fd, missed))
            waiting.append(_folders_in(levels[-1]))
            yield levels[-1]


def taken(top: Path) -> int:
    """Bytes of the disk that a file, or a folder with all in it, takes; a file with two names counts once. 0 where it
    is not there."""
    with suppress(FileNotFoundError):
        facts = top.lstat()
        if not stat.S_ISDIR(facts.st_mode):
            return facts.st_blocks * 512
    seen: set[int] = set()
    total = 0
    for folder in folders(top):
        total += os.fstat(folder.fd).st_blocks * 512
        for _, facts in folder.entries:
            if not stat.S_ISDIR(facts.st_mode) and not (facts.st_nlink > 1 and facts.st_ino in seen):
                total += facts.st_blocks * 512
                if facts.st_nlink > 1:
                    seen.add(facts.st_ino)
    return total


def _close(levels: list[Folder]) -> None:
    for level in levels:
        os.close(level.fd)


def _look(path: str, fd: int, missed: Callable[[str], object]) -> Folder:
    folder = Folder(path, fd, [])
    with os.scandir(fd) as found:
        for entry in found:
            try:
                folder.entries.append((entry.name, entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue
            except OSError:  # a folder whose names may be read, and no more
                missed(folder.below(entry.name))
    folder.entries.sort(key=lambda entry: entry[0])
    return folder


def _folders_in(folder: Folder) -> list[str]:
    """The last is the first by name."""
    return [name for name, facts in reversed(folder.entries) if stat.S_ISDIR(facts.st_mode)]
