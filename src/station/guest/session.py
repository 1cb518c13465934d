"""A session with the guest of one box: processes over one stream that may break and come back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from station.core.errors import BoxLost, InternalError, Unavailable

from . import frames
from .frames import Frame, Hello, ProtocolError, StartRecord
from .handshake import ByteStream, Connection, GuestSilent, HostAway, greet
from .outbox import Outbox, Waiters
from .process import GuestProcess, Sink

__all__ = ["Away", "ByteStream", "GuestSession", "HostAway"]

log = logging.getLogger(__name__)

HELLO_SECONDS = 5.0
PATIENCE_SECONDS = 5.0
FLUSH_SECONDS = 0.5
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.02, 0.5
QUICK_LOSS_SECONDS, QUICK_LOSSES_AT_ONCE = 0.2, 50

OpenStream = Callable[[], Awaitable[ByteStream]]


class Away(NamedTuple):
    """Since when the box cannot be asked for, and what was said last."""

    since: float
    """Unix time."""
    why: str

    def error(self) -> Unavailable:
        """For whoever cannot wait for its return."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.since))
        return Unavailable(
            f"the sandbox cannot be reached since {at} ({time.time() - self.since:.0f} s): {self.why}. What runs in it "
            "goes on, for all that is known; try again",
            since=at,
        )


