"""Standard input is closed unless it is asked for, and carries any amount, on every backend."""

from __future__ import annotations

import asyncio

import pytest

from station.guest.process import GuestProcess

from .conftest import BOUND_SECONDS, Collector, Place
from .words import pattern


async def test_fb_b43_a_program_that_reads_stdin_ends_without_any(place: Place) -> None:
    ran = await place.run(("cat",))
    assert (ran.code, ran.stdout) == (0, b"")


async def test_fb_b43_end_of_file_is_explicit(place: Place) -> None:
    process = place.start(("cat",), stdin=True)
    async with asyncio.timeout(BOUND_SECONDS):
        chunks = process.chunks()
        await process.write(b"one\n")
        assert (await anext(chunks)).data == b"one\n"
        assert not process.ended
        await process.close_stdin()
        assert [chunk async for chunk in chunks] == []
        assert (await process.exit()).to_ending().ok


@pytest.mark.parametrize("count", [0, 1, 65_536, 262_145, 3_000_000])
async def test_fb_b44_any_size_goes_through(place: Place, count: int) -> None:
    process = place.start(("cat",), stdin=True)
    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as group:
        group.create_task(_feed(process, pattern(count)))
        told = b"".join([chunk.data async for chunk in process.chunks()])
    assert told == pattern(count)


async def _feed(process: GuestProcess, data: bytes) -> None:
    await process.write(data)
    await process.close_stdin()


async def test_stdin_is_bytes(place: Place) -> None:
    raw = bytes(range(256)) + b"\n\n\0STN1"
    assert (await place.run(("cat",), stdin=raw)).stdout == raw


async def test_fb_b44_a_broken_pipe_is_reported(place: Place) -> None:
    sink = Collector()
    process = place.start(place.word("deaf"), stdin=True, sink=sink)
    async with asyncio.timeout(BOUND_SECONDS):
        await sink.until(b"closed")
        with pytest.raises(BrokenPipeError):
            await process.write(bytes(1 << 20))
        process.cancel(0)
        await process.exit()


async def test_writing_to_a_process_that_has_ended_is_a_broken_pipe(place: Place) -> None:
    process = place.start(("true",), stdin=True)
    async with asyncio.timeout(BOUND_SECONDS):
        await process.exit()
        with pytest.raises(BrokenPipeError):
            await process.write(b"late")
        await process.close_stdin()


async def test_fb_b46_a_background_child_reads_nothing_and_lives(place: Place) -> None:
    ran = await place.run(place.shell("cat & cat"), stdin=b"for the front\n")
    assert (ran.code, ran.stdout) == (0, b"for the front\n")


async def test_input_that_was_under_way_arrives_once_over_a_new_connection(place: Place) -> None:
    """More than the pipe takes is under way when the connection breaks; the program reads it afterwards."""
    data = pattern(250_000)
    process = place.start(place.word("late_cat"), stdin=True)
    async with asyncio.timeout(BOUND_SECONDS):
        await process.write(data)
        await place.session.ping()
        await place.break_connection()
        await place.write("go", b"")
        await process.close_stdin()
        told = b"".join([chunk.data async for chunk in process.chunks()])
    assert told == data
