"""Who was let in, and is no longer by the end of the body; how many requests one may have; and their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from station.core.access import KeyRequest
from station.core.errors import Busy
from station.server.access.visits import Visits

from .conftest import until
from .served import Served
from .test_ownership import Caller, Tenants, tenants
from .test_serving_others import Bed

FILE = ("PUT", "/files/left", b"x" * 8)
UPLOAD = ("POST", "/uploads", b'{"size": 9, "checksum": "' + b"0" * 64 + b'"}')
RUN = ("POST", "/runs", b'{"code": "echo ran", "runtime": "bash"}')
NAMED = ("POST", "/runs", b'{"code": "echo ran", "runtime": "bash", "id": "prc_1"}')
OPEN = ("POST", "/sandboxes", b'{"name": "late"}')


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Tenants]:
    bed = Bed(tmp_path)
    bed.set(serves_others=True)
    async with tenants(bed) as made:
        yield made
    await bed.store.aclose()


class HalfSent:
    """A request whose body has begun."""

    def __init__(self, who: Caller, method: str, path: str, body: bytes) -> None:
        self._body = body
        self._begun = asyncio.Event()
        self._go_on = asyncio.Event()
        self.asked = asyncio.create_task(who.call(method, path, content=self._content()))

    async def _content(self) -> AsyncIterator[bytes]:
        yield self._body[:3]
        self._begun.set()
        await self._go_on.wait()
        yield self._body[3:]

    async def begun(self) -> HalfSent:
        async with asyncio.timeout(30):
            await self._begun.wait()
        return self

    async def rest(self) -> httpx2.Response:
        self._go_on.set()
        async with asyncio.timeout(30):
            return await self.asked


@pytest.mark.parametrize("revoked", [True, False])
async def test_a_key_that_is_revoked_within_a_body_makes_no_other(both: Tenants, revoked: bool) -> None:
    keys = both.station.access.keys
    made = await keys.create(KeyRequest("k"))
    both.operator.client.headers["authorization"] = f"Bearer {made.key}"
    half = await HalfSent(both.operator, "POST", "/keys", b'{"name": "another"}').begun()
    if revoked:
        await keys.revoke(made.id)
    answer = await half.rest()
    if revoked:
        assert answer.status_code == 401
        assert (answer.json()["code"], answer.headers["connection"]) == ("unauthenticated", "close")
        assert keys.list() == []
    else:
        assert (answer.status_code, len(keys.list())) == (201, 2)


async def test_on_the_wire_too_a_revoked_key_makes_no_other(listening: Served) -> None:
    async with listening.client() as operator:
        made = (await operator.post("/api/v1/keys", json={"name": "k"})).json()
        body = b'{"name": "another"}'
        head = f"POST /api/v1/keys HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {made['key']}\r\n"
        answers = []
        for revoke in (False, True):
            with listening.connect() as raw:
                # 100 is told once the handler waits for the body: it was let in.
                raw.sendall(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
                assert b" 100 " in raw.recv(1000)
                raw.sendall(body[:3])
                if revoke:
                    await operator.delete(f"/api/v1/keys/{made['id']}")
                raw.sendall(body[3:])
                answers.append(int(raw.recv(1000).split(b" ", 2)[1]))
        assert answers == [201, 401]
        assert [key["name"] for key in (await operator.get("/api/v1/keys")).json()["keys"]] == ["another"]


async def test_a_token_of_an_old_generation_stores_nothing_that_it_had_begun(both: Tenants) -> None:
    half, control = await HalfSent(both.one, *FILE).begun(), await HalfSent(both.two, *FILE).begun()
    await both.station.access.deployments.rotate("one")
    assert [(await half.rest()).status_code, (await control.rest()).status_code] == [401, 201]
    assert (await both.station.store.room()).files == 1


@pytest.mark.parametrize("when", ["while it goes", "when it is gone"])
async def test_what_a_deployment_had_begun_to_send_does_not_outlive_it(both: Tenants, when: str) -> None:
    station = both.station
    station.access.visits.leave_seconds = 30.0 if when == "while it goes" else 0.1
    late = [await HalfSent(both.one, *wanted).begun() for wanted in (FILE, UPLOAD, RUN, NAMED, OPEN)]
    controls = [await HalfSent(both.two, *wanted).begun() for wanted in (FILE, UPLOAD, RUN, NAMED, OPEN)]
    deleting = asyncio.create_task(both.operator.status("DELETE", "/deployments/one?force=true"))
    if when == "while it goes":

        async def goes() -> bool:
            return station.access.deployments.get("one").going

        await until(goes)
        answers = [await half.rest() for half in late]
        assert await deleting == 204
    else:
        assert await deleting == 204
        answers = [await half.rest() for half in late]
    assert [answer.status_code for answer in answers] == [401] * 5
    assert (await station.store.room()).files == 0
    assert list((station.settings.home / "uploads").glob("upl_*.json")) == []
    assert await both.operator.names(all="true") == []
    assert [(await half.rest()).status_code for half in controls] == [201, 201, 200, 200, 201]


@pytest.mark.parametrize("ends", [True, False])
async def test_what_is_just_being_made_for_a_deployment_does_not_outlive_it(
    both: Tenants, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    station = both.station
    station.access.visits.leave_seconds = 30.0 if ends else 0.1
    within, go_on, begin = asyncio.Event(), asyncio.Event(), station.uploads.begin

    async def slowly(*arguments: Any) -> Any:
        within.set()
        await go_on.wait()
        return await begin(*arguments)

    monkeypatch.setattr(station.uploads, "begin", slowly)
    asking = asyncio.create_task(both.one.call("POST", "/uploads", content=UPLOAD[2]))
    await within.wait()
    deleting = asyncio.create_task(both.operator.status("DELETE", "/deployments/one?force=true"))
    if ends:

        async def goes() -> bool:
            return station.access.deployments.get("one").going

        await until(goes)
        go_on.set()
    assert await deleting == 204
    go_on.set()
    assert (await asking).status_code == (201 if ends else 401)
    assert list((station.settings.home / "uploads").glob("upl_*.json")) == []


@pytest.mark.parametrize("named", [{}, {"id": "prc_1"}])
async def test_runs_end_with_their_deployment(both: Tenants, named: dict[str, Any]) -> None:
    run = {"code": "sleep 600", "runtime": "bash", **named}
    going = asyncio.create_task(both.one.call("POST", "/runs", run))
    control = asyncio.create_task(both.two.call("POST", "/runs", run))

    async def run_both() -> bool:
        return sum(one.process is not None for one in both.station.runs.running()) == 2

    await until(run_both)
    assert await both.operator.status("DELETE", "/deployments/one?force=true") == 204
    async with asyncio.timeout(30):
        ended = await going
    assert ended.status_code == 200
    assert ended.json()["ending"]["kind"] == "cancelled"
    (left,) = both.station.runs.running()
    assert left.key[0] == both.two.id
    both.station.runs.cancel_all(both.two.id)
    await control


async def test_what_does_not_end_is_cut_off_and_what_ends_not_even_so_is_told() -> None:
    visits = Visits(leave_seconds=0.05)
    await visits.end("dep")

    let_go = asyncio.Event()

    async def asks(*, deaf: bool) -> str:
        bound = asyncio.timeout(None)
        try:
            async with bound:
                with visits.one("dep", bound, over_tcp=True):
                    try:
                        await asyncio.Event().wait()
                    except asyncio.CancelledError:
                        if not deaf:
                            raise
                        await let_go.wait()
                    return "ended"
        except TimeoutError:
            return "cut off"

    asking = asyncio.create_task(asks(deaf=False))
    await asyncio.sleep(0)
    await visits.end("dep")
    assert await asking == "cut off"
    asking = asyncio.create_task(asks(deaf=True))
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await visits.end("dep")
    let_go.set()
    assert await asking == "ended"
    await visits.end("dep")


async def test_requests_of_one_deployment_are_bounded_and_of_nobody_else(both: Tenants) -> None:
    both.station.access.visits.most = 2
    held = [await HalfSent(both.one, *FILE).begun() for _ in range(2)]
    told = await both.one.call("GET", "/sandboxes")
    assert told.status_code == 429
    assert (told.json()["code"], told.headers["connection"]) == ("limit_reached", "close")
    assert told.json()["detail"] == {"limit": 2, "current": 2}
    for who in (both.two, both.operator, both.socket):
        held += [await HalfSent(who, *FILE).begun() for _ in range(2)]
        assert await who.status("GET", "/sandboxes") == (429 if who is both.two else 200)
    assert [(await half.rest()).status_code for half in held] == [201] * 8
    assert await both.one.status("GET", "/sandboxes") == 200


async def test_a_body_that_stands_still_has_an_end_and_what_works_has_none(both: Tenants) -> None:
    both.station.access.visits.piece_seconds = 0.1
    half = await HalfSent(both.one, *FILE).begun()
    done, _ = await asyncio.wait([half.asked], timeout=30)
    assert done, "it was ended"
    answer = half.asked.result()
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")
    assert "no more of the body came" in answer.json()["message"]
    assert (await both.station.store.room()).files == 0
    answer = await both.one.call("POST", "/runs", {"code": "sleep 0.4", "runtime": "bash"})
    assert (answer.status_code, answer.json()["ok"]) == (200, True)
