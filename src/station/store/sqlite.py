"""The registry in SQLite: WAL and synchronous=FULL, so that an acknowledged write survives kill -9 and power loss."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from station.core.errors import AlreadyExists, Conflict
from station.core.records import SandboxRecord

from . import documents
from .database import Database, transaction
from .registry import Damaged, Listing

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sandboxes (
    uid TEXT PRIMARY KEY, fence INTEGER NOT NULL, document BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revision (one INTEGER PRIMARY KEY CHECK (one = 1), last INTEGER NOT NULL);
INSERT OR IGNORE INTO revision VALUES (1, 0);
"""


class SqliteRegistry:
    """A `Registry` in one file (or `:memory:`)."""

    def __init__(self, path: Path | str) -> None:
        """Opens or makes the file. Raises Unavailable or StorageFull."""
        self._db = Database(path, _SCHEMA, name="registry", what="the registry")
        self._db.open()

    async def get(self, uid: str) -> SandboxRecord | Damaged | None:
        def read(db: sqlite3.Connection) -> SandboxRecord | Damaged | None:
            row = db.execute("SELECT document, fence FROM sandboxes WHERE uid = ?", (uid,)).fetchone()
            return documents.decode(uid, _raw(row[0]), row[1]) if row else None

        return await self._db.run(read)

    async def create(self, record: SandboxRecord) -> SandboxRecord:
        return await self._db.run(lambda db: _write(db, record, _insert))

    async def put(self, record: SandboxRecord) -> SandboxRecord:
        return await self._db.run(lambda db: _write(db, record, _replace))

    async def list(self) -> Listing:
        found = await self._db.run(_all)
        return Listing(
            [item for item in found if isinstance(item, SandboxRecord)],
            [item for item in found if isinstance(item, Damaged)],
        )

    async def aclose(self) -> None:
        await self._db.aclose()


def _write(
    db: sqlite3.Connection,
    record: SandboxRecord,
    statement: Callable[[sqlite3.Connection, SandboxRecord, bytes, int], None],
) -> SandboxRecord:
    document = documents.encode(record)
    with transaction(db):
        fence = _next_fence(db)
        statement(db, record, document, fence)
    return replace(record, fence=fence)


def _insert(db: sqlite3.Connection, record: SandboxRecord, document: bytes, fence: int) -> None:
    try:
        db.execute("INSERT INTO sandboxes VALUES (?, ?, ?)", (record.uid, fence, document))
    except sqlite3.IntegrityError as error:
        raise AlreadyExists(f"there is a record of sandbox {record.name} already", uid=record.uid) from error


def _replace(db: sqlite3.Connection, record: SandboxRecord, document: bytes, fence: int) -> None:
    done = db.execute(
        "UPDATE sandboxes SET document = ?, fence = ? WHERE uid = ? AND fence = ?",
        (document, fence, record.uid, record.fence),
    )
    if done.rowcount != 1:
        raise Conflict(
            f"the record of sandbox {record.name} was changed by another writer", retryable=True, uid=record.uid
        )


def _next_fence(db: sqlite3.Connection) -> int:
    (last,) = db.execute("UPDATE revision SET last = last + 1 RETURNING last").fetchone()
    return int(last)


def _all(db: sqlite3.Connection) -> list[SandboxRecord | Damaged]:
    rows = db.execute("SELECT uid, document, fence FROM sandboxes ORDER BY uid").fetchall()
    return [documents.decode(str(uid), _raw(document), fence) for uid, document, fence in rows]


def records_in(db: sqlite3.Connection) -> list[SandboxRecord]:
    """All that can be read, of a file that no station has, or a copy. Raises sqlite3.Error."""
    return [record for record in _all(db) if isinstance(record, SandboxRecord)]


def rewrite(path: Path, change: Callable[[SandboxRecord], SandboxRecord]) -> list[SandboxRecord]:
    """Puts what `change` makes of each record into a file that no station has; the records as they are then. Raises
    sqlite3.Error."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        with transaction(db):
            for before in records_in(db):
                if (after := change(before)) != before:
                    values = (documents.encode(after), _next_fence(db), after.uid)
                    db.execute("UPDATE sandboxes SET document = ?, fence = ? WHERE uid = ?", values)
        return records_in(db)


def _raw(document: object) -> bytes:
    """SQLite keeps what it is given: a repaired or damaged document may be text."""
    return document if isinstance(document, bytes) else str(document).encode("utf-8", "surrogatepass")
