"""A guest that user code has taken over: whatever it says, the host stays responsive and bounded."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from station.core.errors import BoxLost
from station.guest import frames
from station.guest.frames import Decoder, OnFull, StartRecord
from station.guest.process import MAX_GAPS
from station.guest.session import GuestSession
from station.worker.spool import StreamSpool

from .peer import Peer, exit_payload

Met = tuple[GuestSession, Peer]
RECORD = StartRecord(("x",))


class Spooled:
    """The sink that a station has, as far as it counts here."""

    def __init__(self, directory: Path) -> None:
        self.streams = {1: StreamSpool(directory / "a.out"), 2: StreamSpool(directory / "a.err")}

    def output(self, stream: int, offset: int, data: bytes) -> bool:
        self.streams[stream].append(offset, data)
        return True

    def gap(self, stream: int, start: int, end: int) -> None:
        self.streams[stream].gap(start, end)

    def close(self) -> None:
        for stream in self.streams.values():
            stream.close()


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[Spooled]:
    made = Spooled(tmp_path)
    yield made
    made.close()


def jump(at: int) -> bytes:
    return frames.frame(frames.OUTPUT, 1, struct.pack("<IQ", 1, at) + b"x")


async def lag(ends: asyncio.Event) -> float:
    """The longest time for which the loop did not turn until `ends`."""
    longest, last = 0.0, time.monotonic()
    while not ends.is_set():
        await asyncio.sleep(0)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return longest


async def test_gaps_without_end_neither_stop_the_loop_nor_fill_memory_and_disk(
    met: Met, sink: Spooled, tmp_path: Path
) -> None:
    """The control: one chunk of such frames, given to a spool, takes it longer than the loop may stand still."""
    jumps = range(0, 120_000, 4)
    control = StreamSpool(tmp_path / "control.out")
    begun = time.monotonic()
    for at in jumps:
        control.append(at, b"x")
    control.close()
    assert time.monotonic() - begun > 0.5

    session, peer = met
    process = session.start(RECORD, guest_id=1, sink=sink)
    ends = asyncio.Event()
    watching = asyncio.create_task(lag(ends))
    await peer.expect(frames.START)
    flood = asyncio.create_task(peer.stream.send(b"".join(map(jump, jumps))))
    with pytest.raises(BoxLost, match="leaves out too much"):
        await process.exit()
    ends.set()
    flood.cancel()
    assert await watching < 0.5
    assert len(sink.streams[1]._gaps) <= MAX_GAPS


async def test_a_process_that_may_drop_has_as_many_gaps_as_it_likes(met: Met, sink: Spooled) -> None:
    session, peer = met
    process = session.start(StartRecord(("x",), on_full=OnFull.DROP_OLDEST), guest_id=1, sink=sink)
    await peer.expect(frames.START)
    await peer.stream.send(b"".join(jump(at) for at in range(0, 4 * MAX_GAPS, 2)))
    await peer.send(frames.EXIT, 1, exit_payload(stdout=4 * MAX_GAPS))
    assert (await process.exit()).stdout_total == 4 * MAX_GAPS


async def test_totals_beyond_all_offsets_break_the_protocol(met: Met) -> None:
    session, peer = met
    process = session.start(RECORD, guest_id=1)
    await peer.expect(frames.START)
    await peer.send(frames.EXIT, 1, exit_payload(stdout=2**64 - 1))
    with pytest.raises(BoxLost, match="EXIT"):
        await process.exit()


async def test_words_of_the_guest_are_cut(met: Met) -> None:
    session, peer = met
    process = session.start(RECORD, guest_id=1)
    await peer.expect(frames.START)
    await peer.send(frames.ERROR, 1, struct.pack("<I", 99) + b"w" * 60_000)
    with pytest.raises(Exception, match="wwww") as caught:
        await process.exit()
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    "flood",
    [
        frames.MAGIC * (1 << 18),
        (frames.MAGIC + b"\xff" * 12) * (1 << 16),
        b"\0" * (1 << 20),
        b"STN" * (1 << 18),
        frames.frame(frames.OUTPUT, 7) * (1 << 16),
        frames.frame(frames.ERROR, 1) * (1 << 16),
    ],
    ids=["magics", "lengths", "zeros", "near-magics", "for-nobody", "empty-errors"],
)
def test_a_mebibyte_of_garbage_is_decoded_in_bounded_time(flood: bytes) -> None:
    for decoder in (Decoder(), Decoder(b"n" * 16)):
        begun = time.monotonic()
        for at in range(0, len(flood), 1 << 18):
            decoder.feed(flood[at : at + (1 << 18)])
        assert time.monotonic() - begun < 2
        assert decoder._held <= frames.MAX_PAYLOAD + 64
