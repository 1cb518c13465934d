"""Commands of live boxes: started once, followed by many, ended in a typed way, and found again after a restart.

The steps of `exec`: record `accepted` -> START -> `running` -> output to the spool, acknowledged -> the
tree is empty -> record `ended` -> FORGET. Every arrow may be the last thing that a station does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from station import spans
from station.core.endings import Ending, EndingKind
from station.core.errors import Conflict, InvalidInput, LimitReached, ProcessNotFound, StationError
from station.core.ids import new_id
from station.core.records import ProcessRecord, ProcessState
from station.core.wire import (
    DEFAULT_KEPT_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    ExecRequest,
    OutputEvent,
    ProcessView,
    SignalRequest,
)
from station.guest.endings import SIGKILL

from . import recovery
from .callers import LEFT_SECONDS, CancelledAhead
from .commands import check_id, command_of, signal_number, start_record
from .failpoints import failpoint
from .follow import follow, stored
from .journal import Journal
from .meter import Meter
from .readers import PATIENCE_SECONDS
from .running import Running
from .spool import ProcessSpool
from .supervise import GUARD_SECONDS, Stuck, Supervisor
from .views import process_view

if TYPE_CHECKING:
    from .live import LiveBox

MAX_RUNNING = 16
KEEPALIVE_SECONDS = 10.0


class Processes:
    """All commands of this worker. For one event loop; close it before the sessions of the boxes."""

    def __init__(
        self,
        journal: Journal,
        spool_dir: Path,
        *,
        now: Callable[[], float] = time.time,
        max_running: int = MAX_RUNNING,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        keepalive_seconds: float = KEEPALIVE_SECONDS,
        guard_seconds: float = GUARD_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        left_seconds: float = LEFT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        stuck: Stuck | None = None,
        kept_bytes: int = DEFAULT_KEPT_BYTES,
        meter: Meter | None = None,
    ) -> None:
        """`timeout_seconds`: of an `exec` where neither the request nor the sandbox names one. `left_seconds`, by
        `clock`: when a command ends that was to end once nobody waits for it. `kept_bytes`: of each longer stream the
        first and the last half of so many are in the answers."""
        self._journal = journal
        self._now = now
        self._max_running = max_running
        self._timeout_seconds = timeout_seconds
        self._keepalive_seconds = keepalive_seconds
        self._supervisor = Supervisor(
            journal,
            spool_dir,
            now=now,
            guard_seconds=guard_seconds,
            patience_seconds=patience_seconds,
            left_seconds=left_seconds,
            clock=clock,
            stuck=stuck,
            kept_bytes=kept_bytes,
            meter=meter,
        )
        self._cancelled = CancelledAhead(clock)

    async def aclose(self) -> None:
        """Stops looking; the commands go on, and `recover` of the next station finds them. Repeating is no error."""
        await self._supervisor.aclose()

    # ── start and wait ──────────────────────────────────────────────────────────────────────────────────────────

    async def start(
        self, live: LiveBox, request: ExecRequest, *, default_timeout: float | None = None
    ) -> ProcessRecord:
        """The record of a command that has begun. With an id seen before: of that one, whatever became of it.

        Cancelled, it leaves the command running. Raises InvalidInput for what cannot be started (a missing working
        directory is named), LimitReached beyond the bound at once, Conflict for an id that belongs to another command
        or is used up, StorageFull, BoxLost. A program that is not there is no error: the record ends `exited(127)`; nor
        is an id that was cancelled within the last minute: it ends `cancelled`, and nothing has begun.
        """
        running = await self._begin(live, request, default_timeout)
        with running.callers.one():
            await self._supervisor.started(running)
        return running.record

    async def exec(self, live: LiveBox, request: ExecRequest) -> ProcessView:
        """Start and wait: the ended process with its output. Raises as `start`; cancelled, the command goes on. Raises
        Unavailable where its time is over and its box cannot be asked: the same id tells later what became of it."""
        with spans.span("exec", backend=live.spec.backend):
            running = await self._begin(live, request, live.timeout_seconds or self._timeout_seconds)
            with running.callers.one():
                await running.finished(while_due=True)
        return process_view(running.record, running.spool)

    async def _begin(self, live: LiveBox, request: ExecRequest, default_timeout: float | None) -> Running:
        await self._supervisor.prepare(live)
        process_id = check_id(request.id) if request.id else new_id("prc", self._now())
        running = self._supervisor.running[live.uid].get(process_id) or self._launch(
            live, request, process_id, request.timeout_seconds or default_timeout
        )
        known = running.record
        if (known.command, known.shell, known.cwd) != (command_of(request), request.argv is None, request.cwd):
            raise Conflict(f"{process_id} is the id of another command; choose a new one", field="id")
        return running

    def _launch(self, live: LiveBox, request: ExecRequest, process_id: str, timeout: float | None) -> Running:
        """Accepts and starts it without a step aside in between; or the one that the journal has under that id."""
        given = request.stdin.to_bytes() if request.stdin is not None else None
        start = start_record(
            live.layout, request, timeout_seconds=timeout, with_stdin=given is not None or request.stdin_open
        )
        cancelled = (live.uid, process_id) in self._cancelled
        if not cancelled and len(self._supervisor.running[live.uid]) >= self._max_running:
            if self._journal.get(live.uid, process_id) is not None:
                return self._known(live, process_id)
            raise LimitReached(
                f"{self._max_running} commands run in this sandbox, which is the bound; wait for one or end one",
                limit=self._max_running,
            )
        record = ProcessRecord(
            process_id,
            live.uid,
            live.generation,
            guest_id=0 if cancelled else live.session.next_id(),
            command=command_of(request),
            shell=request.argv is None,
            cwd=request.cwd,
            state=ProcessState.ACCEPTED,
            started_at=self._now(),
            timeout_seconds=timeout,
            end_when_left=request.end_when_left,
        )
        if cancelled:
            record = _never_begun(record)
        if not self._journal.accept(record) or cancelled:
            return self._known(live, process_id)
        running = self._supervisor.run(live, record, self._spool(record, loaded=False), stdin_open=request.stdin_open)
        try:
            failpoint("exec.after_accept")
            if given is not None:
                running.spool.keep_stdin(given)
            if request.stdin_open:
                running.spool.mark_open()
            running.process = live.session.start(start, guest_id=record.guest_id, sink=running)
        except (StationError, OSError):
            self._supervisor.drop(record, running.spool)
            raise
        self._supervisor.watch(running)
        if given is not None:
            self._supervisor.tasks.start(running.feed(given), name=f"stdin of {process_id}")
        return running

    def _known(self, live: LiveBox, process_id: str) -> Running:
        """A finished one, readable like a running one."""
        record = self._supervisor.unsaved.get((live.uid, process_id)) or self._journal.get(live.uid, process_id)
        if record is None:
            raise Conflict(f"{process_id} ran before, and its result is no longer kept; choose a new id", field="id")
        if record.state is not ProcessState.ENDED:  # its box went, or recovery is still to come
            raise Conflict(f"what became of {process_id} is not known yet; ask again", retryable=True)
        return Running(live, record, self._spool(record), stdin_open=False)

    # ── look ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def wait(self, uid: str, process_id: str, timeout: float | None = None) -> ProcessRecord:
        """The record at its end, or as it is after `timeout` seconds. Raises ProcessNotFound."""
        running = self._supervisor.running[uid].get(process_id)
        if running is None:
            return self._record(uid, process_id)
        try:
            with running.callers.one():
                async with asyncio.timeout(timeout):
                    await running.finished()
        except TimeoutError:
            pass
        return running.record

    async def get(self, uid: str, process_id: str, *, wait_seconds: float = 0.0, output: bool = False) -> ProcessView:
        """The process, after its end or `wait_seconds`, with its output so far if asked for. Raises ProcessNotFound."""
        running = self._supervisor.running[uid].get(process_id)
        if running is not None and wait_seconds > 0:
            await self.wait(uid, process_id, wait_seconds)
        record = running.record if running is not None else self._record(uid, process_id)
        if not output:
            return process_view(record)
        return process_view(record, running.spool if running is not None else self._spool(record))

    def list(self, uid: str) -> Sequence[ProcessView]:
        """Running ones and the finished ones that are kept, oldest first, without output."""
        records = {record.id: record for record in self._journal.list(uid, self._now())}
        records |= {key[1]: record for key, record in self._supervisor.unsaved.items() if key[0] == uid}
        records |= {each.record.id: each.record for each in self.running(uid)}
        ordered = sorted(records.values(), key=lambda each: (each.started_at, each.id))
        return [process_view(record) for record in ordered]

    def running(self, uid: str | None = None) -> Sequence[Running]:
        """What runs now: in one sandbox, or (`None`) in all."""
        if uid is None:
            return self._supervisor.all()
        return list(self._supervisor.running[uid].values()) if uid in self._supervisor.running else []

    async def output(
        self, uid: str, process_id: str, *, after_stdout: int = 0, after_stderr: int = 0, follow_on: bool = True
    ) -> AsyncGenerator[OutputEvent, None]:
        """Output from the offsets on; with `follow_on` until its end. The last event of an ended process is `end`.

        Any number of readers, each at its own pace; the slowest of those who follow slows the process. Raises
        ProcessNotFound, InvalidInput.
        """
        after = (after_stdout, after_stderr)
        if min(after) < 0:
            raise InvalidInput("an offset must not be below zero", field="after_stdout")
        running = self._supervisor.running[uid].get(process_id)
        if running is not None and follow_on:
            with running.callers.one():
                async with aclosing(follow(running, after, keepalive_seconds=self._keepalive_seconds)) as followed:
                    async for event in followed:
                        yield event
            return
        record = running.record if running is not None else self._record(uid, process_id)
        for event in stored(running.spool if running is not None else self._spool(record), after):
            yield event
        if record.state is ProcessState.ENDED:
            yield OutputEvent("end", process=process_view(record))

    # ── feed and signal ─────────────────────────────────────────────────────────────────────────────────────────

    async def write_stdin(self, uid: str, process_id: str, source: AsyncIterable[bytes], *, eof: bool = False) -> int:
        """Feeds an open stdin as fast as it is read; the bytes that were sent. Raises ProcessNotFound, BoxLost, and
        Conflict where stdin is not open or nobody reads it any more (`broken_pipe` and `taken` in its detail)."""
        running = self._need(uid, process_id)
        if not running.stdin_open or running.process is None:
            raise Conflict(f"stdin of {process_id} is not open; start it with stdin_open")
        taken = 0
        try:
            async for chunk in source:
                await running.process.write(chunk)
                taken += len(chunk)
            if eof:
                await running.process.close_stdin()
            await running.live.session.ping()  # all of it is in the box now, whatever happens to this station
        except BrokenPipeError as error:
            sentence = f"{process_id} no longer reads its stdin; at most {taken} bytes reached it"
            raise Conflict(sentence, broken_pipe=True, taken=taken) from error
        return taken

    async def signal(self, uid: str, process_id: str, request: SignalRequest) -> None:
        """To its whole tree. To cancel what has ended is no error, nor what is not known (yet): what is to start under
        that id within a minute ends `cancelled` at once. Raises ProcessNotFound, Conflict, InvalidInput."""
        number = signal_number(request.signal)
        if request.cancel and process_id not in self._supervisor.running[uid]:
            if not self._is_known(uid, process_id):
                self._cancelled.note((uid, check_id(process_id)))
            return
        running = self._need(uid, process_id)
        assert running.process is not None
        if request.cancel:
            running.cancel()
            return
        running.killed = running.killed or number == SIGKILL
        running.process.signal(number)

    # ── boxes come and go ───────────────────────────────────────────────────────────────────────────────────────

    def wanted(self, uid: str, generation: int) -> Mapping[int, tuple[int, int]]:
        """For `GuestSession.connect` of an adopted box: by guest id, the offsets from which output is still needed."""
        return recovery.wanted(self._supervisor, uid, generation)

    async def recover(self, live: LiveBox) -> None:
        """After adoption, before anything is started there: what lives is joined, what never started is dropped (a
        retry runs it), all else unfinished ends `lost`; what nobody knows in the box is ended."""
        await self._supervisor.prepare(live)
        recovery.recover(self._supervisor, live)

    async def box_lost(self, uid: str, generation: int, reason: str) -> None:
        """Everything unfinished of that box ends `lost(reason)`. Repeating is no error."""
        recovery.box_lost(self._supervisor, uid, generation, reason)

    def forget_sandbox(self, uid: str) -> None:
        """At its deletion: records, ids and output go. Repeating is no error."""
        recovery.forget_sandbox(self._supervisor, uid)

    def sweep(self) -> None:
        """Forgets finished commands that are beyond the history bound; call it at the start and now and then."""
        self._supervisor.save_again()
        self._supervisor.remove_leftovers()
        for uid in self._journal.sandboxes():
            self._supervisor.prune(uid)

    def _need(self, uid: str, process_id: str) -> Running:
        running = self._supervisor.running[uid].get(process_id)
        if running is None:
            self._record(uid, process_id)
            raise Conflict(f"{process_id} has ended")
        return running

    def _is_known(self, uid: str, process_id: str) -> bool:
        """Whether that id was ever used here, as far as it is remembered."""
        known = self._supervisor.unsaved.get((uid, process_id)) or self._journal.get(uid, process_id)
        return known is not None or self._journal.is_forgotten(uid, process_id)

    def _record(self, uid: str, process_id: str) -> ProcessRecord:
        record = self._supervisor.unsaved.get((uid, process_id)) or self._journal.get(uid, process_id)
        if record is None:
            raise ProcessNotFound(f"no process {process_id} in this sandbox, or it was forgotten", id=process_id)
        return record

    def _spool(self, record: ProcessRecord, *, loaded: bool = True) -> ProcessSpool:
        return self._supervisor.spool(record.sandbox_uid, record.id, loaded=loaded)


def _never_begun(record: ProcessRecord) -> ProcessRecord:
    """Of a command that was cancelled before it was asked for: its id is used up, so that no retry runs it."""
    ending = Ending(EndingKind.CANCELLED, reason="it was cancelled before it began")
    return replace(record, state=ProcessState.ENDED, ended_at=record.started_at, ending=ending)
