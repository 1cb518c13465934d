"""A POST that is sent again under its Idempotency-Key is done once."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import httpx2
import pytest

from station.core.errors import StorageFull
from station.core.principals import Kind, Principal
from station.core.records import Owner
from station.server.access.guard import PRINCIPAL
from station.store.answers import KEPT_SECONDS, Answers

from .conftest import Api, Machine, until
from .served import Served


async def once(api: Api, key: str, path: str, body: Any = None, **more: Any) -> httpx2.Response:
    return await api.call("POST", path, body, headers={"Idempotency-Key": key}, **more)


async def ran(api: Api, uid: str) -> int:
    return len((await api.call("GET", f"/sandboxes/{uid}/processes")).json()["processes"])


async def test_the_first_answer_is_given_again(api: Api) -> None:
    first = await once(api, "k", "/sandboxes", {"name": "a"})
    again = await once(api, "k", "/sandboxes", {"name": "a"})
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["content-type"] == first.headers["content-type"]
    # The control: without the key the second open says that it made nothing.
    assert (await api.call("POST", "/sandboxes", {"name": "a"})).status_code == 200


@pytest.mark.parametrize("what", ["exec", "processes"])
async def test_a_command_runs_once_under_one_key_and_twice_under_two(api: Api, what: str) -> None:
    uid = await api.open()
    command = {"command": "echo x >> count"}
    answers = [await once(api, key, f"/sandboxes/{uid}/{what}", command) for key in ("k", "k", "l")]
    first, again, other = (answer.json()["id"] for answer in answers)
    assert (first == again, first == other) == (True, False)
    assert len({answer.status_code for answer in answers}) == 1
    assert await ran(api, uid) == 2


async def test_a_key_of_another_request_is_refused(api: Api) -> None:
    uid, other = await api.open("a"), await api.open("b")
    assert (await once(api, "k", f"/sandboxes/{uid}/exec", {"argv": ["true"]})).status_code == 200
    for path, body in (
        (f"/sandboxes/{uid}/exec", {"argv": ["false"]}),
        (f"/sandboxes/{uid}/exec", {"argv": ["true"], "env": {"A": "b"}}),
        (f"/sandboxes/{other}/exec", {"argv": ["true"]}),
        (f"/sandboxes/{uid}/processes", {"argv": ["true"]}),
    ):
        refused = await once(api, "k", path, body)
        assert (refused.status_code, refused.json()["detail"]["field"]) == (409, "Idempotency-Key")
    assert (await ran(api, uid), await ran(api, other)) == (1, 0)


async def test_who_comes_while_the_first_is_under_way_waits_for_it(api: Api) -> None:
    uid = await api.open()
    body = {"argv": ["sleep", "1"]}
    answers = await asyncio.gather(*(once(api, "k", f"/sandboxes/{uid}/exec", body) for _ in range(5)))
    assert {answer.content for answer in answers} == {answers[0].content}
    assert (answers[0].json()["exit_code"], await ran(api, uid)) == (0, 1)


async def test_a_run_is_made_once(api: Api, machine: Machine) -> None:
    first = await once(api, "k", "/runs", {"code": "echo hello", "runtime": "bash"})
    again = await once(api, "k", "/runs", {"code": "echo hello", "runtime": "bash"})
    assert (first.status_code, again.content) == (200, first.content)
    assert sum(one.counts != [] for one in api.station.meter.runs.values()) == 1
    assert sum(sum(one.counts) for one in api.station.meter.runs.values()) == 1


async def test_publishing_without_a_key_of_the_store_makes_one_file(api: Api) -> None:
    uid = await api.open()
    await api.call("PUT", f"/sandboxes/{uid}/files?path=a", content=b"x")
    answers = [await once(api, "k", f"/sandboxes/{uid}/publish", {"source": "a"}) for _ in range(2)]
    assert answers[0].content == answers[1].content
    assert (await api.call("GET", "/files")).json()["count"] == 1


async def test_an_upload_begins_and_is_finished_once(api: Api) -> None:
    wanted = {"size": 1, "checksum": hashlib.sha256(b"x").hexdigest()}
    begun = [(await once(api, "k", "/uploads", wanted)).json()["id"] for _ in range(2)]
    assert begun[0] == begun[1]
    piece = b"x" + hashlib.sha256(b"x").digest()
    assert (await api.call("PUT", f"/uploads/{begun[0]}?offset=0", content=piece)).status_code == 200
    done = [await once(api, "l", f"/uploads/{begun[0]}/finish") for _ in range(2)]
    assert ([answer.status_code for answer in done], done[0].content == done[1].content) == ([201, 201], True)
    # The control: an upload that is finished is gone.
    assert (await api.call("POST", f"/uploads/{begun[0]}/finish")).status_code == 404


async def test_a_secret_is_told_once_and_kept_nowhere(api: Api, machine: Machine) -> None:
    first = await once(api, "k", "/keys", {"name": "laptop"})
    kept = b"".join(file.read_bytes() for file in machine.home.glob("answers.db*"))
    assert first.json()["key"].encode() not in kept
    again = await once(api, "k", "/keys", {"name": "laptop"})
    assert (first.status_code, again.status_code, "secret" in again.json()["message"]) == (201, 409, True)
    assert len((await api.call("GET", "/keys")).json()["keys"]) == 1
    # The control: what is no secret is there.
    opened = await once(api, "l", "/sandboxes", {"name": "a"})
    kept = b"".join(file.read_bytes() for file in machine.home.glob("answers.db*"))
    assert opened.json()["id"].encode() in kept


async def test_what_a_command_said_is_not_kept_a_second_time(api: Api, machine: Machine) -> None:
    uid = await api.open()
    for _ in range(2):
        answer = await once(api, "k", f"/sandboxes/{uid}/exec", {"argv": ["echo", "told-to-nobody-else"]})
        assert "told-to-nobody-else" in answer.text
    assert b"told-to-nobody-else" not in b"".join(file.read_bytes() for file in machine.home.glob("answers.db*"))


async def test_a_failure_is_no_answer_and_its_key_is_free(api: Api) -> None:
    uid = await api.open()
    path = f"/sandboxes/{uid}/stage"
    assert (await once(api, "k", path, {"key": "a", "destination": "a"})).status_code == 404
    await api.call("PUT", "/files/a", content=b"x")
    assert (await once(api, "k", path, {"key": "a", "destination": "a"})).status_code == 201
    assert (await once(api, "l", "/sandboxes", {"nmae": "b"})).status_code == 400
    assert (await once(api, "l", "/sandboxes", {"name": "b"})).status_code == 201


class Full:
    """Answers of which one call finds no room."""

    def __init__(self, answers: Answers, call: str) -> None:
        self._answers, self._call = answers, call

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._call else getattr(self._answers, name)

    async def _fail(self, *_: object) -> None:
        raise StorageFull("the disk is full")


@asynccontextmanager
async def full(machine: Machine, monkeypatch: pytest.MonkeyPatch, call: str) -> AsyncIterator[Api]:
    monkeypatch.setattr("station.server.station.Answers", lambda path: Full(Answers(path), call))
    async with machine.api() as api:
        yield api


async def test_what_was_done_is_answered_as_it_was_also_where_its_answer_cannot_be_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with full(machine, monkeypatch, "keep") as api:
        assert (await once(api, "k", "/sandboxes", {"name": "a"})).status_code == 201
        assert "the disk is full" in caplog.text
    async with full(machine, monkeypatch, "forget") as api:
        refused = await once(api, "l", "/sandboxes", {"nmae": "b"})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_input")
    # The control: where even the key cannot be written down, nothing is done.
    async with full(machine, monkeypatch, "begin") as api:
        assert (await once(api, "m", "/sandboxes", {"name": "c"})).status_code == 507
        assert [one["name"] for one in (await api.call("GET", "/sandboxes")).json()["sandboxes"]] == ["a"]


async def test_keys_of_commands_are_forgotten_after_a_day_without_any_other_request(api: Api, machine: Machine) -> None:
    async def known() -> int:
        with closing(sqlite3.connect(machine.home / "answers.db")) as db:
            return int(db.execute("SELECT count(*) FROM given").fetchone()[0])

    uid = await api.open()
    await once(api, "k", f"/sandboxes/{uid}/exec", {"argv": ["true"]})
    await api.station.housekeeping()
    assert await known() == 1
    machine.later += KEPT_SECONDS + 1
    await api.station.housekeeping()
    assert await known() == 0


@pytest.mark.parametrize("key", ["", " ", "a b", "\xe9", "x" * 256])
async def test_a_key_that_is_none_is_refused(api: Api, key: str) -> None:
    headers = {b"idempotency-key": key.encode("latin-1")}
    answer = await api.call("POST", "/sandboxes", {"name": "a"}, headers=headers)
    assert (answer.status_code, answer.json()["detail"]["field"]) == (400, "Idempotency-Key")


async def test_where_a_body_streams_a_key_is_not_taken_in_silence(api: Api) -> None:
    form = {"files": {"file": ("a", b"x")}}
    refused = await once(api, "k", "/files", **form)
    assert (refused.status_code, "PUT" in refused.json()["message"]) == (400, True)
    assert (await api.call("POST", "/files", **form)).status_code == 201
    # What may be repeated anyway takes one and needs none.
    assert (await api.call("PUT", "/files/a", content=b"x", headers={"Idempotency-Key": "k"})).status_code == 201


async def test_the_next_station_gives_the_answer_of_the_one_before(machine: Machine) -> None:
    async with machine.api() as api:
        uid = await api.open()
        first = [
            await once(api, "e", f"/sandboxes/{uid}/exec", {"argv": ["true"]}),
            await once(api, "r", "/runs", {"code": "echo 1", "runtime": "bash"}),
        ]
    async with machine.api() as api:
        again = [
            await once(api, "e", f"/sandboxes/{uid}/exec", {"argv": ["true"]}),
            await once(api, "r", "/runs", {"code": "echo 1", "runtime": "bash"}),
        ]
        assert [answer.content for answer in again] == [answer.content for answer in first]
        assert (await ran(api, uid), api.station.meter.runs) == (1, {})


async def test_a_command_that_was_under_way_when_its_station_died_is_joined(machine: Machine) -> None:
    body = {"argv": ["sleep", "1"]}
    async with machine.api() as api:
        uid = await api.open()
        calling = asyncio.create_task(once(api, "k", f"/sandboxes/{uid}/exec", body))

        async def running() -> bool:
            return bool(api.station.processes.running(uid))

        await until(running)
        calling.cancel()
        await asyncio.wait([calling])
    async with machine.api() as api:
        answer = await once(api, "k", f"/sandboxes/{uid}/exec", body)
        assert (answer.status_code, answer.json()["exit_code"], await ran(api, uid)) == (200, 0, 1)
        refused = await once(api, "k", f"/sandboxes/{uid}/exec", {"argv": ["sleep", "2"]})
        assert refused.status_code == 409


async def test_a_command_whose_caller_hung_up_is_joined_by_the_next(serve: Callable[..., Served]) -> None:
    served = serve()
    body, key = {"argv": ["sleep", "1"]}, {"Idempotency-Key": "k"}
    async with served.client() as client:
        one = f"/api/v1/sandboxes/{(await client.post('/api/v1/sandboxes', json={})).json()['id']}"

        async def processes() -> list[Any]:
            found: list[Any] = (await client.get(f"{one}/processes")).json()["processes"]
            return found

        async def begun() -> bool:
            return bool(await processes())

        calling = asyncio.create_task(client.post(f"{one}/exec", json=body, headers=key))
        await until(begun)
        calling.cancel()
        await asyncio.wait([calling])
        answer = await client.post(f"{one}/exec", json=body, headers=key)
        assert (answer.status_code, answer.json()["exit_code"], len(await processes())) == (200, 0, 1)


async def test_a_key_is_a_callers_own(api: Api) -> None:
    from starlette.requests import Request

    from station.server.api import idempotency

    def name(owner: Owner, key: bytes = b"k") -> bytes:
        state = {PRINCIPAL: Principal(Kind.DEPLOYMENT, owner)}
        return idempotency._name(Request({"type": "http", "headers": [], "state": state, idempotency.KEY: key}))

    names = {
        name(Owner()),
        name(Owner(deployment="d")),
        name(Owner(account="locallocal", deployment="")),
        name(Owner(), b"l"),
    }
    assert len(names) == 4
