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
from .rows import Rows

_ROWS = Rows("sandboxes", key="uid", revision="fence", document="document")


class SqliteRegistry:
    """A `Registry` in one file (or `:memory:`)."""

    def __init__(self, path: Path | str) -> None:
        """Opens or makes the file. Raises Unavailable or StorageFull."""
        self._db = Database(path, _ROWS.schema, name="registry", what="the registry")
        self._db.open()

    async def get(self, uid: str) -> SandboxRecord | Damaged | None:
        found = await self._db.run(lambda db: _decoded(_ROWS.read(db, "uid = ?", uid)))
        return found[0] if found else None

    async def create(self, record: SandboxRecord) -> SandboxRecord:
        taken = AlreadyExists(f"there is a record of sandbox {record.name} already", uid=record.uid)

        def write(db: sqlite3.Connection) -> int:
            with transaction(db):
                return _ROWS.insert(db, record.uid, documents.encode(record), otherwise=taken)

        return replace(record, fence=await self._db.run(write))

    async def put(self, record: SandboxRecord) -> SandboxRecord:
        def write(db: sqlite3.Connection) -> int:
            with transaction(db):
                return _put(db, record)

        return replace(record, fence=await self._db.run(write))

    async def list(self) -> Listing:
        found = await self._db.run(lambda db: _decoded(_ROWS.read(db)))
        return Listing(
            [item for item in found if isinstance(item, SandboxRecord)],
            [item for item in found if isinstance(item, Damaged)],
        )

    async def aclose(self) -> None:
        await self._db.aclose()


def records_in(db: sqlite3.Connection) -> list[SandboxRecord]:
    """All that can be read, of a file that no station has, or a copy. Raises sqlite3.Error."""
    return [record for record in _decoded(_ROWS.read(db)) if isinstance(record, SandboxRecord)]


def rewrite(path: Path, change: Callable[[SandboxRecord], SandboxRecord]) -> list[SandboxRecord]:
    """Puts what `change` makes of each record into a file that no station has; the records as they are then. Raises
    sqlite3.Error."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        with transaction(db):
            for before in records_in(db):
                if (after := change(before)) != before:
                    _put(db, after)
        return records_in(db)


def _put(db: sqlite3.Connection, record: SandboxRecord) -> int:
    changed = Conflict(
        f"the record of sandbox {record.name} was changed by another writer", retryable=True, uid=record.uid
    )
    return _ROWS.replace(db, record.uid, documents.encode(record), record.fence, otherwise=changed)


def _decoded(rows: list[tuple[str, object, int]]) -> list[SandboxRecord | Damaged]:
    return [documents.decode(str(uid), _raw(document), fence) for uid, document, fence in rows]


def _raw(document: object) -> bytes:
    """SQLite keeps what it is given: a repaired or damaged document may be text."""
    return document if isinstance(document, bytes) else str(document).encode("utf-8", "surrogatepass")
