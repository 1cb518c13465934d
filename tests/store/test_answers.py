"""What was answered under an Idempotency-Key: kept over a crash, for a day, and within bounds."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from station.core.errors import Unavailable
from station.core.records import Owner
from station.store import answers
from station.store.answers import KEPT_SECONDS, Answers, Kept

US, THEM = Owner(), Owner("local", "other")
NAME, OTHER, ASKED = b"name", b"other", b"asked"


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Answers]:
    kept = Answers(path)
    try:
        yield kept
    finally:
        await kept.aclose()


async def give(kept: Answers, name: bytes, now: float, body: bytes = b"{}", owner: Owner = US) -> None:
    assert await kept.begin(owner, name, ASKED, now) is None
    await kept.keep(owner, name, now, Kept(ASKED, 201, "application/json", body))


async def test_an_answer_is_found_again_also_by_the_next_station(tmp_path: Path) -> None:
    async with opened(tmp_path / "answers.db") as kept:
        await give(kept, NAME, 1.0)
        assert await kept.begin(US, NAME, b"another", 2.0) == Kept(ASKED, 201, "application/json", b"{}")
    async with opened(tmp_path / "answers.db") as kept:
        assert await kept.begin(US, NAME, ASKED, 3.0) == Kept(ASKED, 201, "application/json", b"{}")
        assert await kept.begin(US, OTHER, ASKED, 3.0) is None


async def test_one_that_has_begun_is_known_and_not_answered_until_it_is_forgotten(tmp_path: Path) -> None:
    async with opened(tmp_path / "answers.db") as kept:
        assert await kept.begin(US, NAME, ASKED, 1.0) is None
        assert await kept.begin(US, NAME, ASKED, 1.0) == Kept(ASKED, None, None, None)
        await kept.forget(NAME)
        assert await kept.begin(US, NAME, b"another", 1.0) is None


async def test_after_a_day_a_name_is_free_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "answers.db") as kept:
        await give(kept, NAME, 0.0)
        assert await kept.begin(US, NAME, ASKED, KEPT_SECONDS - 1) is not None
        assert await kept.begin(US, NAME, b"another", KEPT_SECONDS) is None


async def test_the_newest_stay_where_there_are_too_many_or_too_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWERS", 3)
    monkeypatch.setattr(answers, "MAX_BYTES", 100)
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 60)
    async with opened(tmp_path / "answers.db") as kept:
        for at in range(5):
            await give(kept, b"%d" % at, float(at))
        assert [await kept.begin(US, b"%d" % at, ASKED, 9.0) is None for at in (2, 3, 4)] == [False, False, False]
        await give(kept, b"large", 10.0, b"x" * 60)
        await give(kept, b"second", 11.0, b"x" * 60)
        assert await kept.begin(US, b"large", ASKED, 12.0) is None
        await give(kept, b"too large", 13.0, b"x" * 61)
        assert await kept.begin(US, b"too large", ASKED, 14.0) == Kept(ASKED, 201, "application/json", None)


async def rows(kept: Answers) -> int:
    found: int = await kept._db.run(lambda db: db.execute("SELECT count(*) FROM given").fetchone()[0])
    return found


async def test_nobody_takes_the_place_of_anothers_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: his own oldest goes."""
    monkeypatch.setattr(answers, "MAX_ANSWERS", 3)
    monkeypatch.setattr(answers, "MAX_BYTES", 100)
    async with opened(tmp_path / "answers.db") as kept:
        await give(kept, b"ours", 0.0, b"x" * 90)
        for at in range(1, 6):
            await give(kept, b"%d" % at, float(at), b"x" * 30, owner=THEM)
        assert await kept.begin(US, b"ours", ASKED, 9.0) == Kept(ASKED, 201, "application/json", b"x" * 90)
        assert await kept.begin(THEM, b"1", ASKED, 9.0) is None


async def test_an_answer_is_kept_though_newer_ones_came_while_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWERS", 3)
    async with opened(tmp_path / "answers.db") as kept:
        assert await kept.begin(US, NAME, ASKED, 0.0) is None
        for at in range(1, 5):
            await give(kept, b"%d" % at, float(at))
        await kept.keep(US, NAME, 5.0, Kept(ASKED, 201, None, b"late"))
        assert await kept.begin(US, NAME, ASKED, 9.0) == Kept(ASKED, 201, None, b"late")


async def test_names_without_an_answer_are_forgotten_in_time_and_beyond_the_bound_of_their_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of commands no answer is kept, and of what failed."""
    monkeypatch.setattr(answers, "MAX_ANSWERS", 3)
    async with opened(tmp_path / "answers.db") as kept:
        for at in range(5):
            await kept.begin(US, b"%d" % at, ASKED, float(at))
        await kept.begin(THEM, b"theirs", ASKED, 0.0)
        assert await rows(kept) == 6
        await kept.forget_old(9.0)
        assert await rows(kept) == 4
        assert await kept.begin(THEM, b"theirs", ASKED, 9.0) is not None
        await kept.forget_old(KEPT_SECONDS + 4.0)
        assert await rows(kept) == 0


async def test_a_file_that_is_damaged_is_said_to_be_and_nothing_is_done(tmp_path: Path) -> None:
    (tmp_path / "answers.db").write_bytes(b"nonsense" * 1000)
    async with opened(tmp_path / "answers.db") as kept:
        with pytest.raises(Unavailable, match=r"answers\.db cannot be used") as told:
            await kept.begin(US, NAME, ASKED, 1.0)
        # Callers are told, who need not know where a station has its files.
        assert str(tmp_path) not in str(told.value.to_body())


async def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    async with opened(tmp_path / "answers.db") as kept:
        await kept.forget_old(1.0)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import asyncio, os, signal, sys
from station.core.records import Owner
from station.store.answers import Answers, Kept
async def main():
    kept = Answers(sys.argv[1])
    for at in range(20):
        name = b"%d" % at
        await kept.begin(Owner(), name, b"asked", float(at))
        await kept.keep(Owner(), name, float(at), Kept(b"asked", 200, None, b"done"))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def killed(path: Path) -> int:
    return subprocess.run([sys.executable, "-c", KILLED, str(path)], env=os.environ).returncode


async def test_no_acknowledged_answer_is_lost_by_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    assert killed(path) == -signal.SIGKILL
    async with opened(path) as kept:
        found = [await kept.begin(US, b"%d" % at, ASKED, 20.0) for at in range(20)]
    assert found == [Kept(ASKED, 200, None, b"done")] * 20
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
