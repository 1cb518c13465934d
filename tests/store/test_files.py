"""The files port: one suite over its bodies."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from station.core.errors import AlreadyExists, InvalidInput, StorageFull, TooLarge
from station.core.records import Owner
from station.core.stored import StoredFile
from station.store import room
from station.store.directory import DirectoryFiles
from station.store.files import Facts, FileStore
from station.store.nats.connection import NatsConnection
from station.store.nats.files import LOOSE_SECONDS, NatsFiles

NOW = 1_000.0
US, THEM = Owner(), Owner("local", "other")
PLAIN = Facts("text/plain")


BOUNDS = {"max_file_bytes": 1 << 20, "max_bytes": 3 << 20}


class DirectoryBed:
    """A store, and what a test must know of its body."""

    def __init__(self, place: Path) -> None:
        self._place = place

    async def opened(self) -> FileStore:
        return DirectoryFiles(self._place / "files", now=lambda: NOW, **BOUNDS)

    async def unfinished(self) -> list[object]:
        return list((self._place / "files" / "incoming").iterdir())


class NatsBed:
    def __init__(self, connection: NatsConnection, bucket: str) -> None:
        self._connection, self._bucket = connection, bucket

    async def opened(self) -> NatsFiles:
        return await NatsFiles.opened(self._connection, bucket=self._bucket, now=lambda: NOW, **BOUNDS)  # type: ignore[arg-type]

    async def unfinished(self) -> list[object]:
        """Contents that no name has, when those who may read or write them have had their time."""
        store = await self.opened()
        for seconds in (0, LOOSE_SECONDS + 1):
            await store.sweep(NOW + seconds)
        subjects = await self._connection.subjects(f"OBJ_{self._bucket}", f"$O.{self._bucket}.C.>")
        return [subject for subject in subjects if not store._index.is_named(subject.rpartition(".")[2])]


@pytest.fixture(params=["directory", "nats"])
def bed(
    request: pytest.FixtureRequest, tmp_path: Path, bucket: str, connection: NatsConnection
) -> DirectoryBed | NatsBed:
    return NatsBed(connection, bucket) if request.param == "nats" else DirectoryBed(tmp_path)


@pytest.fixture
async def store(bed: DirectoryBed | NatsBed) -> AsyncIterator[FileStore]:
    made = await bed.opened()
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


async def test_a_content_that_breaks_off_changes_nothing(store: FileStore, bed: DirectoryBed | NatsBed) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half" * 200_000
        raise ConnectionResetError

    await put(store, "files/a", b"old")
    with pytest.raises(ConnectionResetError):
        await store.put(US, "files/a", broken(), PLAIN)
    assert await content(store, "files/a") == b"old"
    assert await bed.unfinished() == []


async def test_a_put_that_is_cancelled_at_any_moment_leaves_all_or_nothing(
    store: FileStore, bed: DirectoryBed | NatsBed
) -> None:
    data = b"x" * 100_000
    for number in range(60):
        task = asyncio.ensure_future(put(store, "files/c", data, data, data))
        for _ in range(number % 20):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert await content(store, "files/c") in (None, data * 3)
    assert await bed.unfinished() == []
    await put(store, "files/c", b"", facts=PLAIN)
    assert (await store.room()).used_bytes == 0


async def test_equal_contents_of_an_owner_take_their_room_once_and_stay_until_the_last_key_goes(
    store: FileStore, bed: DirectoryBed | NatsBed
) -> None:
    """Of two owners each takes room: whoever stores a content must not learn whether another has it."""
    for name in "ab":
        await put(store, f"files/{name}", b"same")
    assert (await store.room()).used_bytes == 4
    await put(store, "files/b", b"same", owner=THEM)
    assert (await store.room()).used_bytes == 8
    fresh = await bed.opened()
    assert (await fresh.room()).used_bytes == 8, "as a station that starts counts it"
    await fresh.aclose()
    assert await store.delete(US, "files/a")
    assert (await store.room()).used_bytes == 8
    assert await store.delete_below(US, "files/") == 1
    assert (await store.room()).used_bytes == 4
    assert await content(store, "files/b", owner=THEM) == b"same"
    assert await store.delete(THEM, "files/b")
    assert (await store.room()).used_bytes == 0


async def test_a_full_store_refuses_what_has_no_room_and_takes_it_when_there_is_some(store: FileStore) -> None:
    for name in "abc":
        await put(store, f"files/{name}", name.encode() * (1 << 20))
    for facts in (PLAIN, Facts("x", size=1)):
        with pytest.raises(StorageFull, match=r"files\.max_bytes") as told:
            await put(store, "files/d", b"d", facts=facts)
        assert not re.search(r"\d", str(told.value.to_body())), "how much all have is the operator's to know"
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


async def test_what_somebody_else_may_not_replace_stays(store: FileStore) -> None:
    await put(store, "files/a", b"theirs", facts=Facts("x", metadata={"by": "them"}))
    with pytest.raises(AlreadyExists, match="another key"):
        await store.put(US, "files/a", chunks(b"mine"), PLAIN, may_replace=lambda there: there.metadata["by"] == "us")
    assert await content(store, "files/a") == b"theirs"
    await store.put(US, "files/a", chunks(b"mine"), PLAIN, may_replace=lambda there: there.metadata["by"] == "them")
    assert await content(store, "files/a") == b"mine"
    assert (await store.room()).used_bytes == 4


async def test_the_number_of_files_is_bounded_too(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_FILES", 3)
    for name in "abc":
        await put(store, f"files/{name}", b"")
    with pytest.raises(StorageFull, match="3 files"):
        await put(store, "files/d", b"")
    await put(store, "files/a", b"again")
    await store.delete(US, "files/b")
    await put(store, "files/d", b"")


async def test_what_is_counted_is_what_there_is(store: FileStore, bed: DirectoryBed | NatsBed) -> None:
    """Over every kind of change, and as a station that starts would count it."""
    dice = random.Random(11)
    names, contents = [f"files/{n}" for n in "abcdef"], [dice.randbytes(size) for size in (0, 5, 70, 900)]
    for _ in range(200):
        owner = dice.choice((US, THEM))
        if dice.random() < 0.3:
            await store.delete(owner, dice.choice(names))
        else:
            await put(store, dice.choice(names), dice.choice(contents), owner=owner)
    found = await store.room()
    fresh = await bed.opened()
    assert await fresh.room() == found
    await fresh.aclose()
