"""The life of a sandbox against boxes that are a dictionary."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from station.control.decisions import Step, next_step, undone
from station.core.errors import (
    Busy,
    CannotEnforce,
    Conflict,
    InternalError,
    InvalidInput,
    LimitReached,
    SandboxFailed,
    SandboxNotFound,
    StorageFull,
    Unavailable,
)
from station.core.ids import uid_of
from station.core.records import BoxRef, Owner, SandboxRecord
from station.core.spec import Limits, Mount
from station.core.states import State
from station.core.wire import OpenRequest

from .world import Killed, World

UID = uid_of("local", "a")
OPEN = OpenRequest("a")


async def test_an_open_makes_a_sandbox_and_the_next_one_gets_it(world: World) -> None:
    record, created = await world.sandboxes.open(OPEN)
    assert (record.state, record.generation, record.worker, created) == (State.RUNNING, 1, "st-1", True)
    assert record.box == BoxRef("fake", f"{UID}-1")
    again, created = await world.sandboxes.open(OPEN)
    assert (again, created) == (record, False)
    assert world.boxes.creates == 1


async def test_of_fifty_racing_opens_one_makes_a_box(world: World) -> None:
    results = await asyncio.gather(*(world.sandboxes.open(OPEN) for _ in range(50)))
    assert sum(created for _, created in results) == 1
    assert len({record.fence for record, _ in results}) == 1
    assert world.boxes.creates == 1


async def test_names_do_not_wait_for_each_other(world: World) -> None:
    results = await asyncio.gather(*(world.sandboxes.open(OpenRequest(f"n{n}")) for n in range(20)))
    assert len({record.uid for record, _ in results}) == 20
    assert len((await world.sandboxes.list()).records) == 20


@pytest.mark.parametrize("name", ["", " a", "a\n", "a\0", "x" * 257, "\ud800"])
async def test_a_name_that_cannot_be_is_refused(world: World, name: str) -> None:
    with pytest.raises(InvalidInput):
        await world.sandboxes.open(OpenRequest(name))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (OpenRequest("a", backend="host"), "backend"),
        (OpenRequest("a", image="debian"), "image"),
        (OpenRequest("a", runtime="node"), "runtime"),
        (OpenRequest("a", network="public"), "network"),
        (OpenRequest("a", limits=Limits(memory_mb=7)), "limits.memory_mb"),
        (OpenRequest("a", limits=Limits(max_file_size_bytes=7)), "limits.max_file_size_bytes"),
        (OpenRequest("a", mount=Mount("/srv")), "mount"),
        (OpenRequest("a", timeout_seconds=7), "timeout_seconds"),
    ],
)
async def test_a_differing_explicit_field_is_a_conflict_that_names_it(
    world: World, request_: OpenRequest, field: str
) -> None:
    before, _ = await world.sandboxes.open(OPEN)
    with pytest.raises(Conflict) as error:
        await world.sandboxes.open(request_)
    assert error.value.detail["field"] == field
    assert await world.registry.get(UID) == before


async def test_naming_what_holds_anyway_is_no_conflict(world: World) -> None:
    await world.sandboxes.open(OPEN)
    same = OpenRequest(
        "a", backend="fake", network="none", limits=Limits(memory_mb=1024, pids=256), timeout_seconds=120
    )
    assert (await world.sandboxes.open(same))[1] is False


async def test_what_a_backend_cannot_keep_is_refused_before_anything_is_written(world: World) -> None:
    world.boxes.fail["check"] = CannotEnforce("no")
    with pytest.raises(CannotEnforce):
        await world.sandboxes.open(OPEN)
    assert await world.registry.get(UID) is None


@pytest.mark.parametrize("when", ["create", "create late"])
async def test_a_create_that_fails_leaves_nothing_and_the_name_free(world: World, when: str) -> None:
    world.boxes.fail[when] = Unavailable("no room")
    with pytest.raises(Unavailable):
        await world.sandboxes.open(OPEN)
    assert (world.boxes.boxes, world.boxes.files, await world.state()) == ({}, set(), State.TOMBSTONE)
    with pytest.raises(SandboxNotFound):
        await world.sandboxes.get(UID)
    world.boxes.fail.clear()
    record, created = await world.sandboxes.open(OPEN)
    assert (created, record.generation) == (True, 2)


async def test_a_create_that_cannot_be_undone_is_failed_with_the_reason_and_can_be_deleted(world: World) -> None:
    world.boxes.fail |= {"create late": Unavailable("no answer"), "destroy": InternalError("stuck")}
    with pytest.raises(Unavailable, match="no answer"):
        await world.sandboxes.open(OPEN)
    with pytest.raises(SandboxFailed, match="stuck"):
        await world.sandboxes.open(OPEN)
    world.boxes.fail.clear()
    await world.sandboxes.delete(UID)
    assert world.boxes.boxes == {}
    assert (await world.sandboxes.open(OPEN))[1] is True


async def test_a_create_that_cannot_be_undone_now_is_undone_by_the_next_use(world: World) -> None:
    world.boxes.fail |= {"create late": Unavailable("no answer"), "destroy": Unavailable("away")}
    for match in ("no answer", "away"):
        with pytest.raises(Unavailable, match=match):
            await world.sandboxes.open(OPEN)
        assert await world.state() is State.CREATING
    world.boxes.fail.clear()
    record, _ = await world.sandboxes.open(OPEN)
    assert record.state is State.RUNNING
    assert len(world.boxes.boxes) == 1


async def test_a_lost_box_leaves_the_files_and_the_next_use_makes_the_next_box(world: World) -> None:
    await world.sandboxes.open(OPEN)
    world.boxes.die(UID)
    await world.sandboxes.box_lost(UID, 1, "it was killed")
    saved = await world.sandboxes.get(UID)
    assert (saved.state, saved.reason, saved.box) == (State.SAVED, "it was killed", None)
    ready = await world.sandboxes.ready(UID)
    assert (ready.state, ready.generation, ready.reason) == (State.RUNNING, 2, None)
    assert world.boxes.files == {UID}
    assert ready.created_at == saved.created_at


async def test_the_loss_of_an_old_box_does_not_harm_the_new_one(world: World) -> None:
    await world.sandboxes.open(OPEN)
    world.boxes.die(UID)
    await world.sandboxes.ready(UID)
    await world.sandboxes.box_lost(UID, 1, "late news")
    assert (await world.sandboxes.get(UID)).state is State.RUNNING


async def test_a_next_box_that_cannot_be_made_keeps_the_files(world: World) -> None:
    await world.sandboxes.open(OPEN)
    world.boxes.die(UID)
    world.boxes.fail["create"] = Unavailable("no room")
    with pytest.raises(Unavailable):
        await world.sandboxes.ready(UID)
    found = await world.sandboxes.get(UID)
    assert found.state is State.SAVED
    assert "no room" in (found.reason or "")
    assert world.boxes.files == {UID}


async def test_delete_is_final_idempotent_and_keeps_the_generation(world: World) -> None:
    await world.sandboxes.open(OPEN)
    await asyncio.gather(*(world.sandboxes.delete(UID) for _ in range(5)))
    await world.sandboxes.delete(uid_of("local", "never was"))
    assert (world.boxes.boxes, world.boxes.files, await world.state()) == ({}, set(), State.TOMBSTONE)
    assert (await world.sandboxes.list()).records == []
    with pytest.raises(SandboxNotFound):
        await world.sandboxes.ready(UID)
    record, created = await world.sandboxes.open(OPEN)
    assert (record.generation, created) == (2, True)


async def test_a_delete_that_cannot_destroy_says_so_and_goes_on_when_called_again(world: World) -> None:
    await world.sandboxes.open(OPEN)
    world.boxes.fail["destroy"] = Unavailable("stuck")
    with pytest.raises(Unavailable):
        await world.sandboxes.delete(UID)
    assert await world.state() is State.DELETING
    assert (await world.sandboxes.get(UID)).reason == "it could not be deleted: stuck"
    assert world.boxes.files == {UID}
    world.boxes.fail.clear()
    await world.sandboxes.delete(UID)
    assert (world.boxes.files, await world.state()) == (set(), State.TOMBSTONE)


CREATE = ["create.after_claim", "create.after_intent", "create.after_ready"]
DELETE = ["delete.after_mark", "delete.after_destroy", "delete.after_files"]


@pytest.mark.parametrize("step", CREATE)
async def test_a_retry_after_a_kill_within_create_gets_one_box(world: World, step: str) -> None:
    world.strikes.at = step
    with pytest.raises(Killed):
        await world.sandboxes.open(OPEN)
    world.sandboxes = world.station()
    record, created = await world.sandboxes.open(OPEN)
    assert (record.state, created) == (State.RUNNING, True)
    assert list(world.boxes.boxes.values()) == [(UID, record.generation)]


@pytest.mark.parametrize("step", CREATE)
async def test_a_kill_while_the_next_box_is_made_loses_no_file(world: World, step: str) -> None:
    await world.sandboxes.open(OPEN)
    world.boxes.die(UID)
    await world.sandboxes.box_lost(UID, 1, "killed")
    world.strikes.at = step
    if step != "create.after_claim":
        with pytest.raises(Killed):
            await world.sandboxes.ready(UID)
    world.sandboxes = world.station()
    record = await world.sandboxes.ready(UID)
    assert world.boxes.files == {UID}
    assert list(world.boxes.boxes.values()) == [(UID, record.generation)]


@pytest.mark.parametrize("step", DELETE)
async def test_a_delete_that_was_killed_is_finished_by_whoever_comes_next(world: World, step: str) -> None:
    await world.sandboxes.open(OPEN)
    world.strikes.at = step
    with pytest.raises(Killed):
        await world.sandboxes.delete(UID)
    world.sandboxes = world.station()
    record, created = await world.sandboxes.open(OPEN)
    assert (created, record.generation) == (True, 2)
    assert list(world.boxes.boxes.values()) == [(UID, 2)]


@pytest.mark.parametrize("step", CREATE)
async def test_an_error_at_a_step_of_create_undoes_it(world: World, step: str) -> None:
    def strike(name: str) -> None:
        if name == step:
            raise InternalError(name)

    world.sandboxes._failpoint = strike
    with pytest.raises(InternalError):
        await world.sandboxes.open(OPEN)
    assert world.boxes.boxes == {}
    world.sandboxes = world.station()
    assert (await world.sandboxes.open(OPEN))[1] is True


async def test_a_caller_who_leaves_does_not_stop_a_create_half_way(world: World) -> None:
    caller = asyncio.create_task(world.sandboxes.open(OPEN))
    for _ in range(3):
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await world.sandboxes.aclose()
    assert await world.state() is State.RUNNING
    assert UID in world.boxes.live


async def test_after_a_restart_a_use_takes_over_the_box_that_lives(world: World) -> None:
    await world.sandboxes.open(OPEN)
    world.sandboxes = world.station()
    record = await world.sandboxes.ready(UID)
    assert (record.generation, world.boxes.creates) == (1, 1)
    assert world.boxes.live == {UID: 1}


async def test_the_last_use_is_seen_at_once_and_written_by_a_flush(world: World) -> None:
    record, _ = await world.sandboxes.open(OPEN)
    world.sandboxes.uses.touch(UID)
    seen = await world.sandboxes.get(UID)
    assert seen.last_active_at > record.last_active_at
    await world.sandboxes.flush()
    stored = await world.registry.get(UID)
    assert isinstance(stored, SandboxRecord)
    assert stored.last_active_at == seen.last_active_at


async def test_a_damaged_record_is_quarantined_and_the_rest_serve(world: World) -> None:
    await world.sandboxes.open(OPEN)
    await world.sandboxes.open(OpenRequest("b"))
    await damage(world, UID)
    with pytest.raises(SandboxFailed, match="damaged"):
        await world.sandboxes.open(OPEN)
    with pytest.raises(SandboxFailed, match="damaged"):
        await world.sandboxes.ready(UID)
    listing = await world.sandboxes.list()
    assert [record.name for record in listing.records] == ["b"]
    assert [item.uid for item in listing.damaged] == [UID]
    assert (await world.sandboxes.open(OpenRequest("b")))[1] is False


async def test_deleting_a_damaged_sandbox_frees_its_name_and_never_reuses_a_generation(world: World) -> None:
    await world.sandboxes.open(OPEN)
    await damage(world, UID)
    await world.sandboxes.delete(UID)
    assert (world.boxes.boxes, world.boxes.files) == ({}, set())
    record, created = await world.sandboxes.open(OPEN)
    assert created
    assert record.generation > 1


async def damage(world: World, uid: str) -> None:
    await world.registry._db.run(
        lambda db: db.execute("UPDATE sandboxes SET document = 'x' WHERE uid = ?", (uid,)).fetchall()
    )


async def test_a_full_disk_refuses_an_open_and_heals_by_itself(world: World) -> None:
    put = world.registry.put

    async def full(record: SandboxRecord) -> SandboxRecord:
        raise StorageFull("no room")

    world.registry.put = full  # type: ignore[method-assign]
    with pytest.raises(StorageFull):
        await world.sandboxes.open(OPEN)
    world.registry.put = put  # type: ignore[method-assign]
    record, created = await world.sandboxes.open(OPEN)
    assert (record.state, created) == (State.RUNNING, True)


@pytest.mark.parametrize(
    ("state", "step"),
    [
        (None, Step.CLAIM),
        (State.TOMBSTONE, Step.CLAIM),
        (State.CREATING, Step.UNDO),
        (State.RUNNING, Step.REUSE),
        (State.SAVED, Step.NEXT_BOX),
        (State.DELETING, Step.FINISH_DELETE),
        (State.FAILED, Step.REFUSE),
        (State.SUSPENDED, Step.REFUSE),
    ],
)
async def test_the_record_alone_tells_the_next_step(world: World, state: State | None, step: Step) -> None:
    record, _ = await world.sandboxes.open(OPEN)
    assert next_step(replace(record, state=state) if state else None) is step


async def test_an_undo_frees_only_a_name_that_nobody_was_given(world: World) -> None:
    record, _ = await world.sandboxes.open(OPEN)
    assert undone(record) is State.SAVED
    assert undone(replace(record, guest_version=None)) is State.TOMBSTONE


async def test_of_many_new_names_at_once_none_is_one_too_many(world: World) -> None:
    sandboxes = world.station(max_sandboxes=3)
    found = await asyncio.gather(*(sandboxes.open(OpenRequest(f"n{n}")) for n in range(10)), return_exceptions=True)
    assert sum(isinstance(each, LimitReached) for each in found) == 7
    assert len((await sandboxes.list()).records) == 3
    kept = next(record for record in (await sandboxes.list()).records)
    assert (await sandboxes.open(OpenRequest(kept.name)))[1] is False
    await sandboxes.delete(kept.uid)
    assert (await sandboxes.open(OpenRequest("another")))[1] is True


async def test_how_many_sandboxes_all_have_is_told_to_the_operator_alone(world: World) -> None:
    sandboxes = world.station(max_sandboxes=1)
    await sandboxes.open(OPEN)
    with pytest.raises(LimitReached, match=r"sandbox\.max_sandboxes is 1") as told:
        await sandboxes.open(OpenRequest("b"))
    assert (told.value.detail["limit"], told.value.detail["current"]) == (1, 1)
    with pytest.raises(LimitReached, match=r"sandbox\.max_sandboxes") as told:
        await sandboxes.open(OpenRequest("b"), Owner(deployment="dep"))
    assert not re.search(r"\d", str(told.value.to_body()))


async def test_a_failed_create_gives_its_place_back(world: World) -> None:
    sandboxes = world.station(max_sandboxes=1)
    world.boxes.fail["create"] = Unavailable("no box today")
    with pytest.raises(Unavailable):
        await sandboxes.open(OPEN)
    world.boxes.fail.clear()
    assert (await sandboxes.open(OpenRequest("b")))[1] is True


async def test_a_delete_that_minds_who_uses_it_changes_nothing_then(world: World) -> None:
    await world.sandboxes.open(OPEN)
    with pytest.raises(Busy):
        await world.sandboxes.delete(UID, is_busy=lambda uid: True)
    world.sandboxes.uses.begin(UID)
    with pytest.raises(Busy):
        await world.sandboxes.delete(UID, is_busy=lambda uid: False)
    assert await world.state() is State.RUNNING
    world.sandboxes.uses.end(UID)
    await world.sandboxes.delete(UID, is_busy=lambda uid: False)
    assert await world.state() is State.TOMBSTONE
