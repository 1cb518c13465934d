"""The session against a guest that the test plays, so that every break comes exactly where it is wanted."""

from __future__ import annotations

import asyncio
import struct

import pytest

from station.core.errors import BoxLost, InternalError, InvalidInput, LimitReached, Unavailable
from station.guest import frames, handshake
from station.guest.endings import ExitKind, Reason
from station.guest.frames import StartRecord
from station.guest.process import Chunk
from station.guest.session import GuestSession

from .peer import Door, Peer, exit_payload, listed

Met = tuple[GuestSession, Peer]
TRUE = StartRecord(("true",))
CAT = StartRecord(("cat",), stdin=True)


class Kept:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.data = {1: b"", 2: b""}
        self.gaps: list[tuple[int, int, int]] = []

    def output(self, stream: int, offset: int, data: bytes) -> bool:
        assert offset == len(self.data[stream]) + sum(end - start for s, start, end in self.gaps if s == stream)
        self.data[stream] += data
        return True

    def gap(self, stream: int, start: int, end: int) -> None:
        self.gaps.append((stream, start, end))


async def settled(session: GuestSession) -> None:
    """Returns when everything sent so far was read: for a peer that answers pings."""
    await session.ping()


async def answering_pings(peer: Peer) -> None:
    while True:
        kind, _, payload = await peer.read()
        if kind == frames.PING:
            await peer.send(frames.PONG, 0, payload)


async def test_a_process_runs_from_start_to_exit(met: Met) -> None:
    session, peer = met
    process = session.start(TRUE, guest_id=session.next_id())
    assert await peer.expect(frames.START) == (1, TRUE.encode())
    await peer.send(frames.STARTED, 1, struct.pack("<I", 42))
    assert await process.pid() == 42
    await peer.send(frames.EXIT, 1, exit_payload(value=3))
    ended = await process.exit()
    assert (ended.kind, ended.value) == (ExitKind.EXITED, 3)
    process.forget()
    process.forget()
    assert await peer.expect(frames.FORGET) == (1, b"")


async def test_to_forget_is_not_urgent_and_goes_along_with_the_next_start(met: Met) -> None:
    session, peer = met
    first = session.start(TRUE, guest_id=session.next_id())
    await peer.expect(frames.START)
    await peer.send(frames.EXIT, 1, exit_payload())
    await first.exit()
    first.forget()
    session.start(TRUE, guest_id=session.next_id())
    assert [(await peer.read())[0] for _ in range(2)] == [frames.FORGET, frames.START]


async def test_a_process_that_never_started_has_no_pid(met: Met) -> None:
    session, peer = met
    process = session.start(TRUE, guest_id=session.next_id())
    await peer.send(frames.EXIT, 1, exit_payload(ExitKind.NO_PROGRAM, 2))
    assert await process.pid() is None
    assert (await process.exit()).kind is ExitKind.NO_PROGRAM


async def test_many_waiters_see_one_end_and_a_cancelled_one_harms_nobody(met: Met) -> None:
    session, peer = met
    process = session.start(TRUE, guest_id=session.next_id())
    waiters = [asyncio.ensure_future(process.exit()) for _ in range(5)]
    await peer.expect(frames.START)
    waiters[2].cancel()
    await peer.send(frames.EXIT, 1, exit_payload())
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [False, False, True, False, False]


async def test_ids_only_grow(met: Met) -> None:
    session, _ = met
    assert (session.next_id(), session.next_id()) == (1, 2)
    session.start(TRUE, guest_id=2)
    with pytest.raises(InternalError, match="process id 1 comes after 2"):
        session.start(TRUE, guest_id=1)
    assert session.next_id() == 3


async def test_a_sink_has_the_bytes_before_they_are_acknowledged(met: Met) -> None:
    session, peer = met
    kept = Kept()
    process = session.start(TRUE, guest_id=session.next_id(), sink=kept)
    await peer.expect(frames.START)
    await peer.output(1, 1, 0, b"hello")
    await peer.output(1, 2, 0, b"!")
    assert await peer.read() == (frames.ACK, 1, struct.pack("<IQ", 1, 5))
    assert kept.data[1] == b"hello"
    assert await peer.read() == (frames.ACK, 1, struct.pack("<IQ", 2, 1))
    await peer.send(frames.EXIT, 1, exit_payload(stdout=5, stderr=1))
    await process.exit()


