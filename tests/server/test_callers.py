"""A cancellation that overtakes its request, and callers who leave, at the HTTP API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from station.core.principals import Principal
from station.worker import callers
from station.worker.callers import LEFT_SECONDS

from .conftest import Api, Machine, until
from .served import Served

CANCEL = {"cancel": True}
SLEEP = {"argv": ["sleep", "1000"], "id": "prc_1"}


async def begun(api: Api, uid: str) -> None:
    async def runs() -> bool:
        return bool(api.station.processes.running(uid))

    await until(runs)


async def over(api: Api, uid: str) -> None:
    async def ended() -> bool:
        return not api.station.processes.running(uid)

    await until(ended)


async def left(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_a_cancel_overtakes_an_exec_that_waits_for_its_box(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = await api.open()
    held, go, live = asyncio.Event(), asyncio.Event(), api.station.live

    async def slowly(sid: str, principal: Principal) -> Any:
        held.set()
        await go.wait()
        return await live(sid, principal)

    monkeypatch.setattr(api.station, "live", slowly)
    executing = asyncio.create_task(api.call("POST", f"/sandboxes/{uid}/exec", SLEEP))
    await held.wait()
    assert (await api.call("POST", f"/sandboxes/{uid}/processes/prc_1/signal", CANCEL)).status_code == 204
    go.set()
    answer = await executing
    ending = {"kind": "cancelled", "code": None, "signal": None, "reason": "it was cancelled before it began"}
    assert (answer.status_code, answer.json()["ending"], answer.json()["exit_code"]) == (200, ending, 130)
    assert api.station.processes.running(uid) == []
    listed = (await api.call("GET", f"/sandboxes/{uid}/processes")).json()["processes"]
    assert [(each["id"], each["state"], each["status"]) for each in listed] == [("prc_1", "ended", "cancelled")]
    other = await api.call("POST", f"/sandboxes/{uid}/processes/prc_2/signal", {"signal": "KILL"})
    assert (other.status_code, other.json()["code"]) == (404, "process_not_found")


async def test_a_cancel_overtakes_a_run(api: Api, machine: Machine) -> None:
    for _ in range(2):
        assert (await api.call("DELETE", "/runs/prc_1")).status_code == 204
    answer = await api.call("POST", "/runs", {"code": "sleep 1000", "runtime": "bash", "id": "prc_1"})
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (409, "conflict", False)
    assert "cancelled before it began" in answer.json()["message"]
    assert machine.store.live == {}


async def test_what_ends_with_its_callers_has_ten_seconds_also_after_a_restart(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "_LOOK_SECONDS", 0.001)
    body = {**SLEEP, "end_when_left": True}
    async with machine.api() as api:
        uid = await api.open()
        path = f"/sandboxes/{uid}/exec"
        waiting = asyncio.create_task(api.call("POST", path, body))
        await begun(api, uid)
        await left(waiting)
        machine.later += LEFT_SECONDS - 1
        waiting = asyncio.create_task(api.call("POST", path, body))  # in time
        await asyncio.sleep(0.02)
        machine.later += 100
        await asyncio.sleep(0.02)
        assert api.station.processes.running(uid)
        await left(waiting)
        machine.later += LEFT_SECONDS - 1
        await asyncio.sleep(0.02)
    async with machine.api() as api:
        machine.later += LEFT_SECONDS - 1
        await asyncio.sleep(0.02)
        assert api.station.processes.running(uid)
        machine.later += 1
        await over(api, uid)
        ended = (await api.call("GET", f"/sandboxes/{uid}/processes/prc_1")).json()
        assert ended["ending"]["kind"] == "cancelled"
        assert "nobody had waited" in ended["ending"]["reason"]


async def test_a_run_ends_with_its_callers(api: Api, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "_LOOK_SECONDS", 0.001)
    body = {"code": "sleep 1000", "runtime": "bash", "id": "prc_1", "end_when_left": True}
    waiting = asyncio.create_task(api.call("POST", "/runs", body))

    async def runs() -> bool:
        return any(one.process is not None for one in api.station.runs.running())

    await until(runs)
    await left(waiting)
    machine.later += LEFT_SECONDS

    async def none_runs() -> bool:
        return not api.station.runs.running()

    await until(none_runs)
    ended = (await api.call("POST", "/runs", body)).json()
    assert (ended["ending"]["kind"], "nobody had waited" in ended["ending"]["reason"]) == ("cancelled", True)


@pytest.mark.full
async def test_a_connection_that_is_gone_is_a_caller_less(serve: Callable[..., Served]) -> None:
    served = serve()
    loop = asyncio.get_running_loop()
    async with served.client() as client:
        uid = (await client.post("/api/v1/sandboxes", json={"name": "a"})).json()["id"]
        path = f"/api/v1/sandboxes/{uid}"
        calls = {
            "prc_exec": client.post(f"{path}/exec", json={**SLEEP, "id": "prc_exec", "end_when_left": True}),
            "prc_free": client.post(f"{path}/exec", json={**SLEEP, "id": "prc_free"}),
        }
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(call) for call in calls.values()]
        await client.post(f"{path}/processes", json={**SLEEP, "id": "prc_followed", "end_when_left": True})

        async def follow() -> None:
            url = f"{path}/processes/prc_followed/output?follow=true"
            async with client.stream("GET", url, timeout=30) as response:
                async for _ in response.aiter_bytes():
                    pass

        tasks.append(asyncio.ensure_future(follow()))
        await asyncio.sleep(1)
        begin = loop.time()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for name in ("prc_exec", "prc_followed"):
            ended = (await client.get(f"{path}/processes/{name}?wait=0")).json()
            while ended["state"] != "ended":
                await asyncio.sleep(0.2)
                assert loop.time() - begin < LEFT_SECONDS + 5
                ended = (await client.get(f"{path}/processes/{name}")).json()
            assert ended["ending"]["kind"] == "cancelled"
            assert loop.time() - begin > LEFT_SECONDS - 1
        assert (await client.get(f"{path}/processes/prc_free")).json()["state"] == "running"
        await client.delete(path)
    assert served.end()[0] == 0
