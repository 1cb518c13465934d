from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from station.core.endings import Ending
from station.core.errors import StorageFull
from station.core.records import ProcessRecord, ProcessState, StreamTotals, Usage
from station.worker.journal import KEPT_FINISHED, KEPT_SECONDS, Journal

UID = "uid"


def record(name: str, number: int = 1, **changes: object) -> ProcessRecord:
    made = ProcessRecord(name, UID, 1, number, ("echo", "\udcff"), False, "/workspace", ProcessState.ACCEPTED, 10.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def ended(name: str, at: float) -> ProcessRecord:
    return record(name, state=ProcessState.ENDED, ended_at=at, started_at=at, ending=Ending.exited(0))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "worker.sqlite")
    yield made
    made.close()


def test_a_record_comes_back_as_it_was_written_also_in_the_next_station(journal: Journal, tmp_path: Path) -> None:
    first = record("prc_1")
    assert journal.accept(first)
    last = replace(
        first,
        state=ProcessState.ENDED,
        ended_at=11.5,
        pid=7,
        ending=Ending.exited(127, "no such program"),
        usage=Usage(0.1, 0.2, 300, 0.4),
        stdout=StreamTotals(10, 3),
    )
    journal.update(last)
    other = Journal(tmp_path / "worker.sqlite")
    assert other.get(UID, "prc_1") == last
    other.close()


def test_an_id_is_accepted_once(journal: Journal) -> None:
    assert journal.accept(record("prc_1"))
    assert not journal.accept(record("prc_1", 2))
    kept = journal.get(UID, "prc_1")
    assert kept is not None
    assert kept.guest_id == 1


def test_a_dropped_record_frees_its_id(journal: Journal) -> None:
    journal.accept(record("prc_1"))
    journal.drop(record("prc_1"))
    assert journal.get(UID, "prc_1") is None
    assert journal.accept(record("prc_1"))


def test_of_the_finished_the_newest_hundred_are_kept_and_forgotten_ids_stay_taken(journal: Journal) -> None:
    for number in range(KEPT_FINISHED + 5):
        journal.accept(record(f"prc_{number}"))
        journal.update(ended(f"prc_{number}", float(number)))
    journal.accept(record("prc_running", state=ProcessState.RUNNING, started_at=0.5))
    assert journal.prune(UID, 200.0) == [f"prc_{number}" for number in range(5)]
    kept = journal.list(UID, 200.0)
    assert len(kept) == KEPT_FINISHED + 1
    assert journal.get(UID, "prc_0") is None
    assert journal.is_forgotten(UID, "prc_0")
    assert not journal.accept(record("prc_0"))


def test_after_a_day_a_finished_one_is_forgotten(journal: Journal) -> None:
    journal.accept(record("prc_1"))
    journal.update(ended("prc_1", 0.0))
    assert journal.prune(UID, KEPT_SECONDS - 1) == []
    assert journal.prune(UID, KEPT_SECONDS + 1) == ["prc_1"]
    assert journal.list(UID, KEPT_SECONDS + 1) == []


def test_a_damaged_journal_is_set_aside_and_a_new_one_serves(tmp_path: Path) -> None:
    path = tmp_path / "worker.sqlite"
    path.write_bytes(b"this is no database, and longer than a header of one" * 100)
    journal = Journal(path)
    assert journal.accept(record("prc_1"))
    assert path.with_suffix(".damaged").exists()
    journal.close()


def test_one_damaged_record_hides_no_other(journal: Journal) -> None:
    journal.accept(record("prc_1"))
    journal.accept(record("prc_2"))
    journal._db.execute("UPDATE process SET document = '{' WHERE id = 'prc_1'")
    assert [each.id for each in journal.list(UID, 0.0)] == ["prc_2"]


def test_a_full_disk_is_told_as_such(journal: Journal) -> None:
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageFull):
        journal.accept(record("prc_1", command=("x" * 100_000,)))


def test_a_shorter_history_is_kept_as_long_as_it_is_told(tmp_path: Path) -> None:
    for kept in (3, 1):
        journal = Journal(tmp_path / "short.db", kept_finished=kept)
        for number in range(5):
            if journal.accept(record(f"prc_{number}")):
                journal.update(ended(f"prc_{number}", float(number)))
        journal.prune(UID, 10.0)
        assert [each.id for each in journal.list(UID, 10.0)] == [f"prc_{number}" for number in range(5 - kept, 5)]
        journal.close()
