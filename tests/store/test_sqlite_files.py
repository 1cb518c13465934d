"""Every SQLite file of a station is opened in one way."""

from __future__ import annotations

import gc
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from station.core.errors import InternalError, StorageFull, Unavailable
from station.store.database import open_database, roll_back, translated
from station.store.sqlite import SqliteRegistry
from station.worker.journal import Journal


@pytest.mark.parametrize(("synchronous", "number"), [("FULL", 2), ("NORMAL", 1)])
def test_a_file_is_in_wal_mode_and_as_synchronous_as_asked(tmp_path: Path, synchronous: str, number: int) -> None:
    db = open_database(tmp_path / "x", "CREATE TABLE t (a);", synchronous=synchronous, timeout_seconds=1)  # type: ignore[arg-type]
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("PRAGMA synchronous").fetchone() == (number,)
    db.close()


async def test_the_registry_survives_power_loss_and_the_journal_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    registry, journal = SqliteRegistry(tmp_path / "r.db"), Journal(tmp_path / "p.db")
    assert await registry._db.run(lambda db: db.execute("PRAGMA synchronous").fetchone()) == (2,)
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (1,)
    journal.close()
    await registry.aclose()


def test_a_file_that_cannot_be_used_is_closed_again(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    gc.disable()
    try:
        for schema in ("nonsense", "CREATE TABLE t (a); CREATE TABLE t (a);"):
            with pytest.raises(sqlite3.Error):
                open_database(tmp_path / "x", schema, synchronous="FULL", timeout_seconds=1)
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("opening", "kind"), [(SqliteRegistry, Unavailable), (Journal, InternalError)], ids=["registry", "journal"]
)
def test_a_place_where_no_file_can_be_is_told_as_ours(
    tmp_path: Path, opening: Callable[[Path], object], kind: type[Exception]
) -> None:
    (tmp_path / "r.db").mkdir()
    with pytest.raises(kind, match="cannot be used"):
        opening(tmp_path / "r.db")


def test_a_full_disk_is_storage_full_and_anything_else_is_not(tmp_path: Path) -> None:
    db = open_database(tmp_path / "x", "CREATE TABLE t (a);", synchronous="FULL", timeout_seconds=1)
    db.execute("PRAGMA max_page_count = 1")
    db.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as caught:
        db.execute("INSERT INTO t VALUES (zeroblob(1000000))")
    for _ in range(2):  # whether SQLite has rolled back by itself or not
        roll_back(db)
    assert not db.in_transaction
    other = InternalError("other")
    error = translated(caught.value, tmp_path / "x", full="full", otherwise=other)
    assert (type(error), error.message, error.retryable) == (StorageFull, "full", True)
    with pytest.raises(sqlite3.OperationalError) as caught:
        db.execute("nonsense")
    assert translated(caught.value, tmp_path / "x", full="full", otherwise=other) is other
    db.close()
