"""One command that runs: its record, its output and whoever waits for either."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from station.core.errors import StationError
from station.core.records import ProcessRecord, ProcessState
from station.guest.outbox import Waiters

from .spool import ProcessSpool

if TYPE_CHECKING:
    from station.guest.process import GuestProcess

    from .live import LiveBox

logger = logging.getLogger(__name__)


class Running:
    """A process of a live box, and the sink of its output. It stays readable after the end for whoever holds it."""

    def __init__(self, live: LiveBox, record: ProcessRecord, spool: ProcessSpool, *, stdin_open: bool) -> None:
        self.live = live
        self.record = record
        self.spool = spool
        self.stdin_open = stdin_open
        self.timeout_seconds: float | None = None
        self.process: GuestProcess | None = None
        self.error: StationError | None = None
        """Why it never started; then there is no record of it."""
        self.over_memory = False
        """The watchdog has killed it: its SIGKILL means oom."""
        self.killed = False
        """Somebody sent SIGKILL: that is no oom, whatever the counters say."""
        self.oom_kills: int | None = None
        """The box's counter when it started; `None`: not known here."""
        self._changed = Waiters()

    @property
    def key(self) -> tuple[str, str]:
        return self.record.sandbox_uid, self.record.id

    @property
    def pid(self) -> int | None:
        return self.record.pid

    @property
    def started_at(self) -> float:
        return self.record.started_at

    @property
    def ended(self) -> bool:
        return self.record.state is ProcessState.ENDED or self.error is not None

    def output(self, stream: int, offset: int, data: bytes) -> None:
        self.spool.stream(stream).append(offset, data)
        self._changed.wake()

    def gap(self, stream: int, start: int, end: int) -> None:
        self.spool.stream(stream).gap(start, end)
        self._changed.wake()

    def change(self, record: ProcessRecord) -> None:
        self.record = record
        self._changed.wake()

    def fail(self, error: StationError) -> None:
        self.error = error
        self._changed.wake()

    async def changed(self) -> None:
        """Waits for output, the start or the end."""
        await self._changed.wait()

    async def started(self) -> None:
        """Returns once it runs or has ended. Raises why it never started."""
        while self.record.state is ProcessState.ACCEPTED and self.error is None:
            await self._changed.wait()
        self._check()

    async def finished(self) -> None:
        """Returns at its end. Cancelling the waiter does not touch the process. Raises why it never started."""
        while not self.ended:
            await self._changed.wait()
        self._check()

    def _check(self) -> None:
        if self.error is not None:
            raise type(self.error)(self.error.message, retryable=self.error.retryable, **self.error.detail)

    def kill_over_memory(self) -> None:
        """For the memory watchdog: ends the whole tree at once; the ending will be `oom`."""
        self.over_memory = True
        if self.process is not None:
            self.process.signal(9)

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
