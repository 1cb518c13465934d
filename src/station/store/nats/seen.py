"""What a nats-server of the station's own has acknowledged, remembered beside it.

A server that finds a part of its files damaged drops it and what comes after, and answers as if that had never been.
To a station a sandbox without a record is nobody's, and its box goes. So the names alone are kept a second time, in
another file: what is missing is told as damaged then.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from station.core.errors import Unavailable
from station.store.database import open_database

log = logging.getLogger(__name__)

_SCHEMA = "CREATE TABLE IF NOT EXISTS seen (name TEXT PRIMARY KEY) WITHOUT ROWID;"


class Seen:
    """A set of names that outlives a crash. One that cannot be written is told in the log: it protects less, and
    refuses nothing."""

    def __init__(self, path: Path | None) -> None:
        """`None`: of servers of others, where copies are kept by those: it remembers nothing. Raises Unavailable."""
        self._names: set[str] = set()
        self._db: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="seen")
        if path is not None:
            try:
                self._db = self._thread.submit(self._open, path).result()
            except sqlite3.Error as error:
                self._thread.shutdown()
                raise Unavailable(f"{path.name} of NATS cannot be used: {error}", retryable=False) from error

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
        if (db := self._db) is not None:
            self._db = None
            await self._do(db.close)
        self._thread.shutdown()

    def _open(self, path: Path) -> sqlite3.Connection:
        db = open_database(path, _SCHEMA, synchronous="FULL", timeout_seconds=5.0)
        self._names = {name for (name,) in db.execute("SELECT name FROM seen")}
        return db

    async def _run(self, query: str, names: list[str]) -> None:
        db = self._db
        if db is None:
            return

        def write() -> None:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(query, [(name,) for name in names])
            db.execute("COMMIT")

        try:
            await self._do(write)
        except sqlite3.Error as error:
            log.error("what NATS has acknowledged could not be remembered: %s", error)

    async def _do(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work)
