"""One process of a guest, seen from the host: output, stdin, signals and end. No I/O: frames in, frames queued."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import AsyncIterator, Callable
from math import inf
from typing import NamedTuple, Protocol

from station.core.errors import BoxLost, InternalError, InvalidInput, LimitReached, StationError

from .endings import GuestExit, Reason
from .frames import (
    DEFAULT_RING,
    FORGET,
    MAX_PAYLOAD,
    MAX_RING,
    MIN_RING,
    STDERR,
    STDIN,
    STDIN_WINDOW,
    STDOUT,
    HelloProcess,
    OnFull,
    ProtocolError,
    StartRecord,
    cancel_frame,
    frame,
    signal_frame,
    start_frames,
)
from .outbox import Outbox, Waiters

LAST_SIGNAL = 64
MAX_GAPS = 256
"""Of one process that was not started with `drop_oldest`: a gap costs its sink a file operation, and is kept."""


class Chunk(NamedTuple):
    """Output from `offset` on; a jump from the end of the chunk before is a gap."""

    stream: int
    offset: int
    data: bytes


class Sink(Protocol):
    """Takes the output of one process, in order of each stream. Must not raise: it would end the session."""

    def output(self, stream: int, offset: int, data: bytes) -> bool:
        """`True`: the bytes are acknowledged, and the guest may forget them. `False`: not before
        `GuestProcess.acknowledge` is called; a ring later the process is held up."""

    def gap(self, stream: int, start: int, end: int) -> None:
        """The bytes `start`..`end` are gone."""


class GuestProcess:
    """Made by `GuestSession.start` and `join`. Without a sink its output waits for `chunks`, at most a ring a stream.

    Every wait raises BoxLost when the session ends, and may be cancelled at any time without harm.
    """

    def __init__(
        self,
        guest_id: int,
        outbox: Outbox,
        on_forgotten: Callable[[int], None],
        *,
        sink: Sink | None = None,
        record: StartRecord | None = None,
        offsets: tuple[int, int] = (0, 0),
    ) -> None:
        """`record`: what is to be started; `None` for a process that the guest runs already."""
        self.guest_id = guest_id
        self._outbox = outbox
        self._on_forgotten = on_forgotten
        self._sink = sink
        self._record = record
        self._has_stdin = record is None or record.stdin
        self._ring = max(record.ring_bytes or DEFAULT_RING, MIN_RING) if record else MAX_RING
        self._gaps_left: float = inf if record is not None and record.on_full is OnFull.DROP_OLDEST else MAX_GAPS
        self._received = [0, *offsets]
        self._acked = [0, *offsets]
        self._queue: deque[Chunk] = deque()
        self._queued = 0
        self._pid: int | None = None
        self._exit: GuestExit | None = None
        self._lost: StationError | None = None
        self._changed = Waiters()
        self._arrived = Waiters()
        self._abandoned = False
        self._forget_at_exit = self._gone = False
        self._cancel: bytes | None = None
        self._unsafe: deque[bytes] = deque()
        """Stdin that the process has not taken yet: it is sent again over a new connection."""
        self._sent = self._taken = 0
        self._eof = self._stdin_closed = False
        self._stdin_lock: asyncio.Lock | None = None

    # ── what callers do ─────────────────────────────────────────────────────────────────────────────────────────

    async def pid(self) -> int | None:
        """The pid as the guest sees it. `None`: it ended without having started, `exit` tells why."""
        while self._pid is None and self._exit is None:
            self._raise_if_lost()
            await self._changed.wait()
        return self._pid

    async def exit(self) -> GuestExit:
        """Waits for the end; the tree is empty then.

        Raises BoxLost, or InvalidInput, LimitReached or InternalError where the guest refused to start it.
        """
        while self._exit is None:
            self._raise_if_lost()
            await self._changed.wait()
        return self._exit

    async def next_chunk(self) -> Chunk | None:
        """The next output, acknowledged by being taken; `None` at the end of both streams. Cancelled, it has taken
        nothing. For a process without a sink."""
        while not self._queue:
            if self._exit is not None:
                return None
            self._raise_if_lost()
            await self._arrived.wait()
        chunk = self._queue.popleft()
        self._queued -= len(chunk.data)
        self._take(chunk.stream, chunk.offset + len(chunk.data))
        return chunk

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Output as `next_chunk` gives it, to its end."""
        while (chunk := await self.next_chunk()) is not None:
            yield chunk

    async def write(self, data: bytes) -> None:
        """Sends `data` to stdin; returns when all of it is under way within the window of the guest.

        Raises BrokenPipeError when nobody reads it any more; what was written before may be lost then. Cancelled, a
        part may have been sent. Writers take turns.
        """
        async with self._writing():
            view = memoryview(data)
            while view:
                piece = bytes(view[:MAX_PAYLOAD])
                while self._sent - self._taken + len(piece) > STDIN_WINDOW and not self._stdin_over():
                    await self._changed.wait()
                if self._stdin_over():
                    raise BrokenPipeError(errno.EPIPE, "the process does not read its stdin any more")
                self._sent += len(piece)
                self._unsafe.append(piece)
                self._outbox.put(frame(STDIN, self.guest_id, piece))
                view = view[len(piece) :]

    async def close_stdin(self) -> None:
        """End of file, after what was written. Repeating is no error, nor is a process that has ended."""
        async with self._writing():
            if not self._eof:
                self._eof = True
                if not (self._stdin_closed or self._exit or self._lost):
                    self._outbox.put(frame(STDIN, self.guest_id))

    @property
    def stdin_taken(self) -> int:
        """How many bytes of stdin the process's pipe has taken since its start."""
        return self._taken

    def signal(self, number: int) -> None:
        """To the whole tree; to an ended process, nothing happens. After a broken connection it may arrive twice.

        Raises InvalidInput for a number that is no signal.
        """
        if not 1 <= number <= LAST_SIGNAL:
            raise InvalidInput(f"there is no signal {number}", field="signal")
        if self._exit is None and self._lost is None:
            self._outbox.put_confirmed(signal_frame(self.guest_id, number))

    def cancel(self, grace_seconds: float, reason: Reason = Reason.CANCELLED) -> None:
        """TERM to the tree, KILL after the grace. The first reason given is the one that EXIT will have."""
        if self._exit is None and self._lost is None:
            self._cancel = cancel_frame(self.guest_id, grace_seconds, reason)
            self._outbox.put(self._cancel)

    def acknowledge(self, stream: int) -> None:
        """All that its sink was given of this stream may be forgotten, after `Sink.output` has said no."""
        if self._received[stream] > self._acked[stream]:
            self._take(stream, self._received[stream])

    @property
    def ring_bytes(self) -> int:
        """At most so much of a stream comes beyond what was acknowledged."""
        return self._ring

    def forget(self) -> None:
        """The guest drops what it kept: at once if the process has ended, else when it ends. Idempotent."""
        self._forget_at_exit = True
        if self._exit is not None:
            self._forget_now()

    def abandon(self, grace_seconds: float = 0.0) -> None:
        """Nobody wants it any more: it is killed, after a TERM and the grace; its output is thrown away, and it is
        forgotten."""
        self._abandoned = True
        self._sink = None
        while self._queue:
            chunk = self._queue.popleft()
            self._take(chunk.stream, chunk.offset + len(chunk.data))
        self._queued = 0
        self.cancel(grace_seconds)
        self.forget()

    # ── what the session tells ──────────────────────────────────────────────────────────────────────────────────

    def on_started(self, pid: int) -> None:
        self._pid = pid
        self._record = None
        self._changed.wake()

    def on_output(self, stream: int, offset: int, data: bytes) -> None:
        have = self._received[stream]
        if offset != have:
            if offset > have:
                self.on_gap(stream, have, offset)
            else:  # sent again over a new connection
                data, offset = data[have - offset :], have
            if not data:
                return
        end = offset + len(data)
        self._received[stream] = end
        if self._sink is not None:
            if self._sink.output(stream, offset, data):
                self._take(stream, end)
        elif self._abandoned:
            self._take(stream, end)
        else:
            self._queued += len(data)
            if self._queued > 2 * self._ring:
                raise ProtocolError("the guest sends output that nobody has room for")
            self._queue.append(Chunk(stream, offset, data))
            self._arrived.wake()

    def on_gap(self, stream: int, start: int, end: int) -> None:
        start = max(start, self._received[stream])
        if end <= start:
            return
        self._gaps_left -= 1
        if self._gaps_left < 0:
            raise ProtocolError("the guest leaves out too much")
        self._received[stream] = end
        if self._sink is not None:
            self._sink.gap(stream, start, end)
        self._take(stream, end)

    def on_exit(self, ended: GuestExit) -> None:
        if self._exit is not None:
            return
        for stream, total in ((STDOUT, ended.stdout_total), (STDERR, ended.stderr_total)):
            if total > self._received[stream]:
                self.on_gap(stream, self._received[stream], total)
        self._exit = ended
        self._record = None
        self._unsafe.clear()
        self._changed.wake()
        self._arrived.wake()
        if self._forget_at_exit:
            self._forget_now()

    def on_stdin_taken(self, taken: int) -> None:
        """The guest counts from the start of the process."""
        if not self._taken <= taken <= self._sent:
            return
        surplus = taken - self._taken
        while surplus:
            piece = self._unsafe.popleft()
            if len(piece) > surplus:
                self._unsafe.appendleft(piece[surplus:])
                break
            surplus -= len(piece)
        self._taken = taken
        self._changed.wake()

    def on_stdin_closed(self) -> None:
        self._stdin_closed = True
        self._unsafe.clear()
        self._changed.wake()

    def on_error(self, code: int, text: str) -> None:
        """Only an unstarted process can be refused; the rest are races with its end, or our own faults in its stdin."""
        if self._record is None or self._pid is not None or self._exit is not None:
            return
        if code == errno.EINVAL:
            self.lose(InvalidInput(f"the guest refused the command: {text}", field="argv"))
        elif code in (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE):
            self.lose(LimitReached(f"the sandbox has no room for another process: {text}"))
        elif code not in (errno.ESRCH, errno.ENOBUFS, errno.EBUSY):  # those answer other frames than the start
            self.lose(InternalError(f"the guest refused to start a process: {text} ({code})"))

    def lose(self, error: StationError) -> None:
        """Nothing more will come; every wait raises `error`."""
        if self._exit is None and self._lost is None:
            self._lost = error
            self._unsafe.clear()
            self._changed.wake()
            self._arrived.wake()
            self._forget_now()

    # ── a new connection ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def ended(self) -> bool:
        return self._exit is not None

    @property
    def offsets(self) -> tuple[int, int]:
        """How far its output is safe here."""
        return self._acked[STDOUT], self._acked[STDERR]

    def attach(self, sink: Sink | None) -> None:
        """The output goes to `sink` from now on, and what has come already goes there first."""
        self._sink = sink
        if sink is not None:
            while self._queue:
                chunk = self._queue.popleft()
                if sink.output(*chunk):
                    self._take(chunk.stream, chunk.offset + len(chunk.data))
            self._queued = 0

    def resume(self, known: HelloProcess | None, last_id: int) -> None:
        """Queues what a new connection needs, after the guest's hello: `known` is what it says of this process."""
        if self._exit is not None or self._lost is not None:
            return
        if known is None:
            if self.guest_id <= last_id:
                self.lose(BoxLost("the guest no longer knows it"))
                return
            if self._record is None:
                self.lose(BoxLost("the guest has lost it"))
                return
            self._outbox.put(*start_frames(self.guest_id, self._record.encode()))
        else:
            if known.pid and self._pid is None:
                self.on_started(known.pid)
            self._resume_stdin(known.stdin_taken)
        for piece in self._unsafe:
            self._outbox.put(frame(STDIN, self.guest_id, piece))
        if self._eof and not self._stdin_closed:
            self._outbox.put(frame(STDIN, self.guest_id))
        if self._cancel is not None:
            self._outbox.put(self._cancel)

    def _resume_stdin(self, taken: int) -> None:
        if self._sent == 0:  # joined: an earlier session wrote, this one goes on behind it
            self._sent = self._taken = taken
        self.on_stdin_taken(taken)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, stream: int, end: int) -> None:
        self._acked[stream] = max(end, self._acked[stream])
        if self._exit is None:
            self._outbox.acknowledge(self.guest_id, stream, end)

    def _forget_now(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._outbox.forget_acks(self.guest_id)
        if self._exit is not None:
            self._outbox.put_lazily(frame(FORGET, self.guest_id))
        self._on_forgotten(self.guest_id)

    def _writing(self) -> asyncio.Lock:
        if not self._has_stdin:
            raise InternalError("this process was started without stdin")
        if self._stdin_lock is None:
            self._stdin_lock = asyncio.Lock()
        return self._stdin_lock

    def _stdin_over(self) -> bool:
        """Whether nobody will read stdin any more. Raises BoxLost."""
        self._raise_if_lost()
        return self._stdin_closed or self._exit is not None or self._eof

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            raise self._lost.again()
