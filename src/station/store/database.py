"""How every SQLite file of a station is opened and worked on, and what its errors mean."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from station.core.errors import StationError, StorageFull, Unavailable

T = TypeVar("T")

_ROOM_BYTES = 64 * 1024
"""Less than SQLite needs to make and map its files."""


def open_database(
    path: Path | str, schema: str, *, synchronous: Literal["FULL", "NORMAL"], timeout_seconds: float
) -> sqlite3.Connection:
    """Opens or makes the file, in WAL mode and with what `schema` makes: no acknowledged write is lost by kill -9.

    `FULL`: nor by power loss, at the price of an fsync for each commit. Raises sqlite3.Error, with nothing left open.
    """
    db = sqlite3.connect(path, isolation_level=None, timeout=timeout_seconds)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={synchronous}")
        db.executescript(schema)
    except sqlite3.Error:
        db.close()
        raise
    return db


class Database:
    """A file (or `:memory:`) in which an acknowledged write survives kill -9 and power loss. All SQL runs on one thread
    of its own, so that the event loop never waits for a disk. Foreign errors become ours here and nowhere else: every
    call raises StorageFull without room, and Unavailable where the file cannot be used."""

    def __init__(self, path: Path | str, schema: str, *, name: str, what: str) -> None:
        """`name`: in the detail of errors. `what`: in their sentences, as in "the registry"."""
        self.path = str(path)
        self._file = Path(path).name
        """As errors call it: whoever is told of them need not know where a station has its files."""
        self._schema = schema
        self._name, self._what = name, what
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._db: sqlite3.Connection | None = None
        self._closed = False

    def open(self) -> None:
        """Opens or makes the file, and returns when that is done; else the first `run` does. After an error there is
        nothing to close."""
        try:
            self._thread.submit(self._guarded, lambda _db: None).result()
        except StationError:
            self._thread.shutdown()
            raise

    def is_there(self) -> bool:
        """Whether it has been opened, or could be without making it."""
        return self._db is not None or Path(self.path).exists()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` returns, which is called on the thread."""
        if self._closed:
            raise Unavailable(f"{self._what} is closed: the station is stopping")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work)

    async def aclose(self) -> None:
        """Repeating is no error."""
        if not self._closed:
            self._closed = True
            if self._db is not None:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
            self._thread.shutdown()

    def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._db is None:
                self._db = open_database(self.path, self._schema, synchronous="FULL", timeout_seconds=5.0)
            return work(self._db)
        except sqlite3.Error as error:
            raise translated(
                error,
                self.path,
                full=f"the disk is full: no room for {self._what} in {self._file}",
                otherwise=Unavailable(
                    f"{self._what} in {self._file} cannot be used: {error}", retryable=False, store=self._name
                ),
            ) from error


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing, also where something else than SQL fails within."""
    db.execute("BEGIN IMMEDIATE")
    done = False
    try:
        yield
        db.execute("COMMIT")
        done = True
    finally:
        if not done:
            roll_back(db)


def roll_back(db: sqlite3.Connection) -> None:
    """Ends a transaction that failed. A full disk may have rolled it back already."""
    if db.in_transaction:
        db.execute("ROLLBACK")


def translated(error: sqlite3.Error, path: Path | str, *, full: str, otherwise: StationError) -> StationError:
    """`error` as ours: StorageFull with the sentence `full` where a full disk is behind it, else `otherwise`."""
    return StorageFull(full, retryable=True) if _no_room(error, path) else otherwise


def _no_room(error: sqlite3.Error, path: Path | str) -> bool:
    """SQLite says so where it writes, but not where it makes or maps its files."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
        return True
    if code & 0xFF not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return False
    try:
        return shutil.disk_usage(Path(path).parent).free < _ROOM_BYTES
    except OSError:
        return False