async def test_output_waits_for_its_consumer_and_is_acknowledged_as_it_is_taken(met: Met) -> None:
    session, peer = met
    process = session.start(TRUE, guest_id=session.next_id())
    await peer.expect(frames.START)
    await peer.output(1, 1, 0, b"one")
    await peer.output(1, 1, 3, b"two")
    chunks = process.chunks()
    assert await anext(chunks) == Chunk(1, 0, b"one")
    assert await peer.read() == (frames.ACK, 1, struct.pack("<IQ", 1, 3))
    await peer.send(frames.EXIT, 1, exit_payload(stdout=6))
    assert [chunk async for chunk in chunks] == [Chunk(1, 3, b"two")]


async def test_gaps_are_told_also_those_that_only_the_totals_show(met: Met) -> None:
    session, peer = met
    kept = Kept()
    process = session.start(TRUE, guest_id=session.next_id(), sink=kept)
    await peer.send(frames.GAP, 1, struct.pack("<IQQ", 1, 0, 10))
    await peer.output(1, 1, 10, b"abc")
    await peer.output(1, 1, 20, b"def")
    await peer.send(frames.EXIT, 1, exit_payload(stdout=30, stderr=2))
    await process.exit()
    assert kept.gaps == [(1, 0, 10), (1, 13, 20), (1, 23, 30), (2, 0, 2)]
    assert kept.data[1] == b"abcdef"


async def test_credit_is_given_back_by_halves(met: Met) -> None:
    session, peer = met
    session.start(TRUE, guest_id=session.next_id(), sink=Kept())
    await peer.expect(frames.START)
    size = 65_536 - 12
    given = 0
    for count in range(16):
        await peer.output(1, 1, count * size, bytes(size))
    while given < 16 * 65_536:
        kind, _, payload = await peer.read()
        if kind == frames.CREDIT:
            given += int.from_bytes(payload, "little")
            assert given % (1 << 19) == 0
    assert given == 1 << 20


async def test_stdin_keeps_to_the_window_and_goes_on_as_it_is_taken(met: Met) -> None:
    session, peer = met
    process = session.start(CAT, guest_id=session.next_id())
    await peer.expect(frames.START)
    writing = asyncio.ensure_future(process.write(bytes(300_000)))
    got = 0
    while got < 262_144:
        got += len((await peer.expect(frames.STDIN))[1])
    assert not writing.done()
    await peer.send(frames.STDIN_ACK, 1, struct.pack("<Q", 65_536))
    got += len((await peer.expect(frames.STDIN))[1])
    await writing
    assert got == 300_000
    assert process.stdin_taken == 65_536
    await process.close_stdin()
    await process.close_stdin()
    assert await peer.expect(frames.STDIN) == (1, b"")
    with pytest.raises(BrokenPipeError):
        await process.write(b"late")


async def test_a_writer_learns_that_nobody_reads(met: Met) -> None:
    session, peer = met
    process = session.start(CAT, guest_id=session.next_id())
    writing = asyncio.ensure_future(process.write(bytes(300_000)))
    await peer.expect(frames.START)
    await peer.send(frames.STDIN_CLOSED, 1)
    with pytest.raises(BrokenPipeError):
        await writing


async def test_a_cancelled_writer_leaves_the_next_one_to_write(met: Met) -> None:
    session, peer = met
    process = session.start(CAT, guest_id=session.next_id())
    writing = asyncio.ensure_future(process.write(bytes(262_144 + 1)))
    await peer.expect(frames.START)
    for _ in range(4):
        await peer.expect(frames.STDIN)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await peer.send(frames.STDIN_ACK, 1, struct.pack("<Q", 262_144))
    await process.write(b"next")
    assert await peer.expect(frames.STDIN) == (1, b"next")


