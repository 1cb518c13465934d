"""A station that is gone at some step, and the one after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from station.core.ids import uid_of
from station.core.records import SandboxRecord
from station.core.states import State
from station.core.wire import OpenRequest
from station.worker import failpoints
from station.worker.failpoints import NAMES

from .conftest import Api, Machine, until

UID = uid_of("local", "a")


class Killed(BaseException):
    """No handler catches it: the last thing that a station does."""


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes the station of an API stop dead at a step, as far as that can be done from inside."""

    def arm(api: Api, name: str) -> None:
        def strike(where: str, _action: str) -> None:
            # Whatever still runs of the old station must write nothing more.
            monkeypatch.setattr(api.station._registry, "put", _never)
            raise Killed(where)

        monkeypatch.setattr(failpoints, "_strike", strike)
        failpoints.arm(f"{name}:kill9")

    yield arm
    failpoints.arm(None)


async def _never(_record: SandboxRecord) -> SandboxRecord:
    raise Killed("dead")


async def crash(machine: Machine, work: Any, kill_at: Any, name: str) -> None:
    """Runs `work` on a station that dies within it."""
    async with machine.api() as api:
        await work(api, lambda: kill_at(api, name))
    failpoints.arm(None)


async def suspended(api: Api) -> bool:
    return await api.state(UID) == "suspended"


async def stored(api: Api) -> SandboxRecord:
    found = await api.station._registry.get(UID)
    assert isinstance(found, SandboxRecord)
    return found


@pytest.mark.parametrize("step", [name for name in NAMES if name.startswith("create.")])
async def test_a_station_killed_within_create_leaves_no_box_without_a_record(
    machine: Machine, kill_at: Any, step: str
) -> None:
    async def work(api: Api, arm: Any) -> None:
        arm()
        with pytest.raises(Killed):
            await api.station.sandboxes.open(OpenRequest("a"))

    await crash(machine, work, kill_at, step)
    async with machine.api() as api:
        found = await api.station._registry.get(UID)
        assert isinstance(found, SandboxRecord)
        assert found.state in (State.RUNNING, State.TOMBSTONE)
        assert len(machine.store.live) == (1 if found.state is State.RUNNING else 0)
        await api.open()
        assert len(machine.store.live) == 1
        assert (await api.call("POST", f"/sandboxes/{UID}/exec", {"argv": ["true"]})).json()["exit_code"] == 0


@pytest.mark.parametrize("step", [name for name in NAMES if name.startswith("delete.")])
async def test_a_delete_that_was_killed_is_finished_by_the_next_station(
    machine: Machine, kill_at: Any, step: str
) -> None:
    async def work(api: Api, arm: Any) -> None:
        await api.open()
        arm()
        with pytest.raises(Killed):
            await api.station.sandboxes.delete(UID)

    await crash(machine, work, kill_at, step)
    async with machine.api() as api:
        assert (await stored(api)).state is State.TOMBSTONE
        assert machine.store.live == {}
        assert machine.store.files == {}
        await api.open()
        assert (await stored(api)).generation == 2


@pytest.mark.parametrize("step", [name for name in NAMES if name.startswith("create.")])
async def test_an_error_at_any_step_of_create_leaves_nothing(machine: Machine, api: Api, step: str) -> None:
    failpoints.arm(f"{step}:error")
    try:
        answer = await api.call("POST", "/sandboxes", {"name": "a"})
        assert (answer.status_code, machine.store.live) == (500, {})
    finally:
        failpoints.arm(None)
    assert (await api.call("POST", "/sandboxes", {"name": "a"})).is_success
    assert len(machine.store.live) == 1


async def test_sandboxes_files_and_running_commands_outlive_a_station(machine: Machine) -> None:
    async with machine.api() as api:
        await api.open()
        await api.call("PUT", f"/sandboxes/{UID}/files?path=x", content=b"kept")
        started = await api.call("POST", f"/sandboxes/{UID}/processes", {"argv": ["cat"], "stdin_open": True})
        process = started.json()["id"]
        await api.call("POST", f"/sandboxes/{UID}/processes/{process}/stdin", content=b"before ")
    assert len(machine.store.live) == 1
    async with machine.api() as api:
        assert len(api.station.boxes) == 1
        assert (await api.call("GET", f"/sandboxes/{UID}/files?path=x")).content == b"kept"
        one = f"/sandboxes/{UID}/processes/{process}"
        assert (await api.call("GET", one)).json()["state"] == "running"
        await api.call("POST", f"{one}/stdin?eof=true", content=b"after")
        view = (await api.call("GET", f"{one}?wait=5&output=true")).json()
        assert view["stdout"]["head"]["data"] == "before after"
        assert (await api.call("GET", f"/sandboxes/{UID}")).json()["generation"] == 1


