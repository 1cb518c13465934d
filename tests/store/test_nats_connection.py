"""The connection to NATS: what its client and its servers do when nobody looks, each with what happens without us."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import ServerVersion

from station.core.errors import AlreadyExists, Refused, StationError, StorageFull, TooLarge, Unavailable
from station.server.nats_child import NatsServer
from station.store.nats import connection as nats_connection
from station.store.nats.connection import ChangedMeanwhile, NatsAccess, NatsConnection, too_old
from station.store.nats.registry import NatsRegistry, bucket_config

from .nats_bed import LEFT_OPEN, USERS, Cable, kill, operators, stopped
from .test_registry import record

pytestmark = pytest.mark.filterwarnings(LEFT_OPEN)


async def stream(connection: NatsConnection, bucket: str) -> str:
    await connection.make_stream(f"KV_{bucket}", bucket_config(bucket, 1))
    return f"KV_{bucket}"


# ── who is spoken to ─────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def server_of(version: str) -> AsyncIterator[NatsAccess]:
    """One that says that it has this version, and keeps nothing."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told = {"server_id": "x", "version": version, "proto": 1, "max_payload": 1 << 20, "headers": True}
        writer.write(b"INFO " + json.dumps(told).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield NatsAccess((f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}",))


async def test_a_server_that_loses_what_it_acknowledged_is_refused_with_the_reason() -> None:
    async with server_of("2.9.10") as access:
        with pytest.raises(Unavailable, match=r"2\.9\.10.*2\.10\.23.*nats\.url") as told:
            await NatsConnection.open(lambda: access)
        assert not told.value.retryable
    async with server_of("2.10.23") as access:
        await (await NatsConnection.open(lambda: access)).aclose()


@pytest.mark.parametrize("version", ["2.9.25", "2.10.22", "1.4.1", "0.0.0-unknown"])
def test_older_versions_are_too_old(version: str) -> None:
    assert too_old(ServerVersion(version)) is not None


@pytest.mark.parametrize("version", ["2.10.23", "2.10.27", "2.11.0", "2.15.1", "3.0.0"])
def test_later_versions_are_not(version: str) -> None:
    assert too_old(ServerVersion(version)) is None


@pytest.mark.parametrize("wrong", [{"password": "no"}, {"user": None, "password": None}, {"token": "t", "user": None}])
async def test_a_user_that_is_not_let_in_is_told_so(nats_server: NatsServer, wrong: dict[str, str | None]) -> None:
    access = nats_server.access()
    given = {"user": access.user, "password": access.password, **wrong}
    with pytest.raises(Unavailable, match=r"(?i)authorization.*nats\.user"):
        await NatsConnection.open(lambda: NatsAccess(access.urls, **given))  # type: ignore[arg-type]


async def test_where_nobody_listens_is_told_within_seconds_and_no_password_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nats_connection, "ANSWER_SECONDS", 1.0)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 .*nats\.url") as told:
        await NatsConnection.open(lambda: NatsAccess(("nats://me:secret@127.0.0.1:1",)))
    assert "secret" not in str(told.value)


async def test_a_denied_publish_is_told_as_what_it_is(tmp_path: Path) -> None:
    """The client alone sees a time-out."""
    with operators(tmp_path / "nats", USERS) as url:
        allowed = await NatsConnection.open(lambda: NatsAccess((url,), "all", "p"))
        await stream(allowed, "b")
        denied = await NatsConnection.open(lambda: NatsAccess((url,), "reader", "p"))
        with pytest.raises(Refused, match=r"(?i)permissions violation.*\$KV\.b\.x.*nats\.user"):
            await denied.publish("KV_b", "$KV.b.x", b"1")
        assert await denied.last("KV_b", "$KV.b.x") is None
        await allowed.publish("KV_b", "$KV.b.x", b"1")
        await denied.aclose()
        await allowed.aclose()

        async def quiet(_: Exception) -> None:
            return

        control = await nats.connect(url, user="reader", password="p", error_cb=quiet)
        with pytest.raises(nats.errors.TimeoutError):
            await control.jetstream().publish("$KV.b.x", b"1", timeout=0.5)
        await control.close()


# ── what is written ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_under_an_old_sequence_changes_nothing(connection: NatsConnection, bucket: str) -> None:
    name, subject = await stream(connection, bucket), f"$KV.{bucket}.x"
    first = await connection.publish(name, subject, b"1", last=0)
    second = await connection.publish(name, subject, b"2", last=first)
    for last in (0, first, second + 1):
        with pytest.raises(ChangedMeanwhile):
            await connection.publish(name, subject, b"3", last=last)
    found = await connection.last(name, subject)
    assert found is not None
    assert (found.sequence, found.data) == (second, b"2")


async def test_a_message_that_is_too_large_is_refused_before_it_is_sent(
    connection: NatsConnection, bucket: str
) -> None:
    name = await stream(connection, bucket)
    with pytest.raises(TooLarge, match="max_payload"):
        await connection.publish(name, f"$KV.{bucket}.x", bytes(connection.max_payload + 1))


async def test_a_bucket_without_room_is_a_full_store(connection: NatsConnection, bucket: str) -> None:
    await connection.make_stream(f"KV_{bucket}", {**bucket_config(bucket, 1), "max_bytes": 4096})
    registry = await NatsRegistry.opened(connection, bucket=bucket)
    made = await registry.create(record())
    with pytest.raises(StorageFull) as told:
        await registry.put(record(fence=made.fence, reason="x" * 8000))
    assert told.value.retryable
    assert await registry.get(made.uid) == made


async def test_a_bucket_that_somebody_deleted_is_told_and_not_made_anew(
    connection: NatsConnection, bucket: str
) -> None:
    """An empty registry would say that no box has an owner."""
    registry = await NatsRegistry.opened(connection, bucket=bucket)
    await registry.create(record())
    await connection.api(f"STREAM.DELETE.KV_{bucket}")
    for call in (registry.list, lambda: registry.get(record().uid)):
        with pytest.raises(Unavailable, match="deleted its bucket"):
            await call()


async def test_a_publish_waits_for_a_leader_and_the_client_does_not(connection: NatsConnection, bucket: str) -> None:
    """Servers without a leader answer as those without the stream: that nobody is there."""
    subject = f"$KV.{bucket}.x"
    waiting = asyncio.ensure_future(connection.publish(f"KV_{bucket}", subject, b"1", last=0))
    with pytest.raises(nats.errors.NoRespondersError):
        await connection._client.request(subject, b"1")
    assert not waiting.done()
    name = await stream(connection, bucket)
    sequence = await waiting
    found = await connection.last(name, subject)
    assert found is not None
    assert found.sequence == sequence


async def test_the_answer_of_servers_without_a_leader_comes_in_the_end(
    connection: NatsConnection, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_connection, "ELECTION_SECONDS", 0.3)
    with pytest.raises(Unavailable, match="no leader") as told:
        await connection.publish(f"KV_{bucket}", f"$KV.{bucket}.x", b"1", last=0)
    assert told.value.retryable


# ── servers and wires that fail ──────────────────────────────────────────────────────────────────────────────────────


async def test_hd_d07_a_server_that_does_nothing_is_told_within_seconds_and_nothing_is_done_twice(
    nats_server: NatsServer, connection: NatsConnection, bucket: str
) -> None:
    registry = await NatsRegistry.opened(connection, bucket=bucket)
    made = await registry.create(record("there"))
    loop = asyncio.get_running_loop()
    with stopped(nats_server):
        begun = loop.time()
        calls = (
            registry.list(),
            registry.get(made.uid),
            registry.create(record("new")),
            registry.put(record("there", fence=made.fence, reason="changed")),
        )
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, Unavailable), result
            assert result.retryable
        assert loop.time() - begun < 2 * nats_connection.ANSWER_SECONDS
    # What was asked then may be done by now, or while it is asked again; it is done once.
    assert sorted(one.name for one in (await registry.list()).records) in (["there"], ["new", "there"])
    with contextlib.suppress(AlreadyExists):
        await registry.create(record("new"))
    assert [one.name for one in (await registry.list()).records].count("new") == 1


