"""The contract of the registry port, and what is of SQLite alone."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from station.core.errors import AlreadyExists, Conflict, StorageFull, Unavailable
from station.core.ids import uid_of
from station.core.records import BoxRef, Owner, SandboxRecord
from station.core.spec import LifecycleClass, Limits, Spec
from station.core.states import State
from station.store.identity import station_id
from station.store.nats.connection import NatsConnection
from station.store.nats.registry import NatsRegistry
from station.store.registry import Damaged, Listing, Registry
from station.store.sqlite import SqliteRegistry

BODIES: dict[str, Callable[[Path], Registry]] = {
    "sqlite": lambda path: SqliteRegistry(path / "registry.db"),
    "sqlite in memory": lambda path: SqliteRegistry(":memory:"),
}
"""Those that need nothing but a place; beside them `nats`."""


def record(name: str = "a", **changes: object) -> SandboxRecord:
    made = SandboxRecord(
        uid=uid_of("local", name),
        name=name,
        owner=Owner(),
        spec=Spec("fake", limits=Limits(memory_mb=64)),
        class_=LifecycleClass.KEPT,
        state=State.CREATING,
        generation=1,
        created_at=1.0,
        updated_at=1.0,
        last_active_at=1.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture(params=[*BODIES, "nats"])
async def registry(
    request: pytest.FixtureRequest, tmp_path: Path, bucket: str, connection: NatsConnection
) -> AsyncIterator[Registry]:
    if request.param == "nats":
        body: Registry = await NatsRegistry.opened(connection, bucket=bucket)
    else:
        body = BODIES[request.param](tmp_path)
    yield body
    await body.aclose()


async def test_what_was_created_is_read_back_whole(registry: Registry) -> None:
    made = await registry.create(record("ä\u2028", box=BoxRef("fake", "b", {"pid": 1}), services=({"name": "web"},)))
    assert made.fence > 0
    assert await registry.get(made.uid) == made
    assert await registry.get("nobody") is None


async def test_a_name_is_claimed_once(registry: Registry) -> None:
    first = await registry.create(record())
    with pytest.raises(AlreadyExists):
        await registry.create(record(generation=7))
    assert await registry.get(first.uid) == first


async def test_a_write_under_an_old_fence_changes_nothing(registry: Registry) -> None:
    old = await registry.create(record())
    new = await registry.put(replace(old, state=State.RUNNING))
    assert new.fence > old.fence
    with pytest.raises(Conflict):
        await registry.put(replace(old, state=State.FAILED))
    assert await registry.get(old.uid) == new


async def test_a_record_that_is_not_there_cannot_be_replaced(registry: Registry) -> None:
    with pytest.raises(Conflict):
        await registry.put(record(fence=3))
    assert await registry.get(record().uid) is None


async def test_fences_grow_over_all_records(registry: Registry) -> None:
    fences = [(await registry.create(record(name))).fence for name in "abc"]
    assert fences == sorted(set(fences))


async def test_of_racing_claims_one_wins(registry: Registry) -> None:
    results = await asyncio.gather(*(registry.create(record()) for _ in range(50)), return_exceptions=True)
    assert sum(isinstance(result, SandboxRecord) for result in results) == 1
    assert sum(isinstance(result, AlreadyExists) for result in results) == 49


async def test_of_racing_writers_one_wins_each_round(registry: Registry) -> None:
    made = await registry.create(record())
    results = await asyncio.gather(
        *(registry.put(replace(made, reason=str(n))) for n in range(20)), return_exceptions=True
    )
    assert sum(isinstance(result, SandboxRecord) for result in results) == 1


async def test_a_closed_registry_says_so(registry: Registry) -> None:
    await registry.aclose()
    await registry.aclose()
    for call in (lambda: registry.get("x"), registry.list, lambda: registry.create(record())):
        with pytest.raises(Unavailable, match="stopping"):
            await call()


async def test_a_list_has_all_there_are_as_they_are_now(registry: Registry) -> None:
    assert await registry.list() == Listing()
    made = {name: await registry.create(record(name)) for name in "abcde"}
    assert (await registry.list()).records == sorted(made.values(), key=lambda one: one.uid)
    made["c"] = await registry.put(replace(made["c"], state=State.TOMBSTONE))
    made["f"] = await registry.create(record("f"))
    assert (await registry.list()).records == sorted(made.values(), key=lambda one: one.uid)


def alter(path: Path, sql: str, *values: object) -> None:
    with sqlite3.connect(path) as db:
        db.execute(sql, values)
    db.close()


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[tuple[SqliteRegistry, Path]]:
    body = SqliteRegistry(tmp_path / "r.db")
    yield body, tmp_path / "r.db"
    await body.aclose()


DAMAGE = [
    b"",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"{}",
    b'{"uid": "other"}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("raw", DAMAGE, ids=lambda raw: repr(raw[:16]))
async def test_a_damaged_row_is_reported_and_hides_no_other(file: tuple[SqliteRegistry, Path], raw: bytes) -> None:
    registry, path = file
    bad, good = await registry.create(record("bad")), await registry.create(record("good"))
    alter(path, "UPDATE sandboxes SET document = ? WHERE uid = ?", raw, bad.uid)
    listing = await registry.list()
    assert listing.records == [good]
    assert [(item.uid, item.raw, item.fence) for item in listing.damaged] == [(bad.uid, raw, bad.fence)]
    found = await registry.get(bad.uid)
    assert isinstance(found, Damaged)
    assert found.reason


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", '"unheard-of"'),
        ("generation", '"x"'),
        ("spec", '{"backend": 3}'),
        ("created_at", "null"),
        ("uid", '"z"'),
    ],
)
async def test_a_field_of_the_wrong_kind_is_damage(file: tuple[SqliteRegistry, Path], field: str, value: str) -> None:
    registry, path = file
    made = await registry.create(record())
    alter(path, f"UPDATE sandboxes SET document = json_set(document, '$.{field}', json(?))", value)
    found = await registry.get(made.uid)
    assert isinstance(found, Damaged)
    assert found.name == "a"


async def test_a_good_record_replaces_a_damaged_one_under_its_fence(file: tuple[SqliteRegistry, Path]) -> None:
    registry, path = file
    made = await registry.create(record())
    alter(path, "UPDATE sandboxes SET document = 'text'")
    found = await registry.get(made.uid)
    assert isinstance(found, Damaged)
    healed = await registry.put(record(fence=found.fence, state=State.DELETING))
    assert await registry.get(made.uid) == healed


async def test_fields_of_a_later_version_are_kept_through_a_write(file: tuple[SqliteRegistry, Path]) -> None:
    registry, path = file
    made = await registry.create(record(box=BoxRef("fake", "b", {"pid": 1})))
    alter(
        path,
        "UPDATE sandboxes SET document = json_set(document, '$.colour', 'red', '$.spec.gpu', 2, '$.box.later', 1)",
    )
    read = await registry.get(made.uid)
    assert isinstance(read, SandboxRecord)
    assert read.extra == {"colour": "red", "spec": {"gpu": 2}}
    await registry.put(replace(read, box=None))
    again = await registry.get(made.uid)
    assert isinstance(again, SandboxRecord)
    assert again.extra == read.extra
    assert again.box is None


async def limit_pages(registry: SqliteRegistry, bound: str) -> None:
    """A bound below what is in use means: no page more."""
    await registry._db.run(lambda db: db.execute(f"PRAGMA max_page_count = {bound}").fetchall())


async def test_a_full_disk_is_a_clean_error_and_later_writes_work(file: tuple[SqliteRegistry, Path]) -> None:
    registry, _ = file
    made = await registry.create(record())
    await limit_pages(registry, "1")
    with pytest.raises(StorageFull):
        await registry.put(replace(made, reason="x" * 1_000_000))
    await limit_pages(registry, "1000000")
    assert await registry.get(made.uid) == made
    assert (await registry.put(replace(made, reason="x" * 1_000_000))).fence > made.fence


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.db").write_bytes(b"not a database" * 100)
    with pytest.raises(Unavailable, match=r"r\.db"):
        SqliteRegistry(tmp_path / "r.db")


WRITER = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from station.store.sqlite import SqliteRegistry
from tests.store.test_registry import record

async def main():
    registry = SqliteRegistry(Path(sys.argv[1]))
    made = await registry.create(record())
    while True:
        made = await registry.put(replace(made, generation=made.generation + 1))
        print(made.generation, flush=True)

asyncio.run(main())
"""


async def test_no_acknowledged_write_is_lost_by_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    root = Path(__file__).parents[2]
    writer = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert writer.stdout
    lines = [writer.stdout.readline() for _ in range(20)]
    writer.send_signal(signal.SIGKILL)
    lines += writer.stdout.read().splitlines()
    writer.wait()
    writer.stdout.close()
    acknowledged = max(int(line) for line in lines if line.strip())
    registry = SqliteRegistry(path)
    found = await registry.get(record().uid)
    await registry.aclose()
    assert isinstance(found, SandboxRecord)
    assert found.generation >= acknowledged


def test_a_station_keeps_its_id(tmp_path: Path) -> None:
    made = station_id(tmp_path)
    assert station_id(tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == ["station_id"]


def test_a_damaged_station_id_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "station_id").write_text("")
    with pytest.raises(Unavailable):
        station_id(tmp_path)
