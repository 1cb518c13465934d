"""What only this worker knows: its commands, what became of them, and which ids are used up.

Called from the event loop without a thread: a write is one WAL commit without fsync (tens of microseconds). A crash of
the station loses nothing; a crash of the machine may lose the last commits, and its boxes with them.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from station.core.codec import from_plain
from station.core.errors import InternalError, StationError
from station.core.records import ProcessRecord, ProcessState
from station.store.database import open_database, roll_back, translated

logger = logging.getLogger(__name__)

KEPT_FINISHED = 100
KEPT_SECONDS = 24 * 3600.0
KEPT_IDS = 4096
"""Ids of forgotten commands: a late retry is told so instead of running twice."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS process (
    sandbox TEXT NOT NULL, id TEXT NOT NULL, generation INTEGER NOT NULL, guest_id INTEGER NOT NULL,
    state TEXT NOT NULL, ended_at REAL, document TEXT NOT NULL, PRIMARY KEY (sandbox, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS process_state ON process (sandbox, state, ended_at);
"""
_FORGOTTEN = "forgotten"
_OPEN = (ProcessState.ACCEPTED.value, ProcessState.RUNNING.value)


class Journal:
    """Process records in SQLite. Writes raise StorageFull where the disk is full, InternalError where it is broken."""

    def __init__(self, path: Path, *, kept_finished: int = KEPT_FINISHED) -> None:
        self._path = path
        self.kept_finished = kept_finished
        try:
            self._db = self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise self._translated(error) from error
            damaged = path.with_suffix(".damaged")
            logger.error("the process journal is damaged (%s); it is kept as %s, a new one begins", error, damaged)
            path.replace(damaged)
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._db = self._connect()

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return open_database(self._path, _SCHEMA, synchronous="NORMAL", timeout_seconds=2.0)

    def close(self) -> None:
        self._db.close()

    def accept(self, record: ProcessRecord) -> bool:
        """Before START is sent: from here on the id is taken. False, and nothing is written, if it was already."""
        statement = "INSERT OR IGNORE INTO process VALUES (?, ?, ?, ?, ?, ?, ?)"
        values = (record.sandbox_uid, record.id, record.generation, record.guest_id, *_changing(record))
        return self._write(statement, values) == 1

    def update(self, record: ProcessRecord) -> None:
        """The newest state of an accepted record."""
        self._write(
            "UPDATE process SET state = ?, ended_at = ?, document = ? WHERE sandbox = ? AND id = ?",
            (*_changing(record), record.sandbox_uid, record.id),
        )

    def drop(self, record: ProcessRecord) -> None:
        """As if it had never been asked for: it did not start, and a retry may."""
        self._write("DELETE FROM process WHERE sandbox = ? AND id = ?", (record.sandbox_uid, record.id))

    def get(self, uid: str, process_id: str) -> ProcessRecord | None:
        """`None` for an unknown id and for a forgotten one (`is_forgotten` tells them apart)."""
        query = "SELECT document FROM process WHERE sandbox = ? AND id = ? AND state != ?"
        return next(iter(self._read(query, (uid, process_id, _FORGOTTEN))), None)

    def is_forgotten(self, uid: str, process_id: str) -> bool:
        query = "SELECT 1 FROM process WHERE sandbox = ? AND id = ? AND state = ?"
        return bool(self._rows(query, (uid, process_id, _FORGOTTEN)))

    def list(self, uid: str, now: float) -> Sequence[ProcessRecord]:
        """Running ones, and the finished ones of the history bound, oldest first."""
        running = self.unfinished(uid)
        query = (
            "SELECT document FROM process WHERE sandbox = ? AND state = 'ended' AND ended_at >= ? "
            "ORDER BY ended_at DESC LIMIT ?"
        )
        ended = self._read(query, (uid, now - KEPT_SECONDS, self.kept_finished))
        return sorted([*running, *ended], key=lambda record: (record.started_at, record.id))

    def unfinished(self, uid: str) -> Sequence[ProcessRecord]:
        """Accepted and running ones, of every generation."""
        query = "SELECT document FROM process WHERE sandbox = ? AND state IN (?, ?)"
        return self._read(query, (uid, *_OPEN))

    def sandboxes(self) -> Sequence[str]:
        """Every uid of which something is written here."""
        return [row[0] for row in self._rows("SELECT DISTINCT sandbox FROM process")]

    def prune(self, uid: str, now: float) -> Sequence[str]:
        """Forgets what is beyond the history bound; the ids whose output may go."""
        values = (uid, now - KEPT_SECONDS, uid)
        rows = self._rows("SELECT id " + _beyond("ended"), (*values, self.kept_finished))
        with self._transaction():
            self._db.executemany(
                "UPDATE process SET state = 'forgotten', document = '' WHERE sandbox = ? AND id = ?",
                [(uid, row[0]) for row in rows],
            )
            self._db.execute("DELETE " + _beyond("forgotten"), (*values, KEPT_IDS))
        return [row[0] for row in rows]

    def forget_sandbox(self, uid: str) -> None:
        self._write("DELETE FROM process WHERE sandbox = ?", (uid,))

    def _write(self, statement: str, values: Iterable[object]) -> int:
        try:
            return self._db.execute(statement, tuple(values)).rowcount
        except sqlite3.Error as error:
            raise self._translated(error) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                roll_back(self._db)
            raise self._translated(error) from error

    def _read(self, query: str, values: Iterable[object]) -> Sequence[ProcessRecord]:
        return [record for row in self._rows(query, values) if (record := _parsed(row[0])) is not None]

    def _rows(self, query: str, values: Iterable[object] = ()) -> Sequence[tuple[str, ...]]:
        try:
            return self._db.execute(query, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: sqlite3.Error) -> StationError:
        return translated(
            error,
            self._path,
            full="the disk of the station's state directory is full; nothing was started",
            otherwise=InternalError(f"the process journal cannot be used: {error}", store="journal"),
        )


def _beyond(state: str) -> str:
    """Those of a sandbox that are old, or not among the newest: sandbox, oldest time, sandbox, how many stay."""
    return (
        f"FROM process WHERE sandbox = ? AND state = '{state}' AND (ended_at < ? OR id IN (SELECT id "  # noqa: S608
        f"FROM process WHERE sandbox = ? AND state = '{state}' ORDER BY ended_at DESC LIMIT -1 OFFSET ?))"
    )


def _changing(record: ProcessRecord) -> tuple[str, float | None, str]:
    # `vars` all the way down: what `to_plain` gives, at a tenth of its cost; every command writes two of these.
    document = json.dumps(vars(record), default=vars, separators=(",", ":"))
    return record.state.value, record.ended_at, document


def _parsed(document: str) -> ProcessRecord | None:
    try:
        return from_plain(ProcessRecord, json.loads(document))
    except (ValueError, TypeError, KeyError) as error:
        logger.warning("a damaged process record is left out: %s", error)
        return None
