"""Puts a backup into an empty state directory: all of it is here and known to be good before any of it has its name."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tarfile import TarInfo
from typing import BinaryIO

from station.core.endings import Ending, EndingKind
from station.core.errors import AlreadyExists, InvalidInput, StorageFull, Unavailable
from station.core.records import ProcessState, SandboxRecord
from station.core.states import State
from station.core.wire import LOCK, LOG
from station.durable import is_full, sync_directory
from station.server import home as homes
from station.store.sqlite import rewrite
from station.worker.journal import Journal

from .archive import Header, Member, Reader
from .backup import COMMANDS, KNOWN, OUTPUT, REGISTRY, SANDBOXES

MAY_BE_THERE = frozenset({"station.yaml", ".env", LOCK, "start.lock", LOG})
"""In the state directory: settings stay as they are; the rest tells nothing."""
_AT_REST = frozenset({State.SAVED, State.FAILED, State.DELETING, State.TOMBSTONE})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Restored:
    header: Header
    sandboxes: int
    bytes: int
    """Of files."""


def restore(home: Path, source: BinaryIO, *, advance: Callable[[int], object] = lambda _bytes: None) -> Restored:
    """Sandboxes come back saved: their files as they were, nothing that ran. No station may run meanwhile.

    Raises AlreadyExists for a directory that is not empty, Busy where a station has it, InvalidInput for an archive
    that is damaged, cut or none, StorageFull without room. Whatever it raises, nothing was changed.
    """
    was_there = home.exists()
    homes.prepare(home)
    with ExitStack() as held:
        lock = homes.Lock(home)
        held.callback(lock.release)
        if left := sorted(set(os.listdir(home)) - MAY_BE_THERE):
            raise AlreadyExists(
                f"{home} is not empty ({left[0]!r} is there): a backup is restored into a new state directory; name "
                "one with --home",
                home=str(home),
            )
        temporary = home / f".stn-restore-{secrets.token_hex(4)}"
        temporary.mkdir(mode=0o700)
        done = False
        try:
            restored = _fill(temporary, source, advance)
            _switch(temporary, home)
            done = True
        except OSError as error:
            if is_full(error):
                raise StorageFull(f"the disk of {home} is full; nothing was restored", retryable=True) from error
            raise Unavailable(f"{home} cannot be filled: {error}; nothing was restored", retryable=False) from error
        finally:
            _remove(temporary)
            if not done and not was_there:
                with suppress(OSError):
                    (home / LOCK).unlink()
                    home.rmdir()
    return restored


def _fill(top: Path, source: BinaryIO, advance: Callable[[int], object]) -> Restored:
    reader = Reader(source)
    size = 0
    with closing(_Tree(top)) as tree:
        for member in reader.members():
            size += tree.put(member, advance)
        tree.settle()
    if not (top / REGISTRY).is_file() or not (top / "station_id").is_file():
        raise InvalidInput("the archive holds no registry, or no station's id", field="file")
    made = time.strftime("%Y-%m-%d %H:%M", time.gmtime(reader.header.created_at))
    reason = f"it was restored from a backup of {made} UTC"
    if not reader.header.workspaces:
        reason += ", which has no files of sandboxes"
    try:
        records = rewrite(top / REGISTRY, lambda record: _saved(record, reason))
    except sqlite3.Error as error:
        raise InvalidInput(f"the registry in the archive cannot be used: {error}", field="file") from error
    _end_commands(top / COMMANDS, reason)
    os.sync()
    return Restored(reader.header, sum(record.state is not State.TOMBSTONE for record in records), size)


def _saved(record: SandboxRecord, reason: str) -> SandboxRecord:
    """Without a box; what had none stays as it is."""
    if record.state in _AT_REST:
        return record
    return replace(record, state=State.SAVED, box=None, reason=reason, updated_at=time.time())


def _end_commands(path: Path, reason: str) -> None:
    """What ran when the backup was made runs no more, and is never run again."""
    with closing(Journal(path)) as journal:
        for uid in journal.sandboxes():
            for record in journal.unfinished(uid):
                lost = Ending(EndingKind.LOST, reason=reason)
                journal.update(replace(record, state=ProcessState.ENDED, ended_at=time.time(), ending=lost))


def _switch(temporary: Path, home: Path) -> None:
    """The registry last: without it a station would begin a new one, and with it all else is there."""
    names = sorted(set(os.listdir(temporary)) - set(os.listdir(home)), key=lambda name: (name == REGISTRY, name))
    for name in names:
        (temporary / name).rename(home / name)
    sync_directory(home)


class _Tree:
    """Makes files below one directory, and nowhere else: whatever the archive holds, no link is followed."""

    def __init__(self, top: Path) -> None:
        self._top = os.open(top, _FOLDER)
        self._parent = "", os.dup(self._top)
        """The folder that was last put something into: most of the time it is the next one's too."""
        self._folders: list[tuple[str, int, int, int, int]] = []

    def close(self) -> None:
        os.close(self._parent[1])
        os.close(self._top)

    def put(self, member: Member, advance: Callable[[int], object]) -> int:
        """The size of a file."""
        folder, _, name = member.path.rpartition("/")
        _check(member.path)
        parent, info = self._enter(folder), member.info
        size = 0
        try:
            if info.isdir():
                os.mkdir(name, 0o700, dir_fd=parent)
                self._folders.append((member.path, _mode(info, 0o700), info.uid, info.gid, int(info.mtime)))
            elif info.issym():
                _check_link(member.path)
                os.symlink(info.linkname, name, dir_fd=parent)
                _own(name, parent, info.uid, info.gid, member.path)
            else:
                with open(os.open(name, _NEW, 0o600, dir_fd=parent), "wb", buffering=1 << 20) as opened:
                    for chunk in member.chunks():
                        opened.write(chunk)
                        advance(len(chunk))
                        size += len(chunk)
                    opened.flush()
                    os.fchmod(opened.fileno(), _mode(info, 0o600))
                    _own(name, parent, info.uid, info.gid, member.path)
                    os.utime(opened.fileno(), (info.mtime, info.mtime))
        except (FileExistsError, ValueError) as error:
            raise InvalidInput("the archive is damaged: it names a place twice, or none", field="file") from error
        return size

    def settle(self) -> None:
        """The modes and times of folders, which were ours to write to until now."""
        for path, mode, uid, gid, mtime in reversed(self._folders):
            folder, _, name = path.rpartition("/")
            fd = os.open(name, _FOLDER, dir_fd=self._enter(folder))
            try:
                os.fchmod(fd, mode)
                _own(name, self._parent[1], uid, gid, path)
                os.utime(fd, (mtime, mtime))
            finally:
                os.close(fd)

    def _enter(self, folder: str) -> int:
        if self._parent[0] == folder:
            return self._parent[1]
        fd = os.dup(self._top)
        try:
            for name in folder.split("/") if folder else ():
                fd = _replace(fd, _folder(name, fd))
        except OSError as error:
            os.close(fd)
            raise InvalidInput("the archive is damaged: what is in a folder comes before it", field="file") from error
        os.close(self._parent[1])
        self._parent = folder, fd
        return fd


