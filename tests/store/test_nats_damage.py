"""What becomes of records and files whose nats-server finds its own files damaged: it drops them without a word."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from station.core.errors import AlreadyExists, InternalError
from station.core.records import SandboxRecord
from station.core.states import State
from station.server.nats_child import NatsServer, binary
from station.store.nats.connection import NatsConnection
from station.store.nats.files import NatsFiles
from station.store.nats.registry import NatsRegistry
from station.store.nats.seen import Seen

from .nats_bed import LEFT_OPEN
from .test_files import NOW, US, content, put
from .test_registry import record

pytestmark = pytest.mark.filterwarnings(LEFT_OPEN)
DATA = {f"sessions/x/{n}": random.Random(n).randbytes(200_000) for n in range(4)}


@asynccontextmanager
async def stores(home: Path, *, remembers: bool = True) -> AsyncIterator[tuple[NatsRegistry, NatsFiles]]:
    async with NatsServer.running(home, program=binary(None)) as server:
        seen = await Seen.opened(home / "nats" / "seen.db") if remembers else Seen()
        connection = await NatsConnection.open(server.access)
        registry = await NatsRegistry.opened(connection, bucket="b", seen=seen)
        yield registry, await NatsFiles.opened(connection, bucket="f", now=lambda: NOW, seen=seen)
        await connection.aclose()
        await seen.aclose()


def block(home: Path, stream: str) -> Path:
    (found,) = (home / "nats" / "jetstream").glob(f"**/{stream}/msgs/*.blk")
    return found


def flip(path: Path, share: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 1
    path.write_bytes(data)


HARMS: dict[str, Callable[[Path], object]] = {
    "early bit": lambda path: flip(path, 0.08),
    "middle bit": lambda path: flip(path, 0.5),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("harm", HARMS)
async def test_hd_d08_a_record_that_the_server_dropped_is_told_as_damaged(tmp_path: Path, harm: str) -> None:
    async with stores(tmp_path) as (registry, _):
        made = {one.uid: one for one in [await registry.create(record(name)) for name in "abcd"]}
    HARMS[harm](block(tmp_path, "KV_b"))
    async with stores(tmp_path, remembers=False) as (registry, _):
        assert len((await registry.list()).records) < 4, "the control: without a word"
    async with stores(tmp_path) as (registry, _):
        listing = await registry.list()
        assert {one.uid for one in listing.records} | {one.uid for one in listing.damaged} == set(made)
        assert listing.damaged
        for lost in listing.damaged:
            assert await registry.get(lost.uid) == lost
            healed = await registry.put(replace(made[lost.uid], fence=lost.fence, state=State.DELETING))
            assert await registry.get(lost.uid) == healed
        assert (await registry.list()).damaged == []


async def test_a_record_that_somebody_deletes_by_hand_is_told_as_damaged_too(tmp_path: Path) -> None:
    async with stores(tmp_path) as (registry, _):
        made = await registry.create(record())
        subject = f"$KV.b.sandbox.{made.uid}"
        await registry._connection.publish("KV_b", subject, b"", headers={"KV-Operation": "DEL"})
        (lost,) = (await registry.list()).damaged
        assert await registry.get(made.uid) == lost
        assert isinstance(await registry.put(replace(made, fence=lost.fence)), SandboxRecord)


@pytest.mark.parametrize("harm", HARMS)
async def test_hd_d08_a_file_that_the_server_dropped_is_told_until_it_is_deleted_or_stored_anew(
    tmp_path: Path, harm: str
) -> None:
    async with stores(tmp_path) as (_, files):
        for key, data in DATA.items():
            await put(files, key, data)
    HARMS[harm](block(tmp_path, "OBJ_f"))
    async with stores(tmp_path, remembers=False) as (_, files):
        there = {file.key for file in (await files.list(US, "", NOW)).files}
    async with stores(tmp_path) as (_, files):
        lost = []
        for key, data in DATA.items():
            try:
                assert await content(files, key) == data
            except InternalError:
                lost.append(key)
        assert set(lost) >= DATA.keys() - there
        assert lost
        await put(files, lost[0], DATA[lost[0]])
        assert await content(files, lost[0]) == DATA[lost[0]]
        assert await files.delete_below(US, "sessions/x/") == 4
        for key in DATA:
            assert await files.get(US, key, NOW) is None
    async with stores(tmp_path) as (_, files):
        assert await files.get(US, lost[0], NOW) is None


async def test_what_was_deleted_or_never_acknowledged_is_not_missed(tmp_path: Path) -> None:
    async with stores(tmp_path) as (registry, files):
        await put(files, "files/a", b"1")
        assert await files.delete(US, "files/a")
        assert not await files.delete(US, "files/a")
        await registry.create(record())
        with pytest.raises(AlreadyExists):
            await registry.create(record())
        assert await registry.get(record("never").uid) is None
    async with stores(tmp_path) as (registry, files):
        assert await files.get(US, "files/a", NOW) is None
        listing = await registry.list()
        assert (len(listing.records), listing.damaged) == (1, [])


async def test_what_is_remembered_outlives_its_process_and_is_there_from_a_time_before_it(tmp_path: Path) -> None:
    async with stores(tmp_path, remembers=False) as (registry, files):
        made = await registry.create(record())
        await put(files, "files/a", b"1")
    async with stores(tmp_path) as (registry, _):
        await registry.list()
    seen = await Seen.opened(tmp_path / "nats" / "seen.db")
    assert seen.below("sandbox/") == {made.uid}
    assert seen.below("file/") == {"local/local/files/a"}
    await asyncio.gather(seen.add("x", "y"), seen.add("y"), seen.drop("x", "z"))
    await seen.aclose()
    await seen.aclose()
    again = await Seen.opened(tmp_path / "nats" / "seen.db")
    assert ("x" in again, "y" in again) == (False, True)
    await again.aclose()


async def test_after_a_write_that_failed_it_remembers_again(tmp_path: Path) -> None:
    """And what could not be written is known to this process."""
    seen = await Seen.opened(tmp_path / "seen.db")
    assert seen._db is not None
    await seen._db.run(lambda db: db.execute("ALTER TABLE seen RENAME TO elsewhere"))
    await seen.add("sandbox/lost")
    await seen._db.run(lambda db: db.execute("ALTER TABLE elsewhere RENAME TO seen"))
    await seen.add("sandbox/later")
    await seen.aclose()
    again = await Seen.opened(tmp_path / "seen.db")
    assert ("sandbox/lost" in seen, "sandbox/lost" in again, "sandbox/later" in again) == (True, False, True)
    await again.aclose()