class GuestSession:
    """Made by `connect`, ended by `aclose` (the connection, never the box).

    A broken stream is opened again and everything goes on where it stood: callers see nothing. If that fails, or the
    guest breaks the protocol, the session is closed for good: `closed_reason` tells why, and every wait on it and its
    processes raises BoxLost. While nobody can tell whether the box is there (`HostAway`), the session stays open for as
    long as that takes, and `away` says since when.
    """

    def __init__(self, open_stream: OpenStream, *, hello_seconds: float, patience_seconds: float) -> None:
        """Use `connect`."""
        self._open_stream = open_stream
        self._hello_seconds = hello_seconds
        self._patience_seconds = patience_seconds
        self._outbox = Outbox()
        self._processes: dict[int, GuestProcess] = {}
        self._forgotten: set[int] = set()
        """Joined and forgotten; of our own, ids alone tell."""
        self._first_own_id = 0
        self._highest_id = 0
        self._next_id = 0
        self._closed = Waiters()
        self._task: asyncio.Task[None] | None = None
        self._silent = Waiters()
        self._stream: ByteStream
        self.closed_reason: str | None = None
        """`None` while the session is usable."""
        self.away: Away | None = None
        """`None`: nothing is known to be wrong with the way to the box."""
        self._back = Waiters()
        self.hello: Hello
        """The guest's answer to the first hello."""

    @classmethod
    async def connect(
        cls,
        open_stream: OpenStream,
        *,
        wanted: Mapping[int, tuple[int, int]] | None = None,
        hello_seconds: float = HELLO_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> GuestSession:
        """A session whose hello is done. Raises BoxLost if the guest does not answer in `hello_seconds`.

        `wanted`: processes that the guest may still know, each with the stdout and stderr offsets to go on from; their
        output waits for `join`. `patience_seconds`: how long a broken stream is tried again, not counting the time in
        which the box cannot be asked for.
        """
        session = cls(open_stream, hello_seconds=hello_seconds, patience_seconds=patience_seconds)
        try:
            connection = await session._connect(wanted or {})
        except (OSError, ProtocolError) as error:
            raise BoxLost(f"the guest cannot be reached: {error}") from error
        session._begin(connection.hello, wanted or {})
        session._task = asyncio.create_task(session._run(connection), name="guest session")
        return session

    def _begin(self, hello: Hello, wanted: Mapping[int, tuple[int, int]]) -> None:
        self.hello = hello
        self._highest_id = self._next_id = hello.last_id
        self._first_own_id = hello.last_id + 1
        for guest_id, offsets in wanted.items():
            if guest_id in hello.processes:
                self._add(guest_id, offsets)

    # ── what callers do ─────────────────────────────────────────────────────────────────────────────────────────

    def next_id(self) -> int:
        """An id for `start`, larger than all before. Start it before anything else is started here, that is without
        awaiting in between: the guest takes ids in growing order only."""
        self._next_id = max(self._next_id, self._highest_id) + 1
        return self._next_id

    def start(self, record: StartRecord, *, guest_id: int, sink: Sink | None = None) -> GuestProcess:
        """Queues the start and returns; what becomes of it, `pid` and `exit` of the process tell.

        Raises BoxLost if the session is closed, InvalidInput or TooLarge for a record that cannot be sent,
        InternalError for an id that is not larger than every one before.
        """
        self._raise_if_closed()
        if guest_id <= self._highest_id:
            raise InternalError(f"process id {guest_id} comes after {self._highest_id}")
        start = frames.start_frames(guest_id, record.encode())
        process = GuestProcess(guest_id, self._outbox, self._on_forgotten, sink=sink, record=record)
        self._highest_id = guest_id
        self._processes[guest_id] = process
        self._outbox.put(*start)
        return process

    def join(self, guest_id: int, *, sink: Sink | None = None) -> GuestProcess:
        """A process that the guest listed in its hello, with its output from the offsets given in `connect`, else from
        the oldest that the guest holds. Raises BoxLost where the session is closed or the guest does not know it."""
        self._raise_if_closed()
        process = self._processes.get(guest_id)
        if process is None:
            known = self.hello.processes.get(guest_id)
            if known is None or guest_id in self._forgotten:
                raise BoxLost("the guest does not know this process")
            process = self._add(guest_id, (known.stdout_from, known.stderr_from))
            self._outbox.acknowledge(guest_id, frames.STDOUT, known.stdout_from)
            self._outbox.acknowledge(guest_id, frames.STDERR, known.stderr_from)
        process.attach(sink)
        return process

    async def ping(self) -> float:
        """Seconds for one round trip, everything queued before it included. Raises BoxLost."""
        self._raise_if_closed()
        loop = asyncio.get_running_loop()
        began = loop.time()
        answered = loop.create_future()
        payload = self._outbox.put_confirmed(answered=answered)
        try:
            await answered
        finally:
            self._outbox.confirm(payload)
        return loop.time() - began

    async def reachable(self, seconds: float) -> None:
        """Returns at once unless the box is `away`, else when it is back. Raises Unavailable if that takes longer than
        `seconds`, BoxLost when the session is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.away is not None and self.closed_reason is None:
                    await self._back.wait()
        self._raise_if_closed()
        if self.away is not None:
            raise self.away.error()

    def silence(self) -> Unavailable:
        """For whoever has waited too long for the guest."""
        return self.away.error() if self.away else Unavailable("the sandbox does not answer now; try again")

    async def answers(self, seconds: float) -> bool:
        """Whether the guest answers within that time. A connection that is silent for so long is opened again, which
        finds out why. Raises BoxLost when the session is closed."""
        try:
            async with asyncio.timeout(seconds):
                await self.ping()
        except TimeoutError:
            self._silent.wake()
            return False
        return True

    async def wait_closed(self) -> str:
        """Waits until the session is closed, and tells why."""
        while self.closed_reason is None:
            await self._closed.wait()
        return self.closed_reason

    async def aclose(self) -> None:
        """Ends the connection; the box and its processes go on. Repeating is no error."""
        task, self._task = self._task, None
        if task is None:
            return
        try:
            if self.closed_reason is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_SECONDS):
                        await self._outbox.drained()
        finally:
            task.cancel()
            await asyncio.wait([task])
            # A task that was cancelled before its first step has done neither.
            self._close("the session was closed")
            await self._stream.aclose()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    # ── the connection ──────────────────────────────────────────────────────────────────────────────────────────

    async def _connect(self, wanted: Mapping[int, tuple[int, int]]) -> Connection:
        stream = self._stream = await self._open_stream()
        greeted = False
        try:
            connection = await greet(stream, wanted, seconds=self._hello_seconds)
            greeted = True
        finally:
            if not greeted:
                await stream.aclose()
        return connection

    async def _run(self, connection: Connection) -> None:
        """Serves one connection after the other, until there is none to be had."""
        reason = "a fault of Station ended the session"
        loop = asyncio.get_running_loop()
        quick_losses = 0
        try:
            while True:
                begun = loop.time()
                broken = await self._serve(connection)
                quick_losses = quick_losses + 1 if loop.time() - begun < QUICK_LOSS_SECONDS else 0
                if quick_losses > QUICK_LOSSES_AT_ONCE:
                    # Another session holds the guest, or its host is failing: not as fast as the loop turns.
                    await asyncio.sleep(LONGEST_PAUSE_SECONDS)
                log.debug("the connection to the guest broke: %s", broken)
                connection = await self._reconnect(broken)
        except asyncio.CancelledError:
            reason = "the session was closed"
            raise
        except BoxLost as error:
            reason = error.message
        except ProtocolError as error:
            reason = f"the guest broke the protocol: {error}"
        finally:
            self._close(reason)

    async def _serve(self, connection: Connection) -> str:
        """Reads and writes until the stream breaks, and tells how. Raises ProtocolError."""
        ends: list[BaseException] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(connection.stream, connection.nonce), name="guest session: writer")
                group.create_task(self._read(connection), name="guest session: reader")
                group.create_task(self._until_silent(), name="guest session: silence")
        except* (OSError, ProtocolError) as errors:
            ends += errors.exceptions
        finally:
            await connection.stream.aclose()
        for error in ends:
            if isinstance(error, ProtocolError):
                raise error
        return str(ends[0])

    async def _until_silent(self) -> None:
        await self._silent.wait()
        raise ConnectionResetError("the guest did not answer in time")

    async def _write(self, stream: ByteStream, nonce: bytes) -> None:
        while True:
            await stream.send(await self._outbox.take(nonce))

    async def _read(self, connection: Connection) -> None:
        for frame in connection.first:
            self._dispatch(frame)
        receive, feed, dispatch = connection.stream.receive, connection.decoder.feed, self._dispatch
        while data := await receive():
            for frame in feed(data):
                dispatch(frame)
        raise ConnectionResetError("the guest closed the connection")

    async def _reconnect(self, broken: str) -> Connection:
        """Raises BoxLost when patience ends, or at once where opening says so."""
        loop = asyncio.get_running_loop()
        broken_at = time.time()
        deadline = loop.time() + self._patience_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self._connect(self._wanted())
            except HostAway as error:
                self.away = Away(broken_at, str(error))
                deadline = loop.time() + pause + self._patience_seconds
            except (OSError, GuestSilent) as error:  # a TimeoutError is an OSError
                if loop.time() + pause >= deadline:
                    raise BoxLost(f"the connection to the guest is lost ({broken}), and no new one came") from error
            else:
                self._resume(connection.hello)
                self._come_back()
                return connection
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _come_back(self) -> None:
        if self.away is not None:
            log.info("a box can be reached again: %s", self.away.why)
            self.away = None
        self._back.wake()

    def _wanted(self) -> dict[int, tuple[int, int]]:
        return {guest_id: each.offsets for guest_id, each in self._processes.items() if not each.ended}

    def _resume(self, hello: Hello) -> None:
        self._outbox.restart()
        for guest_id in hello.processes:
            if self._is_forgotten(guest_id):
                self._outbox.put(frames.frame(frames.FORGET, guest_id))
        for guest_id, process in sorted(self._processes.items()):
            process.resume(hello.processes.get(guest_id), hello.last_id)
        self._outbox.resume()

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _dispatch(self, frame: Frame) -> None:
        kind, guest_id, payload = frame
        if kind == frames.OUTPUT:
            self._outbox.received(len(payload))
        elif kind == frames.PONG:
            self._outbox.confirm(payload)
        process = self._processes.get(guest_id)
        if process is not None and kind in _HANDLERS:
            _HANDLERS[kind](process, payload)
        elif kind == frames.ERROR:
            log.debug("the guest answers for %d: %s", guest_id, frames.parse_error(payload))

    def _add(self, guest_id: int, offsets: tuple[int, int]) -> GuestProcess:
        process = GuestProcess(guest_id, self._outbox, self._on_forgotten, offsets=offsets)
        self._processes[guest_id] = process
        process.resume(self.hello.processes[guest_id], self.hello.last_id)
        return process

    def _on_forgotten(self, guest_id: int) -> None:
        del self._processes[guest_id]
        if guest_id < self._first_own_id:
            self._forgotten.add(guest_id)

    def _is_forgotten(self, guest_id: int) -> bool:
        return guest_id in self._forgotten or (guest_id >= self._first_own_id and guest_id not in self._processes)

    def _close(self, reason: str) -> None:
        if self.closed_reason is None:
            self.closed_reason = reason
            for process in list(self._processes.values()):
                process.lose(BoxLost(reason))
            self._outbox.fail(BoxLost(reason))
            self._closed.wake()
            self._back.wake()

    def _raise_if_closed(self) -> None:
        if self.closed_reason is not None:
            raise BoxLost(self.closed_reason)


def _on_output(process: GuestProcess, payload: bytes) -> None:
    process.on_output(*frames.parse_output(payload))


_HANDLERS: dict[int, Callable[[GuestProcess, bytes], None]] = {
    frames.STARTED: lambda process, payload: process.on_started(frames.parse_started(payload)),
    frames.OUTPUT: _on_output,
    frames.GAP: lambda process, payload: process.on_gap(*frames.parse_gap(payload)),
    frames.EXIT: lambda process, payload: process.on_exit(frames.parse_exit(payload)),
    frames.STDIN_ACK: lambda process, payload: process.on_stdin_taken(frames.parse_stdin_ack(payload)),
    frames.STDIN_CLOSED: lambda process, _: process.on_stdin_closed(),
    frames.ERROR: lambda process, payload: process.on_error(*frames.parse_error(payload)),
}
