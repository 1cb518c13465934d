"""The documents port in a SQLite file, as the registry."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from station.core.errors import AlreadyExists, Conflict

from .database import Database, transaction
from .principals import Document, check_document_key
from .rows import Rows

_ROWS = Rows("document", key="key", revision="revision", document="value")


class SqliteDocuments:
    """`Documents` in one file (or `:memory:`)."""

    def __init__(self, path: Path | str) -> None:
        """Opens or makes the file. Raises Unavailable or StorageFull."""
        self._db = Database(path, _ROWS.schema, name="principals", what="the store of keys and deployments")
        self._db.open()

    async def get(self, key: str) -> Document | None:
        rows = await self._rows("key = ?", check_document_key(key))
        return rows[0] if rows else None

    async def list(self, kind: str) -> Sequence[Document]:
        return await self._rows("key > ? AND key < ?", f"{kind}/", f"{kind}0")

    async def create(self, key: str, value: bytes) -> Document:
        taken = AlreadyExists(f"there is a document {check_document_key(key)} already", key=key)

        def write(db: sqlite3.Connection) -> int:
            with transaction(db):
                return _ROWS.insert(db, key, value, otherwise=taken)

        return Document(key, value, await self._db.run(write))

    async def put(self, document: Document) -> Document:
        key = document.key
        changed = Conflict(f"{key} was changed by another writer", retryable=True, key=key)

        def write(db: sqlite3.Connection) -> int:
            with transaction(db):
                return _ROWS.replace(db, key, document.value, document.revision, otherwise=changed)

        return replace(document, revision=await self._db.run(write))

    async def delete(self, key: str) -> bool:
        return await self._db.run(lambda db: db.execute("DELETE FROM document WHERE key = ?", (key,)).rowcount == 1)

    async def aclose(self) -> None:
        await self._db.aclose()

    async def _rows(self, where: str, *values: str) -> Sequence[Document]:
        return [Document(*row) for row in await self._db.run(lambda db: _ROWS.read(db, where, *values))]
