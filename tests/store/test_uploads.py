"""Uploads in pieces."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from station.core.errors import Busy, Conflict, InvalidInput, LimitReached, NotFound, StorageFull, TooLarge
from station.core.records import Owner
from station.core.stored import UPLOAD_BYTES, Upload
from station.store import uploads
from station.store.directory import DirectoryFiles
from station.store.files import Facts
from station.store.nats.connection import NatsConnection
from station.store.nats.files import NatsFiles
from station.store.uploads import KEPT_SECONDS, Uploads

US, THEM = Owner(), Owner("local", "other")
DATA = random.Random(5).randbytes(300_000)


class Bed:
    """A store and its uploads, which can be opened again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.time = 1000.0
        self.open()

    def open(self) -> None:
        self.store = DirectoryFiles(self.place / "files", now=lambda: self.time, max_bytes=8 << 20)
        self.uploads = Uploads(self.place / "uploads", self.store, now=lambda: self.time, max_bytes=8 << 20)

    async def begin(self, data: bytes = DATA, checksum: str | None = None) -> Upload:
        facts = Facts("text/plain", size=len(data), checksum=checksum or hashlib.sha256(data).hexdigest())
        return await self.uploads.begin(US, "files/a", facts)

    async def send(self, upload: Upload, offset: int, piece: bytes, *, digest: bytes | None = None) -> Upload:
        return await self.uploads.append(US, upload.id, offset, sealed(piece, digest))

    async def content(self) -> bytes | None:
        found = await self.store.open(US, "files/a", self.time)
        if found is None:
            return None
        data = b"".join([chunk async for chunk in found])
        await found.aclose()
        return data


async def sealed(piece: bytes, digest: bytes | None = None) -> AsyncIterator[bytes]:
    yield piece
    yield digest if digest is not None else hashlib.sha256(piece).digest()


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    made = Bed(tmp_path)
    yield made
    await made.store.aclose()


async def test_pieces_become_a_file_also_over_a_restart_of_the_station(bed: Bed) -> None:
    upload = await bed.begin()
    assert (await bed.send(upload, 0, DATA[:100_000])).offset == 100_000
    await bed.store.aclose()
    bed.open()
    assert (await bed.uploads.get(US, upload.id)).offset == 100_000
    await bed.send(upload, 100_000, DATA[100_000:])
    assert await bed.content() is None, "nothing is there before it is whole"
    file = await bed.uploads.finish(US, upload.id)
    assert (file.key, file.size, file.content_type) == ("files/a", len(DATA), "text/plain")
    assert await bed.content() == DATA
    assert list((bed.place / "uploads").iterdir()) == []
    with pytest.raises(NotFound):
        await bed.uploads.finish(US, upload.id)


async def test_pieces_become_a_file_in_nats_too(tmp_path: Path, connection: NatsConnection, bucket: str) -> None:
    store = await NatsFiles.opened(connection, bucket=bucket, now=lambda: 1.0, max_bytes=len(DATA))
    uploads = Uploads(tmp_path / "uploads", store, now=lambda: 1.0)
    facts = Facts("text/plain", size=len(DATA), checksum=hashlib.sha256(DATA).hexdigest())
    upload = await uploads.begin(US, "files/a", facts)
    with pytest.raises(StorageFull):
        await uploads.begin(US, "files/b", facts)
    await uploads.append(US, upload.id, 0, sealed(DATA[:1000]))
    store = await NatsFiles.opened(connection, bucket=bucket, now=lambda: 1.0, max_bytes=len(DATA))
    uploads = Uploads(tmp_path / "uploads", store, now=lambda: 1.0)
    await uploads.append(US, upload.id, 1000, sealed(DATA[1000:]))
    file = await uploads.finish(US, upload.id)
    assert await store.get(US, "files/a", 1.0) == file


async def test_an_empty_file_needs_no_piece(bed: Bed) -> None:
    upload = await bed.begin(b"")
    assert (await bed.uploads.finish(US, upload.id)).size == 0


