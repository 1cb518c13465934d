"""Answers that are given again: what a request with an Idempotency-Key was answered, for a day."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from station.core.records import Owner

from .database import Database, transaction

KEPT_SECONDS = 24 * 3600.0
MAX_ANSWERS = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""Of all bodies. Both are bounds of each owner, whose own oldest go: nobody's answer makes room for another's."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Of one body: of a larger one is known that it was given, and no more."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS given (
    name BLOB PRIMARY KEY, account TEXT NOT NULL, deployment TEXT NOT NULL,
    request BLOB NOT NULL, at REAL NOT NULL, status INTEGER, media TEXT, body BLOB
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_age ON given (at);
CREATE INDEX IF NOT EXISTS by_owner ON given (account, deployment, at);
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

    async def begin(self, owner: Owner, name: bytes, request: bytes, now: float) -> Kept | None:
        """From here on the name belongs to that request. What is known of it where it was taken; `None`: it is new."""

        def taken(db: sqlite3.Connection) -> Kept | None:
            db.execute("DELETE FROM given WHERE name = ? AND at <= ?", (name, now - KEPT_SECONDS))
            query = "INSERT OR IGNORE INTO given VALUES (?, ?, ?, ?, ?, NULL, NULL, NULL)"
            if db.execute(query, (name, owner.account, owner.deployment, request, now)).rowcount:
                return None
            return Kept(
                *db.execute("SELECT request, status, media, body FROM given WHERE name = ?", (name,)).fetchone()
            )

        return await self._db.run(taken)

    async def keep(self, owner: Owner, name: bytes, now: float, answer: Kept) -> None:
        """The answer under a name that has begun, before it is given; its age counts from here. A body that is too
        large is left out."""
        body = answer.body if answer.body is not None and len(answer.body) <= MAX_ANSWER_BYTES else None
        row = (name, owner.account, owner.deployment, answer.request, now, answer.status, answer.media, body)

        def write(db: sqlite3.Connection) -> None:
            with transaction(db):
                # Whole: while the answer was made, newer ones of the same owner may have taken the place of its name.
                db.execute("INSERT OR REPLACE INTO given VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                _drop_beyond(db, owner.account, owner.deployment)

        await self._db.run(write)

    async def forget(self, name: bytes) -> None:
        """It came to nothing: the name is free again."""
        await self._db.run(lambda db: db.execute("DELETE FROM given WHERE name = ?", (name,)))

    async def forget_old(self, now: float) -> None:
        """What is older than a day, and beyond the bounds of its owner. Makes no file where there is none."""
        if self._db.is_there():
            await self._db.run(lambda db: _forget_old(db, now))

    async def aclose(self) -> None:
        await self._db.aclose()


def _forget_old(db: sqlite3.Connection, now: float) -> None:
    with transaction(db):
        db.execute("DELETE FROM given WHERE at <= ?", (now - KEPT_SECONDS,))
        # Names are counted here, of requests whose answer is not kept too; their bytes where an answer is.
        many = "SELECT account, deployment FROM given GROUP BY account, deployment HAVING count(*) > ?"
        for account, deployment in db.execute(many, (MAX_ANSWERS,)).fetchall():
            _drop_beyond(db, account, deployment)


def _drop_beyond(db: sqlite3.Connection, account: str, deployment: str) -> None:
    """The newest stay, as long as they are not too many and fit together."""
    db.execute(
        "DELETE FROM given WHERE name IN (SELECT name FROM (SELECT name, row_number() OVER newest AS place, "
        "sum(coalesce(length(body), 0)) OVER newest AS bytes FROM given WHERE account = ? AND deployment = ? "
        "WINDOW newest AS (ORDER BY at DESC, name)) WHERE place > ? OR bytes > ?)",
        (account, deployment, MAX_ANSWERS, MAX_BYTES),
    )
