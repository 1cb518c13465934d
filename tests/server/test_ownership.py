"""Two deployments and an operator on one station, each through the guard with a token. What one must not reach is
reached by its owner beside it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from station.core.access import ACTS_FOR, KeyRequest
from station.core.ids import new_id, uid_of
from station.core.principals import Action
from station.server.access.guard import Guard, action_at, local
from station.server.api.app import build_app
from station.server.api.operations import OPERATIONS
from station.server.settings import AccessSettings
from station.server.station import Station
from station.store import uploads

from .test_serving_others import Bed

URL, OPERATORS = "http://127.0.0.1", "stn_op_0123456789abcdef"
OPERATE = {
    "stop_station", "get_diagnosis", "create_key", "list_keys", "revoke_key", "create_deployment", "list_deployments",
    "mint_token", "rotate_tokens", "delete_deployment",
}  # fmt: skip


@dataclass
class Caller:
    client: httpx2.AsyncClient
    id: str = "local"

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> httpx2.Response:
        if body is not None:
            more["json"] = body
        return await self.client.request(method, "/api/v1" + path, **more)

    async def status(self, method: str, path: str, body: Any = None, **more: Any) -> int:
        return (await self.call(method, path, body, **more)).status_code

    async def open(self, name: str = "a", **fields: Any) -> dict[str, Any]:
        answer = await self.call("POST", "/sandboxes", {"name": name, **fields})
        assert answer.is_success, answer.text
        view: dict[str, Any] = answer.json()
        return view

    async def names(self, **query: str) -> list[str]:
        views = (await self.call("GET", "/sandboxes", params=query)).json()["sandboxes"]
        return [view["name"] for view in views]

    async def output(self, uid: str, *argv: str) -> str:
        answer = await self.call("POST", f"/sandboxes/{uid}/exec", {"argv": list(argv)})
        assert answer.is_success, answer.text
        return str(answer.json()["stdout"]["head"]["data"])


@dataclass
class Tenants:
    station: Station
    one: Caller
    two: Caller
    operator: Caller
    socket: Caller


@asynccontextmanager
async def tenants(bed: Bed) -> AsyncIterator[Tenants]:
    async with bed.station() as station, AsyncExitStack() as clients:
        access = station.access
        access.open_tcp(URL, OPERATORS.encode())
        guard = Guard(build_app(station), hosts=(), access=access)

        async def caller(token: str, deployment: str = "local", app: Any = guard) -> Caller:
            transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
            headers = {"authorization": f"Bearer {token}"}
            client = httpx2.AsyncClient(transport=transport, base_url=URL, headers=headers)
            return Caller(await clients.enter_async_context(client), deployment)

        async def deployment(name: str) -> Caller:
            made = await access.deployments.create(name)
            return await caller((await access.deployments.token(name, None)).token, made.id)

        yield Tenants(
            station,
            await deployment("one"),
            await deployment("two"),
            await caller(OPERATORS),
            await caller("none", app=local(build_app(station), access)),
        )


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    made = Bed(tmp_path)
    made.set(serves_others=True)
    yield made
    await made.store.aclose()


@pytest.fixture
async def both(bed: Bed) -> AsyncIterator[Tenants]:
    async with tenants(bed) as made:
        yield made


# ── sandboxes ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_hd_a07_one_name_of_two_deployments_is_two_sandboxes(both: Tenants) -> None:
    views = [await who.open("same") for who in (both.one, both.two, both.operator)]
    assert [view["created"] for view in views] == [True] * 3
    assert [view["id"] for view in views] == [uid_of(who.id, "same") for who in (both.one, both.two, both.operator)]
    await both.one.output(views[0]["id"], "sh", "-c", "echo of one > f")
    assert await both.one.output(views[0]["id"], "cat", "f") == "of one\n"
    assert "No such file" not in await both.two.output(views[1]["id"], "ls")
    assert await both.two.output(views[1]["id"], "ls") == ""
    assert (await both.one.open("same"))["created"] is False


async def test_hd_a07_names_are_kept_as_they_are_given(both: Tenants) -> None:
    for name in ("a.b", "A", "a", "ä", "a b", "..", "a/b"):
        view = await both.one.open(name)
        assert (view["name"], view["created"]) == (name, True)
    assert len(await both.one.names()) == 7
    for name in ("a ", " a", "a\t", "", "a\n"):
        assert await both.one.status("POST", "/sandboxes", {"name": name}) == 400


async def test_hd_a10_a_deployment_lists_its_own_and_only_the_operator_all(both: Tenants) -> None:
    for who, name in ((both.one, "x"), (both.two, "y"), (both.operator, "z")):
        await who.open(name)
    assert [await who.names() for who in (both.one, both.two, both.operator, both.socket)] == [
        ["x"],
        ["y"],
        ["z"],
        ["z"],
    ]
    assert sorted(await both.operator.names(all="true")) == ["x", "y", "z"]
    views = (await both.socket.call("GET", "/sandboxes?all=true")).json()["sandboxes"]
    assert {view["name"]: view["deployment"] for view in views} == {"x": "one", "y": "two", "z": None}
    refused = await both.one.call("GET", "/sandboxes?all=true")
    assert (refused.status_code, refused.json()["code"]) == (403, "refused")


EVERY = [
    ("GET", "", None), ("POST", "/exec", {"argv": ["true"]}), ("POST", "/processes", {"argv": ["true"]}),
    ("GET", "/processes", None), ("GET", "/processes/{pid}", None), ("GET", "/processes/{pid}/output", None),
    ("POST", "/processes/{pid}/signal", {"signal": "KILL"}), ("POST", "/processes/{pid}/stdin", None),
    ("GET", "/files?path=f", None), ("PUT", "/files?path=f", None), ("DELETE", "/files?path=f", None),
    ("GET", "/files/stat?path=f", None), ("GET", "/files/list", None), ("POST", "/files/mkdir?path=d", None),
    ("POST", "/files/rename?path=f&to=g", None), ("POST", "/files/copy?path=f&to=g", None),
    ("GET", "/files/archive", None), ("PUT", "/files/archive", None),
    ("POST", "/stage", {"key": "k", "destination": "f"}), ("POST", "/publish", {"source": "f"}),
]  # fmt: skip


async def test_hd_a10_anothers_sandbox_is_as_one_that_never_was_on_every_path(both: Tenants) -> None:
    view = await both.one.open("x")
    argv = {"argv": ["sleep", "60"], "stdin_open": True}
    process = (await both.one.call("POST", f"/sandboxes/{view['id']}/processes", argv)).json()["id"]
    known = {each.path.partition("{sid}")[2] for each in OPERATIONS if "{sid}" in each.path}
    assert known == {path.partition("?")[0] for _, path, _ in EVERY}, "every path of a sandbox is tried"
    for method, path, body in EVERY:
        answers = []
        never_was = {view["id"]: uid_of("dep", "never"), view["tool_id"]: new_id("ses", 1.0)}
        for sid, other in never_was.items():
            for named in (sid, other):
                at = f"/sandboxes/{named}" + path.replace("{pid}", process)
                answer = await both.two.call(method, at, body)
                told = answer.text.replace(named, "ID")
                answers.append((answer.status_code, json.loads(told)))
            assert answers[-1] == answers[-2], (method, path)
            assert answers[-1][0] == 404, (method, path)
    for sid in (view["id"], view["tool_id"]):
        assert await both.two.status("DELETE", f"/sandboxes/{sid}") == 204
        assert await both.two.status("DELETE", f"/sandboxes/{sid}?keep_files=true") == 204
    still = await both.one.call("GET", f"/sandboxes/{view['id']}/processes/{process}")
    assert (await both.one.call("GET", f"/sandboxes/{view['id']}")).json()["state"] == "running"
    assert still.json()["state"] == "running"
    for sid in (view["id"], view["tool_id"]):
        assert await both.one.status("GET", f"/sandboxes/{sid}") == 200, "the control"


async def test_hd_a06_a_guessed_id_finds_nothing(both: Tenants) -> None:
    mine, theirs = await both.two.open("mine"), await both.one.open("x")
    uid, tool_id = theirs["id"], theirs["tool_id"]
    bumped = tool_id[:-1] + ("0" if tool_id[-1] != "0" else "1")
    guesses = [
        uid, uid[:-1], uid[:26], uid + "a", uid.upper(), uid.replace("a", "а"), tool_id, bumped, tool_id.lower(),
        tool_id[:-1], tool_id + "0", "*", ">", "%2e%2e", "%2e%2e%2f" + mine["id"], mine["id"] + "%2f..%2f" + uid,
        mine["id"] + "%00", "%00", "local", both.one.id, "%ff%fe", "x", mine["id"].upper(),
    ]  # fmt: skip
    for guess in guesses:
        for method, path in (("GET", ""), ("GET", "/files/list"), ("POST", "/exec")):
            answer = await both.two.call(
                method, f"/sandboxes/{guess}{path}", {"argv": ["true"]} if path == "/exec" else None
            )
            assert answer.status_code == 404, (guess, path, answer.text)
    assert await both.two.status("GET", f"/sandboxes/{mine['id']}") == 200
    assert await both.one.status("GET", f"/sandboxes/{uid}") == 200


async def test_a_deployments_own_sandbox_that_was_deleted_is_told_as_that(both: Tenants) -> None:
    view = await both.one.open("x")
    assert await both.one.status("DELETE", f"/sandboxes/{view['id']}") == 204
    assert "any more" in (await both.one.call("GET", f"/sandboxes/{view['id']}")).json()["message"]
    told = (await both.two.call("GET", f"/sandboxes/{view['id']}")).json()
    assert "any more" not in told["message"]
    again = await both.one.open("x")
    assert (again["generation"], again["created"]) == (view["generation"] + 1, True)


async def test_the_operator_reaches_any_sandbox_by_its_uid_and_none_of_others_by_a_tool_id(both: Tenants) -> None:
    view = await both.one.open("x")
    for who in (both.operator, both.socket):
        assert (await who.call("GET", f"/sandboxes/{view['id']}")).json()["deployment"] == "one"
        assert await who.output(view["id"], "echo", "mine") == "mine\n"
        assert await who.status("GET", f"/sandboxes/{view['tool_id']}") == 404
    assert await both.operator.status("DELETE", f"/sandboxes/{view['id']}") == 204
    assert await both.one.names() == []


async def test_hd_a08_of_50_racing_opens_of_a_new_name_one_makes_a_box(bed: Bed, both: Tenants) -> None:
    views = await asyncio.gather(*(both.one.open("new") for _ in range(50)))
    assert sum(view["created"] for view in views) == 1
    assert len({(view["id"], view["tool_id"], view["generation"]) for view in views}) == 1
    assert len(bed.store.live) == 1


OPENING: list[dict[str, Any]] = [
    {"labels": {"station.id": "x"}}, {"label": "x"}, {"binds": ["/:/host"]}, {"volumes": ["/:/host"]},
    {"privileged": True}, {"cap_add": ["ALL"]}, {"network_mode": "host"}, {"network": "host"}, {"pid": "host"},
    {"security_opt": ["seccomp=unconfined"]}, {"devices": ["/dev/kvm"]}, {"host_config": {"Privileged": True}},
    {"owner": {"deployment": "local"}}, {"deployment": "local"}, {"uid": "x"}, {"id": "x"}, {"mount": {"source": "/"}},
    {"mount": {"source": "/etc", "read_only": True}},
]  # fmt: skip


async def test_hd_a12_options_that_would_open_the_machine_are_refused(both: Tenants) -> None:
    run, run_alone = {"code": "echo ran", "runtime": "bash"}, {"id": "x"}
    for options in OPENING:
        for path in ("/sandboxes", "/sandboxes/check"):
            assert await both.one.status("POST", path, {"name": "a"} | options) == 400, options
        if options != run_alone:  # a run has an id of its caller's choice
            assert await both.one.status("POST", "/runs", run | options) == 400, options
    # Not because of what this backend happens to lack: before it is asked.
    told = (await both.one.call("POST", "/sandboxes", {"name": "a", "mount": {"source": "/"}})).json()
    assert "a deployment has no folder" in told["message"]
    assert await both.one.names() == []
    assert await both.one.status("POST", "/sandboxes/check", {"name": "a"}) == 200
    assert await both.one.status("POST", "/sandboxes", {"name": "a"}) == 201
    assert await both.one.status("POST", "/runs", run) == 200


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_of_one_id_is_each_deployments_own(both: Tenants) -> None:
    run = {"code": "echo secret of one", "runtime": "bash", "id": "prc_same"}
    assert (await both.one.call("POST", "/runs", run)).json()["stdout"]["head"]["data"] == "secret of one\n"
    joined = (await both.one.call("POST", "/runs", run)).json()
    theirs = (await both.two.call("POST", "/runs", run | {"code": "echo of two"})).json()
    assert theirs["stdout"]["head"]["data"] == "of two\n"
    assert joined["stdout"]["head"]["data"] == "secret of one\n"
    assert await both.two.status("POST", "/runs", run) == 409, "that id has another code there"


async def test_only_its_owner_cancels_a_run(both: Tenants) -> None:
    run = {"code": "sleep 60", "runtime": "bash", "id": "prc_long"}
    going = asyncio.create_task(both.one.call("POST", "/runs", run))
    async with asyncio.timeout(30):
        while not both.station.runs.running():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    for who in (both.two, both.operator):
        assert await who.status("DELETE", "/runs/prc_long") == 204
    assert len(both.station.runs.running()) == 1
    assert await both.one.status("DELETE", "/runs/prc_long") == 204
    assert (await going).json()["ending"]["kind"] == "cancelled"
    short = {"code": "echo up", "runtime": "bash", "id": "prc_long"}
    assert await both.two.status("POST", "/runs", short) == 409, "what it cancelled ahead was its own"


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_hd_a11_a_key_of_another_is_as_one_that_never_was(both: Tenants) -> None:
    assert await both.one.status("PUT", "/files/files/k", content=b"secret of one") == 201
    theirs, mine = await both.one.open("x"), await both.two.open("x")
    staging = {"key": "files/k", "destination": "f"}
    for key in ("files/k", "k", "/files/k", "files/k/../k", "files/../files/k", "files/./k"):
        assert await both.two.status("GET", f"/files/{key}") in (400, 404), key
        assert await both.two.status("DELETE", f"/files/{key}") in (400, 404), key
        assert await both.two.status("POST", f"/sandboxes/{mine['id']}/stage", staging | {"key": key}) in (400, 404)
    for call in (("GET", "/files/files/k"), ("DELETE", "/files/files/k"), ("HEAD", "/files/files/k")):
        assert await both.two.status(*call) == 404
    assert (await both.two.call("GET", "/files")).json()["files"] == []
    assert await both.two.status("POST", f"/sandboxes/{mine['id']}/stage", staging) == 404
    await both.two.output(mine["id"], "sh", "-c", "echo of two > f")
    published = await both.two.call("POST", f"/sandboxes/{mine['id']}/publish", {"source": "f", "key": "files/k"})
    assert published.status_code == 201, "another's key is a free key"
    assert (await both.one.call("GET", "/files/files/k")).content == b"secret of one"
    assert (await both.two.call("GET", "/files/files/k")).content == b"of two\n"
    assert await both.one.status("POST", f"/sandboxes/{theirs['id']}/stage", staging) == 201
    assert await both.one.output(theirs["id"], "cat", "f") == "secret of one"
    assert await both.two.status("DELETE", "/files/files/k") == 200
    assert await both.one.status("GET", "/files/files/k") == 200


async def test_hd_a11_nothing_is_stored_with_anothers_sandbox(both: Tenants) -> None:
    view = await both.one.open("x")
    for who in (both.two, both.operator):
        for name in (view["id"], view["tool_id"]):
            assert await who.status("PUT", f"/files/sessions/{name}/f", content=b"x") == 404
    assert await both.one.status("PUT", f"/files/sessions/{view['id']}/f", content=b"x") == 201
    assert await both.one.status("DELETE", f"/sandboxes/{view['id']}") == 204
    assert await both.one.status("GET", f"/files/sessions/{view['id']}/f") == 404


async def test_hd_a11_an_upload_of_another_is_as_one_that_never_was(both: Tenants) -> None:
    data = b"x" * 100
    wanted = {"size": len(data), "checksum": hashlib.sha256(data).hexdigest(), "key": "files/up"}
    upload = (await both.one.call("POST", "/uploads", wanted)).json()["id"]
    piece = data + hashlib.sha256(data).digest()
    for method, path, content in (
        ("GET", "", None), ("PUT", "", piece), ("POST", "/finish", b""), ("DELETE", "", None)
    ):  # fmt: skip
        assert await both.two.status(method, f"/uploads/{upload}{path}", content=content) == 404
    assert await both.one.status("PUT", f"/uploads/{upload}", content=piece) == 200
    assert await both.one.status("POST", f"/uploads/{upload}/finish", content=b"") == 201


async def test_unfinished_uploads_of_one_deployment_take_nobody_elses_place(
    both: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_UPLOADS_EACH", 2)
    wanted = {"size": 9, "checksum": "0" * 64}
    assert [await both.one.status("POST", "/uploads", wanted) for _ in range(3)] == [201, 201, 429]
    assert await both.two.status("POST", "/uploads", wanted) == 201
    assert [await both.operator.status("POST", "/uploads", wanted) for _ in range(3)] == [201] * 3


# ── what is the operator's ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_deployment_reaches_its_own_things_and_nothing_of_the_operator(both: Tenants) -> None:
    for each in OPERATIONS:
        path = each.path.replace("{sid}", uid_of("dep", "never")).replace("{key:path}", "k")
        path = path.replace("{pid}", "prc_x").replace("{rid}", "prc_x").replace("{upload}", "upl_x")
        path = path.replace("{key}", "key_x").replace("{name}", "one")
        answer = await both.one.client.request(each.method, path)
        is_operators = action_at(path) is Action.OPERATE
        assert (answer.status_code == 403) == is_operators, (each.id, answer.text)
        assert not (is_operators and answer.json()["code"] != "refused")
    assert {each.id for each in OPERATIONS if action_at(each.path) is Action.OPERATE} >= OPERATE
    assert both.station.access.deployments.get("one").generation == 1


@pytest.mark.parametrize(
    ("path", "action"),
    [
        ("/api/v1/sandboxes", Action.USE), ("/api/v1/sandboxes/x/exec", Action.USE), ("/api/v1/files", Action.USE),
        ("/api/v1/station", Action.LOOK), ("/api/v1/openapi.json", Action.LOOK), ("/mcp", Action.TOOLS),
        ("/healthz", Action.ASK), ("/readyz", Action.ASK),
        ("/api/v1/station/", Action.OPERATE), ("/api/v1/station/stop", Action.OPERATE), ("/metrics", Action.OPERATE),
        ("/api/v1/sandboxesx", Action.OPERATE), ("/api/v1//sandboxes", Action.OPERATE), ("/api/v1/", Action.OPERATE),
        ("/API/V1/sandboxes", Action.OPERATE), ("sandboxes", Action.OPERATE), ("/sandboxes", Action.OPERATE),
        ("/mcp/x", Action.OPERATE), ("/", Action.OPERATE), ("", Action.OPERATE), ("/api/v1/new", Action.OPERATE),
    ],
)  # fmt: skip
def test_what_no_table_names_is_the_operators(path: str, action: Action) -> None:
    assert action_at(path) is action


async def test_the_station_tells_a_deployment_what_concerns_it_alone(both: Tenants) -> None:
    for who, names in ((both.one, "x"), (both.two, "yz")):
        for name in names:
            await who.open(name)
    told = (await both.one.call("GET", "/station")).json()
    assert (told["sandboxes"], told["live_boxes"], told["deployment"]) == (1, 1, "one")
    assert str(both.station.settings.home) not in json.dumps(told)
    assert (told["home"], told["settings_sha256"], told["pulls"], told["pid"]) == ("", "", [], 0)
    whole = (await both.operator.call("GET", "/station")).json()
    assert (whole["sandboxes"], whole["deployment"]) == (3, None)
    assert whole["home"] == str(both.station.settings.home)


# ── the socket ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_who_is_on_the_socket_may_act_for_a_deployment_and_nobody_on_tcp(both: Tenants) -> None:
    await both.one.open("x")
    acting = {ACTS_FOR: both.one.id}
    answer = await both.socket.call("GET", "/sandboxes", headers=acting)
    assert [view["name"] for view in answer.json()["sandboxes"]] == ["x"]
    assert (await both.socket.call("GET", "/sandboxes")).json()["sandboxes"] == [], "the control"
    assert await both.socket.status("POST", "/station/stop", headers=acting) == 403
    for who in (both.one, both.two, both.operator):
        assert await who.status("GET", "/sandboxes", headers=acting) == 403
    for wrong in ("local", "", "dep_none", both.one.id.lower(), "one", f"{both.one.id},{both.two.id}"):
        assert await both.socket.status("GET", "/sandboxes", headers={ACTS_FOR: wrong}) == 404, wrong
    twice = [(ACTS_FOR, both.one.id), (ACTS_FOR, both.two.id)]
    assert (await both.socket.client.get("/api/v1/sandboxes", headers=twice)).status_code == 404


# ── the end of a deployment ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_deployment_with_sandboxes_or_files_is_deleted_by_force_alone(bed: Bed, both: Tenants) -> None:
    await both.one.open("x")
    await both.two.open("x")
    await both.one.call("PUT", "/files/files/k", content=b"x")
    wanted = {"size": 9, "checksum": "0" * 64}
    upload = (await both.one.call("POST", "/uploads", wanted)).json()["id"]
    refused = await both.operator.call("DELETE", "/deployments/one")
    assert (refused.status_code, refused.json()["detail"]["sandboxes"]) == (409, 1)
    assert await both.one.names() == ["x"]
    assert await both.operator.status("DELETE", "/deployments/one?force=true") == 204
    assert await both.one.status("GET", "/sandboxes") == 401
    assert len(bed.store.live) == 1, "that of the other deployment"
    assert (await both.station.store.room()).files == 0
    assert not (bed.home / "uploads" / f"{upload}.json").exists()
    assert await both.two.names() == ["x"]
    assert [one["name"] for one in (await both.operator.call("GET", "/deployments")).json()["deployments"]] == ["two"]
    assert await both.operator.status("DELETE", "/deployments/one?force=true") == 404


async def test_an_empty_deployment_needs_no_force_and_files_alone_do(both: Tenants) -> None:
    await both.one.call("PUT", "/files/files/k", content=b"x")
    assert await both.operator.status("DELETE", "/deployments/one") == 409
    assert await both.operator.status("DELETE", "/deployments/two") == 204


async def test_what_is_claimed_while_a_deployment_goes_does_not_outlive_it(bed: Bed, both: Tenants) -> None:
    opens = [asyncio.create_task(both.one.call("POST", "/sandboxes", {"name": f"n{n}"})) for n in range(20)]
    await asyncio.sleep(0)
    assert await both.operator.status("DELETE", "/deployments/one?force=true") == 204
    await asyncio.gather(*opens)
    assert await both.operator.names(all="true") == []
    assert bed.store.live == {}


async def test_a_deletion_that_stopped_half_way_goes_on_after_a_restart(bed: Bed) -> None:
    async with tenants(bed) as both:
        await both.one.open("x")
        bed.faults.destroy_failures = 1
        assert await both.operator.status("DELETE", "/deployments/one?force=true") == 503
        assert await both.one.status("GET", "/sandboxes") == 401, "it is going, and nobody's any more"
        (told,) = [it for it in (await both.operator.call("GET", "/deployments")).json()["deployments"] if it["going"]]
        assert (told["name"], told["sandboxes"]) == ("one", 1)
        assert await both.operator.status("POST", "/deployments", {"name": "one"}) == 409
    async with bed.station() as station:
        deployment = station.access.deployments.get("one")
        assert (deployment.going, station.sandboxes.ids.taken(deployment.owner)) == (True, 0), (
            "what was half deleted is"
        )
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=local(build_app(station), station.access)), base_url=URL
        ) as client:
            assert (await client.delete("/api/v1/deployments/one?force=true")).status_code == 204
        assert bed.store.live == {}


async def test_a_damaged_record_keeps_its_owner(bed: Bed) -> None:
    async with tenants(bed) as both:
        view, free = await both.one.open("x"), await both.two.open("x")
        assert free["id"] != view["id"]
    import sqlite3

    with sqlite3.connect(bed.home / "registry.db") as db:
        db.execute("UPDATE sandboxes SET document = replace(document, '\"generation\"', '\"generatio\"') WHERE uid = ?",
                   (view["id"],))  # fmt: skip
    db.close()
    async with bed.station() as station:
        deployment = station.access.deployments.get("one")
        records, damaged = await station.records(deployment.owner)
        assert ([*records], [item.uid for item in damaged]) == ([], [view["id"]])
        assert list(await station.sandboxes.of(deployment.owner)) == [view["id"]]
        assert station.sandboxes.ids.uid_of(view["id"], deployment.owner) == view["id"]
        await station.sandboxes.delete(view["id"])
        assert len(bed.store.live) == 1


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def limited(bed: Bed, **access: Any) -> None:
    bed.settings = replace(bed.settings, access=AccessSettings(**access))


async def test_sandboxes_of_a_deployment_are_bounded_and_of_nobody_else(bed: Bed) -> None:
    limited(bed, max_sandboxes=2)
    async with tenants(bed) as both:
        answers = await asyncio.gather(*(both.one.call("POST", "/sandboxes", {"name": str(n)}) for n in range(10)))
        assert sorted(answer.status_code for answer in answers) == [201, 201] + [429] * 8
        told = next(answer for answer in answers if answer.status_code == 429)
        assert (told.json()["code"], told.headers["retry-after"]) == ("limit_reached", "1")
        assert told.json()["detail"] == {"setting": "access.max_sandboxes", "limit": 2, "current": 2}
        for who in (both.two, both.operator):
            for name in "ab":
                await who.open(name)
        await both.operator.open("c")
        there = (await both.one.names())[0]
        assert (await both.one.open(there))["created"] is False, "what is there is opened all the same"
        assert await both.one.status("DELETE", f"/sandboxes/{uid_of(both.one.id, there)}") == 204
        await both.one.open("another")


async def test_opens_are_bounded_in_time_for_each_token_and_free_on_the_socket(bed: Bed) -> None:
    limited(bed, opens_per_second=0.25, opens_burst=2)
    async with tenants(bed) as both:

        async def opens(who: Caller, count: int) -> list[int]:
            return [await who.status("POST", "/sandboxes", {"name": "x"}) for _ in range(count)]

        assert await opens(both.one, 3) == [201, 200, 429]
        told = await both.one.call("POST", "/sandboxes", {"name": "x"})
        assert told.headers["retry-after"] == "4"
        assert told.json()["detail"]["setting"] == "access.opens_per_second"
        assert await opens(both.two, 2) == [201, 200], "each has a bucket of its own"
        assert await opens(both.operator, 3) == [201, 200, 429]
        assert await opens(both.socket, 4) == [200] * 4
        acting = {ACTS_FOR: both.one.id}
        assert await both.socket.status("POST", "/sandboxes", {"name": "x"}, headers=acting) == 429
        assert await both.one.status("GET", f"/sandboxes/{uid_of(both.one.id, 'x')}") == 200, "only opens are counted"
        run = {"code": "echo ran", "runtime": "bash"}
        for who, status in ((both.one, 429), (both.socket, 200)):
            assert await who.status("POST", "/runs", run) == status, "a run makes a box too"
            assert await who.status("POST", "/sandboxes/check", {"name": "x"}) == status, "and this may fetch an image"
        bed.later += 3.9
        assert await opens(both.one, 1) == [429]
        bed.later += 0.1
        assert await opens(both.one, 2) == [200, 429]


async def test_requests_are_bounded_where_the_operator_says_so(bed: Bed) -> None:
    limited(bed, requests_per_second=2)
    async with tenants(bed) as both:
        statuses = [await both.one.status("GET", "/sandboxes") for _ in range(5)]
        assert statuses == [200] * 4 + [429]
        assert await both.two.status("GET", "/sandboxes") == 200
        assert (await both.one.client.get("/healthz")).status_code == 200
        key = await both.station.access.keys.create(KeyRequest("k"))
        both.operator.client.headers["authorization"] = f"Bearer {key.key}"
        assert [await both.operator.status("GET", "/sandboxes") for _ in range(5)] == [200] * 4 + [429]
        assert [await both.socket.status("GET", "/sandboxes") for _ in range(9)] == [200] * 9
        bed.later += 0.5
        assert [await both.one.status("GET", "/sandboxes") for _ in range(2)] == [200, 429]