@pytest.mark.parametrize("offset", [0, 50_000, 100_001, 299_999], ids=["repeated", "inside", "gap", "reordered"])
async def test_a_piece_out_of_its_order_changes_nothing_and_is_told_where_to_go_on(bed: Bed, offset: int) -> None:
    upload = await bed.begin()
    await bed.send(upload, 0, DATA[:100_000])
    with pytest.raises(Conflict) as told:
        await bed.send(upload, offset, DATA[offset : offset + 100])
    assert told.value.detail["offset"] == 100_000
    await bed.send(upload, told.value.detail["offset"], DATA[100_000:])
    await bed.uploads.finish(US, upload.id)
    assert await bed.content() == DATA


@pytest.mark.parametrize("digest", [b"\0" * 32, b""], ids=["wrong digest", "cut"])
async def test_a_piece_that_is_damaged_changes_nothing(bed: Bed, digest: bytes) -> None:
    upload = await bed.begin()
    with pytest.raises(InvalidInput, match="nothing was kept"):
        await bed.send(upload, 0, DATA[:1000], digest=digest)
    assert (await bed.uploads.get(US, upload.id)).offset == 0


async def test_a_piece_whose_sender_goes_away_changes_nothing(bed: Bed) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield DATA[:1000]
        raise InvalidInput("the body was cut short")

    upload = await bed.begin()
    with pytest.raises(InvalidInput, match="cut short"):
        await bed.uploads.append(US, upload.id, 0, broken())
    assert (await bed.uploads.get(US, upload.id)).offset == 0


async def test_a_whole_with_another_digest_is_refused_and_ended(bed: Bed) -> None:
    upload = await bed.begin(checksum="ab" * 32)
    await bed.send(upload, 0, DATA)
    with pytest.raises(InvalidInput, match="nothing was stored"):
        await bed.uploads.finish(US, upload.id)
    assert await bed.content() is None
    with pytest.raises(NotFound):
        await bed.uploads.get(US, upload.id)


async def test_what_is_not_whole_cannot_be_finished(bed: Bed) -> None:
    upload = await bed.begin()
    await bed.send(upload, 0, DATA[:10])
    with pytest.raises(Conflict) as told:
        await bed.uploads.finish(US, upload.id)
    assert told.value.detail["offset"] == 10
    assert (await bed.uploads.get(US, upload.id)).offset == 10


async def test_more_than_was_announced_is_refused(bed: Bed) -> None:
    upload = await bed.begin(b"abc")
    with pytest.raises(TooLarge):
        await bed.send(upload, 0, b"abcd")
    large = await bed.begin(bytes(UPLOAD_BYTES + 1))
    with pytest.raises(TooLarge):
        await bed.send(large, 0, bytes(UPLOAD_BYTES + 1))


async def test_what_has_no_room_is_refused_before_its_first_byte(bed: Bed) -> None:
    with pytest.raises(StorageFull):
        await bed.uploads.begin(US, "files/a", Facts("x", size=9 << 20, checksum="ab" * 32))
    for facts in (Facts("x"), Facts("x", size=1), Facts("x", size=1, checksum="no digest")):
        with pytest.raises(InvalidInput):
            await bed.uploads.begin(US, "files/a", facts)


@pytest.mark.parametrize("upload_id", ["upl_" + "0" * 26, "../x", "upl_../../etc/passwd", "", "upl_\0"])
async def test_another_owners_upload_is_as_one_that_never_was(bed: Bed, upload_id: str) -> None:
    upload = await bed.begin()
    for owner, name in ((THEM, upload.id), (US, upload_id)):
        with pytest.raises(NotFound):
            await bed.uploads.get(owner, name)
        with pytest.raises(NotFound):
            await bed.uploads.append(owner, name, 0, sealed(b"x"))
        with pytest.raises(NotFound):
            await bed.uploads.abort(owner, name)
    await bed.uploads.abort(US, upload.id)
    assert list((bed.place / "uploads").iterdir()) == []


async def test_one_piece_comes_at_a_time(bed: Bed) -> None:
    gate = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        await gate.wait()
        async for chunk in sealed(DATA):
            yield chunk

    upload = await bed.begin()
    first = asyncio.ensure_future(bed.uploads.append(US, upload.id, 0, slow()))
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await bed.send(upload, 0, DATA)
    gate.set()
    assert (await first).offset == len(DATA)


