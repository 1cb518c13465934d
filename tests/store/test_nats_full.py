"""A nats-server of the station's own on a disk that is full."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from station.core.errors import StorageFull, Unavailable
from station.core.records import SandboxRecord
from station.server import nats_child
from station.server.nats_child import NatsServer, binary
from station.store.nats.connection import NatsConnection
from station.store.nats.files import NatsFiles
from station.store.nats.registry import NatsRegistry

from .nats_bed import LEFT_OPEN
from .test_files import NOW, US, content, keys, put
from .test_registry import record

pytestmark = [pytest.mark.root, pytest.mark.filterwarnings(LEFT_OPEN)]
PIECE = random.Random(1).randbytes(1 << 20)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


async def fill(store: NatsFiles) -> int:
    """How many files there are when there is no room for another."""
    for number in range(100):
        try:
            await put(store, f"files/{number}", PIECE)
        except StorageFull:
            return number
    raise AssertionError("no disk is that large")


async def test_hd_d13_a_full_disk_takes_nothing_and_works_again_once_something_is_deleted_though_that_is_written_too(
    small: Path,
) -> None:
    async with NatsServer.running(small, program=binary(None)) as server:
        connection = await NatsConnection.open(server.access)
        registry = await NatsRegistry.opened(connection, bucket="b")
        store = await NatsFiles.opened(connection, bucket="f", now=lambda: NOW)
        made = await registry.create(record())
        number = await fill(store)
        assert number > 10
        assert await registry.get(made.uid) == made
        assert len(await keys(store)) == number, "nothing is half there"
        assert await content(store, "files/0") == PIECE
        assert await store.delete(US, "files/0")
        assert await store.delete(US, "files/1")
        await put(store, "files/new", PIECE[:1000])
        made = await registry.put(replace(made, reason="room"))
        await connection.aclose()
    # With less free than it holds: a server that reckons by what is free alone would take nothing.
    async with NatsServer.running(small, program=binary(None)) as server:
        connection = await NatsConnection.open(server.access)
        registry = await NatsRegistry.opened(connection, bucket="b")
        assert isinstance(await registry.put(replace(made, reason="again")), SandboxRecord)
        await connection.aclose()


async def written(registry: NatsRegistry, made: SandboxRecord) -> SandboxRecord | None:
    try:
        return await registry.put(replace(made, reason="y"))
    except Unavailable:
        return None


async def test_hd_d13_a_disk_that_others_have_filled_is_told_as_full(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers nothing then."""
    monkeypatch.setattr(nats_child, "LOOK_SECONDS", 0.1)
    async with NatsServer.running(small, program=binary(None)) as server:
        connection = await NatsConnection.open(server.access)
        registry = await NatsRegistry.opened(connection, bucket="b")
        made = await registry.create(record())
        with (small / "fill").open("wb", buffering=0) as file:
            while shutil.disk_usage(small).free:
                try:
                    file.write(bytes(4096))
                except OSError:
                    break
        with pytest.raises(StorageFull, match="no room for NATS") as told:
            await registry.put(replace(made, reason="x" * 100_000))
        assert told.value.retryable
        assert await registry.get(made.uid) == made
        before = server.pid
        (small / "fill").unlink()
        # A server that could not write once writes no more until it is started anew.
        async with asyncio.timeout(30):
            while (again := await written(registry, made)) is None:
                pass
        assert again.fence > made.fence
        assert server.pid != before
        await connection.aclose()


@pytest.mark.parametrize("told", [True, False])
async def test_the_control_a_server_that_is_told_no_bound_takes_nothing_beside_what_it_has(
    small: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    async def write() -> None:
        async with NatsServer.running(small, program=binary(None)) as server:
            connection = await NatsConnection.open(server.access)
            try:
                store = await NatsFiles.opened(connection, bucket="f", now=lambda: NOW)
                for number in range(16):
                    await put(store, f"files/{number}", PIECE)
            finally:
                await connection.aclose()

    await write()
    if not told:
        ours = nats_child._config
        monkeypatch.setattr(
            nats_child, "_config", lambda *given: ours(*given).replace("max_file_store", "# max_file_store")
        )
        with pytest.raises(StorageFull):
            await write()
    else:
        async with NatsServer.running(small, program=binary(None)) as server:
            connection = await NatsConnection.open(server.access)
            store = await NatsFiles.opened(connection, bucket="f", now=lambda: NOW)
            await put(store, "files/new", PIECE)
            await connection.aclose()
