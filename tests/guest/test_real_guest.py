"""The session against the real guest, as a sub-reaper on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import random
import signal
import socket
from pathlib import Path

import pytest

from station.core.errors import BoxLost
from station.guest.binary import GUEST_VERSION
from station.guest.endings import ExitKind, GuestExit, Reason
from station.guest.frames import StartRecord
from station.guest.handshake import ByteStream
from station.guest.process import GuestProcess, Sink
from station.guest.session import GuestSession

from .peer import RealGuest, SocketStream, real_guest

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}


class Kept:
    def __init__(self) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()

    def output(self, stream: int, offset: int, data: bytes) -> bool:
        kept = self.stdout if stream == 1 else self.stderr
        assert offset == len(kept)
        kept += data
        return True

    def gap(self, stream: int, start: int, end: int) -> None:
        raise AssertionError(f"gap {start}..{end} in {stream}")


def start(session: GuestSession, *argv: str, sink: Sink | None = None, **more: object) -> GuestProcess:
    record = StartRecord(argv, env=ENV, **more)  # type: ignore[arg-type]
    return session.start(record, guest_id=session.next_id(), sink=sink)


async def run(session: GuestSession, *argv: str, **more: object) -> tuple[GuestExit, bytes, bytes]:
    kept = Kept()
    process = start(session, *argv, sink=kept, **more)
    ended = await process.exit()
    process.forget()
    return ended, bytes(kept.stdout), bytes(kept.stderr)


def bytes_of(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


async def test_the_guest_says_hello(session: GuestSession) -> None:
    assert session.hello.guest_version == GUEST_VERSION
    assert session.hello.version == 1
    assert "subreaper" in session.hello.capabilities
    assert "pidns" not in session.hello.capabilities


async def test_a_command_has_its_output_code_and_usage(session: GuestSession) -> None:
    ended, out, err = await run(session, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (ended.kind, ended.value, ended.reason) == (ExitKind.EXITED, 3, Reason.NONE)
    assert (out, err) == (b"out\n", b"err\n")
    assert (ended.stdout_total, ended.stderr_total) == (4, 4)
    assert ended.max_rss_kib > 0
    assert ended.wall_us > 0


async def test_arguments_that_are_no_text_arrive_byte_for_byte(session: GuestSession) -> None:
    raw = b"a\xff\xfe'$(x)\n-"
    _, out, _ = await run(session, "printf", "%s", raw.decode("utf-8", "surrogateescape"))
    assert out == raw


async def test_a_large_record_arrives_in_parts(session: GuestSession) -> None:
    words = [f"{number:05d}" + "x" * 90 for number in range(10_000)]
    _, out, _ = await run(session, "sh", "-c", 'printf "%s\\n" "$@" | sha256sum', "sh", *words)
    expected = hashlib.sha256("".join(f"{word}\n" for word in words).encode()).hexdigest()
    assert out.split()[0].decode() == expected


@pytest.mark.parametrize(
    ("argv", "cwd", "kind", "value"),
    [
        (("no-such-program",), "/", ExitKind.NO_PROGRAM, 2),
        (("/",), "/", ExitKind.NO_PROGRAM, 13),
        (("true",), "/no/such", ExitKind.NO_DIRECTORY, 2),
    ],
)
async def test_what_cannot_start_says_why(
    session: GuestSession, argv: tuple[str, ...], cwd: str, kind: ExitKind, value: int
) -> None:
    process = start(session, *argv, cwd=cwd)
    assert await process.pid() is None
    ended = await process.exit()
    process.forget()
    assert (ended.kind, ended.value) == (kind, value)


async def test_a_timeout_belongs_to_the_guest(session: GuestSession) -> None:
    ended, _, _ = await run(session, "sleep", "60", timeout_seconds=0.05)
    assert ended.reason is Reason.TIMED_OUT


async def test_cancelling_and_signalling_reach_the_tree(session: GuestSession) -> None:
    process = start(session, "sh", "-c", "trap 'exit 7' USR1; echo ready; while :; do read x; done", stdin=True)
    chunk = await process.next_chunk()
    assert chunk is not None
    assert chunk.data == b"ready\n"
    process.signal(signal.SIGUSR1)
    await process.close_stdin()
    stuck = start(session, "sleep", "60")
    await stuck.pid()
    stuck.cancel(0)
    assert (await stuck.exit()).reason is Reason.CANCELLED
    process.cancel(0)
    await process.exit()
    process.forget()
    stuck.forget()


async def test_output_without_an_end_stops_at_its_limit(session: GuestSession) -> None:
    ended, out, _ = await run(session, "yes", output_limit=100_000)
    assert ended.reason is Reason.OUTPUT_LIMIT
    assert (len(out), ended.stdout_total) == (100_000, 100_000)


async def test_a_slow_consumer_holds_the_process_back(session: GuestSession) -> None:
    ring = 65_536
    process = start(session, "head", "-c", "3000000", "/dev/zero", ring_bytes=ring)
    taken = 0
    while (chunk := await process.next_chunk()) is not None:
        taken += len(chunk.data)
        await session.ping()  # whatever the guest may send has come now
        assert process._queued <= ring
    assert taken == 3_000_000
    assert (await process.exit()).stdout_total == 3_000_000
    process.forget()


async def test_one_stalled_process_does_not_hold_up_another(session: GuestSession) -> None:
    stalled = start(session, "yes")
    assert await stalled.next_chunk() is not None
    await session.ping()
    ended, out, _ = await run(session, "head", "-c", "5000000", "/dev/zero")
    assert (ended.value, len(out)) == (0, 5_000_000)
    stalled.abandon()


async def test_five_megabytes_of_stdin_come_back_equal(session: GuestSession) -> None:
    data = bytes_of(1, 5_000_000)
    kept = Kept()
    process = start(session, "cat", stdin=True, sink=kept)
    await process.write(data)
    await process.close_stdin()
    assert (await process.exit()).value == 0
    assert kept.stdout == data
    process.forget()


async def test_writing_to_a_process_that_stopped_reading_is_a_broken_pipe(session: GuestSession) -> None:
    kept = Kept()
    process = start(session, "head", "-c", "10", stdin=True, sink=kept)
    with pytest.raises(BrokenPipeError):
        await process.write(bytes_of(2, 5_000_000))
    ended = await process.exit()
    assert (ended.value, bytes(kept.stdout)) == (0, bytes_of(2, 5_000_000)[:10])
    process.forget()


async def test_forgotten_processes_are_not_listed_any_more(guest: RealGuest, session: GuestSession) -> None:
    kept = start(session, "sh", "-c", "exit 5")
    gone = start(session, "true")
    await kept.exit()
    await gone.exit()
    gone.forget()
    await session.ping()
    await session.aclose()
    other = await GuestSession.connect(guest.open, wanted={kept.guest_id: (0, 0), gone.guest_id: (0, 0)})
    assert kept.guest_id in other.hello.processes
    assert gone.guest_id not in other.hello.processes
    joined = other.join(kept.guest_id)
    assert (await joined.exit()).value == 5
    joined.forget()
    await other.aclose()


# ── broken connections ───────────────────────────────────────────────────────────────────────────────────────────


class Cuts:
    """Opens connections that each end after some bytes, in the middle of whatever that is; the last does not."""

    def __init__(self, guest: RealGuest, *after: int) -> None:
        self.guest = guest
        self.after = list(after)
        self.opened = 0

    async def open(self) -> ByteStream:
        self.opened += 1
        if self.after:
            return await self.guest.open_cut(self.after.pop(0))
        return await self.guest.open()


SEQUENCE = b"".join(b"%d\n" % number for number in range(1, 400_001))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("has_sink", [True, False])
async def test_output_is_equal_to_the_byte_over_many_broken_connections(
    guest: RealGuest, seed: int, has_sink: bool
) -> None:
    # The first cut is behind the hello, which lists what other tests have left.
    cuts = Cuts(guest, 20_000, *(random.Random(seed).randrange(5_000, 400_000) for _ in range(8)))
    session = await GuestSession.connect(cuts.open)
    kept = Kept()
    process = start(session, "seq", "400000", sink=kept if has_sink else None)
    if not has_sink:
        while (chunk := await process.next_chunk()) is not None:
            kept.output(*chunk)
    ended = await process.exit()
    assert cuts.opened >= 8
    assert ended.stdout_total == len(SEQUENCE)
    assert bytes(kept.stdout) == SEQUENCE
    process.forget()
    await session.aclose()


@pytest.mark.parametrize("seed", range(3))
async def test_stdin_is_equal_to_the_byte_over_many_broken_connections(guest: RealGuest, seed: int) -> None:
    cuts = Cuts(guest, 20_000, *(random.Random(seed).randrange(5_000, 400_000) for _ in range(8)))
    session = await GuestSession.connect(cuts.open)
    data = bytes_of(seed, 5_000_000)
    kept = Kept()
    process = start(session, "cat", stdin=True, sink=kept)
    await process.write(data)
    await process.close_stdin()
    assert (await process.exit()).value == 0
    assert cuts.opened >= 8
    assert len(kept.stdout) == len(data)
    assert bytes(kept.stdout) == data
    process.forget()
    await session.aclose()


@pytest.mark.parametrize("ends", [True, False])
async def test_stdin_that_the_guest_holds_is_not_doubled_by_a_new_connection(
    guest: RealGuest, work: Path, ends: bool
) -> None:
    os.mkfifo(work / "gate")
    streams: list[SocketStream] = []

    async def opened() -> ByteStream:
        streams.append(await guest.open())
        return streams[-1]

    session = await GuestSession.connect(opened)
    kept = Kept()
    process = start(session, "sh", "-c", 'cat "$0"; exec cat', str(work / "gate"), stdin=True, sink=kept)
    data = bytes_of(9, 200_000)
    await process.write(data)
    if ends:
        await process.close_stdin()
    await session.ping()
    assert process.stdin_taken < len(data)
    streams[-1].sock.shutdown(socket.SHUT_RDWR)
    await session.ping()
    assert len(streams) == 2
    while True:
        try:
            os.close(os.open(work / "gate", os.O_WRONLY | os.O_NONBLOCK))
            break
        except OSError:  # nobody has opened it to read yet
            await session.ping()
    await process.close_stdin()
    assert (await process.exit()).value == 0
    assert len(kept.stdout) == len(data)
    assert bytes(kept.stdout) == data
    process.forget()
    await session.aclose()


async def test_every_start_runs_once_over_broken_connections(guest: RealGuest, work: Path) -> None:
    cuts = Cuts(guest, *(2_000 + 300 * number for number in range(20)))
    session = await GuestSession.connect(cuts.open)
    script = 'echo x >> "$0"; head -c 200 /dev/zero'
    processes = [start(session, "sh", "-c", script, str(work / f"{number}"), sink=Kept()) for number in range(40)]
    for process in processes:
        assert (await process.exit()).value == 0
        assert await process.pid()
        process.forget()
    assert cuts.opened > 3
    assert [(work / f"{number}").read_text() for number in range(40)] == ["x\n"] * 40
    await session.aclose()


async def test_a_second_session_takes_over_and_output_goes_on_where_it_stood(guest: RealGuest) -> None:
    first = await GuestSession.connect(guest.open)
    process = start(first, "seq", "400000")
    chunk = await process.next_chunk()
    assert chunk is not None
    await first.aclose()
    second = await GuestSession.connect(guest.open, wanted={process.guest_id: (len(chunk.data), 0)})
    joined = second.join(process.guest_id)
    rest = b"".join([chunk.data async for chunk in joined.chunks()])
    assert chunk.data + rest == SEQUENCE
    assert await joined.pid()
    joined.forget()
    await second.aclose()


async def test_what_nobody_wants_of_an_adopted_box_is_ended_and_forgotten(guest: RealGuest) -> None:
    first = await GuestSession.connect(guest.open)
    running, ended = start(first, "sleep", "60"), start(first, "echo", "x")
    await running.pid()
    await ended.exit()
    await first.aclose()
    second = await GuestSession.connect(guest.open)
    leftovers = set(second.hello.processes)
    assert {running.guest_id, ended.guest_id} <= leftovers
    for guest_id in leftovers:
        second.join(guest_id).abandon()
    while second._processes:
        await second.ping()
    await second.aclose()
    third = await GuestSession.connect(guest.open)
    assert third.hello.processes == {}
    await third.aclose()


async def test_a_dead_guest_loses_its_box_for_every_waiter(tmp_path: Path) -> None:
    with real_guest(tmp_path) as guest:
        session = await GuestSession.connect(guest.open, patience_seconds=0.1)
        process = start(session, "sleep", "60")
        await process.pid()
        waiting = [asyncio.ensure_future(wait) for wait in (process.exit(), session.wait_closed(), session.ping())]
        guest.kill()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results][::2] == [BoxLost, BoxLost]
        assert "no new one came" in str(results[1])
        await session.aclose()


async def test_two_hundred_processes_at_once_all_end(session: GuestSession) -> None:
    processes = [start(session, "sh", "-c", f"exit {number % 100}") for number in range(200)]
    codes = [(await process.exit()).value for process in processes]
    assert codes == list(itertools.islice(itertools.cycle(range(100)), 200))
    for process in processes:
        process.forget()