async def test_a_process_without_stdin_takes_none(met: Met) -> None:
    session, _ = met
    with pytest.raises(InternalError, match="without stdin"):
        await session.start(TRUE, guest_id=session.next_id()).write(b"x")


async def test_signals_and_cancellation_reach_the_guest(met: Met) -> None:
    session, peer = met
    process = session.start(TRUE, guest_id=session.next_id())
    process.signal(15)
    process.cancel(2.5, Reason.TIMED_OUT)
    await peer.expect(frames.START)
    assert await peer.expect(frames.SIGNAL) == (1, struct.pack("<I", 15))
    await peer.expect(frames.PING)
    assert await peer.expect(frames.CANCEL) == (1, struct.pack("<II", 2500, 2))
    with pytest.raises(InvalidInput, match="no signal 99"):
        process.signal(99)


async def test_an_abandoned_process_is_killed_drained_and_forgotten(met: Met) -> None:
    session, peer = met
    process = session.start(TRUE, guest_id=session.next_id())
    await peer.expect(frames.START)
    await peer.output(1, 1, 0, b"unread")
    process.abandon()
    assert await peer.expect(frames.CANCEL) == (1, struct.pack("<II", 0, 1))
    await peer.output(1, 1, 6, b"more")
    await peer.send(frames.EXIT, 1, exit_payload(ExitKind.SIGNALLED, 9, stdout=10))
    assert await peer.expect(frames.FORGET) == (1, b"")


@pytest.mark.parametrize(
    ("code", "error"), [(22, InvalidInput), (11, LimitReached), (12, LimitReached), (17, InternalError)]
)
async def test_a_refused_start_ends_the_wait(met: Met, code: int, error: type[Exception]) -> None:
    session, peer = met
    process = session.start(TRUE, guest_id=session.next_id())
    await peer.send(frames.ERROR, 1, struct.pack("<I", code) + b"no\0")
    with pytest.raises(error):
        await process.exit()
    with pytest.raises(error):
        await process.pid()


async def test_an_error_about_stdin_does_not_end_a_process(met: Met) -> None:
    session, peer = met
    process = session.start(CAT, guest_id=session.next_id())
    await peer.send(frames.ERROR, 1, struct.pack("<I", 105) + b"beyond the window\0")
    await peer.send(frames.EXIT, 1, exit_payload())
    assert (await process.exit()).value == 0


async def test_a_ping_takes_time_and_comes_back(met: Met) -> None:
    session, peer = met
    pinging = asyncio.ensure_future(session.ping())
    _, payload = await peer.expect(frames.PING)
    await peer.send(frames.PONG, 0, payload)
    assert 0 < await pinging < 5


# ── the hello ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_hello_without_answer_is_repeated_behind_zeros(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "AGAIN_SECONDS", 0.01)
    connecting = asyncio.ensure_future(GuestSession.connect(door.open))
    peer = await door.peer()
    await peer.expect(frames.HELLO)
    before = len(peer.buffer)
    while len(peer.buffer) < before + 65_560:
        peer.buffer += await peer.stream.receive()
    assert peer.buffer[before : before + 65_560] == bytes(65_560)
    await peer.stream.send(b"rest of a frame" + frames.frame(frames.OUTPUT, 3, bytes(20)))
    await peer.greet(last_id=7)
    session = await connecting
    assert session.next_id() == 8
    await session.aclose()


async def test_a_silent_guest_is_lost(door: Door) -> None:
    with pytest.raises(BoxLost, match=r"did not answer within 0\.01 s"):
        await GuestSession.connect(door.open, hello_seconds=0.01)


async def test_a_guest_that_hangs_up_at_once_is_lost(door: Door) -> None:
    connecting = asyncio.ensure_future(GuestSession.connect(door.open))
    (await door.peer()).close()
    with pytest.raises(BoxLost, match="cannot be reached"):
        await connecting


async def joined(door: Door, *processes: bytes, wanted: dict[int, tuple[int, int]]) -> Met:
    connecting = asyncio.ensure_future(GuestSession.connect(door.open, wanted=wanted, patience_seconds=0.5))
    peer = await door.peer()
    await peer.greet(*processes, last_id=9)
    return await connecting, peer


