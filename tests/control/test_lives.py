"""Lives of a name: their tool ids, their end when nobody uses them, and what outlives a box."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from station.control.decisions import is_over, remove_at
from station.core.errors import InternalError, SandboxFailed, SandboxNotFound, StorageFull, Unavailable
from station.core.ids import is_tool_id, new_id, uid_of
from station.core.records import Owner, SandboxRecord, Timers
from station.core.states import State
from station.core.wire import OpenRequest

from .world import World

UID = uid_of("local", "a")


def uid_in(world: World, tool_id: str) -> str:
    return world.sandboxes.ids.uid_of(tool_id, Owner())


OPEN = OpenRequest("a")
TEMPORARY = OpenRequest("a", temporary=True)


async def opened(world: World, request: OpenRequest = OPEN) -> SandboxRecord:
    record, _ = await world.sandboxes.open(request)
    return record


async def test_each_claim_of_a_name_has_a_tool_id_of_its_own_and_only_the_last_is_found(world: World) -> None:
    first = await opened(world)
    assert is_tool_id(first.tool_id)
    assert uid_in(world, first.tool_id) == UID
    await world.sandboxes.delete(UID)
    with pytest.raises(SandboxNotFound, match=first.tool_id):
        uid_in(world, first.tool_id)
    second = await opened(world)
    assert second.tool_id != first.tool_id
    assert uid_in(world, second.tool_id) == UID
    for stranger in (first.tool_id, new_id("ses", 1.0)):
        with pytest.raises(SandboxNotFound):
            uid_in(world, stranger)


async def test_a_tool_id_outlives_its_box_and_its_station(world: World) -> None:
    tool_id = (await opened(world)).tool_id
    world.boxes.die(UID)
    await world.sandboxes.box_lost(UID, 1, "killed")
    assert (await world.sandboxes.ready(UID)).tool_id == tool_id
    dead = (await opened(world, OpenRequest("b"))).tool_id
    await world.sandboxes.delete(uid_of("local", "b"))
    world.sandboxes = world.station()
    world.sandboxes.ids.know(await world.registry.list())
    assert uid_in(world, tool_id) == UID
    with pytest.raises(SandboxNotFound):
        uid_in(world, dead)


async def test_a_failed_create_leaves_no_tool_id(world: World) -> None:
    world.boxes.fail["create"] = Unavailable("no room")
    with pytest.raises(Unavailable):
        await opened(world)
    found = await world.registry.get(UID)
    assert isinstance(found, SandboxRecord)
    with pytest.raises(SandboxNotFound):
        uid_in(world, found.tool_id)


async def test_a_record_without_a_tool_id_gets_one_when_it_is_opened(world: World) -> None:
    await world.registry.put(replace(await opened(world), tool_id=""))
    tool_id = (await opened(world)).tool_id
    assert uid_in(world, tool_id) == UID


async def test_a_delete_by_the_tool_id_of_an_earlier_life_harms_no_later_one(world: World) -> None:
    old = (await opened(world)).tool_id
    await world.sandboxes.delete(UID)
    record = await opened(world)
    await world.sandboxes.delete(UID, tool_id=old)
    await world.sandboxes.save(UID, tool_id=old)
    assert await world.sandboxes.get(UID) == record
    await world.sandboxes.delete(UID, tool_id=record.tool_id)
    assert await world.state() is State.TOMBSTONE


async def test_a_saved_sandbox_keeps_its_files_and_is_the_same_one_at_the_next_open(world: World) -> None:
    before = await opened(world)
    await asyncio.gather(*(world.sandboxes.save(UID) for _ in range(3)))
    saved = await world.sandboxes.get(UID)
    assert (saved.state, saved.reason, world.boxes.boxes, world.boxes.files) == (State.SAVED, None, {}, {UID})
    record, created = await world.sandboxes.open(OPEN)
    assert (created, record.tool_id, record.generation) == (False, before.tool_id, 2)


async def test_to_save_what_is_not_there_is_no_error_and_what_is_failed_is_one(world: World) -> None:
    await world.sandboxes.save(UID)
    await opened(world)
    await world.sandboxes.delete(UID)
    await world.sandboxes.save(UID)
    world.boxes.fail |= {"create late": Unavailable("no answer"), "destroy": InternalError("stuck")}
    with pytest.raises(Unavailable):
        await opened(world)
    with pytest.raises(SandboxFailed):
        await world.sandboxes.save(UID)


async def test_a_box_that_cannot_be_destroyed_is_not_called_saved(world: World) -> None:
    await opened(world)
    world.boxes.fail["destroy"] = Unavailable("stuck")
    with pytest.raises(Unavailable):
        await world.sandboxes.save(UID)
    assert await world.state() is State.RUNNING
    assert not world.sandboxes.is_going(UID)


@pytest.mark.parametrize(
    ("after", "state", "in_use", "now", "over"),
    [
        (None, State.RUNNING, False, 1e12, False),
        (100.0, State.RUNNING, False, 1099.0, False),
        (100.0, State.RUNNING, False, 1100.0, True),
        (100.0, State.RUNNING, True, 1e12, False),
        (100.0, State.SAVED, False, 1100.0, True),
        (100.0, State.FAILED, False, 1100.0, True),
        (100.0, State.CREATING, False, 1100.0, True),
        (100.0, State.DELETING, False, 1100.0, True),
        (100.0, State.TOMBSTONE, False, 1e12, False),
    ],
)
async def test_a_sandbox_is_over_after_its_time_without_use(
    world: World, after: float | None, state: State, in_use: bool, now: float, over: bool
) -> None:
    timers = Timers(remove_after_idle_seconds=after)
    record = replace(await opened(world), state=state, timers=timers, last_active_at=1000.0)
    assert is_over(record, in_use=in_use, now=now) is over
    assert remove_at(record, last_use=1000.0) == (None if after is None or state is State.TOMBSTONE else 1100.0)


def free(_uid: str) -> bool:
    return False


async def test_a_temporary_sandbox_goes_after_its_time_and_a_kept_one_never(world: World) -> None:
    record = await opened(world, TEMPORARY)
    assert record.timers.remove_after_idle_seconds == 1800.0
    await opened(world, OpenRequest("kept"))
    await world.sandboxes.remove_unused(free)
    assert await world.state() is State.RUNNING
    world.clock.at += 1800
    await world.sandboxes.remove_unused(free)
    assert (await world.state(), await world.state("kept")) == (State.TOMBSTONE, State.RUNNING)
    assert world.boxes.files == {uid_of("local", "kept")}
    with pytest.raises(SandboxNotFound):
        uid_in(world, record.tool_id)


async def test_an_open_changes_nothing_of_whether_one_is_temporary(world: World) -> None:
    await opened(world)
    assert (await opened(world, TEMPORARY)).timers.remove_after_idle_seconds is None
    await opened(world, OpenRequest("b", temporary=True))
    assert (await opened(world, OpenRequest("b"))).timers.remove_after_idle_seconds == 1800.0


async def test_a_saved_temporary_sandbox_goes_too(world: World) -> None:
    await opened(world, TEMPORARY)
    await world.sandboxes.save(UID)
    world.clock.at += 1800
    await world.sandboxes.remove_unused(free)
    assert (await world.state(), world.boxes.files) == (State.TOMBSTONE, set())


async def test_a_use_a_request_under_way_and_a_command_with_a_limit_keep_it(world: World) -> None:
    await opened(world, TEMPORARY)
    world.clock.at += 1800
    world.sandboxes.uses.begin(UID)
    world.clock.at += 9000
    await world.sandboxes.remove_unused(free)
    world.sandboxes.uses.end(UID)  # the end of a use is one
    await world.sandboxes.remove_unused(free)
    world.clock.at += 9000
    await world.sandboxes.remove_unused(lambda uid: uid == UID)
    assert await world.state() is State.RUNNING
    await world.sandboxes.remove_unused(free)
    assert await world.state() is State.TOMBSTONE


async def test_one_that_cannot_be_removed_does_not_stop_the_others_and_is_tried_again(world: World) -> None:
    for name in "abc":
        await opened(world, OpenRequest(name, temporary=True))
    world.clock.at += 1800
    destroy = world.boxes.destroy

    async def stuck(record: SandboxRecord) -> None:
        if record.name == "b":
            raise OSError("stuck")
        await destroy(record)

    world.boxes.destroy = stuck  # type: ignore[method-assign]
    await world.sandboxes.remove_unused(free)
    assert [await world.state(name) for name in "abc"] == [State.TOMBSTONE, State.DELETING, State.TOMBSTONE]
    world.boxes.destroy = destroy  # type: ignore[method-assign]
    await world.sandboxes.remove_unused(free)
    assert await world.state("b") is State.TOMBSTONE


@pytest.mark.parametrize("earlier", [True, False], ids=["before it is decided", "afterwards"])
async def test_a_use_that_races_the_removal_wins_or_finds_it_deleted(world: World, earlier: bool) -> None:
    await opened(world, TEMPORARY)
    world.clock.at += 1800
    reading, go = asyncio.Event(), asyncio.Event()
    if earlier:
        get = world.registry.get

        async def slow(uid: str) -> object:
            found = await get(uid)
            reading.set()
            await go.wait()
            return found

        world.registry.get = slow  # type: ignore[method-assign, assignment]
    else:
        destroy = world.boxes.destroy

        async def slow_destroy(record: SandboxRecord) -> None:
            reading.set()
            await go.wait()
            await destroy(record)

        world.boxes.destroy = slow_destroy  # type: ignore[method-assign]
    removing = asyncio.create_task(world.sandboxes.remove_unused(free))
    await reading.wait()
    world.sandboxes.uses.touch(UID)
    assert world.sandboxes.is_going(UID) is not earlier
    using = asyncio.create_task(world.sandboxes.ready(UID))
    go.set()
    await removing
    if earlier:
        assert (await using).state is State.RUNNING
        assert world.boxes.live == {UID: 1}
    else:
        with pytest.raises(SandboxNotFound):
            await using
        with pytest.raises(SandboxNotFound):
            await world.sandboxes.settled(UID)
        assert (world.boxes.live, world.boxes.files) == ({}, set())
    assert not world.sandboxes.is_going(UID)


async def test_a_use_that_cannot_be_written_down_is_not_forgotten(world: World) -> None:
    await opened(world, TEMPORARY)
    put = world.registry.put

    async def full(record: SandboxRecord) -> SandboxRecord:
        raise StorageFull("no room")

    world.clock.at += 1000
    world.sandboxes.uses.touch(UID)
    world.registry.put = full  # type: ignore[method-assign]
    await world.sandboxes.flush()
    world.registry.put = put  # type: ignore[method-assign]
    world.clock.at += 1000
    await world.sandboxes.remove_unused(free)
    assert await world.state() is State.RUNNING
    await world.sandboxes.flush()
    stored = await world.registry.get(UID)
    assert isinstance(stored, SandboxRecord)
    assert stored.last_active_at > 2000