async def test_an_upload_that_nobody_goes_on_with_is_ended_after_a_day(bed: Bed) -> None:
    upload = await bed.begin()
    bed.time += KEPT_SECONDS - 1
    await bed.send(upload, 0, DATA[:10])
    (bed.place / "uploads" / f"upl_{'1' * 26}.part").write_bytes(b"left by a crash")
    bed.time += KEPT_SECONDS - 1
    await bed.uploads.sweep()
    assert (await bed.uploads.get(US, upload.id)).offset == 10
    bed.time += 2
    assert await bed.uploads.sweep() >= 1
    with pytest.raises(NotFound):
        await bed.uploads.get(US, upload.id)


async def test_uploads_under_way_have_taken_their_room_also_after_a_restart(bed: Bed) -> None:
    """The bound of the store is 8 MiB."""
    half = bytes(3 << 20)
    first = await bed.begin(half)
    second = await bed.begin(half)
    with pytest.raises(StorageFull):
        await bed.begin(half)
    await bed.store.aclose()
    bed.open()
    with pytest.raises(StorageFull):
        await bed.begin(half)
    await bed.uploads.abort(US, first.id)
    third = await bed.begin(half)
    await bed.send(second, 0, half)
    await bed.uploads.finish(US, second.id)
    with pytest.raises(StorageFull):
        await bed.begin(half)
    bed.time += KEPT_SECONDS + 1
    await bed.uploads.sweep()
    with pytest.raises(NotFound):
        await bed.uploads.get(US, third.id)
    await bed.begin(half)


def announced(mebibytes: float) -> Facts:
    return Facts("x", size=int(mebibytes * (1 << 20)), checksum="ab" * 32)


async def test_what_a_deployment_has_announced_leaves_room_for_others(bed: Bed) -> None:
    """The bound of the store is 8 MiB. The control: what is announced has taken its room, of the operator also more."""
    first = await bed.uploads.begin(THEM, "files/a", announced(1.5))
    with pytest.raises(LimitReached, match=r"a quarter of files\.max_bytes") as told:
        await bed.uploads.begin(THEM, "files/b", announced(1))
    assert (told.value.detail["current"], told.value.retryable) == (3 << 19, True)
    with pytest.raises(LimitReached) as told:
        await bed.uploads.begin(THEM, "files/b", announced(3))
    assert not told.value.retryable
    await bed.uploads.begin(THEM, "files/b", announced(0.5))
    await bed.uploads.begin(US, "files/a", announced(6))
    with pytest.raises(StorageFull):
        await bed.uploads.begin(Owner("local", "third"), "files/a", announced(1))
    await bed.uploads.abort(THEM, first.id)
    await bed.uploads.begin(THEM, "files/b", announced(1))


async def test_of_many_that_begin_at_once_none_is_one_too_many(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_UPLOADS_EACH", 1)
    counting, count = threading.Event(), bed.uploads._of
    first = iter([True])

    def counted(owner: Owner) -> list[str]:
        """The first waits a moment for another to count as it does; the control: without a turn another comes."""
        found = count(owner)
        if next(first, False):
            counting.wait(0.2)
        counting.set()
        return found

    monkeypatch.setattr(bed.uploads, "_of", counted)
    begun = await asyncio.gather(
        *(bed.uploads.begin(THEM, f"files/{number}", announced(0.1)) for number in range(4)), return_exceptions=True
    )
    assert [type(it) for it in begun if isinstance(it, BaseException)] == [LimitReached] * 3


async def test_what_is_too_large_for_one_file_is_refused_before_its_first_byte(tmp_path: Path) -> None:
    store = DirectoryFiles(tmp_path / "files", now=lambda: 1.0, max_file_bytes=10)
    uploads = Uploads(tmp_path / "uploads", store, now=lambda: 1.0)
    with pytest.raises(TooLarge, match=r"files\.max_file_bytes"):
        await uploads.begin(US, "files/a", Facts("x", size=11, checksum="ab" * 32))
    await store.aclose()


async def test_what_a_crash_left_of_a_record_goes_too(bed: Bed) -> None:
    await bed.begin()
    (bed.place / "uploads" / ".stn-left").write_bytes(b"half a record")
    os.utime(bed.place / "uploads" / ".stn-left", (1, 1))
    bed.time = KEPT_SECONDS + 1000
    await bed.uploads.sweep()
    assert not (bed.place / "uploads" / ".stn-left").exists()
