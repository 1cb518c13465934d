"""One process tree of a fake box, as its guest supervises it."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from signal import Signals
from typing import Protocol

from station.guest.endings import ExitKind, GuestExit, Reason
from station.guest.frames import STDERR, STDIN_WINDOW, OnFull

from .applets import applet
from .clock import Clock, Timer
from .lookup import find_program
from .process import Died, FakeProcess, Program, Sinks, Stdin
from .ring import Ring
from .tree import Tree
from .wire import Record

logger = logging.getLogger(__name__)

_IGNORED = {Signals.SIGCHLD, Signals.SIGURG, Signals.SIGWINCH, Signals.SIGCONT, Signals.SIGSTOP, Signals.SIGTSTP}
"""Signals that end nothing by default; a coroutine cannot be stopped, so the stopping ones are among them."""
_KILL_TURNS = 1000


class Surroundings(Protocol):
    """What an execution needs of its guest."""

    tree: Tree
    clock: Clock
    programs: Mapping[str, Program]

    def next_pid(self) -> int: ...

    def started(self, execution: Execution) -> None: ...

    def moved(self) -> None:
        """Output, or the exit, is there to be sent."""

    def stdin_moved(self, execution: Execution) -> None: ...


class Member:
    """One process of the tree: a program, running as a task."""

    def __init__(self, process: FakeProcess, program: Program) -> None:
        self.process = process
        self.task = asyncio.create_task(_call(program, process), name=f"fake process {process.argv[0]}")
        self._killed_by: int | None = None

    def signal(self, number: int) -> None:
        """What the kernel does with a signal: the handler, nothing, or the end."""
        if self.task.done() or number == 0:
            return
        if number in self.process.handlers:
            handler = self.process.handlers[number]
            if handler:
                handler()
        elif number not in _IGNORED:
            self._killed_by = number
            self.task.cancel()
            if number == Signals.SIGKILL:
                self._insist(_KILL_TURNS)

    def _insist(self, turns: int) -> None:
        """SIGKILL: a program that catches the cancellation and goes on is cancelled again at every turn of the loop."""
        if not self.task.done() and turns:
            self.task.cancel()
            asyncio.get_running_loop().call_soon(self._insist, turns - 1)

    def ending(self) -> tuple[bool, int]:
        """Of an ended one: whether a signal ended it, and the signal or the exit code."""
        if self._killed_by == Signals.SIGKILL or self.task.cancelled():
            return True, self._killed_by or Signals.SIGKILL
        error = self.task.exception()
        if isinstance(error, Died):
            return True, error.number
        return (False, 1) if error else (False, self.task.result() & 0xFF)

    def traceback(self) -> str | None:
        """Of an ended one that raised: what Python would print."""
        error = None if self.task.cancelled() else self.task.exception()
        if error is None or isinstance(error, Died):
            return None
        return "".join(traceback.format_exception(error))


async def _call(program: Program, process: FakeProcess) -> int:
    return await program(process)


class Execution:
    """From START to EXIT. `begin` starts it; `aclose` ends it without a word and waits for its tasks."""

    def __init__(self, number: int, record: Record, guest: Surroundings) -> None:
        self.id = number
        self.record = record
        self.rings = (Ring(record.ring_bytes), Ring(record.ring_bytes))
        self.stdin = Stdin(lambda: guest.stdin_moved(self), is_open=record.wants_stdin)
        self.pid = 0
        self.exit: GuestExit | None = None
        self.exit_sent = False
        self.stdin_told = 0
        """What STDIN_ACK has said last."""
        self.tree = guest.tree
        self.clock = guest.clock
        self._guest = guest
        self._members: list[Member] = []
        self._reason = Reason.NONE
        self._timers: list[Timer] = []
        self._began = guest.clock.monotonic()
        self._supervisor: asyncio.Task[None] | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        env = dict(os.fsdecode(item).partition("=")[::2] for item in self.record.env)
        argv, cwd = [os.fsdecode(word) for word in self.record.argv], os.fsdecode(self.record.cwd)
        try:
            if not self.record.applet:
                self.tree.directory(self.record.cwd)
        except OSError as error:
            self._finish(ExitKind.NO_DIRECTORY, error.errno or errno.EIO)
            return
        try:
            main = self.spawn(argv, env=env, cwd=cwd, stdin=self.stdin, sinks={})
        except OSError as error:
            self._finish(ExitKind.NO_PROGRAM, error.errno or errno.EIO)
            return
        self.pid = main.process.pid
        self._guest.started(self)
        if self.record.timeout_seconds:
            self._later(self.record.timeout_seconds, lambda: self.cancel(self.record.grace_seconds, Reason.TIMED_OUT))
        self._supervisor = asyncio.create_task(self._supervise(main), name=f"fake supervisor {self.id}")

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin: Stdin, sinks: Sinks) -> Member:
        """One more process of the tree. Raises OSError where there is no such program."""
        if self.record.applet:
            program: Program = applet(self.record.argv, self.tree)
            argv = list(argv)
        else:
            search = env.get("PATH")
            program, argv = find_program(argv, search=search, cwd=cwd, tree=self.tree, programs=self._guest.programs)
        pid = self._guest.next_pid()
        process = FakeProcess(self, pid=pid, argv=argv, env=env, cwd=cwd, stdin=stdin, sinks=sinks)
        member = Member(process, program)
        self._members.append(member)
        return member

    async def _supervise(self, main: Member) -> None:
        await asyncio.wait({main.task})
        text = main.traceback()
        if text and self._reason is Reason.NONE:
            await self.write(STDERR, text.encode("utf-8", "backslashreplace"))
        left = await self._kill_all()
        signalled, value = main.ending()
        self._finish(ExitKind.SIGNALLED if signalled else ExitKind.EXITED, value, ended_children=left)

    async def _kill_all(self) -> int:
        """Ends every process of the tree; how many still ran."""
        running = [member for member in self._members if not member.task.done()]
        for member in running:
            member.signal(Signals.SIGKILL)
        for _ in range(_KILL_TURNS):
            if all(member.task.done() for member in running):
                return len(running)
            await asyncio.sleep(0)
        logger.error("programs of a fake box do not end when cancelled: %s", [m.process.argv for m in running])
        return len(running)

    def _finish(self, kind: ExitKind, value: int, ended_children: int = 0) -> None:
        for timer in self._timers:
            timer.cancel()
        self.exit = GuestExit(
            kind,
            value,
            self._reason,
            ended_children,
            stdout_total=self.rings[0].end,
            stderr_total=self.rings[1].end,
            user_us=0,
            system_us=0,
            max_rss_kib=0,
            wall_us=int((self.clock.monotonic() - self._began) * 1e6),
        )
        if self.record.wants_stdin and not self.stdin.closed:
            self.stdin.abandon()
        self._guest.moved()

    async def aclose(self) -> None:
        """Ends all tasks of the tree and waits for them."""
        for timer in self._timers:
            timer.cancel()
        if self._supervisor:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
        await self._kill_all()
        for member in self._members:
            member.traceback()  # retrieves the exception, which nobody is left to be told of

    # --- what the host asks ------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        """Input; empty ends it. False, and nothing is taken, where it is beyond the window or after the end."""
        if not data:
            self.stdin.close()
            return True
        if self.stdin.closed or self.stdin.received + len(data) > self.stdin.taken + STDIN_WINDOW:
            return False
        self.stdin.feed(data)
        return True

    def signal(self, number: int) -> None:
        """To every process of the tree."""
        for member in list(self._members):
            member.signal(number)

    def cancel(self, grace_seconds: float, reason: Reason) -> None:
        """The first reason stays; a later call can only make the grace shorter."""
        if self.exit:
            return
        if self._reason is Reason.NONE:
            self._reason = reason
            if grace_seconds:
                self.signal(Signals.SIGTERM)
        if grace_seconds:
            self._later(grace_seconds, lambda: self.signal(Signals.SIGKILL))
        else:
            self.signal(Signals.SIGKILL)

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._timers.append(self.clock.call_later(seconds, callback))

    # --- output ------------------------------------------------------------------------------------------------------

    async def write(self, stream: int, data: bytes) -> None:
        """Puts output into the ring of that stream, by the record's rule where it is full."""
        ring = self.rings[stream - 1]
        while data:
            data = data[self._put(ring, data) :]
            self._guest.moved()
            if data and self.record.on_full is OnFull.BLOCK:
                await ring.wait_for_room()
            # Other tasks get their turn, also beside a program that only writes.
            await asyncio.sleep(0)

    def _put(self, ring: Ring, data: bytes) -> int:
        limit = self.record.output_limit
        allowed = limit - self.rings[0].end - self.rings[1].end if limit else len(data)
        if allowed <= 0:
            self.cancel(self.record.grace_seconds, Reason.OUTPUT_LIMIT)
            return len(data)
        if ring.room == 0 and self.record.on_full is OnFull.DROP_OLDEST:
            ring.forget(ring.start + min(len(data), ring.capacity))
        if ring.room == 0 and self.record.on_full is OnFull.KILL:
            self.cancel(self.record.grace_seconds, Reason.OUTPUT_LIMIT)
            return len(data)
        return ring.put(data[:allowed])
