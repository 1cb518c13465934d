"""The registry in SQLite: WAL and synchronous=FULL, so that an acknowledged write survives kill -9 and power loss."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from station.core.errors import AlreadyExists, Conflict, StationError, Unavailable
from station.core.records import SandboxRecord

from . import documents
from .database import open_database, roll_back, translated
from .registry import Damaged, Listing

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sandboxes (
    uid TEXT PRIMARY KEY, fence INTEGER NOT NULL, document BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revision (one INTEGER PRIMARY KEY CHECK (one = 1), last INTEGER NOT NULL);
INSERT OR IGNORE INTO revision VALUES (1, 0);
"""


class SqliteRegistry:
    """A `Registry` in one file (or `:memory:`). All SQL runs on one thread of its own, so the event loop never waits
    for a disk."""

    def __init__(self, path: Path | str) -> None:
        """Opens or makes the file. Raises Unavailable or StorageFull."""
        self._path = str(path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="registry")
        self._closed = False
        try:
            self._db: sqlite3.Connection = self._thread.submit(self._guarded, self._open).result()
        except StationError:
            self._thread.shutdown()
            raise

    async def get(self, uid: str) -> SandboxRecord | Damaged | None:
        def read() -> SandboxRecord | Damaged | None:
            row = self._db.execute("SELECT document, fence FROM sandboxes WHERE uid = ?", (uid,)).fetchone()
            return documents.decode(uid, _raw(row[0]), row[1]) if row else None

        return await self._run(read)

    async def create(self, record: SandboxRecord) -> SandboxRecord:
        return await self._run(lambda: self._write(record, self._insert))

    async def put(self, record: SandboxRecord) -> SandboxRecord:
        return await self._run(lambda: self._write(record, self._replace))

    async def list(self) -> Listing:
        def read() -> Listing:
            rows = self._db.execute("SELECT uid, document, fence FROM sandboxes ORDER BY uid").fetchall()
            found = [documents.decode(str(uid), _raw(document), fence) for uid, document, fence in rows]
            return Listing(
                [item for item in found if isinstance(item, SandboxRecord)],
                [item for item in found if isinstance(item, Damaged)],
            )

        return await self._run(read)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
            self._thread.shutdown()

    def _open(self) -> sqlite3.Connection:
        return open_database(self._path, _SCHEMA, synchronous="FULL", timeout_seconds=5.0)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise Unavailable("the registry is closed: the station is stopping")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work)

    def _guarded(self, work: Callable[[], T]) -> T:
        """Foreign errors become ours here and nowhere else."""
        try:
            return work()
        except sqlite3.Error as error:
            raise translated(
                error,
                self._path,
                full=f"the disk is full: no room for the registry {self._path}",
                otherwise=Unavailable(
                    f"the registry {self._path} cannot be used: {error}", retryable=False, store="registry"
                ),
            ) from error

    def _write(self, record: SandboxRecord, statement: Callable[[SandboxRecord, bytes, int], None]) -> SandboxRecord:
        document = documents.encode(record)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            (last,) = self._db.execute("UPDATE revision SET last = last + 1 RETURNING last").fetchone()
            statement(record, document, last)
            self._db.execute("COMMIT")
        except (sqlite3.Error, StationError):
            roll_back(self._db)
            raise
        return replace(record, fence=last)

    def _insert(self, record: SandboxRecord, document: bytes, fence: int) -> None:
        try:
            self._db.execute("INSERT INTO sandboxes VALUES (?, ?, ?)", (record.uid, fence, document))
        except sqlite3.IntegrityError as error:
            raise AlreadyExists(f"there is a record of sandbox {record.name} already", uid=record.uid) from error

    def _replace(self, record: SandboxRecord, document: bytes, fence: int) -> None:
        done = self._db.execute(
            "UPDATE sandboxes SET document = ?, fence = ? WHERE uid = ? AND fence = ?",
            (document, fence, record.uid, record.fence),
        )
        if done.rowcount != 1:
            raise Conflict(
                f"the record of sandbox {record.name} was changed by another writer", retryable=True, uid=record.uid
            )


def _raw(document: object) -> bytes:
    """SQLite keeps what it is given: a repaired or damaged document may be text."""
    return document if isinstance(document, bytes) else str(document).encode("utf-8", "surrogatepass")
