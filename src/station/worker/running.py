"""One command that runs: its record, its output and whoever waits for either."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from station.core.errors import StationError
from station.core.records import ProcessRecord, ProcessState
from station.guest.endings import SIGKILL
from station.guest.outbox import Waiters

from .callers import LEFT_SECONDS, Callers
from .commands import GRACE_SECONDS
from .readers import PATIENCE_SECONDS, Readers
from .spool import STDERR, STDOUT, ProcessSpool

if TYPE_CHECKING:
    from station.guest.process import GuestProcess

    from .live import LiveBox

logger = logging.getLogger(__name__)


class Running:
    """A process of a live box, and the sink of its output. It stays readable after the end for whoever holds it."""

    def __init__(
        self,
        live: LiveBox,
        record: ProcessRecord,
        spool: ProcessSpool,
        *,
        stdin_open: bool,
        patience_seconds: float = PATIENCE_SECONDS,
        left_seconds: float = LEFT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.live = live
        self.record = record
        self.spool = spool
        self.stdin_open = stdin_open
        self.process: GuestProcess | None = None
        self.error: StationError | None = None
        """Why it never started; then there is no record of it."""
        self.over_memory = False
        """The watchdog has killed it: its SIGKILL means oom."""
        self.killed = False
        """Somebody sent SIGKILL: that is no oom, whatever the counters say."""
        self.oom_kills: int | None = None
        """The box's counter when it started; `None`: not known here."""
        self.readers = Readers(self._release, patience_seconds=patience_seconds, now=time.monotonic)
        """For them the process is held up before what they have not read is dropped."""
        self.callers = Callers(self._end_left, seconds=left_seconds, clock=clock)
        self.left = False
        """It was cancelled because nobody waited for it."""
        self.cancelled = False
        self.hurry: Callable[[], None] | None = None
        """Set while somebody watches whether it ends in time: it was cancelled, so that it is due soon."""
        self._overdue: StationError | None = None
        self._held: set[int] = set()
        """Streams of which something is not acknowledged."""
        self._changed = Waiters()

    @property
    def key(self) -> tuple[str, str]:
        return self.record.sandbox_uid, self.record.id

    @property
    def started_at(self) -> float:
        return self.record.started_at

    @property
    def timeout_seconds(self) -> float | None:
        return self.record.timeout_seconds

    @property
    def ended(self) -> bool:
        return self.record.state is ProcessState.ENDED or self.error is not None

    def output(self, stream: int, offset: int, data: bytes) -> bool:
        self.spool.stream(stream).append(offset, data)
        self._changed.wake()
        if self._has_room(stream):
            return True
        self._held.add(stream)
        self.readers.look_again()
        return False

    def _has_room(self, stream: int) -> bool:
        slowest = self.readers.slowest(stream)
        ring = self.process.ring_bytes if self.process is not None else 0
        spool = self.spool.stream(stream)
        return spool.total <= spool.room(slowest, ring)

    def _release(self) -> None:
        """Acknowledges what no reader stands against any more."""
        for stream in (STDOUT, STDERR):
            if stream in self._held and (self.ended or self._has_room(stream)):
                self._held.discard(stream)
                if self.process is not None:
                    self.process.acknowledge(stream)
        if self._held:
            self.readers.look_again()
        else:
            self.readers.stop()

    def gap(self, stream: int, start: int, end: int) -> None:
        self.spool.stream(stream).gap(start, end)
        self._changed.wake()

    def change(self, record: ProcessRecord) -> None:
        self.record = record
        self._release()
        if self.ended:
            self.callers.stop()
        self._changed.wake()

    def fail(self, error: StationError) -> None:
        self.error = error
        self.callers.stop()
        self._changed.wake()

    async def changed(self) -> None:
        """Waits for output, the start or the end."""
        await self._changed.wait()

    async def started(self) -> None:
        """Returns once it runs or has ended. Raises why it never started."""
        while self.record.state is ProcessState.ACCEPTED and self.error is None:
            await self._changed.wait()
        self._check()

    async def finished(self, *, while_due: bool = False) -> None:
        """Returns at its end. Cancelling the waiter does not touch the process. Raises why it never started;
        `while_due`: and Unavailable once its time is over and its guest cannot be asked."""
        while not self.ended:
            if while_due and self._overdue is not None:
                raise self._overdue.again()
            await self._changed.wait()
        self._check()

    def keep_waiting(self, why: StationError | None) -> None:
        """Its time is over, and nobody can tell what became of it; `None`: somebody can again."""
        if why is not self._overdue:
            self._overdue = why
            self._changed.wake()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error.again()

    def kill_over_memory(self) -> None:
        """For the memory watchdog: ends the whole tree at once; the ending will be `oom`."""
        self.over_memory = True
        if self.process is not None:
            self.process.signal(SIGKILL)

    def cancel(self) -> None:
        """Ends the whole tree; where that cannot be done, its box is given up."""
        first, self.cancelled = not self.cancelled, True
        if self.process is not None:
            self.process.cancel(GRACE_SECONDS)
        if first and self.hurry is not None:
            self.hurry()

    def _end_left(self) -> None:
        self.left = True
        self.cancel()

    async def feed(self, data: bytes, *, eof: bool = True) -> None:
        """Given input, to its end. A program need not read all of it."""
        if self.process is None:
            return
        try:
            if data:
                await self.process.write(data)
            if eof:
                await self.process.close_stdin()
        except BrokenPipeError:
            logger.debug("%s did not read all of its input", self.record.id)
        except StationError as error:
            logger.debug("%s ended while it was fed: %s", self.record.id, error)
