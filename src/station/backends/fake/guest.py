"""The guest of a fake box: the protocol's other end, in this process."""

from __future__ import annotations

import asyncio
import errno
import struct
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count

from station.guest import frames
from station.guest.endings import Reason
from station.guest.frames import MAX_RECORD, Frame, HelloProcess

from . import wire
from .clock import Clock
from .execution import Execution
from .faults import Faults, Moment
from .process import Program
from .stream import FaultyStream
from .tree import Tree

_BATCH = 8
CAPABILITIES = 1 << frames.CAPABILITIES.index("subreaper") | 1 << frames.CAPABILITIES.index("openat2")


class Connection:
    """One stream to a host. Its tasks end with the stream, or by `aclose`."""

    def __init__(self, guest: FakeGuest, stream: FaultyStream) -> None:
        self.control: deque[bytes] = deque()
        self.credit = 0
        self._guest = guest
        self._stream = stream
        self._wake = asyncio.Event()
        self._turn = 0
        self._task = asyncio.create_task(self._run(), name="fake guest's connection")

    def wake(self) -> None:
        self._wake.set()

    def send(self, frame: bytes) -> None:
        self.control.append(frame)
        self._wake.set()

    def break_off(self) -> None:
        self._stream.break_off()
        self._wake.set()

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        pump = asyncio.create_task(self._pump(), name="fake guest's pump")
        try:
            await self._read()
        finally:
            pump.cancel()
            await asyncio.wait({pump})
            await self._stream.aclose()
            self._guest.gone(self)

    async def _read(self) -> None:
        decoder = wire.HostDecoder()
        try:
            while data := await self._stream.receive():
                for frame in decoder.feed(data):
                    self._guest.handle(self, frame)
        except OSError:
            self.break_off()

    async def _pump(self) -> None:
        try:
            while True:
                batch = self._batch()
                if batch:
                    await self._stream.send(batch)
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except OSError:
            self.break_off()

    def _batch(self) -> bytes:
        parts = list(self.control)
        self.control.clear()
        if self._guest.session is self:
            for _ in range(_BATCH):
                frame = self._next_frame()
                if frame is None:
                    break
                parts.append(frame)
        return b"".join(parts)

    def _next_frame(self) -> bytes | None:
        """Round robin over the processes."""
        executions = list(self._guest.executions.values())
        for step in range(len(executions)):
            execution = executions[(self._turn + step) % len(executions)]
            frame = self._output(execution) or self._exit(execution)
            if frame:
                self._turn += step + 1
                return frame
        return None

    def _output(self, execution: Execution) -> bytes | None:
        for stream, ring in enumerate(execution.rings, 1):
            if not ring.active:
                continue
            if ring.sent < ring.start:
                start, ring.sent = ring.sent, ring.start
                return wire.gap(execution.id, stream, start, ring.start)
            if ring.sent < ring.end and self.credit > wire.OUTPUT_HEAD and self._guest.alive_at("output"):
                offset, data = ring.take(min(wire.MAX_CHUNK, self.credit - wire.OUTPUT_HEAD))
                self.credit -= len(data) + wire.OUTPUT_HEAD
                return wire.output(execution.id, stream, offset, data)
        return None

    def _exit(self, execution: Execution) -> bytes | None:
        end = execution.exit
        if end is None or execution.exit_sent or not all(ring.drained for ring in execution.rings):
            return None
        if not self._guest.alive_at("exit"):
            return None
        execution.exit_sent = True
        return wire.exited(execution.id, end)


