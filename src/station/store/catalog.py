"""What a directory of blobs holds under which key: the catalogue of the `directory` body, in SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from station.core.records import Owner
from station.core.stored import StoredFile

from .database import open_database, transaction

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    account TEXT NOT NULL, deployment TEXT NOT NULL, key TEXT NOT NULL,
    size INTEGER NOT NULL, checksum TEXT NOT NULL, content_type TEXT NOT NULL,
    created_at REAL NOT NULL, expires_at REAL, metadata TEXT NOT NULL,
    PRIMARY KEY (account, deployment, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_checksum ON files (checksum);
CREATE INDEX IF NOT EXISTS by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;
"""
Removed: TypeAlias = Sequence[tuple[Owner, str, int]]
"""Owner, checksum and size, of each key that is gone."""
_COLUMNS = "key, size, content_type, checksum, created_at, expires_at, metadata"


class Catalog:
    """Rows by owner and key. Raises sqlite3.Error; used from one thread, which is what makes its answers whole."""

    def __init__(self, path: Path | str) -> None:
        self._db = open_database(path, _SCHEMA, synchronous="FULL", timeout_seconds=5.0)

    def close(self) -> None:
        self._db.close()

    def transaction(self) -> AbstractContextManager[None]:
        """All of it or nothing."""
        return transaction(self._db)

    def get(self, owner: Owner, key: str) -> StoredFile | None:
        query = f"SELECT {_COLUMNS} FROM files WHERE account = ? AND deployment = ? AND key = ?"  # noqa: S608
        row = self._db.execute(query, (owner.account, owner.deployment, key)).fetchone()
        return _file(row) if row else None

    def put(self, owner: Owner, file: StoredFile) -> None:
        values = (file.size, file.checksum, file.content_type, file.created_at, file.expires_at)
        self._db.execute(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (owner.account, owner.deployment, file.key, *values, json.dumps(file.metadata)),
        )

    def list(self, owner: Owner, prefix: str, now: float, *, after: str, limit: int) -> Sequence[StoredFile]:
        """By the bytes of their keys."""
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM files WHERE account = ? AND deployment = ? AND key > ? "  # noqa: S608
            "AND substr(key, 1, ?) = ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key LIMIT ?",
            (owner.account, owner.deployment, after, len(prefix), prefix, now, limit),
        )
        return [_file(row) for row in rows]

    def remove(self, owner: Owner, key: str) -> Removed:
        """What was there; empty: nothing was."""
        return self._removed("account = ? AND deployment = ? AND key = ?", owner.account, owner.deployment, key)

    def remove_below(self, owner: Owner, prefix: str) -> Removed:
        where = "account = ? AND deployment = ? AND substr(key, 1, ?) = ?"
        return self._removed(where, owner.account, owner.deployment, len(prefix), prefix)

    def remove_expired(self, now: float) -> Removed:
        return self._removed("expires_at <= ?", now)

    def is_named(self, checksum: str) -> bool:
        """Whether any key of any owner has that content."""
        return self._db.execute("SELECT 1 FROM files WHERE checksum = ? LIMIT 1", (checksum,)).fetchone() is not None

    def has(self, owner: Owner, checksum: str) -> bool:
        """Whether any key of his has that content."""
        query = "SELECT 1 FROM files WHERE checksum = ? AND account = ? AND deployment = ? LIMIT 1"
        return self._db.execute(query, (checksum, owner.account, owner.deployment)).fetchone() is not None

    def totals(self) -> tuple[int, int]:
        """Keys, and the bytes of distinct contents of each owner. Looks at every row: to be asked once."""
        (files,) = self._db.execute("SELECT count(*) FROM files").fetchone()
        (used,) = self._db.execute(
            "SELECT coalesce(sum(size), 0) FROM (SELECT DISTINCT account, deployment, checksum, size FROM files)"
        ).fetchone()
        return files, used

    def _removed(self, where: str, *values: object) -> Removed:
        returned = "RETURNING account, deployment, checksum, size"
        rows = self._db.execute(f"DELETE FROM files WHERE {where} {returned}", values)  # noqa: S608
        return [(Owner(account, deployment), checksum, size) for account, deployment, checksum, size in rows]


def _file(row: tuple[str, int, str, str, float, float | None, str]) -> StoredFile:
    key, size, content_type, checksum, created_at, expires_at, metadata = row
    return StoredFile(key, size, content_type, checksum, created_at, expires_at, json.loads(metadata))
