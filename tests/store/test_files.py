"""The files port: one suite over its bodies."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from station.core.errors import AlreadyExists, InternalError, InvalidInput, StorageFull, TooLarge, Unavailable
from station.core.records import Owner
from station.core.stored import StoredFile
from station.store import directory
from station.store.catalog import Catalog
from station.store.directory import DirectoryFiles
from station.store.files import Facts, FileStore
from station.store.threads import in_thread

NOW = 1_000.0
US, THEM = Owner(), Owner("local", "other")
PLAIN = Facts("text/plain")


def opened(place: Path, **options: int) -> DirectoryFiles:
    return DirectoryFiles(place / "files", now=lambda: NOW, **options)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileStore]:
    made = opened(tmp_path, max_file_bytes=1 << 20, max_bytes=3 << 20)
    yield made
    await made.aclose()


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def put(store: FileStore, key: str, *parts: bytes, owner: Owner = US, facts: Facts = PLAIN) -> StoredFile:
    return await store.put(owner, key, chunks(*parts), facts)


async def content(store: FileStore, key: str, *, owner: Owner = US, offset: int = 0) -> bytes | None:
    found = await store.open(owner, key, NOW, offset=offset)
    if found is None:
        return None
    try:
        return b"".join([chunk async for chunk in found])
    finally:
        await found.aclose()


async def keys(store: FileStore, prefix: str = "", owner: Owner = US) -> list[str]:
    return [file.key for file in (await store.list(owner, prefix, NOW)).files]


@pytest.mark.parametrize("size", [0, 1, 65_536, 1 << 20])
async def test_every_size_comes_back_with_its_digest(store: FileStore, size: int) -> None:
    data = random.Random(size).randbytes(size)
    file = await put(store, "files/a/b", data[: size // 3], data[size // 3 :])
    assert (file.size, file.checksum) == (size, hashlib.sha256(data).hexdigest())
    assert await store.get(US, "files/a/b", NOW) == file
    assert await content(store, "files/a/b") == data
    assert await content(store, "files/a/b", offset=size // 2) == data[size // 2 :]


async def test_a_key_that_is_written_again_has_the_new_content_and_readers_the_old(store: FileStore) -> None:
    await put(store, "files/a", b"old")
    reader = await store.open(US, "files/a", NOW)
    assert reader is not None
    await put(store, "files/a", b"newer")
    assert b"".join([chunk async for chunk in reader]) == b"old"
    await reader.aclose()
    assert await content(store, "files/a") == b"newer"
    assert (await store.room()).used_bytes == 5


async def test_a_key_of_another_owner_is_as_one_that_was_never_used(store: FileStore) -> None:
    await put(store, "files/a", b"ours")
    assert await store.get(THEM, "files/a", NOW) is None
    assert await content(store, "files/a", owner=THEM) is None
    assert await keys(store, owner=THEM) == []
    assert not await store.delete(THEM, "files/a")
    assert await store.delete_below(THEM, "files/") == 0
    await put(store, "files/a", b"theirs", owner=THEM)
    assert (await content(store, "files/a"), await content(store, "files/a", owner=THEM)) == (b"ours", b"theirs")


@pytest.mark.parametrize("wrong", [Facts("x", size=4), Facts("x", checksum="0" * 64)], ids=["size", "checksum"])
async def test_what_is_not_what_was_announced_changes_nothing(store: FileStore, wrong: Facts) -> None:
    await put(store, "files/a", b"old")
    with pytest.raises(InvalidInput, match="nothing was stored"):
        await put(store, "files/a", b"new", facts=wrong)
    assert await content(store, "files/a") == b"old"
    assert (await store.room()).used_bytes == 3


async def test_a_content_that_breaks_off_changes_nothing(store: FileStore, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionResetError

    await put(store, "files/a", b"old")
    with pytest.raises(ConnectionResetError):
        await store.put(US, "files/a", broken(), PLAIN)
    assert await content(store, "files/a") == b"old"
    assert list((tmp_path / "files" / "incoming").iterdir()) == []


async def test_a_put_that_is_cancelled_at_any_moment_leaves_all_or_nothing(store: FileStore, tmp_path: Path) -> None:
    data = b"x" * 100_000
    for number in range(60):
        task = asyncio.ensure_future(put(store, "files/c", data, data, data))
        for _ in range(number % 20):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert await content(store, "files/c") in (None, data * 3)
    assert list((tmp_path / "files" / "incoming").iterdir()) == []
    await put(store, "files/c", b"", facts=PLAIN)
    assert (await store.room()).used_bytes == 0


async def test_equal_contents_take_their_room_once_and_stay_until_the_last_key_goes(store: FileStore) -> None:
    await put(store, "files/a", b"same")
    await put(store, "files/b", b"same", owner=THEM)
    assert (await store.room()).used_bytes == 4
    assert await store.delete(US, "files/a")
    assert await content(store, "files/b", owner=THEM) == b"same"
    assert await store.delete(THEM, "files/b")
    assert (await store.room()).used_bytes == 0


async def test_a_full_store_refuses_what_has_no_room_and_takes_it_when_there_is_some(store: FileStore) -> None:
    for name in "abc":
        await put(store, f"files/{name}", name.encode() * (1 << 20))
    for facts in (PLAIN, Facts("x", size=1)):
        with pytest.raises(StorageFull, match=r"files\.max_bytes"):
            await put(store, "files/d", b"d", facts=facts)
    await store.delete(US, "files/a")
    await put(store, "files/d", b"d")
    assert await keys(store) == ["files/b", "files/c", "files/d"]


async def test_contents_under_way_have_taken_their_room(store: FileStore) -> None:
    gate = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        await gate.wait()
        yield b"s" * (1 << 20)

    announced = Facts("x", size=1 << 20)
    first = [asyncio.ensure_future(store.put(US, f"files/{i}", slow(), announced)) for i in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(StorageFull):
        await put(store, "files/late", b"1")
    gate.set()
    assert len(await asyncio.gather(*first)) == 3


async def test_a_file_beyond_the_bound_is_refused_however_it_was_announced(store: FileStore) -> None:
    for facts in (PLAIN, Facts("x", size=(1 << 20) + 1)):
        with pytest.raises(TooLarge, match=r"files\.max_file_bytes"):
            await put(store, "files/a", b"x" * (1 << 20), b"x", facts=facts)


async def test_lists_go_by_key_in_pages_and_by_prefix(store: FileStore) -> None:
    names = [f"files/{n}" for n in ("a", "a/b", "b", "é", "%", "_")]
    for name in names:
        await put(store, name, b"1")
    assert sorted(await keys(store)) == sorted(names)
    assert await keys(store, "files/%") == ["files/%"]
    assert await keys(store, "files/a") == ["files/a", "files/a/b"]
    found, after = [], ""
    while True:
        page = await store.list(US, "", NOW, after=after, limit=2)
        found += [file.key for file in page.files]
        if page.next is None:
            break
        after = page.next
    assert found == await keys(store)


async def test_what_has_expired_is_not_there_and_its_room_comes_back(store: FileStore) -> None:
    await put(store, "files/a", b"short", facts=Facts("x", expires_at=NOW + 10))
    await put(store, "files/b", b"long")
    assert await store.get(US, "files/a", NOW + 9.9) is not None
    assert await store.get(US, "files/a", NOW + 10) is None
    assert await store.open(US, "files/a", NOW + 10) is None
    assert [file.key for file in (await store.list(US, "", NOW + 10)).files] == ["files/b"]
    assert (await store.sweep(NOW + 9)).expired == 0
    assert (await store.sweep(NOW + 10)).expired == 1
    assert (await store.room()).used_bytes == 4


async def test_a_prefix_is_deleted_whole(store: FileStore) -> None:
    for name in ("sessions/x/1", "sessions/x/2/3", "sessions/xy", "files/x"):
        await put(store, name, name.encode())
    assert await store.delete_below(US, "sessions/x/") == 2
    assert await keys(store) == ["files/x", "sessions/xy"]


async def test_an_offset_beyond_the_end_is_refused(store: FileStore) -> None:
    await put(store, "files/a", b"abc")
    assert await content(store, "files/a", offset=3) == b""
    with pytest.raises(InvalidInput, match="beyond"):
        await content(store, "files/a", offset=4)


# ── the directory alone ──────────────────────────────────────────────────────────────────────────────────────────────


def blob(place: Path, data: bytes) -> Path:
    digest = hashlib.sha256(data).hexdigest()
    return place / "files" / "blobs" / digest[:2] / digest


@pytest.mark.parametrize("harm", ["flip", "cut", "grow", "remove"])
async def test_hd_d08_a_damaged_blob_is_never_served_as_whole(store: FileStore, tmp_path: Path, harm: str) -> None:
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


async def test_what_somebody_else_may_not_replace_stays(store: FileStore) -> None:
    await put(store, "files/a", b"theirs", facts=Facts("x", metadata={"by": "them"}))
    with pytest.raises(AlreadyExists, match="another key"):
        await store.put(US, "files/a", chunks(b"mine"), PLAIN, may_replace=lambda there: there.metadata["by"] == "us")
    assert await content(store, "files/a") == b"theirs"
    await store.put(US, "files/a", chunks(b"mine"), PLAIN, may_replace=lambda there: there.metadata["by"] == "them")
    assert await content(store, "files/a") == b"mine"
    assert (await store.room()).used_bytes == 4


async def test_the_number_of_files_is_bounded_too(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_FILES", 3)
    for name in "abc":
        await put(store, f"files/{name}", b"")
    with pytest.raises(StorageFull, match="3 files"):
        await put(store, "files/d", b"")
    await put(store, "files/a", b"again")
    await store.delete(US, "files/b")
    await put(store, "files/d", b"")


async def test_what_is_counted_is_what_there_is(store: FileStore, tmp_path: Path) -> None:
    """Over every kind of change, and as a station that starts would count it."""
    dice = random.Random(11)
    names, contents = [f"files/{n}" for n in "abcdef"], [dice.randbytes(size) for size in (0, 5, 70, 900)]
    for _ in range(200):
        if dice.random() < 0.3:
            await store.delete(US, dice.choice(names))
        else:
            await put(store, dice.choice(names), dice.choice(contents))
    found = await store.room()
    fresh = opened(tmp_path)
    assert await fresh.room() == replace(found, limit_bytes=10 << 30)
    assert found.used_bytes == sum(path.stat().st_size for path in (tmp_path / "files" / "blobs").glob("*/*"))
    await fresh.aclose()


async def test_a_reader_that_is_cancelled_again_and_again_closes_no_file_under_its_thread() -> None:
    begun, go, ended = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        go.wait(5)
        ended.append(True)

    task = asyncio.ensure_future(in_thread(slow))
    await asyncio.to_thread(begun.wait, 5)
    for _ in range(20):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_a_commit_that_failed_leaves_nothing_behind_after_the_next_sweep(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    with pytest.raises(Unavailable):
        await put(store, "files/b", b"half-way")
    monkeypatch.undo()
    assert blob(tmp_path, b"half-way").exists()
    assert (await store.sweep(NOW)).orphan_bytes == len(b"half-way") + len(b"unseen")
    assert not blob(tmp_path, b"half-way").exists()
    assert await content(store, "files/a") == b"kept"
