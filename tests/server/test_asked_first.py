"""What is asked before something is done: how a sandbox would be isolated, whether one is used, which settings hold."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from station.core.ids import uid_of
from station.server.loading import load

from .conftest import Api, Machine, until


async def test_a_check_tells_what_an_open_would_and_makes_nothing(api: Api, machine: Machine):
    told = await api.call("POST", "/sandboxes/check", {"name": "a"})
    assert (told.status_code, told.json()["backend"]) == (200, "fake")
    assert (await api.call("GET", "/sandboxes")).json()["sandboxes"] == []
    assert len(machine.store.live) == 0
    await api.open("a")
    has = (await api.call("GET", f"/sandboxes/{uid_of('local', 'a')}")).json()["isolation"]
    assert {**told.json(), "limits": {}} == {**has, "limits": {}}


async def test_a_check_refuses_as_an_open_would(api: Api):
    for body in ({"backend": "none"}, {"limits": {"memory_mb": 0}}, {"nmae": "a"}, {"network": "host"}):
        asked = [await api.call("POST", path, body) for path in ("/sandboxes/check", "/sandboxes")]
        assert asked[0].status_code == asked[1].status_code >= 400
        assert asked[0].json() == asked[1].json()


async def test_a_delete_that_minds_commands_is_refused_while_one_runs(api: Api):
    uid = await api.open()
    running = (await api.call("POST", f"/sandboxes/{uid}/processes", {"command": "sleep 1000"})).json()["id"]
    refused = await api.call("DELETE", f"/sandboxes/{uid}?unless_busy=true")
    assert (refused.status_code, refused.json()["code"]) == (409, "busy")
    assert (await api.call("GET", f"/sandboxes/{uid}/processes/{running}")).json()["state"] == "running"
    await api.call("POST", f"/sandboxes/{uid}/processes/{running}/signal", {"cancel": True})

    async def ended() -> bool:
        return bool((await api.call("GET", f"/sandboxes/{uid}/processes/{running}")).json()["state"] == "ended")

    await until(ended)
    assert (await api.call("DELETE", f"/sandboxes/{uid}?unless_busy=true")).status_code == 204
    assert (await api.call("DELETE", f"/sandboxes/{uid}?unless_busy=true")).status_code == 204


async def test_a_command_that_comes_with_such_a_delete_is_run_or_finds_nothing(api: Api):
    for _ in range(20):
        uid = await api.open()
        ran, gone = await asyncio.gather(
            api.call("POST", f"/sandboxes/{uid}/exec", {"argv": ["echo", "hi"]}),
            api.call("DELETE", f"/sandboxes/{uid}?unless_busy=true"),
        )
        assert (gone.status_code, ran.status_code) in {(409, 200), (204, 404), (204, 200)}
        if ran.status_code == 200:
            assert ran.json()["status"] == "completed"


async def test_keep_files_and_unless_busy_are_not_for_each_other(api: Api):
    uid = await api.open()
    answer = await api.call("DELETE", f"/sandboxes/{uid}?unless_busy=true&keep_files=true")
    assert answer.status_code == 400


def test_the_digest_is_that_of_the_file_unless_variables_go_before_it(tmp_path: Path):
    text = b"sandbox: {pool_size: 1}\n"
    assert load(tmp_path, {}).digest == hashlib.sha256(b"").hexdigest()
    (tmp_path / "station.yaml").write_bytes(text)
    plain = hashlib.sha256(text).hexdigest()
    harmless = {"STN_IDLE_MINUTES": "3", "STN_SANDBOX_POOL_SIZE": "", "STN_SANDBOX_REGISTRY_PASSWORD": "secret"}
    for environ in ({}, harmless, {"OTHER": "x"}):
        assert load(tmp_path, environ).digest == plain
    others = [load(tmp_path, {"STN_SANDBOX_POOL_SIZE": size}).digest for size in "123"]
    assert len({plain, *others}) == 4


async def test_a_station_tells_the_digest_of_its_settings(api: Api):
    told = (await api.call("GET", "/station")).json()["settings_sha256"]
    assert told == api.station.settings.digest


async def test_the_workspace_is_named_as_the_caller_names_it(api: Api):
    uid = await api.open()
    await api.call("POST", f"/sandboxes/{uid}/files/mkdir?path=a")
    for cwd in ("/workspace/a", "/home/node/workspace/a"):
        done = await api.call("POST", f"/sandboxes/{uid}/exec", {"command": "pwd", "cwd": cwd})
        assert done.json()["stdout"]["head"]["data"] == f"{cwd}\n"
