"""The life of a box: made, found again, destroyed, its files kept or removed. On every backend."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from station.core.codec import from_plain, to_plain
from station.core.errors import BoxLost, CannotEnforce, StationError
from station.core.paths import resolve
from station.core.records import BoxRef
from station.core.spec import Limits, Spec
from station.guest.session import GuestSession

from .conftest import BOUND_SECONDS, Collector, Place, World
from .words import pattern


async def test_capabilities_are_told_for_every_limit(world: World) -> None:
    capabilities = await world.backend().probe()
    assert capabilities.backend == world.name
    assert set(capabilities.limits) >= set(Limits.__dataclass_fields__)
    assert all(report.by for report in capabilities.limits.values())


async def test_a_box_tells_no_more_than_its_backend(place: Place) -> None:
    promised = await place.backend.probe()
    assert promised.grade.at_least(place.box.capabilities.grade)
    assert place.box.capabilities.network in ("none", "unrestricted")


async def test_a_named_limit_that_cannot_be_kept_is_refused(world: World) -> None:
    """Unless the caller said best effort; one that is enforced is accepted."""
    backend = world.backend()
    reports = (await backend.probe()).limits
    for name, report in reports.items():
        spec = Spec(backend=world.name, limits=from_plain(Limits, {name: 1.0 if name == "cpus" else 64}))
        if report.level == "not_enforced":
            with pytest.raises(CannotEnforce, match=name):
                backend.check(spec)
            backend.check(replace(spec, best_effort=True))
        elif report.level == "enforced":
            backend.check(spec)


async def test_boxes_are_listed_by_label_until_they_are_destroyed(world: World) -> None:
    backend, labels = world.backend(), world.labels()
    assert await world.boxes() == []
    box = await backend.create(Spec(backend=world.name), labels)
    assert [item async for item in world.backend().boxes()] == [(labels, box.ref)]
    await box.destroy()
    assert await world.boxes() == []
    await backend.remove_files(labels.uid)


async def test_destroy_is_idempotent_and_a_destroyed_box_is_lost(place: Place) -> None:
    await place.box.destroy()
    await place.box.destroy()
    async with asyncio.timeout(BOUND_SECONDS):
        assert await place.box.ended()
    with pytest.raises(BoxLost):
        await place.box.connect()
    with pytest.raises(BoxLost):
        await place.backend.adopt(place.box.ref)


async def test_destroy_ends_what_runs_and_every_wait(place: Place) -> None:
    process = place.start(("sleep", "1000"))
    async with asyncio.timeout(BOUND_SECONDS * 2):
        await process.pid()
        await place.box.destroy()
        with pytest.raises(BoxLost):
            await process.exit()


async def test_a_second_box_of_the_same_id_is_refused(place: Place) -> None:
    with pytest.raises(StationError):
        await place.backend.create(Spec(backend=place.backend.name), place.labels)
    assert (await place.run(("true",))).code == 0


async def test_adopt_works_from_the_stored_record_alone(world: World, place: Place) -> None:
    stored = to_plain(place.box.ref)
    again = await world.backend().adopt(from_plain(BoxRef, stored))
    assert (again.ref, again.layout) == (place.box.ref, place.box.layout)
    await place.session.aclose()
    place.session = await GuestSession.connect(again.connect)
    assert (await place.run(("echo", "adopted"))).stdout == b"adopted\n"


async def test_adopting_what_is_not_there_says_so(world: World) -> None:
    backend = world.backend()
    await backend.probe()
    box = await backend.create(Spec(backend=world.name, ephemeral=True), world.labels())
    await box.destroy()
    with pytest.raises(BoxLost):
        await world.backend().adopt(box.ref)


async def test_output_goes_on_from_its_offset_after_a_restart(world: World, place: Place) -> None:
    """The station is gone in the middle of the output; the next one adopts the box and misses no byte."""
    size = 3_000_000
    process = place.start(place.word("count_to", "1", str(size)), ring_bytes=65_536)
    number, head = process.guest_id, bytearray()
    async with asyncio.timeout(BOUND_SECONDS * 2):
        async for chunk in process.chunks():
            head += chunk.data
            if len(head) > size // 3:
                break
        await place.session.aclose()
        box = await world.backend().adopt(place.box.ref)
        place.session = await GuestSession.connect(box.connect, wanted={number: (len(head), 0)})
        assert place.session.hello.processes[number].running
        sink = Collector()
        ended = await place.session.join(number, sink=sink).exit()
    assert ended.to_ending().ok
    assert sink.gaps == []
    assert bytes(head) + bytes(sink.data[1]) == pattern(size)


async def test_a_process_that_ended_meanwhile_still_tells_its_end(world: World, place: Place) -> None:
    process = place.start(place.shell("echo last words; exit 9"))
    number = process.guest_id
    async with asyncio.timeout(BOUND_SECONDS):
        await process.exit()
        box = await world.backend().adopt(place.box.ref)
        await place.session.aclose()
        place.session = await GuestSession.connect(box.connect, wanted={number: (0, 0)})
        assert not place.session.hello.processes[number].running
        joined = place.session.join(number)
        told = b"".join([chunk.data async for chunk in joined.chunks()])
        assert (told, (await joined.exit()).value) == (b"last words\n", 9)
        joined.forget()
        await place.session.ping()
        await place.reconnect({})
    assert place.session.hello.processes == {}
    assert place.session.hello.last_id == number


async def test_a_full_ring_moves_on_when_its_acknowledgements_were_lost(place: Place) -> None:
    """All that the ring holds has arrived, and the connection broke before the guest heard so."""
    process = place.start(place.word("count_to", "1", "300000"), ring_bytes=65_536)
    number = process.guest_id
    async with asyncio.timeout(BOUND_SECONDS):
        await process.pid()
        while place.session.hello.processes.get(number) is None or _held(place, number) < 65_536:
            await place.reconnect({})
        await place.reconnect({number: (65_536, 0)})
        sink = Collector()
        ended = await place.session.join(number, sink=sink).exit()
    assert ended.to_ending().ok
    assert bytes(sink.data[1]) == pattern(300_000)[65_536:]


def _held(place: Place, number: int) -> int:
    known = place.session.hello.processes[number]
    return known.stdout_to - known.stdout_from


async def test_home_and_workspace_outlive_the_box_until_they_are_removed(world: World) -> None:
    backend, labels = world.backend(), world.labels()
    spec = Spec(backend=world.name)
    first = await backend.create(spec, labels)
    place = Place(backend, labels, first, await GuestSession.connect(first.connect))
    for path in ("/workspace/kept", "/home/node/kept", "/tmp/gone"):
        await place.write(path, b"here")
    await place.session.aclose()
    await first.destroy()

    second_labels = world.labels(uid=labels.uid, generation=2)
    second = await backend.create(spec, second_labels)
    place = Place(backend, second_labels, second, await GuestSession.connect(second.connect))
    assert await place.read("/workspace/kept") == await place.read("/home/node/kept") == b"here"
    assert (await place.files.list(resolve("/tmp"))).entries == []
    await place.session.aclose()
    await second.destroy()
    await backend.remove_files(labels.uid)
    await backend.remove_files(labels.uid)

    third = await backend.create(spec, world.labels(uid=labels.uid, generation=3))
    place = Place(backend, labels, third, await GuestSession.connect(third.connect))
    assert (await place.files.list(resolve("/workspace"))).entries == []
    await place.session.aclose()
    await third.destroy()
    await backend.remove_files(labels.uid)


async def test_an_ephemeral_box_takes_its_files_with_it(world: World) -> None:
    backend, spec = world.backend(), Spec(backend=world.name, ephemeral=True)
    labels = replace(world.labels(), pool=True)
    for generation in (1, 2):
        box = await backend.create(spec, replace(labels, box_id=f"{labels.box_id}-{generation}"))
        place = Place(backend, labels, box, await GuestSession.connect(box.connect))
        assert (await place.files.list(resolve("/workspace"))).entries == []
        await place.write("secret", b"x")
        await place.session.aclose()
        await box.destroy()
    assert await world.boxes() == []


async def test_two_boxes_do_not_see_each_others_files(world: World, place: Place) -> None:
    backend, labels = world.backend(), world.labels()
    box = await backend.create(Spec(backend=world.name), labels)
    other = Place(backend, labels, box, await GuestSession.connect(box.connect))
    await place.write("mine", b"1")
    assert (await other.files.list(resolve("/workspace"))).entries == []
    await other.session.aclose()
    await box.destroy()
    await backend.remove_files(labels.uid)
