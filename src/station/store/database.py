"""How every SQLite file of a station is opened, and what its errors mean."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Literal

from station.core.errors import StationError, StorageFull

_ROOM_BYTES = 64 * 1024
"""Less than SQLite needs to make and map its files."""


def open_database(
    path: Path | str, schema: str, *, synchronous: Literal["FULL", "NORMAL"], timeout_seconds: float
) -> sqlite3.Connection:
    """Opens or makes the file, in WAL mode and with what `schema` makes: no acknowledged write is lost by kill -9.

    `FULL`: nor by power loss, at the price of an fsync for each commit. Raises sqlite3.Error, with nothing left open.
    """
    db = sqlite3.connect(path, isolation_level=None, timeout=timeout_seconds)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={synchronous}")
        db.executescript(schema)
    except sqlite3.Error:
        db.close()
        raise
    return db


def roll_back(db: sqlite3.Connection) -> None:
    """Ends a transaction that failed. A full disk may have rolled it back already."""
    if db.in_transaction:
        db.execute("ROLLBACK")


def translated(error: sqlite3.Error, path: Path | str, *, full: str, otherwise: StationError) -> StationError:
    """`error` as ours: StorageFull with the sentence `full` where a full disk is behind it, else `otherwise`."""
    return StorageFull(full, retryable=True) if _no_room(error, path) else otherwise


def _no_room(error: sqlite3.Error, path: Path | str) -> bool:
    """SQLite says so where it writes, but not where it makes or maps its files."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
        return True
    if code & 0xFF not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return False
    try:
        return shutil.disk_usage(Path(path).parent).free < _ROOM_BYTES
    except OSError:
        return False
