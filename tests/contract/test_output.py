"""Output arrives byte for byte, in order, within bounds, on every backend."""

from __future__ import annotations

import asyncio
import codecs

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from station.guest.frames import OnFull

from .conftest import BOUND_SECONDS, Collector, Place
from .words import pattern


async def test_fb_b1_b2_characters_cut_by_writes_come_together(place: Place) -> None:
    """The path moves bytes; a decoder that keeps state makes text of them, whatever the pieces."""
    text = "é" * 5000 + "🎉漢字" * 1000
    raw = text.encode()
    parts = [raw[at : at + 8191] for at in range(0, len(raw), 8191)]
    process = place.start(place.word("pieces", *(part.hex() for part in parts)))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async with asyncio.timeout(BOUND_SECONDS):
        told = "".join([decoder.decode(chunk.data) async for chunk in process.chunks()])
    assert told + decoder.decode(b"", final=True) == text


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"a\n\n\nb", id="FB-B4 blank lines"),
        pytest.param(b"\0a\0\0b\0", id="FB-B5 NUL"),
        pytest.param(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xfe", id="FB-B13 PNG"),
        pytest.param(b"STN1\x85\0\0\0\x01\0\0\0\x04\0\0\0none", id="bytes that look like a frame"),
        pytest.param(bytes(range(256)), id="every byte"),
        pytest.param(b"\xc3", id="half a character"),
    ],
)
async def test_output_is_the_bytes_that_were_written(place: Place, raw: bytes) -> None:
    ran = await place.run(place.word("pieces", raw.hex()))
    assert (ran.stdout, ran.exit.stdout_total) == (raw, len(raw))


async def test_fb_b5_env_0_is_usable(place: Place) -> None:
    ran = await place.run(("env", "-0"), env={"LINES": "a\nb"})
    assert b"LINES=a\nb\0" in ran.stdout


@pytest.mark.parametrize("count", [65_536, 65_537, 1_000_000])
async def test_fb_b7_two_streams_do_not_wait_for_each_other(place: Place, count: int) -> None:
    ran = await place.run(place.word("both", str(count)))
    assert (ran.code, ran.stdout, ran.stderr) == (0, pattern(count), pattern(count))


async def test_fb_b7_a_small_ring_moves_everything_too(place: Place) -> None:
    ran = await place.run(place.word("both", "300000"), ring_bytes=4096)
    assert (ran.stdout, ran.stderr) == (pattern(300_000), pattern(300_000))


async def test_fb_b11_the_end_comes_after_the_last_byte(place: Place) -> None:
    for count in (1, 4096, 65_536, 65_537, 200_001):
        process = place.start(place.word("count_to", "2", str(count)))
        async with asyncio.timeout(BOUND_SECONDS):
            told = b"".join([chunk.data async for chunk in process.chunks()])
            assert (told, (await process.exit()).stderr_total) == (pattern(count), count)


async def test_a_reader_that_pauses_stops_the_process_and_loses_nothing(place: Place) -> None:
    process = place.start(place.word("count_to", "1", "2000000"), ring_bytes=65_536)
    async with asyncio.timeout(BOUND_SECONDS):
        chunks = process.chunks()
        first = await anext(chunks)
        for _ in range(5):
            await place.session.ping()
        assert not process.ended
        rest = b"".join([chunk.data async for chunk in chunks])
    assert first.data + rest == pattern(2_000_000)


async def test_fb_b8_an_abandoned_process_goes_on_within_bounds(place: Place) -> None:
    """Its reader leaves; with `drop_oldest` it runs to its end, the newest bytes are kept, and the gap is exact."""
    size = 4_000_000
    process = place.start(place.word("count_to", "1", str(size)), ring_bytes=262_144, on_full=OnFull.DROP_OLDEST)
    number = process.guest_id
    async with asyncio.timeout(BOUND_SECONDS):
        await process.pid()
        await place.reconnect({number: (0, 0)})
        sink = Collector()
        ended = await place.session.join(number, sink=sink).exit()
    assert ended.to_ending().ok
    assert ended.stdout_total == size
    lost = sum(end - start for _, start, end in sink.gaps)
    assert lost + len(sink.data[1]) == size
    assert bytes(sink.data[1]).endswith(pattern(size)[-4096:])


async def test_offsets_grow_without_a_hole(place: Place) -> None:
    process = place.start(place.word("both", "500000"), ring_bytes=16_384)
    reached = {1: 0, 2: 0}
    async with asyncio.timeout(BOUND_SECONDS):
        async for chunk in process.chunks():
            assert chunk.offset == reached[chunk.stream]
            reached[chunk.stream] += len(chunk.data)
    assert reached == {1: 500_000, 2: 500_000}


async def test_one_loud_process_does_not_silence_another(place: Place) -> None:
    loud = place.start(place.word("babble"), sink=Collector())
    async with asyncio.timeout(BOUND_SECONDS):
        await loud.pid()
        for _ in range(5):
            assert (await place.run(("echo", "quiet"))).stdout == b"quiet\n"
        loud.cancel(0)
        await loud.exit()


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8))
async def test_any_bytes_in_any_pieces_arrive(place: Place, parts: list[bytes]) -> None:
    ran = await place.run(place.word("pieces", *(part.hex() for part in parts)))
    assert ran.stdout == b"".join(parts)
