"""Watching commands to their end, and writing down what became of them. What `Processes` stands on."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from station.backends.base import Measurable
from station.core.capabilities import Level
from station.core.endings import Ending, EndingKind
from station.core.errors import BoxLost, StationError
from station.core.records import ProcessRecord, ProcessState
from station.core.wire import DEFAULT_KEPT_BYTES
from station.guest.endings import GuestExit, Reason

from .callers import LEFT_SECONDS
from .commands import GRACE_SECONDS
from .failpoints import failpoint
from .journal import Journal
from .meter import Meter
from .readers import PATIENCE_SECONDS
from .running import Running
from .spool import ProcessSpool
from .tasks import Tasks

if TYPE_CHECKING:
    from station.guest.process import GuestProcess

    from .live import LiveBox

logger = logging.getLogger(__name__)

GUARD_SECONDS = 5.0
"""How long after its time-out, or after it was cancelled, a command may still be there before the worker acts itself;
again before the box goes."""
START_SECONDS = 30.0
_NOTE_SECONDS = 0.05
_PRUNE_EVERY = 16
_LARGE_BYTES = 1024 * 1024
_GONE = ".gone-"

Stuck = Callable[["LiveBox", str], None]
"""Called when a tree is not provably dead: the box is to be replaced. Must not block."""


class Supervisor:
    """Holds what runs. A record leaves it ended (written down, then forgotten by the guest) or dropped, never else."""

    def __init__(
        self,
        journal: Journal,
        spool_dir: Path,
        *,
        now: Callable[[], float],
        guard_seconds: float = GUARD_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        left_seconds: float = LEFT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        stuck: Stuck | None = None,
        kept_bytes: int = DEFAULT_KEPT_BYTES,
        meter: Meter | None = None,
    ) -> None:
        self.journal = journal
        self._meter = meter or Meter()
        self._kept_bytes = kept_bytes
        self.now = now
        self.running: dict[str, dict[str, Running]] = defaultdict(dict)
        """By sandbox, then by id."""
        self.unsaved: dict[tuple[str, str], ProcessRecord] = {}
        """Ends that the journal did not take (a full disk). The guest is not told to forget them."""
        self.tasks = Tasks()
        self._spool_dir = spool_dir
        self._guard_seconds = guard_seconds
        self._patience_seconds = patience_seconds
        self._left_seconds = left_seconds
        self._clock = clock
        self._stuck = stuck
        self._oom_kills: dict[tuple[str, int], int | None] = {}
        self._since_prune: dict[str, int] = defaultdict(int)

    async def aclose(self) -> None:
        """Every command goes on; what it says from now on waits, unacknowledged, for the next station."""
        await self.tasks.aclose()
        for each in self.all():
            if each.process is not None:
                each.process.attach(None)
            each.readers.stop()
            each.callers.stop()
            each.spool.close()
        self.running.clear()

    def all(self) -> list[Running]:
        return [running for each in self.running.values() for running in each.values()]

    def spool(self, uid: str, process_id: str, *, loaded: bool) -> ProcessSpool:
        return ProcessSpool(self.directory(uid), process_id, loaded=loaded, kept_bytes=self._kept_bytes)

    def directory(self, uid: str) -> str:
        return f"{self._spool_dir}/{uid}"

    async def prepare(self, live: LiveBox) -> None:
        """Before the first command of a box: how often has the kernel ended something in it for memory?"""
        key = (live.uid, live.generation)
        if key not in self._oom_kills:
            self._oom_kills[key] = await oom_kills(live)

    def run(self, live: LiveBox, record: ProcessRecord, spool: ProcessSpool, *, stdin_open: bool) -> Running:
        return Running(
            live,
            record,
            spool,
            stdin_open=stdin_open,
            patience_seconds=self._patience_seconds,
            left_seconds=self._left_seconds,
            clock=self._clock,
        )

    def watch(self, running: Running) -> None:
        """From here on somebody waits for its end."""
        running.oom_kills = self._oom_kills.get((running.live.uid, running.live.generation))
        self.running[running.record.sandbox_uid][running.record.id] = running
        if running.record.end_when_left:
            running.callers.watch()
        self.tasks.start(self._supervise(running), name=f"supervise {running.record.id}")

    async def _supervise(self, running: Running) -> None:
        assert running.process is not None
        note: asyncio.TimerHandle | None = None
        try:
            pid = await self._pid(running, running.process)
            if pid is not None and not running.ended:
                adopted = running.record.state is ProcessState.RUNNING
                running.change(replace(running.record, state=ProcessState.RUNNING, pid=pid))
                if not adopted:
                    failpoint("exec.after_start")
                # Most commands are over before this: recovery goes by what the guest knows, not by this mark.
                note = asyncio.get_running_loop().call_later(_NOTE_SECONDS, self._note, running)
            ended = await self._guarded(running)
        except StationError as error:
            self._failed(running, error)
        else:
            await self._conclude(running, ended)
        finally:
            if note is not None:
                note.cancel()

    async def _pid(self, running: Running, process: GuestProcess) -> int | None:
        """As `GuestProcess.pid`; callers are told where nobody can tell for long."""
        while True:
            try:
                async with asyncio.timeout(START_SECONDS):
                    pid = await process.pid()
            except TimeoutError:
                running.keep_waiting(running.live.session.silence())
            else:
                running.keep_waiting(None)
                return pid

    def _failed(self, running: Running, error: StationError) -> None:
        """A refused start leaves no record; whatever may have run ends `lost`."""
        if isinstance(error, BoxLost) or running.record.state is not ProcessState.ACCEPTED:
            self.finish(running, Ending.lost(error.message))
            if running.process is not None:
                running.process.abandon()
        else:
            self._never_started(running, error)

    async def _conclude(self, running: Running, ended: GuestExit) -> None:
        oom = running.over_memory or await self._was_oom(running, ended)
        command = running.record.command
        program = "the shell" if running.record.shell else command[0]
        try:
            ending = ended.to_ending(program=program, cwd=running.record.cwd, oom=oom)
        except StationError as error:
            self._never_started(running, error)
        else:
            if running.left and ending.kind is EndingKind.CANCELLED:
                ending = replace(ending, reason=running.callers.reason)
            self.finish(running, ending, ended)

    async def _guarded(self, running: Running) -> GuestExit:
        """Its exit. The guest ends it in time, or when it is cancelled; if it fails to, the worker cancels, and at last
        gives the box up. Not so where the guest cannot be asked: then callers are told, and the process is followed
        on."""
        process = running.process
        assert process is not None
        ended = await self._exit_when_due(running, process)
        while ended is None:
            if await self._guest_fails(running, process):
                after = "it was cancelled" if running.cancelled else "its time-out"
                culprit = f"the processes of {running.record.id} could not be ended"
                reason = f"{culprit} after {after}, so their box was given up"
                if self._stuck is not None:
                    self._stuck(running.live, reason)
                raise BoxLost(reason)
            ended = await _exit_within(process, self._guard_seconds)
        return ended

    async def _exit_when_due(self, running: Running, process: GuestProcess) -> GuestExit | None:
        """Its exit, or `None` when it should have ended long ago."""
        patience = GRACE_SECONDS + self._guard_seconds
        timeout = running.timeout_seconds
        due = asyncio.timeout(None if timeout is None else timeout + patience)

        def hurry() -> None:
            soon, when = asyncio.get_running_loop().time() + patience, due.when()
            due.reschedule(soon if when is None else min(soon, when))

        running.hurry = hurry
        try:
            async with due:
                if running.cancelled:
                    hurry()
                return await process.exit()
        except TimeoutError:
            return None
        finally:
            running.hurry = None

    async def _guest_fails(self, running: Running, process: GuestProcess) -> bool:
        """Whether it can be asked, and does not end a process that is to be ended. Takes the guard's time twice."""
        session = running.live.session
        if not await session.answers(self._guard_seconds):
            running.keep_waiting(session.silence())
            return False
        running.keep_waiting(None)
        process.cancel(0, Reason.CANCELLED if running.cancelled else Reason.TIMED_OUT)
        ended = await _exit_within(process, self._guard_seconds)
        return ended is None and await session.answers(self._guard_seconds) and not process.ended

    async def started(self, running: Running) -> None:
        """Returns once it runs or has ended. Raises why it never started; Unavailable where nobody can tell for long:
        it may start yet."""
        try:
            async with asyncio.timeout(START_SECONDS):
                await running.started()
        except TimeoutError:
            raise running.live.session.silence() from None

    def _note(self, running: Running) -> None:
        if not running.ended:
            self._save(running.record)

    def finish(self, running: Running, ending: Ending, ended: GuestExit | None = None) -> None:
        """Its end, once: written down, told to who waits, then forgotten by the guest."""
        if running.ended:
            return
        record = self._ended(running.record, running.spool, ending, ended)
        saved = self._save(record)
        self.let_go(running)
        running.change(record)
        self._prune_now_and_then(record.sandbox_uid)
        if saved:
            failpoint("exec.after_end")
            if running.process is not None:
                running.process.forget()

    def lose(self, record: ProcessRecord, reason: str) -> None:
        """The end of a record that nobody watches."""
        spool = self.spool(record.sandbox_uid, record.id, loaded=True)
        self._save(self._ended(record, spool, Ending.lost(reason), None))

    def _ended(
        self, record: ProcessRecord, spool: ProcessSpool, ending: Ending, ended: GuestExit | None
    ) -> ProcessRecord:
        spool.close()
        spool.drop_stdin()
        self._meter.endings[ending.kind.value] += 1
        return replace(
            record,
            state=ProcessState.ENDED,
            ended_at=self.now(),
            ending=ending,
            usage=ended.usage() if ended else None,
            ended_children=ended.ended_children if ended else 0,
            stdout=spool.stdout.totals(),
            stderr=spool.stderr.totals(),
        )

    def _save(self, record: ProcessRecord) -> bool:
        try:
            self.journal.update(record)
        except StationError as error:
            logger.error("%s is not written down: %s", record.id, error)
            self.unsaved[record.sandbox_uid, record.id] = record
            return False
        # What was left to be written later is older than this.
        self.unsaved.pop((record.sandbox_uid, record.id), None)
        return True

    def save_again(self) -> None:
        """Writes down what could not be when it ended: the disk may have room again."""
        for record in list(self.unsaved.values()):
            if not self._save(record):
                return

    def _never_started(self, running: Running, error: StationError) -> None:
        """Nothing ran: the id is free again, and whoever waits is told why."""
        if running.ended:
            return
        self.let_go(running)
        self.drop(running.record, running.spool)
        running.fail(error)
        if running.process is not None:
            running.process.forget()

    def drop(self, record: ProcessRecord, spool: ProcessSpool) -> None:
        """As if it had never been asked for."""
        try:
            self.journal.drop(record)
        except StationError as error:
            logger.error("%s is not dropped: %s", record.id, error)
        spool.remove()

    def let_go(self, running: Running) -> None:
        uid, process_id = running.key
        if self.running[uid].get(process_id) is running:
            del self.running[uid][process_id]

    async def _was_oom(self, running: Running, ended: GuestExit) -> bool:
        """Whether the kernel has ended something of this box for memory since it started, and its end looks like it."""
        if running.oom_kills is None or running.killed or not ended.looks_killed:
            return False
        kills = await oom_kills(running.live)
        self._oom_kills[running.live.uid, running.live.generation] = kills
        return kills is not None and kills > running.oom_kills

    def _prune_now_and_then(self, uid: str) -> None:
        self._since_prune[uid] += 1
        # A short history is kept exactly; a long one costs less by batches.
        if self._since_prune[uid] >= min(_PRUNE_EVERY, self.journal.kept_finished // 6):
            self.prune(uid)

    def prune(self, uid: str) -> None:
        """Forgets what is beyond the history bound, with its output."""
        self._since_prune[uid] = 0
        try:
            for process_id in self.journal.prune(uid, self.now()):
                self._remove_output(self.spool(uid, process_id, loaded=True))
        except (StationError, OSError) as error:
            logger.warning("old commands of %s are not forgotten yet: %s", uid, error)

    def _remove_output(self, spool: ProcessSpool) -> None:
        if sum(spool.offsets) < _LARGE_BYTES:
            spool.remove_output()
        else:  # to free many blocks takes the file system milliseconds
            self.tasks.start(asyncio.to_thread(spool.remove_output), name="remove old output")

    def remove_sandbox_output(self, uid: str) -> None:
        """Out of the way at once, off the disk soon; `remove_leftovers` finds what a crash left of it."""
        gone = Path(f"{self.directory(uid)}{_GONE}{secrets.token_hex(4)}")
        with suppress(FileNotFoundError):
            Path(self.directory(uid)).rename(gone)
            self.tasks.start(asyncio.to_thread(shutil.rmtree, gone, ignore_errors=True), name="remove old output")

    def remove_leftovers(self) -> None:
        for gone in self._spool_dir.glob(f"*{_GONE}*"):
            self.tasks.start(asyncio.to_thread(shutil.rmtree, gone, ignore_errors=True), name="remove old output")

    def forget_box(self, uid: str, generation: int | None = None) -> None:
        """Nothing of a box that is gone is remembered; `generation` None: of all of that sandbox."""
        for key in [key for key in self._oom_kills if key[0] == uid and generation in (None, key[1])]:
            del self._oom_kills[key]
        if generation is None:
            self._since_prune.pop(uid, None)
            self.running.pop(uid, None)
            for saved in [key for key in self.unsaved if key[0] == uid]:
                del self.unsaved[saved]


async def oom_kills(live: LiveBox) -> int | None:
    """The kernel's count for this box; `None` where memory is not enforced by it, or the count not known."""
    limit = live.capabilities.limits.get("memory_mb")
    if limit is None or limit.level is not Level.ENFORCED or not isinstance(live.box, Measurable):
        return None
    return await live.box.oom_kills()


async def _exit_within(process: GuestProcess, seconds: float) -> GuestExit | None:
    try:
        async with asyncio.timeout(seconds):
            return await process.exit()
    except TimeoutError:
        return None
