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
from station.store import answers
from station.store.answers import KEPT_SECONDS, Answers, Kept

NAME, OTHER, ASKED = b"name", b"other", b"asked"


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Answers]:
    kept = Answers(path)
    try:
        yield kept
    finally:
        await kept.aclose()


async def give(kept: Answers, name: bytes, now: float, body: bytes = b"{}") -> None:
    assert await kept.begin(name, ASKED, now) is None
    await kept.keep(name, now, status=201, media="application/json", body=body)


async def test_an_answer_is_found_again_also_by_the_next_station(tmp_path: Path) -> None:
    async with opened(tmp_path / "answers.db") as kept:
        await give(kept, NAME, 1.0)
        assert await kept.begin(NAME, b"another", 2.0) == Kept(ASKED, 201, "application/json", b"{}")
    async with opened(tmp_path / "answers.db") as kept:
        assert await kept.begin(NAME, ASKED, 3.0) == Kept(ASKED, 201, "application/json", b"{}")
        assert await kept.begin(OTHER, ASKED, 3.0) is None


async def test_one_that_has_begun_is_known_and_not_answered_until_it_is_forgotten(tmp_path: Path) -> None:
    async with opened(tmp_path / "answers.db") as kept:
        assert await kept.begin(NAME, ASKED, 1.0) is None
        assert await kept.begin(NAME, ASKED, 1.0) == Kept(ASKED, None, None, None)
        await kept.forget(NAME)
        assert await kept.begin(NAME, b"another", 1.0) is None


async def test_after_a_day_a_name_is_free_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "answers.db") as kept:
        await give(kept, NAME, 0.0)
        assert await kept.begin(NAME, ASKED, KEPT_SECONDS - 1) is not None
        assert await kept.begin(NAME, b"another", KEPT_SECONDS) is None


async def test_the_newest_stay_where_there_are_too_many_or_too_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWERS", 3)
    monkeypatch.setattr(answers, "MAX_BYTES", 100)
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 60)
    async with opened(tmp_path / "answers.db") as kept:
        for at in range(5):
            await give(kept, b"%d" % at, float(at))
        assert [await kept.begin(b"%d" % at, ASKED, 9.0) is None for at in (2, 3, 4)] == [False, False, False]
        await give(kept, b"large", 10.0, b"x" * 60)
        await give(kept, b"second", 11.0, b"x" * 60)
        assert await kept.begin(b"large", ASKED, 12.0) is None
        await give(kept, b"too large", 13.0, b"x" * 61)
        assert await kept.begin(b"too large", ASKED, 14.0) == Kept(ASKED, 201, "application/json", None)


async def test_a_file_that_is_damaged_is_said_to_be_and_nothing_is_done(tmp_path: Path) -> None:
    (tmp_path / "answers.db").write_bytes(b"nonsense" * 1000)
    async with opened(tmp_path / "answers.db") as kept:
        with pytest.raises(Unavailable, match=r"answers\.db cannot be used"):
            await kept.begin(NAME, ASKED, 1.0)


async def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    async with opened(tmp_path / "answers.db"):
        pass
    assert list(tmp_path.iterdir()) == []


KILLED = """
import asyncio, os, signal, sys
from station.store.answers import Answers
async def main():
    kept = Answers(sys.argv[1])
    for at in range(20):
        name = b"%d" % at
        await kept.begin(name, b"asked", float(at))
        await kept.keep(name, float(at), status=200, media=None, body=b"done")
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def killed(path: Path) -> int:
    return subprocess.run([sys.executable, "-c", KILLED, str(path)], env=os.environ).returncode


async def test_no_acknowledged_answer_is_lost_by_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    assert killed(path) == -signal.SIGKILL
    async with opened(path) as kept:
        found = [await kept.begin(b"%d" % at, ASKED, 20.0) for at in range(20)]
    assert found == [Kept(ASKED, 200, None, b"done")] * 20
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