@pytest.mark.parametrize("cycles", [5, pytest.param(200, marks=[pytest.mark.full, pytest.mark.timeout(900)])])
async def test_hd_d05_no_acknowledged_record_is_lost_by_kill_9_of_the_server_in_the_middle_of_writes(
    nats_server: NatsServer, connection: NatsConnection, bucket: str, cycles: int
) -> None:
    registry = await NatsRegistry.opened(connection, bucket=bucket)
    made = {name: await registry.create(record(name)) for name in "abc"}
    dice = random.Random(1)

    async def write(name: str, stop: asyncio.Event) -> None:
        while not stop.is_set():
            made[name] = await registry.put(replace(made[name], generation=made[name].generation + 1))

    for cycle in range(cycles):
        stop = asyncio.Event()
        writing = [asyncio.ensure_future(write(name, stop)) for name in made]
        for _ in range(dice.randrange(40)):
            await registry.get(made["a"].uid)
        kill(nats_server)
        new = await registry.create(record(f"new {cycle}"))
        stop.set()
        # Every writer goes on through it, and nobody loses to itself.
        await asyncio.gather(*writing)
        found = {one.uid: one for one in (await registry.list()).records}
        assert [found[one.uid] for one in (*made.values(), new)] == [*made.values(), new]
    assert len((await registry.list()).records) == 3 + cycles