async def test_a_box_that_died_with_the_station_leaves_its_files(machine: Machine) -> None:
    async with machine.api() as api:
        await api.open()
        await api.call("PUT", f"/sandboxes/{UID}/files?path=x", content=b"kept")
        started = await api.call("POST", f"/sandboxes/{UID}/processes", {"argv": ["sleep", "1000"]})
        process = started.json()["id"]
    await next(iter(machine.store.live.values())).destroy()
    async with machine.api() as api:
        view = (await api.call("GET", f"/sandboxes/{UID}")).json()
        assert view["state"] == "suspended"
        assert view["reason"]
        ended = (await api.call("GET", f"/sandboxes/{UID}/processes/{process}")).json()
        assert ended["ending"]["kind"] == "lost"
        assert (await api.call("GET", f"/sandboxes/{UID}/files?path=x")).content == b"kept"
        assert (await api.call("GET", f"/sandboxes/{UID}")).json()["generation"] == 2


async def test_a_box_that_dies_under_the_station_is_noticed_and_replaced(machine: Machine, api: Api) -> None:
    await api.open()
    started = await api.call("POST", f"/sandboxes/{UID}/processes", {"argv": ["sleep", "1000"]})
    next(iter(machine.store.live.values())).die("killed by the test")
    await until(lambda: suspended(api))
    view = (await api.call("GET", f"/sandboxes/{UID}")).json()
    assert (view["state"], view["reason"]) == ("suspended", "killed by the test")
    ended = (await api.call("GET", f"/sandboxes/{UID}/processes/{started.json()['id']}")).json()
    assert ended["ending"]["kind"] == "lost"
    assert (await api.call("POST", f"/sandboxes/{UID}/exec", {"argv": ["true"]})).json()["exit_code"] == 0
    assert (await api.call("GET", f"/sandboxes/{UID}")).json()["generation"] == 2
    assert len(machine.store.live) == 1


@pytest.mark.parametrize("moment", ["connect", "hello"])
async def test_a_box_whose_guest_does_not_answer_a_new_station_is_replaced(machine: Machine, moment: Any) -> None:
    async with machine.api() as api:
        await api.open()
        await api.call("PUT", f"/sandboxes/{UID}/files?path=x", content=b"kept")
    machine.faults.kill_box_at = moment
    async with machine.api() as api:
        assert (await stored(api)).state is State.SAVED
        assert machine.store.live == {}
        assert (await api.call("GET", f"/sandboxes/{UID}/files?path=x")).content == b"kept"
        assert (await stored(api)).generation == 2


async def test_a_damaged_sandbox_is_deleted_with_its_box_and_files(machine: Machine) -> None:
    async with machine.api() as api:
        await api.open()
        registry: Any = api.station._registry
        await registry._db.run(lambda db: db.execute("UPDATE sandboxes SET document = '{'").fetchall())
    async with machine.api() as api:
        assert len(machine.store.live) == 1, "quarantined, not destroyed"
        assert (await api.call("DELETE", f"/sandboxes/{UID}")).status_code == 204
        assert (machine.store.live, machine.store.files) == ({}, {})


async def test_a_box_that_is_given_up_is_replaced(machine: Machine, api: Api) -> None:
    await api.open()
    live = api.station.boxes.get(UID)
    assert live
    api.station.boxes.give_up(live, "its tree could not be ended")
    await until(lambda: suspended(api))
    view = (await api.call("GET", f"/sandboxes/{UID}")).json()
    assert view["reason"] == "its tree could not be ended"
    assert machine.store.live == {}


async def test_a_create_whose_reply_was_lost_leaves_one_box_in_the_end(machine: Machine, api: Api) -> None:
    machine.faults.lost_create_replies = 1
    assert (await api.call("POST", "/sandboxes", {"name": "a"})).status_code == 503
    assert machine.store.live == {}
    await api.open()
    assert len(machine.store.live) == 1


async def test_a_destroy_that_fails_is_told_and_a_retry_ends_it(machine: Machine, api: Api) -> None:
    await api.open()
    machine.faults.destroy_failures = 1
    assert (await api.call("DELETE", f"/sandboxes/{UID}")).status_code == 503
    assert (await api.call("DELETE", f"/sandboxes/{UID}")).status_code == 204
    assert machine.store.live == {}


async def test_a_hundred_creates_that_fail_leave_nothing(machine: Machine, api: Api) -> None:
    machine.faults.create_refusals = 100
    for _ in range(100):
        assert (await api.call("POST", "/sandboxes", {"name": "a"})).status_code == 503
    assert (machine.store.live, machine.store.files, len(api.station.boxes)) == ({}, {}, 0)
    await api.open()
