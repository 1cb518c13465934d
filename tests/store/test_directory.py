"""The files port in a directory: what its blobs and its catalogue go through."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from station.core.errors import InternalError, Unavailable
from station.store.catalog import Catalog
from station.store.directory import DirectoryFiles

from .test_files import BOUNDS, NOW, US, content, put


def opened(place: Path, **options: int) -> DirectoryFiles:
    return DirectoryFiles(place / "files", now=lambda: NOW, **options)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[DirectoryFiles]:
    made = opened(tmp_path, **BOUNDS)
    yield made
    await made.aclose()


def blob(place: Path, data: bytes) -> Path:
    digest = hashlib.sha256(data).hexdigest()
    return place / "files" / "blobs" / digest[:2] / digest


@pytest.mark.parametrize("harm", ["flip", "cut", "grow", "remove"])
async def test_hd_d08_a_damaged_blob_is_never_served_as_whole(store: DirectoryFiles, tmp_path: Path, harm: str) -> None:
    data = random.Random(1).randbytes(300_000)
    await put(store, "files/a", data)
    path = blob(tmp_path, data)
    if harm == "remove":
        path.unlink()
    else:
        other = {"flip": data[:-1] + b"\0", "cut": data[:-1], "grow": data + b"x"}[harm]
        path.write_bytes(other)
    with pytest.raises(InternalError, match="damaged"):
        await content(store, "files/a")
    await put(store, "files/b", data)
    assert await content(store, "files/a") == data, "the same content stored anew mends it"


async def test_what_a_crash_has_left_is_removed_and_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await put(store, "files/a", b"kept")
    await store.aclose()
    (tmp_path / "files" / "incoming" / ".stn-left").write_bytes(b"half")
    orphan = blob(tmp_path, b"nobody's")
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"nobody's")
    store = opened(tmp_path)
    assert list((tmp_path / "files" / "incoming").iterdir()) == []
    assert (await store.sweep(NOW)).orphan_bytes == 8
    assert not orphan.exists()
    assert await content(store, "files/a") == b"kept"
    await store.aclose()
    with pytest.raises(Unavailable, match="stopping"):
        await store.get(US, "files/a", NOW)


_WRITER = """
import asyncio, sys
from pathlib import Path
from station.core.records import Owner
from station.store.directory import DirectoryFiles
from station.store.files import Facts

async def chunks(data):
    yield data

async def main():
    store = DirectoryFiles(Path(sys.argv[1]), now=lambda: 1.0)
    for number in range(int(sys.argv[2]), 10**9):
        key, data = f"files/{number % 7}", (b"%d " % number) * 20_000
        file = await store.put(Owner(), key, chunks(data), Facts("x"))
        print(key, number, flush=True)

asyncio.run(main())
"""


def struck(place: Path, start: int, acknowledgements: int) -> dict[str, int]:
    """By key the last write that was acknowledged before the writer was killed; each is larger than the one before."""
    command = [sys.executable, "-c", _WRITER, str(place), str(start)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(acknowledgements)]
        writer.send_signal(signal.SIGKILL)
        return {key: int(number) for key, number in (line.split() for line in (*lines, *writer.stdout))}


async def test_hd_d05_after_kill_9_at_any_moment_every_acknowledged_file_is_whole(tmp_path: Path) -> None:
    acknowledged: dict[str, int] = {}
    for cycle in range(20 if os.environ.get("STN_TEST_FULL") else 5):
        acknowledged |= struck(tmp_path / "files", 1000 * cycle, 5 + 3 * cycle)
        store = opened(tmp_path)
        await store.sweep(NOW)
        for key, number in acknowledged.items():
            data = await content(store, key)
            assert data is not None
            # The write under way may have been done, and only its acknowledgement lost.
            found = int(data.split()[0])
            assert found >= number
            assert data == (b"%d " % found) * 20_000
        await store.aclose()
        assert len(list((tmp_path / "files" / "blobs").glob("*/*"))) <= 7


async def test_a_commit_that_failed_leaves_nothing_behind_after_the_next_sweep(
    store: DirectoryFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep looks at the blobs only where there is a reason to."""
    await put(store, "files/a", b"kept")
    assert (await store.sweep(NOW)).orphan_bytes == 0
    blob(tmp_path, b"unseen").parent.mkdir(exist_ok=True)
    blob(tmp_path, b"unseen").write_bytes(b"unseen")
    assert (await store.sweep(NOW)).orphan_bytes == 0

    def fails(*_: object) -> None:
        raise sqlite3.OperationalError("the disk did not answer")

    monkeypatch.setattr(Catalog, "put", fails)
    with pytest.raises(Unavailable) as told:
        await put(store, "files/b", b"half-way")
    assert str(tmp_path) not in str(told.value.to_body())
    monkeypatch.undo()
    assert blob(tmp_path, b"half-way").exists()
    assert (await store.sweep(NOW)).orphan_bytes == len(b"half-way") + len(b"unseen")
    assert not blob(tmp_path, b"half-way").exists()
    assert await content(store, "files/a") == b"kept"


async def test_the_blobs_are_as_many_bytes_as_are_counted(store: DirectoryFiles, tmp_path: Path) -> None:
    dice = random.Random(12)
    for _ in range(50):
        await put(store, f"files/{dice.randrange(5)}", dice.randbytes(dice.choice((0, 5, 70))))
    on_disk = sum(path.stat().st_size for path in (tmp_path / "files" / "blobs").glob("*/*"))
    assert (await store.room()).used_bytes == on_disk