class FakeGuest:
    """Runs programs and touches files of one fake box. `die` is called to end the box from inside."""

    def __init__(
        self, tree: Tree, clock: Clock, programs: Mapping[str, Program], *, faults: Faults, die: Callable[[str], None]
    ) -> None:
        self.tree = tree
        self.clock = clock
        self.programs = programs
        self.session: Connection | None = None
        """The connection of the newest HELLO."""
        self.executions: dict[int, Execution] = {}
        self._faults = faults
        self._die = die
        self._connections: set[Connection] = set()
        self._last_id = 0
        self._pids = count(2)
        self._parts: tuple[int, bytes] = (0, b"")
        self._handlers: dict[int, Callable[[Frame], None]] = {
            frames.START: self._on_start,
            frames.START_PART: self._on_start_part,
            frames.STDIN: self._on_stdin,
            frames.SIGNAL: self._on_signal,
            frames.CANCEL: self._on_cancel,
            frames.ACK: self._on_ack,
            frames.CREDIT: self._on_credit,
            frames.FORGET: self._on_forget,
            frames.PING: self._on_ping,
        }

    # --- connections -------------------------------------------------------------------------------------------------

    def accept(self, stream: FaultyStream) -> None:
        self._connections.add(Connection(self, stream))

    def alive_at(self, moment: Moment) -> bool:
        """Whether the box lives on at this moment; if `Faults` says no, it is gone now."""
        if not self._faults.kills(moment):
            return True
        self._die(f"killed by Faults.kill_box_at = {moment!r}")
        return False

    def gone(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        if self.session is connection:
            self.session = None

    def break_off(self) -> None:
        """All connections are reset."""
        self.session = None
        for connection in self._connections:
            connection.break_off()

    async def aclose(self) -> None:
        """Ends all connections and processes, and waits for them."""
        self.session = None
        for connection in list(self._connections):
            await connection.aclose()
        for execution in self.executions.values():
            await execution.aclose()

    def handle(self, connection: Connection, frame: Frame) -> None:
        if frame.kind == frames.HELLO:
            self._on_hello(connection, frame)
        elif connection is self.session and frame.kind in self._handlers:
            try:
                self._handlers[frame.kind](frame)
            except (struct.error, ValueError) as error:
                self._tell(wire.error(frame.id, errno.EINVAL, str(error)))

    def _tell(self, frame: bytes) -> None:
        if self.session:
            self.session.send(frame)

    def _on_hello(self, connection: Connection, frame: Frame) -> None:
        try:
            hello = wire.parse_hello(frame.payload)
        except struct.error:
            return
        if not self.alive_at("hello"):
            return
        if self.session and self.session is not connection:
            self.session.break_off()
        self.session = connection
        connection.credit = hello.credit
        connection.control.clear()
        for execution in self.executions.values():
            wanted = hello.wanted.get(execution.id)
            execution.exit_sent = False
            for index, ring in enumerate(execution.rings):
                ring.active = False
                if wanted:
                    # The host has what it names: an acknowledgement that the old connection lost blocks nothing.
                    ring.forget(wanted[index])
                    ring.rewind(wanted[index])
            execution.stdin.drop_untaken()
            execution.stdin_told = execution.stdin.taken
        listed = [_listing(execution) for execution in self.executions.values()]
        connection.send(wire.hello_ack(hello.nonce, CAPABILITIES, self._last_id, listed))

    # --- what the host asks ------------------------------------------------------------------------------------------

    def _on_start_part(self, frame: Frame) -> None:
        number, held = self._parts
        held = held if number == frame.id else b""
        if len(held) + len(frame.payload) > MAX_RECORD:
            self._parts = (0, b"")
            self._tell(wire.error(frame.id, errno.E2BIG, "the start record is over 2 MiB"))
            return
        self._parts = (frame.id, held + frame.payload)

    def _on_start(self, frame: Frame) -> None:
        number, held = self._parts
        self._parts = (0, b"")
        if frame.id <= self._last_id:
            self._tell(wire.error(frame.id, errno.EEXIST, "this id was used before"))
            return
        record = wire.parse_record((held if number == frame.id else b"") + frame.payload)
        if not self.alive_at("start"):
            return
        self._last_id = frame.id
        execution = self.executions[frame.id] = Execution(frame.id, record, self)
        execution.begin()

    def _known(self, frame: Frame) -> Execution | None:
        execution = self.executions.get(frame.id)
        if execution is None:
            self._tell(wire.error(frame.id, errno.ESRCH, "no such process"))
        return execution

    def _on_stdin(self, frame: Frame) -> None:
        execution = self._known(frame)
        if execution is None:
            return
        if execution.stdin.abandoned or not execution.record.wants_stdin:
            self._tell(frames.frame(frames.STDIN_CLOSED, frame.id))
            return
        if not execution.feed(frame.payload):
            self._tell(wire.error(frame.id, errno.ENOBUFS, "stdin beyond the window, or after its end"))
        self.stdin_moved(execution)

    def _on_signal(self, frame: Frame) -> None:
        (number,) = struct.unpack("<I", frame.payload)
        if execution := self._known(frame):
            execution.signal(number)

    def _on_cancel(self, frame: Frame) -> None:
        grace_ms, reason = struct.unpack("<II", frame.payload)
        if execution := self._known(frame):
            execution.cancel(grace_ms / 1000, Reason(reason))

    def _on_ack(self, frame: Frame) -> None:
        stream, offset = struct.unpack("<IQ", frame.payload)
        execution = self.executions.get(frame.id)
        if execution and stream in (frames.STDOUT, frames.STDERR):
            ring = execution.rings[stream - 1]
            ring.forget(offset)
            if not ring.active:
                ring.rewind(offset)
            self.moved()

    def _on_credit(self, frame: Frame) -> None:
        (more,) = struct.unpack("<I", frame.payload)
        if self.session:
            self.session.credit += more
            self.session.wake()

    def _on_forget(self, frame: Frame) -> None:
        execution = self.executions.get(frame.id)
        if execution and execution.exit is None:
            self._tell(wire.error(frame.id, errno.EBUSY, "it has not ended"))
        elif execution:
            del self.executions[frame.id]

    def _on_ping(self, frame: Frame) -> None:
        self._tell(frames.frame(frames.PONG, frame.id, frame.payload))

    # --- what executions tell ----------------------------------------------------------------------------------------

    def next_pid(self) -> int:
        return next(self._pids)

    def started(self, execution: Execution) -> None:
        self._tell(wire.started(execution.id, execution.pid))

    def moved(self) -> None:
        if self.session:
            self.session.wake()

    def stdin_moved(self, execution: Execution) -> None:
        if execution.stdin.abandoned:
            self._tell(frames.frame(frames.STDIN_CLOSED, execution.id))
        elif execution.stdin.taken > execution.stdin_told:
            execution.stdin_told = execution.stdin.taken
            self._tell(wire.stdin_ack(execution.id, execution.stdin_told))


def _listing(execution: Execution) -> HelloProcess:
    out, err = execution.rings
    return HelloProcess(
        id=execution.id,
        running=execution.exit is None,
        pid=execution.pid,
        stdin_taken=execution.stdin.taken,
        stdout_from=out.start,
        stdout_to=out.end,
        stderr_from=err.start,
        stderr_to=err.end,
    )