async def test_a_wanted_process_is_joined_with_what_came_before_the_join(door: Door) -> None:
    session, peer = await joined(door, listed(4, out=8, taken=11), wanted={4: (3, 0), 5: (0, 0)})
    assert peer.wanted == {4: (3, 0), 5: (0, 0)}
    await peer.output(4, 1, 3, b"later")
    await peer.send(frames.EXIT, 4, exit_payload(stdout=8))
    sink = Kept()
    sink.data[1] = b"abc"
    process = session.join(4, sink=sink)
    assert await process.pid() == 7
    assert process.stdin_taken == 11
    await process.exit()
    assert sink.data[1] == b"abclater"
    with pytest.raises(BoxLost, match="does not know"):
        session.join(5)
    process.forget()
    assert await peer.expect(frames.FORGET) == (4, b"")
    await session.aclose()


async def test_a_listed_process_that_nobody_wanted_is_joined_by_an_acknowledgement(door: Door) -> None:
    session, peer = await joined(door, listed(4, out=8), wanted={})
    process = session.join(4)
    assert await peer.read() == (frames.ACK, 4, struct.pack("<IQ", 1, 0))
    assert await peer.read() == (frames.ACK, 4, struct.pack("<IQ", 2, 0))
    await peer.output(4, 1, 0, b"12345678")
    assert await process.next_chunk() == Chunk(1, 0, b"12345678")
    await session.aclose()


# ── broken connections ───────────────────────────────────────────────────────────────────────────────────────────


async def test_output_goes_on_over_a_new_connection_without_loss_or_repetition(door: Door, met: Met) -> None:
    session, peer = met
    kept = Kept()
    process = session.start(TRUE, guest_id=session.next_id(), sink=kept)
    await peer.expect(frames.START)
    await peer.output(1, 1, 0, b"abcdef")
    await peer.expect_ack(1, 6)
    await peer.stream.send(frames.frame(frames.OUTPUT, 1, bytes(100))[:30])
    peer.close()
    second = await door.peer()
    await second.greet(listed(1, out=9), last_id=1)
    assert second.wanted == {1: (6, 0)}
    await second.output(1, 1, 4, b"efghi")
    await second.send(frames.EXIT, 1, exit_payload(stdout=9))
    await process.exit()
    assert (kept.data[1], kept.gaps) == (b"abcdefghi", [])
    assert await process.pid() == 7


async def test_a_start_that_the_guest_never_saw_is_sent_again_and_one_it_saw_is_not(door: Door, met: Met) -> None:
    session, peer = met
    first = session.start(TRUE, guest_id=session.next_id())
    second = session.start(CAT, guest_id=session.next_id())
    await second.write(b"early")
    peer.close()
    again = await door.peer()
    await again.greet(listed(1, pid=5), last_id=1)
    assert await again.expect(frames.START) == (2, CAT.encode())
    assert await again.expect(frames.STDIN) == (2, b"early")
    await again.send(frames.EXIT, 2, exit_payload())
    await again.send(frames.EXIT, 1, exit_payload())
    assert ((await first.exit()).value, (await second.exit()).value) == (0, 0)


async def test_a_process_that_the_guest_no_longer_knows_is_lost_and_others_go_on(door: Door, met: Met) -> None:
    session, peer = met
    gone, there = (session.start(TRUE, guest_id=session.next_id()) for _ in range(2))
    peer.close()
    again = await door.peer()
    await again.greet(listed(2), last_id=2)
    with pytest.raises(BoxLost, match="the guest no longer knows it"):
        await gone.exit()
    await again.send(frames.EXIT, 2, exit_payload())
    assert (await there.exit()).value == 0


async def test_stdin_goes_on_from_what_was_taken(door: Door, met: Met) -> None:
    session, peer = met
    process = session.start(CAT, guest_id=session.next_id())
    await process.write(b"0123456789")
    await process.close_stdin()
    await peer.expect(frames.START)
    await peer.send(frames.STARTED, 1, struct.pack("<I", 7))
    await process.pid()
    peer.close()
    again = await door.peer()
    await again.greet(listed(1, taken=4), last_id=1)
    assert await again.expect(frames.STDIN) == (1, b"456789")
    assert await again.expect(frames.STDIN) == (1, b"")