def _folder(name: str, parent: int) -> int:
    """The store's own are made as they are needed."""
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        os.mkdir(name, 0o700, dir_fd=parent)
        return os.open(name, _FOLDER, dir_fd=parent)


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new


def _check(path: str) -> None:
    parts = path.split("/")
    if parts[0] not in KNOWN or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise InvalidInput("the archive holds what no state directory has", field="file")


def _check_link(path: str) -> None:
    if not path.startswith(f"{SANDBOXES}/"):
        raise InvalidInput("the archive holds a link where no state directory has one", field="file")


def _mode(info: TarInfo, private: int) -> int:
    """Of what code has made as the archive has it; all else is this user's alone, whatever it says."""
    return info.mode & 0o777 if info.name.split("/")[0] in (OUTPUT, SANDBOXES) else private


def _own(name: str, parent: int, uid: int, gid: int, path: str) -> None:
    """Of files of sandboxes, and by root alone: their users are not ours."""
    if os.geteuid() == 0 and path.startswith(f"{SANDBOXES}/"):
        os.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False)


def _remove(temporary: Path) -> None:
    """Nothing in it has ever run; its folders may be closed to us by their modes."""
    for place, folders, _ in os.walk(temporary, topdown=True):
        for folder in folders:
            path = os.path.join(place, folder)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(temporary, ignore_errors=True)
