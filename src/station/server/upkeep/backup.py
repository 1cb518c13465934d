"""A backup: a consistent copy of a state directory as one stream, taken beside whatever station runs there.

Each database is copied by SQLite itself, as it was at one moment; contents of the file store bear their digest as
their name and never change, so that a catalogue and what it names belong together. Files of sandboxes are read as they
are, whatever runs there meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import quote

import station
from station.core.errors import NotFound, StationError, Unavailable
from station.core.paths import encode_name
from station.core.states import State
from station.server import environment
from station.server.loading import load
from station.store.identity import station_id
from station.store.sqlite import records_in

from .archive import Header, Writer
from .walk import folders

T = TypeVar("T")
REGISTRY, COMMANDS, CATALOG, BLOBS = "registry.db", "processes.db", "files/catalog.db", "files/blobs"
DATABASES = (REGISTRY, COMMANDS, "principals.db")
"""Beside the catalogue of the file store."""
SECRETS = ("station.yaml", ".env", "operator.token", "identity.keys")
OUTPUT, SANDBOXES = "output", "sandboxes"
KNOWN = frozenset({"station_id", *DATABASES, *SECRETS, OUTPUT, SANDBOXES, "files"})
"""What the top of a backup may hold."""
LOCAL = ("bubblewrap", "host")
"""Backends whose sandboxes have their files in the state directory."""
MOST_SPARE_BYTES = 8 << 30
"""How many bytes more the files of one sandbox may have than the disk has of them: holes, and further names of a file.
Code makes terabytes of these in a moment, and a backup would read them for days."""
_ROUNDS = 5
_BUSY_SECONDS = 10.0
_BLOCK = 512
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass
class Report:
    """What went into a backup, and what did not."""

    sandboxes: int = 0
    without_files: list[str] = field(default_factory=list)
    """Names of those whose files are not in it."""
    stored_files: int = 0
    bytes: int = 0
    """Before they were packed."""
    secrets: bool = False
    changed: list[str] = field(default_factory=list)
    """Files of sandboxes that got shorter while they were read."""
    unreadable: list[str] = field(default_factory=list)
    """What could not be looked into, or became something else meanwhile, and is not in it."""
    sparse: list[str] = field(default_factory=list)
    """Files that are not in it, as those of their sandbox have too many bytes that the disk has not."""
    skipped: int = 0
    """Sockets, pipes and devices: no backup can hold them."""


def backup(
    home: Path,
    sink: BinaryIO,
    *,
    secrets: bool = False,
    workspaces: bool = False,
    advance: Callable[[int], object] = lambda _bytes: None,
) -> Report:
    """Writes a backup of `home`; `advance` is told how many bytes of files have gone by.

    Raises NotFound where there is no state, Unavailable for a file of it that cannot be read, and where records and
    stored files are in NATS.
    """
    _check_store(home)
    if not (home / REGISTRY).exists():
        raise NotFound(f"{home} is no state directory: it has no {REGISTRY}; name one with --home", home=str(home))
    report = Report(secrets=secrets)

    def count(size: int) -> None:
        report.bytes += size
        advance(size)

    try:
        header = Header(station.__version__, station_id(home), time.time(), secrets, workspaces)
        with Writer(sink, header, count) as writer:
            _Backup(home, writer, report).write(secrets=secrets, workspaces=workspaces)
            writer.finish()
    except sqlite3.Error as error:
        raise Unavailable(f"a database of {home} cannot be copied: {error}", retryable=False) from error
    return report


def _check_store(home: Path) -> None:
    try:
        variables = environment.gather(os.environ, home).values
        store = load(home, variables).store
    except StationError:  # settings that no station starts with are a reason for a backup, not against one
        return
    if store == "nats":
        raise Unavailable(
            "records and stored files of this station are in NATS (store: nats), which has a backup of its own: "
            "`nats account backup DIR` with the credentials of the station",
            retryable=False,
        )


def size_of(home: Path, *, workspaces: bool) -> int:
    """About how many bytes of files a backup goes through."""
    sizes = [path.stat().st_size for name in (*DATABASES, CATALOG) if (path := home / name).exists()]
    for name in (BLOBS, OUTPUT, *((SANDBOXES,) if workspaces else ())):
        for folder in folders(home / name):
            files = (facts for _, facts in folder.entries if stat.S_ISREG(facts.st_mode))
            sizes += [min(facts.st_size, facts.st_blocks * _BLOCK) for facts in files]
    return sum(sizes)


class _Backup:
    def __init__(self, home: Path, writer: Writer, report: Report) -> None:
        self._home = home
        self._writer = writer
        self._report = report
        self._spare: dict[str, _Spare] = defaultdict(_Spare)
        """By sandbox."""

    def write(self, *, secrets: bool, workspaces: bool) -> None:
        # All at once, as near as can be: what is told of one another is of one moment then.
        copies = {name: _copy(self._home / name) for name in DATABASES if (self._home / name).exists()}
        try:
            self._plain("station_id")
            for name in SECRETS if secrets else ():
                self._plain(name)
            self._note_sandboxes(copies[REGISTRY], workspaces=workspaces)
            for name, copy in copies.items():
                self._writer.data(name, copy.serialize())
        finally:
            for copy in copies.values():
                copy.close()
        self._store()
        self._tree(OUTPUT)
        if workspaces:
            self._tree(SANDBOXES)

    def _plain(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._writer.data(name, (self._home / name).read_bytes())

    def _note_sandboxes(self, registry: sqlite3.Connection, *, workspaces: bool) -> None:
        for record in records_in(registry):
            if record.state is State.TOMBSTONE:
                continue
            self._report.sandboxes += 1
            if not workspaces or record.spec.backend not in LOCAL:
                self._report.without_files.append(record.name)

    def _store(self) -> None:
        """The contents first, then the catalogue that names them: files that were deleted while this ran are in
        neither, those that were written again are in both."""
        place = self._home / CATALOG
        if not place.exists():
            return
        written: set[str] = set()
        for last in (False,) * (_ROUNDS - 1) + (True,):
            with closing(_copy(place)) as catalog:
                wanted = {row[0] for row in catalog.execute("SELECT DISTINCT checksum FROM files")}
                gone = {checksum for checksum in sorted(wanted - written) if not self._blob(checksum, written)}
                if gone and not last:
                    continue
                catalog.executemany("DELETE FROM files WHERE checksum = ?", [(checksum,) for checksum in gone])
                (self._report.stored_files,) = catalog.execute("SELECT count(*) FROM files").fetchone()
                catalog.commit()
                self._writer.data(CATALOG, catalog.serialize())
                return

    def _blob(self, checksum: str, written: set[str]) -> bool:
        path = f"{BLOBS}/{checksum[:2]}/{checksum}"
        try:
            with (self._home / path).open("rb", buffering=0) as opened:
                self._writer.file(path, opened, os.fstat(opened.fileno()))
        except FileNotFoundError:
            return False
        written.add(checksum)
        return True

    def _tree(self, name: str) -> None:
        """Whatever code has put there, nothing that lies elsewhere is read: no link is followed, nothing opened that
        is no file."""
        for folder in folders(self._home / name, self._missed):
            self._writer.directory(f"{name}/{folder.path}".rstrip("/"), os.fstat(folder.fd))
            for each, facts in folder.entries:
                self._entry(folder.fd, each, f"{name}/{folder.below(each)}", facts)

    def _entry(self, parent: int, name: str, path: str, facts: os.stat_result) -> None:
        if stat.S_ISLNK(facts.st_mode):
            if (target := self._tried(path, lambda: os.readlink(name, dir_fd=parent))) is not None:
                self._writer.link(path, target, facts)
        elif stat.S_ISREG(facts.st_mode):
            if (fd := self._tried(path, lambda: os.open(name, _FILE, dir_fd=parent))) is not None:
                self._file(fd, path)
        elif not stat.S_ISDIR(facts.st_mode):
            self._report.skipped += 1

    def _tried(self, path: str, look: Callable[[], T]) -> T | None:
        """Only a look is forgiven: what is written must be written. What is there may be something else by now."""
        try:
            return look()
        except FileNotFoundError:
            return None
        except OSError:
            self._missed(path)
            return None

    def _file(self, fd: int, path: str) -> None:
        with open(fd, "rb", buffering=0) as opened:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                self._missed(path)
            elif not self._spare["/".join(path.split("/")[:2])].takes(facts):
                self._report.sparse.append(encode_name(path))
            elif not self._writer.file(path, opened, facts):
                self._report.changed.append(encode_name(path))

    def _missed(self, path: str) -> None:
        self._report.unreadable.append(encode_name(path))


class _Spare:
    """Of one sandbox: what its files have beyond the room that they take."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._left = MOST_SPARE_BYTES

    def takes(self, facts: os.stat_result) -> bool:
        held = 0 if facts.st_ino in self._seen else facts.st_blocks * _BLOCK
        spare = max(0, facts.st_size - held)
        if spare > self._left:
            return False
        self._left -= spare
        if facts.st_nlink > 1:
            self._seen.add(facts.st_ino)
        return True


def _copy(path: Path) -> sqlite3.Connection:
    """The database as it is at one moment, in memory; whoever writes it goes on."""
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=_BUSY_SECONDS)) as source:
        copy = sqlite3.connect(":memory:")
        source.backup(copy)
    return copy