async def test_a_killed_server_costs_a_moment_and_no_line_on_stderr(
    nats_server: NatsServer, connection: NatsConnection, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = await NatsRegistry.opened(connection, bucket=bucket)
    made = await registry.create(record())
    access = nats_server.access()
    control = await nats.connect(access.urls[0], user="station", password=access.password)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            kill(nats_server)
            assert await registry.get(made.uid) == made
        assert any(one.name == "station.store.nats.connection" for one in caplog.records)
        foreign = [one for one in caplog.records if one.name.startswith("nats.")]
        await control.close()
        assert len({one.message for one in foreign}) <= 1, "the control alone has an error of the client's own"


async def test_hd_d07_a_wire_that_is_cut_at_any_byte_loses_and_doubles_nothing(
    nats_server: NatsServer, bucket: str
) -> None:
    async with Cable.before(nats_server.access()) as (cable, access):
        connection = await NatsConnection.open(lambda: access)
        registry = await NatsRegistry.opened(connection, bucket=bucket)
        made = await registry.create(record())
        for number in range(12):
            cable.cut_after = 100 + 97 * number
            made = await registry.put(record(fence=made.fence, reason=str(number)))
            assert await registry.get(made.uid) == made
        assert cable.connections > 1
        await connection.aclose()


async def test_hd_d07_an_answer_that_was_lost_is_found_by_the_id_of_its_message(
    nats_server: NatsServer, bucket: str
) -> None:
    """The server takes the message, and its answer goes nowhere: the second try finds the first."""
    async with Cable.before(nats_server.access()) as (cable, access):
        connection = await NatsConnection.open(lambda: access)
        name, subject = await stream(connection, bucket), f"$KV.{bucket}.x"
        direct = await NatsConnection.open(nats_server.access)
        cable.delay_seconds = 0.5
        writing = asyncio.ensure_future(connection.publish(name, subject, b"mine", last=0))
        while await direct.last(name, subject) is None:
            pass
        cable.cut()
        cable.delay_seconds = 0.0
        found = await direct.last(name, subject)
        assert found is not None
        assert await writing == found.sequence
        with pytest.raises(ChangedMeanwhile):
            await connection.publish(name, subject, b"another's", last=0)
        await connection.aclose()
        await direct.aclose()


async def test_hd_d07_a_wire_that_swallows_everything_is_told_within_seconds_and_works_when_it_is_back(
    nats_server: NatsServer, bucket: str
) -> None:
    async with Cable.before(nats_server.access()) as (cable, access):
        connection = await NatsConnection.open(lambda: access)
        registry = await NatsRegistry.opened(connection, bucket=bucket)
        made = await registry.create(record())
        cable.open.clear()
        with pytest.raises(Unavailable) as told:
            await registry.get(made.uid)
        assert told.value.retryable
        cable.open.set()
        assert await registry.get(made.uid) == made
        cable.delay_seconds = 1.0
        assert await registry.get(made.uid) == made
        await connection.aclose()


async def test_a_closed_connection_says_so(nats_server: NatsServer) -> None:
    connection = await NatsConnection.open(nats_server.access)
    await connection.aclose()
    await connection.aclose()
    with pytest.raises(StationError, match="stopping"):
        await connection.stream("x")


# ── lists that are falsely empty ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_list_is_whole_while_others_write(connection: NatsConnection, bucket: str) -> None:
    """keys() and watch() of the client can be empty for a moment; here each list has what was there before it."""
    registry = await NatsRegistry.opened(connection, bucket=bucket)
    made = {one.uid: one for one in [await registry.create(record(f"n{n}")) for n in range(20)]}
    done = asyncio.Event()

    async def write() -> None:
        while not done.is_set():
            for uid, one in list(made.items()):
                made[uid] = await registry.put(record(one.name, fence=one.fence))

    writing = asyncio.ensure_future(write())
    for _ in range(8):
        assert {one.uid for one in (await registry.list()).records} == set(made)
        fresh = await NatsRegistry.opened(connection, bucket=bucket)
        assert {one.uid for one in (await fresh.list()).records} == set(made)
    done.set()
    await writing


@pytest.mark.parametrize("defended", [True, False])
async def test_an_end_that_comes_too_early_is_noticed_by_the_number_of_subjects(
    connection: NatsConnection, bucket: str, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    writer = await NatsRegistry.opened(connection, bucket=bucket)
    for n in range(5):
        await writer.create(record(f"n{n}"))
    reader = await NatsRegistry.opened(connection, bucket=bucket)
    reader._followed._is_whole = defended
    ask, lies = connection.next, [True]

    async def next_(name: str, pattern: str, sequence: int) -> object:
        if sequence > 2 and lies:
            lies.pop()
            return None
        return await ask(name, pattern, sequence)

    monkeypatch.setattr(connection, "next", next_)
    assert len((await reader.list()).records) == (5 if defended else 2)
