"""The contract of the documents port. A second body joins by one more line in `BODIES`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from station.core.errors import AlreadyExists, Conflict, InternalError, Unavailable
from station.store.principals import Document, Documents
from station.store.principals_sqlite import SqliteDocuments

BODIES: dict[str, Callable[[Path], Documents]] = {
    "sqlite": lambda path: SqliteDocuments(path / "principals.db"),
    "sqlite in memory": lambda path: SqliteDocuments(":memory:"),
}


@pytest.fixture(params=BODIES)
async def documents(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Documents]:
    body = BODIES[request.param](tmp_path)
    yield body
    await body.aclose()


async def test_what_was_created_is_read_back_byte_by_byte(documents: Documents) -> None:
    made = await documents.create("key/a", b"\0\xff{")
    assert (made.key, made.value) == ("key/a", b"\0\xff{")
    assert await documents.get("key/a") == made
    assert await documents.get("key/b") is None


async def test_a_key_is_created_once_also_by_many_at_once(documents: Documents) -> None:
    results = await asyncio.gather(
        *(documents.create("key/a", str(n).encode()) for n in range(20)), return_exceptions=True
    )
    made = [result for result in results if isinstance(result, Document)]
    assert len(made) == 1
    assert sum(isinstance(result, AlreadyExists) for result in results) == 19
    assert await documents.get("key/a") == made[0]


async def test_a_write_under_an_old_revision_changes_nothing(documents: Documents) -> None:
    old = await documents.create("key/a", b"1")
    new = await documents.put(replace(old, value=b"2"))
    assert new.revision > old.revision
    with pytest.raises(Conflict):
        await documents.put(replace(old, value=b"3"))
    assert await documents.get("key/a") == new


async def test_of_racing_writers_one_wins(documents: Documents) -> None:
    made = await documents.create("key/a", b"")
    results = await asyncio.gather(
        *(documents.put(replace(made, value=str(n).encode())) for n in range(20)), return_exceptions=True
    )
    assert sum(isinstance(result, Document) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 19


async def test_what_is_deleted_is_not_brought_back_by_a_late_writer(documents: Documents) -> None:
    made = await documents.create("key/a", b"1")
    assert await documents.delete("key/a")
    assert not await documents.delete("key/a")
    with pytest.raises(Conflict):
        await documents.put(replace(made, value=b"2"))
    assert await documents.get("key/a") is None
    again = await documents.create("key/a", b"3")
    assert again.revision > made.revision
    with pytest.raises(Conflict):
        await documents.put(replace(made, value=b"4"))


async def test_a_kind_is_listed_by_key_without_others_that_begin_alike(documents: Documents) -> None:
    for key in ("key/b", "key/A", "key/_x", "keys/c", "ke/d", "deployment/e"):
        await documents.create(key, key.encode())
    assert [document.key for document in await documents.list("key")] == ["key/A", "key/_x", "key/b"]
    assert [document.value for document in await documents.list("deployment")] == [b"deployment/e"]
    assert list(await documents.list("none")) == []


@pytest.mark.parametrize("key", ["key", "key/", "/a", "key/a/b", "key/a.b", "key/*", "key/>", "key/a b", "Key/a", ""])
async def test_a_key_that_a_body_could_not_hold_is_a_fault_of_ours(documents: Documents, key: str) -> None:
    with pytest.raises(InternalError):
        await documents.create(key, b"")


async def test_a_closed_one_says_so(tmp_path: Path) -> None:
    for make in BODIES.values():
        body = make(tmp_path)
        await body.aclose()
        await body.aclose()
        with pytest.raises(Unavailable):
            await body.get("key/a")


WRITER = """
import asyncio, sys
from pathlib import Path
from station.store.principals_sqlite import SqliteDocuments
async def main():
    body = SqliteDocuments(Path(sys.argv[1]))
    for n in range(10**6):
        await body.create(f"key/{n}", b"x" * 100)
        print(n, flush=True)
asyncio.run(main())
"""


def killed_in_the_middle(path: Path) -> int:
    """How many documents were acknowledged."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        return 20 + len(writer.stdout.read().splitlines())


async def test_what_was_acknowledged_outlives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "principals.db"
    told = killed_in_the_middle(path)
    body = SqliteDocuments(path)
    kept = {document.key for document in await body.list("key")}
    await body.aclose()
    assert {f"key/{n}" for n in range(told)} <= kept
    assert len(kept) <= told + 1
