"""A table of documents in SQLite, written under compare-and-set."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from station.core.errors import StationError


@dataclass(frozen=True)
class Rows:
    """Each has a key and the revision under which it was written; those of one file only grow. Names of a table and its
    columns are ours, never a caller's. Raises sqlite3.Error."""

    table: str
    key: str
    revision: str
    document: str

    @property
    def schema(self) -> str:
        return f"""
CREATE TABLE IF NOT EXISTS {self.table} (
    {self.key} TEXT PRIMARY KEY, {self.revision} INTEGER NOT NULL, {self.document} BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revision (one INTEGER PRIMARY KEY CHECK (one = 1), last INTEGER NOT NULL);
INSERT OR IGNORE INTO revision VALUES (1, 0);
"""  # noqa: S608

    def read(self, db: sqlite3.Connection, where: str = "TRUE", *values: str) -> list[tuple[str, Any, int]]:
        """Key, document and revision, by key."""
        columns = f"{self.key}, {self.document}, {self.revision}"
        query = f"SELECT {columns} FROM {self.table} WHERE {where} ORDER BY {self.key}"  # noqa: S608
        return db.execute(query, values).fetchall()

    def insert(self, db: sqlite3.Connection, key: str, document: bytes, *, otherwise: StationError) -> int:
        """Its first revision. Within a transaction; raises `otherwise` where there is one of that key."""
        revision = self._next(db)
        try:
            db.execute(f"INSERT INTO {self.table} VALUES (?, ?, ?)", (key, revision, document))  # noqa: S608
        except sqlite3.IntegrityError as error:
            raise otherwise from error
        return revision

    def replace(
        self, db: sqlite3.Connection, key: str, document: bytes, before: int, *, otherwise: StationError
    ) -> int:
        """Its new revision. Within a transaction; raises `otherwise` where `before` is not the present one."""
        revision = self._next(db)
        done = db.execute(
            f"UPDATE {self.table} SET {self.document} = ?, {self.revision} = ? "  # noqa: S608
            f"WHERE {self.key} = ? AND {self.revision} = ?",
            (document, revision, key, before),
        )
        if done.rowcount != 1:
            raise otherwise
        return revision

    def _next(self, db: sqlite3.Connection) -> int:
        (last,) = db.execute("UPDATE revision SET last = last + 1 RETURNING last").fetchone()
        return int(last)