async def test_signals_cancellations_and_forgetting_survive_a_broken_connection(door: Door, met: Met) -> None:
    session, peer = met
    done, running = (session.start(TRUE, guest_id=session.next_id()) for _ in range(2))
    await peer.send(frames.EXIT, 1, exit_payload())
    await done.exit()
    done.forget()
    running.signal(10)
    running.cancel(1)
    peer.close()
    again = await door.peer()
    await again.greet(listed(1, state=2), listed(2), last_id=2)
    assert await again.expect(frames.FORGET) == (1, b"")
    assert await again.expect(frames.CANCEL) == (2, struct.pack("<II", 1000, 1))
    assert await again.expect(frames.SIGNAL) == (2, struct.pack("<I", 10))
    _, payload = await again.expect(frames.PING)
    await again.send(frames.PONG, 0, payload)
    again.close()
    third = await door.peer()
    await third.greet(listed(2), last_id=2)
    await third.expect(frames.CANCEL)
    await third.send(frames.EXIT, 2, exit_payload(ExitKind.SIGNALLED, 15))
    await running.exit()


async def test_a_ping_under_way_is_answered_over_the_new_connection(door: Door, met: Met) -> None:
    session, peer = met
    pinging = asyncio.ensure_future(session.ping())
    await peer.expect(frames.PING)
    peer.close()
    again = await door.peer()
    await again.greet()
    _, payload = await again.expect(frames.PING)
    await again.send(frames.PONG, 0, payload)
    assert await pinging > 0


async def test_what_is_asked_while_the_connection_is_down_is_sent_when_it_is_up(door: Door, met: Met) -> None:
    session, peer = met
    door.shut = ConnectionRefusedError("not yet")
    peer.close()
    process = session.start(TRUE, guest_id=session.next_id())
    door.shut = None
    again = await door.peer()
    await again.greet()
    assert await again.expect(frames.START) == (1, TRUE.encode())
    await again.send(frames.EXIT, 1, exit_payload())
    assert (await process.exit()).value == 0


async def test_a_dead_guest_is_lost_for_every_waiter(door: Door, met: Met) -> None:
    session, peer = met
    process = session.start(CAT, guest_id=session.next_id())
    chunks = process.chunks()
    waits = [process.exit(), process.pid(), process.write(bytes(300_000)), anext(chunks), session.ping()]
    waiting = [asyncio.ensure_future(wait) for wait in waits]
    await peer.expect(frames.START)
    door.shut = BoxLost("the box ended: killed")
    peer.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(result) for result in results] == ["the box ended: killed"] * 5
    assert {type(result) for result in results} == {BoxLost}
    assert await session.wait_closed() == session.closed_reason == "the box ended: killed"
    with pytest.raises(BoxLost):
        session.start(TRUE, guest_id=session.next_id())


async def test_patience_has_an_end(door: Door) -> None:
    connecting = asyncio.ensure_future(GuestSession.connect(door.open, patience_seconds=0.01))
    peer = await door.peer()
    await peer.greet()
    session = await connecting
    door.shut = ConnectionRefusedError("nobody listens")
    peer.close()
    assert "no new one came" in await session.wait_closed()
    await session.aclose()


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (frames.EXIT, b"short"),
        (frames.STARTED, b""),
        (frames.OUTPUT, struct.pack("<IQ", 3, 0)),
        (frames.OUTPUT, struct.pack("<IQ", 1, 2**64 - 1) + b"x"),
        (frames.EXIT, exit_payload(kind=9)),
    ],
)
async def test_a_guest_that_breaks_the_protocol_is_not_spoken_to_again(met: Met, kind: int, payload: bytes) -> None:
    session, peer = met
    process = session.start(TRUE, guest_id=session.next_id())
    await peer.send(kind, 1, payload)
    with pytest.raises(BoxLost, match="broke the protocol"):
        await process.exit()


