"""The files port in the object store of NATS: what its contents, its names and its server go through."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace

import nats
import pytest

from station.core.errors import InternalError, Unavailable
from station.core.stored import StoredFile
from station.server.nats_child import NatsServer
from station.store.files import Facts
from station.store.nats.connection import NatsConnection
from station.store.nats.content import CHUNK_BYTES
from station.store.nats.files import LOOSE_SECONDS, RELEASED_SECONDS, NatsFiles

from .nats_bed import LEFT_OPEN, Cable, kill, stopped
from .test_files import NOW, PLAIN, THEM, US, chunks, content, keys, put

pytestmark = pytest.mark.filterwarnings(LEFT_OPEN)
LARGE = random.Random(3).randbytes(2 * CHUNK_BYTES + 1000)
LATER = NOW + LOOSE_SECONDS + 1


async def opened(connection: NatsConnection, bucket: str) -> NatsFiles:
    return await NatsFiles.opened(connection, bucket=bucket, now=lambda: NOW)


@pytest.fixture
async def store(connection: NatsConnection, bucket: str) -> AsyncIterator[NatsFiles]:
    made = await opened(connection, bucket)
    yield made
    await made.aclose()


async def contents(connection: NatsConnection, bucket: str) -> dict[str, int]:
    """By id how many chunks there are, of whatever."""
    found = await connection.subjects(f"OBJ_{bucket}", f"$O.{bucket}.C.>")
    return {subject.rpartition(".")[2]: count for subject, count in found.items()}


# ── as NATS has it ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_other_clients_of_nats_read_what_is_stored_and_their_objects_are_left_alone(
    nats_server: NatsServer, connection: NatsConnection, store: NatsFiles, bucket: str
) -> None:
    await put(store, "files/a b/ü", LARGE)
    access = nats_server.access()
    client = await nats.connect(access.urls[0], user=access.user, password=access.password)
    objects = await client.jetstream().object_store(bucket)
    found = await objects.get("local/local/files/a b/ü")
    assert found.data == LARGE
    await objects.put("theirs", b"not ours" * 50_000)
    assert await keys(store) == ["files/a b/ü"]
    for seconds in (0.0, LOOSE_SECONDS + 1, 2 * LOOSE_SECONDS + 2):
        await store.sweep(NOW + seconds)
    assert (await objects.get("theirs")).data == b"not ours" * 50_000
    await objects.delete("local/local/files/a b/ü")
    assert await content(store, "files/a b/ü") is None
    await client.close()


async def test_large_files_pass_in_bounded_memory_both_ways_and_the_clients_own_get_does_not(
    nats_server: NatsServer, store: NatsFiles, bucket: str
) -> None:
    size, piece = 32 << 20, bytes(range(256)) * 1024

    async def many() -> AsyncIterator[bytes]:
        for _ in range(size // len(piece)):
            yield piece

    tracemalloc.start()
    try:
        file = await store.put(US, "files/large", many(), PLAIN)
        found = await store.open(US, "files/large", NOW)
        assert found is not None
        digest = hashlib.sha256()
        async for chunk in found:
            digest.update(chunk)
        await found.aclose()
        ours = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        access = nats_server.access()
        client = await nats.connect(access.urls[0], user=access.user, password=access.password)
        await (await client.jetstream().object_store(bucket)).get("local/local/files/large")
        theirs = tracemalloc.get_traced_memory()[1]
        await client.close()
    finally:
        tracemalloc.stop()
    assert digest.hexdigest() == file.checksum
    assert ours < 12 << 20
    assert theirs > size


@pytest.mark.parametrize(
    "offset", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, len(LARGE) - 1, len(LARGE)]
)
async def test_a_read_begins_at_any_byte(store: NatsFiles, offset: int) -> None:
    async def other() -> None:
        for number in range(3):
            await put(store, f"files/between/{number}", LARGE)

    await asyncio.gather(put(store, "files/a", LARGE), other())
    assert await content(store, "files/a", offset=offset) == LARGE[offset:]


# ── contents without a name ──────────────────────────────────────────────────────────────────────────────────────────


async def test_equal_contents_lie_once_after_a_sweep_and_the_newest_is_read_before(
    connection: NatsConnection, store: NatsFiles, bucket: str
) -> None:
    first = await put(store, "files/a", LARGE)
    (old,) = await contents(connection, bucket)
    await put(store, "files/b", LARGE, owner=THEM)
    await connection.purge(f"OBJ_{bucket}", f"$O.{bucket}.C.{old}")
    assert await content(store, "files/a") == LARGE, "what was stored anew mends what was there"
    await store.sweep(NOW)
    await store.sweep(NOW + RELEASED_SECONDS)
    assert len(await contents(connection, bucket)) == 1
    assert await store.get(US, "files/a", NOW) == first
    await store.delete(THEM, "files/b")
    await store.sweep(LATER)
    assert await content(store, "files/a") == LARGE


async def test_hd_d04_what_a_writer_that_died_has_left_goes_when_no_more_of_it_comes(
    connection: NatsConnection, store: NatsFiles, bucket: str
) -> None:
    await put(store, "files/a", LARGE)
    subject = f"$O.{bucket}.C.dead"
    for number in range(3):
        headers = {"Stn-Offset": number * CHUNK_BYTES}
        await connection.publish(f"OBJ_{bucket}", subject, bytes(CHUNK_BYTES), headers=headers)
    assert (await store.sweep(NOW)).orphan_bytes == 0
    await connection.publish(f"OBJ_{bucket}", subject, b"more", headers={"Stn-Offset": 3 * CHUNK_BYTES})
    assert (await store.sweep(LATER)).orphan_bytes == 0, "more of it came"
    assert (await store.sweep(LATER + LOOSE_SECONDS)).orphan_bytes == 3 * CHUNK_BYTES + 4
    assert len(await contents(connection, bucket)) == 1
    assert await content(store, "files/a") == LARGE


async def test_an_upload_under_way_is_no_orphan_however_long_it_takes(
    connection: NatsConnection, store: NatsFiles, bucket: str
) -> None:
    gate, half = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield LARGE[:CHUNK_BYTES]
        half.set()
        await gate.wait()
        yield LARGE[CHUNK_BYTES:]

    putting = asyncio.ensure_future(store.put(US, "files/a", slow(), PLAIN))
    await half.wait()
    for number in range(4):
        await store.sweep(NOW + number * (LOOSE_SECONDS + 1))
    gate.set()
    await putting
    assert await content(store, "files/a") == LARGE


async def test_a_reader_has_the_file_to_its_end_though_it_is_deleted_and_swept(
    connection: NatsConnection, store: NatsFiles, bucket: str
) -> None:
    await put(store, "files/a", LARGE)
    reader = await store.open(US, "files/a", NOW)
    assert reader is not None
    pieces = aiter(reader)
    got = await anext(pieces)
    await store.delete(US, "files/a")
    for number in range(3):
        await store.sweep(NOW + number * (LOOSE_SECONDS + 1))
    got += b"".join([piece async for piece in pieces])
    assert got == LARGE
    await reader.aclose()
    await reader.aclose()
    await store.sweep(NOW + 9 * LOOSE_SECONDS)
    assert await contents(connection, bucket) == {}


async def test_what_says_that_a_name_was_deleted_goes_too_and_who_did_not_hear_of_it_can_write_it(
    connection: NatsConnection, store: NatsFiles, bucket: str
) -> None:
    other = await opened(connection, bucket)
    for name in ("files/a", "files/b"):
        await put(store, name, name.encode())
        await store.delete(US, name)
    assert await keys(other) == []
    for at in (NOW, LATER):
        await store.sweep(at)
    assert await connection.subjects(f"OBJ_{bucket}", f"$O.{bucket}.M.>") == {}
    await put(other, "files/a", b"again")
    assert await content(store, "files/a") == b"again"
    await put(store, "files/b", b"here too")
    assert await content(other, "files/b") == b"here too"


async def test_where_a_name_cannot_be_read_no_content_is_removed(
    connection: NatsConnection, store: NatsFiles, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    await put(store, "files/a", LARGE)
    (subject,) = await connection.subjects(f"OBJ_{bucket}", f"$O.{bucket}.M.>")
    for damage in (b"{", b"[]", b'{"nuid": 3}', b'{"metadata": {"station": "{}"}}', b"null"):
        await connection.publish(f"OBJ_{bucket}", subject, damage, headers={"Nats-Rollup": "sub"})
        assert await store.get(US, "files/a", NOW) is None
        for at in (NOW, LATER, LATER + 2 * LOOSE_SECONDS):
            await store.sweep(at)
        assert len(await contents(connection, bucket)) == 1
    assert "cannot be read" in caplog.text


# ── many writers ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_of_stations_that_write_one_key_each_is_whole_and_one_is_last(
    nats_server: NatsServer, bucket: str, connection: NatsConnection
) -> None:
    connections = [await NatsConnection.open(nats_server.access) for _ in range(3)]
    stores = [await opened(one, bucket) for one in connections]
    written = {hashlib.sha256(b"%d" % n * 1000).hexdigest() for n in range(12)}
    await asyncio.gather(*(put(stores[n % 3], "files/a", b"%d" % n * 1000) for n in range(12)))
    found = {hashlib.sha256(await content(one, "files/a") or b"").hexdigest() for one in stores}
    assert len(found) == 1
    assert found < written
    deleted = await asyncio.gather(*(one.delete(US, "files/a") for one in stores))
    assert sorted(deleted) == [False, False, True]
    for one in connections:
        await one.aclose()
    last = await opened(connection, bucket)
    for at in (NOW, LATER):
        await last.sweep(at)
    assert await contents(connection, bucket) == {}


async def test_stations_see_what_others_did_at_once(connection: NatsConnection, bucket: str) -> None:
    one, other = await opened(connection, bucket), await opened(connection, bucket)
    dice = random.Random(7)
    for _ in range(60):
        writer, reader = dice.sample([one, other], 2)
        key = f"files/{dice.randrange(5)}"
        if dice.random() < 0.3:
            await writer.delete(US, key)
            assert await content(reader, key) is None
        else:
            data = dice.randbytes(dice.choice((0, 3, 3, 900)))
            await put(writer, key, data)
            assert await content(reader, key) == data
        assert await one.room() == await other.room()


# ── servers and wires that fail ──────────────────────────────────────────────────────────────────────────────────────


async def acknowledged(store: NatsFiles, name: str, data: bytes) -> StoredFile | None:
    """`None`: nobody said that it is stored."""
    try:
        return await put(store, name, data)
    except Unavailable:
        return None


@pytest.mark.parametrize("cycles", [4, pytest.param(40, marks=[pytest.mark.full, pytest.mark.timeout(600)])])
async def test_hd_d05_after_kill_9_of_the_server_every_acknowledged_file_is_whole_and_no_other_is_half(
    nats_server: NatsServer, connection: NatsConnection, store: NatsFiles, bucket: str, cycles: int
) -> None:
    dice = random.Random(5)
    there: dict[str, StoredFile] = {}
    data = {f"files/{n}": dice.randbytes(dice.choice((10, 700_000, 1_400_000))) for n in range(3 * cycles)}
    for cycle in range(cycles):
        names = [f"files/{3 * cycle + n}" for n in range(3)]
        tasks = [asyncio.ensure_future(acknowledged(store, name, data[name])) for name in names]
        for _ in range(dice.randrange(30)):
            await connection.stream(f"OBJ_{bucket}")
        kill(nats_server)
        there |= {file.key: file for file in await asyncio.gather(*tasks) if file is not None}
    for name, whole in data.items():
        found = await content(store, name)
        assert found == whole or (found is None and name not in there)
    assert {file.key: file for file in (await store.list(US, "", NOW)).files}.items() >= there.items()
    for at in (NOW, LATER):
        await store.sweep(at)
    assert len(await contents(connection, bucket)) == len(await keys(store))


async def test_hd_d07_a_server_that_does_nothing_is_told_and_a_put_leaves_all_or_nothing(
    nats_server: NatsServer, connection: NatsConnection, store: NatsFiles
) -> None:
    await put(store, "files/a", b"there")
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield LARGE[:CHUNK_BYTES]
        begun.set()
        await go.wait()
        yield LARGE[CHUNK_BYTES:]

    putting = asyncio.ensure_future(store.put(US, "files/b", slow(), PLAIN))
    await begun.wait()
    with stopped(nats_server):
        go.set()
        calls = (putting, store.get(US, "files/a", NOW), store.delete(US, "files/a"), store.list(US, "", NOW))
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, Unavailable), result
            assert result.retryable
    assert await content(store, "files/b") in (None, LARGE)
    assert await content(store, "files/a") == b"there", "a delete that had not begun was not done later"
    await put(store, "files/b", LARGE)
    assert await keys(store) == ["files/a", "files/b"]


async def test_hd_d07_a_wire_that_is_cut_at_any_byte_leaves_files_whole(nats_server: NatsServer, bucket: str) -> None:
    async with Cable.before(nats_server.access()) as (cable, access):
        connection = await NatsConnection.open(lambda: access)
        store = await opened(connection, bucket)
        for number in range(6):
            cable.cut_after = 1000 + number * 230_000
            data = random.Random(number).randbytes(1_200_000)
            file = await put(store, "files/a", data)
            assert file.checksum == hashlib.sha256(data).hexdigest()
            cable.cut_after = 500
            assert await content(store, "files/a") == data
        assert cable.connections > 6
        await connection.aclose()


@pytest.mark.parametrize("harm", ["flip", "other", "missing", "twice", "no offset"])
async def test_hd_d08_a_content_that_is_not_what_was_acknowledged_is_never_served_as_whole(
    connection: NatsConnection, store: NatsFiles, bucket: str, harm: str
) -> None:
    await put(store, "files/a", LARGE)
    (nuid,) = await contents(connection, bucket)
    stream, subject = f"OBJ_{bucket}", f"$O.{bucket}.C.{nuid}"
    last = await connection.last(stream, subject)
    assert last is not None
    await connection.remove(stream, last.sequence)
    offset: dict[str, int] = {"Stn-Offset": 2 * CHUNK_BYTES}
    if harm == "flip":
        await connection.publish(stream, subject, last.data[:-1] + bytes([last.data[-1] ^ 1]), headers=offset)
    elif harm == "other":
        await connection.publish(stream, subject, last.data, headers={"Stn-Offset": 3 * CHUNK_BYTES})
    elif harm == "twice":
        await connection.publish(stream, subject, last.data + last.data, headers=offset)
    elif harm == "no offset":
        await connection.publish(stream, subject, last.data)
    with pytest.raises(InternalError, match="damaged"):
        await content(store, "files/a")
    if harm != "flip":  # a part is not checked by the digest of the whole
        with pytest.raises(InternalError, match="damaged"):
            await content(store, "files/a", offset=1)


async def test_a_file_that_was_stored_by_a_later_version_keeps_what_this_one_knows(
    connection: NatsConnection, store: NatsFiles, bucket: str
) -> None:
    file = await store.put(US, "files/a", chunks(b"abc"), Facts("text/csv", NOW + 5, {"by": "me"}))
    (subject,) = await connection.subjects(f"OBJ_{bucket}", f"$O.{bucket}.M.>")
    message = await connection.last(f"OBJ_{bucket}", subject)
    assert message is not None
    facts = json.loads(message.data)
    assert {"name", "nuid", "size", "chunks", "digest", "options", "bucket", "metadata"} == set(facts)
    assert os.path.basename(facts["name"]) == "a"
    fresh = await opened(connection, bucket)
    assert await fresh.get(US, "files/a", NOW) == replace(file)
