"""Answers that are given again: what a request with an Idempotency-Key was answered, for a day."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from .database import Database, transaction

KEPT_SECONDS = 24 * 3600.0
MAX_ANSWERS = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""Of all bodies; the oldest go."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Of one body: of a larger one is known that it was given, and no more."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    name BLOB PRIMARY KEY, request BLOB NOT NULL, at REAL NOT NULL, status INTEGER, media TEXT, body BLOB
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_age ON answers (at);
"""


@dataclass(frozen=True)
class Kept:
    """What is known of a request that was seen before."""

    request: bytes
    """The digest of what was asked for."""
    status: int | None
    """`None`: it was not answered, as far as is known."""
    media: str | None
    body: bytes | None
    """`None` of one that was answered: it was not to be kept, or too large."""


class Answers:
    """By name, in one file (or `:memory:`), which is opened when it is first needed; an acknowledged one survives a
    crash of the machine. Every call raises StorageFull and Unavailable."""

    def __init__(self, path: Path | str) -> None:
        self._db = Database(path, _SCHEMA, name="answers", what="the answers")

    async def begin(self, name: bytes, request: bytes, now: float) -> Kept | None:
        """From here on the name belongs to that request. What is known of it where it was taken; `None`: it is new."""

        def taken(db: sqlite3.Connection) -> Kept | None:
            db.execute("DELETE FROM answers WHERE name = ? AND at <= ?", (name, now - KEPT_SECONDS))
            values = (name, request, now)
            if db.execute("INSERT OR IGNORE INTO answers (name, request, at) VALUES (?, ?, ?)", values).rowcount:
                return None
            query = "SELECT request, status, media, body FROM answers WHERE name = ?"
            return Kept(*db.execute(query, (name,)).fetchone())

        return await self._db.run(taken)

    async def keep(self, name: bytes, now: float, *, status: int, media: str | None, body: bytes | None) -> None:
        """Its answer, before it is given. `None`: only that it was given."""
        kept = body if body is not None and len(body) <= MAX_ANSWER_BYTES else None

        def write(db: sqlite3.Connection) -> None:
            with transaction(db):
                values = (status, media, kept, name)
                db.execute("UPDATE answers SET status = ?, media = ?, body = ? WHERE name = ?", values)
                _forget_old(db, now)

        await self._db.run(write)

    async def forget(self, name: bytes) -> None:
        """It came to nothing: the name is free again."""
        await self._db.run(lambda db: db.execute("DELETE FROM answers WHERE name = ?", (name,)))

    async def aclose(self) -> None:
        await self._db.aclose()


def _forget_old(db: sqlite3.Connection, now: float) -> None:
    db.execute("DELETE FROM answers WHERE at <= ?", (now - KEPT_SECONDS,))
    # The newest stay, as long as they are not too many and fit together.
    db.execute(
        "DELETE FROM answers WHERE name IN (SELECT name FROM (SELECT name, row_number() OVER newest AS place, "
        "sum(coalesce(length(body), 0)) OVER newest AS bytes FROM answers "
        "WINDOW newest AS (ORDER BY at DESC, name)) WHERE place > ? OR bytes > ?)",
        (MAX_ANSWERS, MAX_BYTES),
    )
