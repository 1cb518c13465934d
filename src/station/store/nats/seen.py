"""What a nats-server of the station's own has acknowledged, remembered beside it.

A server that finds a part of its files damaged drops it and what comes after, and answers as if that had never been.
To a station a sandbox without a record is nobody's, and its box goes. So the names alone are kept a second time, in
another file: what is missing is told as damaged then.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Self

from station.core.errors import StationError
from station.store.database import Database, transaction

log = logging.getLogger(__name__)

_SCHEMA = "CREATE TABLE IF NOT EXISTS seen (name TEXT PRIMARY KEY) WITHOUT ROWID;"


class Seen:
    """A set of names that outlives a crash. One that cannot be written is told in the log: it protects less, and
    refuses nothing."""

    def __init__(self, db: Database | None = None) -> None:
        """`None`: of servers of others, where copies are kept by those: it remembers nothing. Else use `opened`."""
        self._db = db
        self._names: set[str] = set()

    @classmethod
    async def opened(cls, path: Path) -> Self:
        """Opens or makes the file. Raises Unavailable or StorageFull."""
        db = Database(path, _SCHEMA, name="seen", what="the list of what NATS has acknowledged")
        db.open()
        made = cls(db)
        made._names = await db.run(lambda db: {name for (name,) in db.execute("SELECT name FROM seen")})
        return made

    def below(self, prefix: str) -> set[str]:
        """The names that begin so, without that."""
        return {name.removeprefix(prefix) for name in self._names if name.startswith(prefix)}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    async def add(self, *names: str) -> None:
        """Repeating is no error, and costs nothing."""
        if self._db is not None and (new := [name for name in names if name not in self._names]):
            self._names.update(new)
            await self._run("INSERT OR IGNORE INTO seen VALUES (?)", new)

    async def drop(self, *names: str) -> None:
        if known := [name for name in names if name in self._names]:
            self._names.difference_update(known)
            await self._run("DELETE FROM seen WHERE name = ?", known)

    async def aclose(self) -> None:
        """Repeating is no error."""
        if self._db is not None:
            await self._db.aclose()

    async def _run(self, query: str, names: list[str]) -> None:
        def write(db: sqlite3.Connection) -> None:
            with transaction(db):
                db.executemany(query, [(name,) for name in names])

        if self._db is None:
            return
        try:
            await self._db.run(write)
        except StationError as error:
            log.error("what NATS has acknowledged could not be remembered: %s", error)