async def test_a_guest_that_ignores_back_pressure_cannot_fill_the_memory(met: Met) -> None:
    session, peer = met
    process = session.start(StartRecord(("yes",), ring_bytes=4096), guest_id=session.next_id())
    for count in range(9):
        await peer.output(1, 1, count * 1000, bytes(1000))
    with pytest.raises(BoxLost, match="broke the protocol"):
        await process.exit()


async def test_frames_for_nobody_are_ignored(met: Met) -> None:
    session, peer = met
    for kind in (*range(0x81, 0x8A), 0x99):
        if kind != frames.HELLO_ACK:
            await peer.send(kind, 77, struct.pack("<I", 1) + b"x\0")
    serving = asyncio.ensure_future(answering_pings(peer))
    await settled(session)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_closing_sends_what_is_queued_and_ends_the_connection_only(door: Door, met: Met) -> None:
    session, peer = met
    process = session.start(TRUE, guest_id=session.next_id())
    await peer.send(frames.EXIT, 1, exit_payload())
    await process.exit()
    process.forget()
    unfinished = session.start(TRUE, guest_id=session.next_id())
    await session.aclose()
    await session.aclose()
    assert [(await peer.read())[0] for _ in range(3)] == [frames.START, frames.FORGET, frames.START]
    with pytest.raises(EOFError):
        await peer.read()
    with pytest.raises(BoxLost, match="the session was closed"):
        await unfinished.exit()
    assert door.peers.empty()


async def test_a_session_that_is_closed_at_once_leaves_nothing_open(door: Door) -> None:
    connecting = asyncio.ensure_future(GuestSession.connect(door.open))
    peer = await door.peer()
    await peer.greet()
    await (await connecting).aclose()
    with pytest.raises(EOFError):
        await peer.read()


async def test_what_a_sink_does_not_want_forgotten_is_acknowledged_when_it_says_so(met: Met) -> None:
    class Reluctant(Kept):
        def output(self, stream: int, offset: int, data: bytes) -> bool:
            super().output(stream, offset, data)
            return stream == 2

    session, peer = met
    sink = Reluctant()
    process = session.start(TRUE, guest_id=session.next_id(), sink=sink)
    await peer.output(1, 1, 0, b"abc")
    await peer.output(1, 2, 0, b"de")
    await peer.expect_ack(2, 2)
    assert (sink.data, process.offsets) == ({1: b"abc", 2: b"de"}, (0, 2))
    process.acknowledge(1)
    process.acknowledge(1)
    await peer.expect_ack(1, 3)
    assert process.offsets == (3, 2)


async def test_a_sink_that_fails_ends_the_session_and_its_error_is_not_swallowed(door: Door) -> None:
    class Failing(Kept):
        def output(self, stream: int, offset: int, data: bytes) -> bool:
            raise ZeroDivisionError

    connecting = asyncio.ensure_future(GuestSession.connect(door.open))
    peer = await door.peer()
    await peer.greet()
    session = await connecting
    process = session.start(TRUE, guest_id=session.next_id(), sink=Failing())
    await peer.output(1, 1, 0, b"x")
    with pytest.raises(BoxLost, match="a fault of Station"):
        await process.exit()
    with pytest.raises(ExceptionGroup) as caught:
        await session.aclose()
    assert caught.group_contains(ZeroDivisionError)


async def test_a_guest_of_an_unknown_version_is_not_spoken_to(door: Door) -> None:
    connecting = asyncio.ensure_future(GuestSession.connect(door.open))
    peer = await door.peer()
    await peer.greet(version=2)
    # Not BoxLost, for which a box is ended: it lives, and another release can use it.
    with pytest.raises(Unavailable, match=r"speaks version 2 of the protocol, and this station, 1,.* The box is kept"):
        await connecting


@pytest.mark.parametrize(("ours", "taken"), [(1, {1}), (2, {1, 2}), (5, {4, 5})], ids=str)
def test_a_station_speaks_its_version_and_that_of_the_release_before(ours: int, taken: set[int]) -> None:
    assert {version for version in range(10) if handshake.speaks_to(version, ours)} == taken
