"""The documents port in a SQLite file, as the registry."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from station.core.errors import AlreadyExists, Conflict

from .database import Database, transaction
from .principals import Document, check_document_key

_SCHEMA = """
CREATE TABLE IF NOT EXISTS document (
    key TEXT PRIMARY KEY, revision INTEGER NOT NULL, value BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revision (one INTEGER PRIMARY KEY CHECK (one = 1), last INTEGER NOT NULL);
INSERT OR IGNORE INTO revision VALUES (1, 0);
"""


class SqliteDocuments:
    """`Documents` in one file (or `:memory:`)."""

    def __init__(self, path: Path | str) -> None:
        """Opens or makes the file. Raises Unavailable or StorageFull."""
        self._db = Database(path, _SCHEMA, name="principals", what="the store of keys and deployments")
        self._db.open()

    async def get(self, key: str) -> Document | None:
        rows = await self._rows("SELECT key, value, revision FROM document WHERE key = ?", check_document_key(key))
        return rows[0] if rows else None

    async def list(self, kind: str) -> Sequence[Document]:
        return await self._rows(
            "SELECT key, value, revision FROM document WHERE key > ? AND key < ? ORDER BY key", f"{kind}/", f"{kind}0"
        )

    async def create(self, key: str, value: bytes) -> Document:
        document = Document(check_document_key(key), value, 0)
        return await self._db.run(lambda db: _write(db, document, _insert))

    async def put(self, document: Document) -> Document:
        return await self._db.run(lambda db: _write(db, document, _replace))

    async def delete(self, key: str) -> bool:
        return await self._db.run(lambda db: db.execute("DELETE FROM document WHERE key = ?", (key,)).rowcount == 1)

    async def aclose(self) -> None:
        await self._db.aclose()

    async def _rows(self, query: str, *values: str) -> Sequence[Document]:
        return await self._db.run(lambda db: [Document(*row) for row in db.execute(query, values)])


def _write(
    db: sqlite3.Connection, document: Document, statement: Callable[[sqlite3.Connection, Document, int], None]
) -> Document:
    with transaction(db):
        (last,) = db.execute("UPDATE revision SET last = last + 1 RETURNING last").fetchone()
        statement(db, document, last)
    return replace(document, revision=last)


def _insert(db: sqlite3.Connection, document: Document, revision: int) -> None:
    try:
        db.execute("INSERT INTO document VALUES (?, ?, ?)", (document.key, revision, document.value))
    except sqlite3.IntegrityError as error:
        raise AlreadyExists(f"there is a document {document.key} already", key=document.key) from error


def _replace(db: sqlite3.Connection, document: Document, revision: int) -> None:
    done = db.execute(
        "UPDATE document SET value = ?, revision = ? WHERE key = ? AND revision = ?",
        (document.value, revision, document.key, document.revision),
    )
    if done.rowcount != 1:
        raise Conflict(f"{document.key} was changed by another writer", retryable=True, key=document.key)
