"""Sandboxes by tool id, their time limits, and the end of those that nobody uses; over fake boxes."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import httpx2
import pytest

from station.core.ids import is_tool_id, new_id

from .conftest import Api, Machine, until

MINUTES = 60.0


def set_(machine: Machine, **settings: Any) -> None:
    sandbox = dataclasses.replace(machine.settings.sandbox, **settings)
    machine.settings = dataclasses.replace(machine.settings, sandbox=sandbox)


async def view(api: Api, sid: str) -> dict[str, Any]:
    answer = await api.call("GET", f"/sandboxes/{sid}")
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def begun(api: Api, uid: str) -> None:
    async def runs() -> bool:
        return bool(api.station.processes.running(uid))

    await until(runs)


CALLS: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("POST", "/exec", {"argv": ["true"]}),
    ("POST", "/processes", {"argv": ["true"]}),
    ("GET", "/processes", None),
    ("GET", "/processes/prc_x", None),
    ("POST", "/processes/prc_x/signal", {"signal": "TERM"}),
    ("POST", "/processes/prc_x/stdin", None),
    ("GET", "/processes/prc_x/output", None),
    ("PUT", "/files?path=f", None),
    ("GET", "/files?path=f", None),
    ("GET", "/files/stat?path=f", None),
    ("GET", "/files/list", None),
    ("POST", "/files/mkdir?path=d", None),
    ("POST", "/files/copy?path=f&to=g", None),
    ("POST", "/files/rename?path=g&to=h", None),
    ("DELETE", "/files?path=h", None),
    ("GET", "/files/archive?path=d", None),
]


async def test_every_path_takes_a_tool_id_and_none_takes_one_of_an_earlier_life(api: Api) -> None:
    uid = await api.open()
    old = (await view(api, uid))["tool_id"]
    await api.call("DELETE", f"/sandboxes/{old}")
    uid = await api.open()
    new = (await view(api, uid))["tool_id"]
    assert is_tool_id(new)
    for method, path, body in CALLS:
        mine = await api.call(method, f"/sandboxes/{new}{path}", body)
        assert mine.is_success or mine.json()["code"] == "process_not_found", (path, mine.text)
        for stale in (old, new_id("ses", 1.0), new.lower(), "ses_"):
            other = await api.call(method, f"/sandboxes/{stale}{path}", body)
            assert (other.status_code, other.json()["code"]) == (404, "sandbox_not_found"), path
    assert (await api.call("DELETE", f"/sandboxes/{old}")).status_code == 204
    assert (await view(api, uid))["tool_id"] == new
    assert (await api.call("DELETE", f"/sandboxes/{new}")).status_code == 204
    assert (await api.call("GET", f"/sandboxes/{uid}")).status_code == 404


async def test_a_delete_that_keeps_the_files_ends_what_runs_and_the_next_open_finds_them(
    api: Api, machine: Machine
) -> None:
    uid = await api.open()
    tool_id = (await view(api, uid))["tool_id"]
    await api.call("PUT", f"/sandboxes/{uid}/files?path=f", content=b"kept")
    started = (await api.call("POST", f"/sandboxes/{uid}/processes", {"argv": ["cat"], "stdin_open": True})).json()
    for _ in range(2):
        assert (await api.call("DELETE", f"/sandboxes/{tool_id}?keep_files=true")).status_code == 204
        assert (await view(api, uid))["state"] == "suspended"
    assert machine.store.live == {}
    ended = (await api.call("GET", f"/sandboxes/{uid}/processes/{started['id']}")).json()
    assert (ended["state"], ended["ending"]["kind"]) == ("ended", "lost")
    again = (await api.call("POST", "/sandboxes", {"name": "a"})).json()
    assert (again["created"], again["tool_id"], again["generation"]) == (False, tool_id, 2)
    assert (await api.call("GET", f"/sandboxes/{tool_id}/files?path=f")).content == b"kept"
    absent = await api.call("DELETE", f"/sandboxes/{new_id('ses', 1.0)}?keep_files=true")
    assert absent.status_code == 204
    assert (await api.call("DELETE", f"/sandboxes/{uid}?keep_file=true")).status_code == 400


async def test_a_deletion_that_failed_is_shown_with_its_reason(api: Api, machine: Machine) -> None:
    uid = await api.open()
    machine.faults.destroy_failures = 1
    assert (await api.call("DELETE", f"/sandboxes/{uid}")).status_code == 503
    shown = await view(api, uid)
    assert shown["state"] == "failed"
    assert "could not be deleted" in shown["reason"]
    assert (await api.call("DELETE", f"/sandboxes/{uid}")).status_code == 204
    assert (await api.call("GET", f"/sandboxes/{uid}")).status_code == 404


async def test_the_time_limit_is_the_callers_else_the_sandboxs_else_the_stations(machine: Machine) -> None:
    set_(machine, timeout_seconds=1.0, max_stdout_bytes=5)
    async with machine.api() as api:
        facts = (await api.call("GET", "/station")).json()
        assert (facts["timeout_seconds"], facts["max_stdout_bytes"]) == (1.0, 5)
        own, plain = await api.open("own", timeout_seconds=30), await api.open("plain")
        assert ((await view(api, own))["timeout_seconds"], (await view(api, plain))["timeout_seconds"]) == (30.0, 1.0)
        slow = {"argv": ["sleep", "1000"]}
        assert (await api.call("POST", f"/sandboxes/{plain}/exec", slow)).json()["timed_out"]
        assert (await api.call("POST", f"/sandboxes/{own}/exec", {**slow, "timeout_seconds": 1})).json()["timed_out"]
        assert (await api.call("POST", "/runs", {"code": "sleep 1000", "runtime": "bash"})).json()["timed_out"]
        limits = {}
        for path in ("exec", "processes"):
            task = asyncio.create_task(
                api.call("POST", f"/sandboxes/{own}/{path}", {"argv": ["cat"], "stdin_open": True, "id": f"prc_{path}"})
            )
            await begun(api, own)
            limits[path] = {one.record.timeout_seconds for one in api.station.processes.running(own)}
            await api.call("POST", f"/sandboxes/{own}/processes/prc_{path}/signal", {"signal": "KILL"})
            await task
            await api.call("GET", f"/sandboxes/{own}/processes/prc_{path}?wait=5")
        assert limits == {"exec": {30.0}, "processes": {None}}
        clash = await api.call("POST", "/sandboxes", {"name": "own", "timeout_seconds": 31})
        assert (clash.status_code, clash.json()["detail"]["field"]) == (409, "timeout_seconds")
        assert "not 31" in clash.json()["message"]
        bad = await api.call("POST", "/sandboxes", {"name": "x", "timeout_seconds": 0})
        assert (bad.status_code, bad.json()["detail"]["field"]) == (400, "timeout_seconds")


async def test_a_temporary_sandbox_is_removed_after_its_time_unless_it_is_used(machine: Machine) -> None:
    set_(machine, idle_timeout_minutes=10.0, cleanup_interval_minutes=1.0)
    async with machine.api() as api:
        kept = await api.open("kept")
        uid = await api.open("gone", temporary=True)
        shown = await view(api, uid)
        assert shown["remove_at"] == pytest.approx(shown["last_active_at"] + 10 * MINUTES)
        assert (await view(api, kept))["remove_at"] is None
        machine.later += 9 * MINUTES
        await api.call("GET", f"/sandboxes/{uid}/files/list")
        machine.later += 9 * MINUTES
        await api.call("GET", f"/sandboxes/{uid}")  # to look at it is no use of it
        await api.call("GET", "/sandboxes")
        await api.station.housekeeping()
        assert (await view(api, uid))["state"] == "running"
        machine.later += 2 * MINUTES
        await api.station.housekeeping()
        assert (await api.call("GET", f"/sandboxes/{uid}")).status_code == 404
        assert (await api.call("POST", f"/sandboxes/{uid}/exec", {"argv": ["true"]})).status_code == 404
        assert (await view(api, kept))["state"] == "running"
        assert len(machine.store.live) == 1


async def test_what_is_unused_is_looked_for_once_in_each_interval(machine: Machine) -> None:
    set_(machine, idle_timeout_minutes=1.0, cleanup_interval_minutes=10.0)
    async with machine.api() as api:
        await api.station.housekeeping()
        uid = await api.open(temporary=True)
        machine.later += 9 * MINUTES
        await api.station.housekeeping()
        assert (await view(api, uid))["state"] == "running"
        machine.later += 2 * MINUTES
        await api.station.housekeeping()
        assert (await api.call("GET", f"/sandboxes/{uid}")).status_code == 404


@pytest.mark.parametrize(("seconds", "stays"), [(3600, True), (None, False)], ids=["limited", "unlimited"])
async def test_fb_b32_a_running_command_keeps_its_sandbox_only_with_a_time_limit_and_over_a_restart(
    machine: Machine, seconds: float | None, stays: bool
) -> None:
    set_(machine, idle_timeout_minutes=10.0)
    body = {"argv": ["cat"], "stdin_open": True, "timeout_seconds": seconds}
    async with machine.api() as api:
        uid = await api.open(temporary=True)
        process = (await api.call("POST", f"/sandboxes/{uid}/processes", body)).json()["id"]
    machine.later += 20 * MINUTES
    async with machine.api() as api:
        assert ((await view(api, uid))["remove_at"] > api.station.now()) is stays
        await api.station.housekeeping()
        assert (await api.call("GET", f"/sandboxes/{uid}")).is_success is stays
        if not stays:
            return
        await api.station.processes.signal(uid, process, signal("KILL"))
        await api.station.processes.wait(uid, process, 5)
        machine.later += 9 * MINUTES  # the end of a command was a use
        await api.station.housekeeping()
        assert (await api.call("GET", f"/sandboxes/{uid}")).is_success
        machine.later += 9 * MINUTES
        await api.station.housekeeping()
        assert (await api.call("GET", f"/sandboxes/{uid}")).status_code == 404


def signal(name: str) -> Any:
    from station.core.wire import SignalRequest

    return SignalRequest(name)


async def test_a_request_under_way_keeps_its_sandbox_and_so_does_its_end(machine: Machine) -> None:
    async with machine.api() as api:
        uid = await api.open(temporary=True)
        body = {"argv": ["cat"], "stdin_open": True}
        process = (await api.call("POST", f"/sandboxes/{uid}/processes", body)).json()["id"]
        following = asyncio.create_task(api.call("GET", f"/sandboxes/{uid}/processes/{process}/output?follow=true"))

        async def followed() -> bool:
            return api.station.sandboxes.uses.under_way(uid)

        await until(followed)
        machine.later += 60 * MINUTES
        await api.station.housekeeping()
        assert (await view(api, uid))["state"] == "running"
        await api.station.processes.signal(uid, process, signal("KILL"))
        await following
        assert not api.station.sandboxes.uses.under_way(uid)
        machine.later += 29 * MINUTES
        await api.station.housekeeping()
        assert (await view(api, uid))["state"] == "running"


async def test_a_use_that_comes_while_it_is_removed_is_told_that_it_is_deleted(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.api() as api:
        uid = await api.open(temporary=True)
        machine.later += 60 * MINUTES
        destroying, go = asyncio.Event(), asyncio.Event()
        destroy = api.station.boxes.destroy

        async def slow(record: Any) -> None:
            destroying.set()
            await go.wait()
            await destroy(record)

        monkeypatch.setattr(api.station.boxes, "destroy", slow)
        cleaning = asyncio.create_task(api.station.housekeeping())
        await destroying.wait()
        calls = [("POST", "/exec", {"argv": ["true"]}), ("GET", "/files/list", None), ("GET", "/processes/prc_x", None)]
        waiting = [
            asyncio.create_task(api.call(method, f"/sandboxes/{uid}{path}", body)) for method, path, body in calls
        ]

        async def all_wait() -> bool:
            return api.station.sandboxes.uses._under_way.get(uid) == len(calls)

        await until(all_wait)
        go.set()
        answers: list[httpx2.Response] = await asyncio.gather(*waiting)
        await cleaning
        assert [answer.json()["code"] for answer in answers] == ["sandbox_not_found"] * len(calls)
        assert machine.store.live == {}
