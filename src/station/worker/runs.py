"""Compute mode: code in a fresh box, which is destroyed after it."""

from __future__ import annotations

import asyncio
import os
import posixpath
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from station.core.endings import Ending, EndingKind
from station.core.errors import BoxLost, Conflict, InvalidInput, StationError, TooLarge
from station.core.ids import new_id
from station.core.interpreters import INTERPRETERS
from station.core.paths import TMP, WORKSPACE, SandboxPath, decode_name, resolve
from station.core.records import Owner
from station.core.wire import DEFAULT_TIMEOUT_SECONDS, Artifact, RunRequest, RunResult
from station.guest.endings import SIGKILL, ExitKind, GuestExit, Reason
from station.guest.frames import StartRecord
from station.guest.packs import END, Entry

from .artifacts import collect
from .callers import LEFT_SECONDS, Callers, CancelledAhead
from .commands import GRACE_SECONDS, check_id
from .fair import FairRoom
from .headtail import MemoryOutput
from .live import isolation_of
from .meter import Meter
from .pool import Claim, Pool
from .supervise import GUARD_SECONDS, oom_kills
from .tasks import Tasks

if TYPE_CHECKING:
    from station.core.spec import Spec
    from station.guest.process import GuestProcess

    from .live import LiveBox

Key: TypeAlias = tuple[str, str]
"""Of a run: the deployment that asked for it, and the id that this one gave it, else one that is ours alone."""

KEPT_SECONDS = 300.0
KEPT_RESULTS = 64
"""Of each deployment: none can make another's forgotten."""
MAX_FILES = 1000
_GIVEN_UP = "the run was given up before its program began or ended"


class RunProgram:
    """The program of a run, while it runs: what the memory watchdog sees."""

    def __init__(self, live: LiveBox, started_at: float, request: RunRequest, key: Key) -> None:
        self.live = live
        self.key = key
        self.started_at = started_at
        self.output = MemoryOutput(request.output_kept_bytes)
        self.process: GuestProcess | None = None
        self.over_memory = False
        self.left: str | None = None
        """Why it was cancelled, where that was because nobody waited for it."""

    def kill_over_memory(self) -> None:
        self.over_memory = True
        if self.process is not None:
            self.process.signal(SIGKILL)


@dataclass
class _Run:
    key: Key
    request: RunRequest
    result: asyncio.Future[RunResult]
    callers: Callers
    abandon: Callable[[], object] = lambda: None
    """Ends it where its program has not begun."""
    ended_at: float | None = None


class Runs:
    """All runs of this worker. For one event loop; close it before the pool."""

    def __init__(
        self,
        pool: Pool,
        spec_of: Callable[[RunRequest], Awaitable[Spec]],
        *,
        now: Callable[[], float] = time.time,
        max_running: int | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        kept_seconds: float = KEPT_SECONDS,
        left_seconds: float = LEFT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        meter: Meter | None = None,
    ) -> None:
        """`spec_of`: the spec of a request, checked by its backend; raises what is to be refused. `max_running`: how
        many run at once (`None`: 4 for each core), of one deployment half of them; the rest waits in order.
        `timeout_seconds`: of a run that names none. `left_seconds`, by `clock`: when a run ends that was to end once
        nobody waits for it."""
        self._pool = pool
        self._spec_of = spec_of
        self._now = now
        self._meter = meter or Meter()
        self._room = FairRoom(max_running or 4 * (os.cpu_count() or 1))
        self._timeout_seconds = timeout_seconds
        self._kept_seconds = kept_seconds
        self._left_seconds = left_seconds
        self._clock = clock
        self._cancelled = CancelledAhead(clock)
        self._tasks = Tasks()
        self._by_id: dict[Key, _Run] = {}
        self._running: set[RunProgram] = set()

    async def aclose(self) -> None:
        """Ends every run; their boxes are the pool's to destroy."""
        await self._tasks.aclose()
        for run in self._by_id.values():
            run.callers.stop()

    def running(self) -> list[RunProgram]:
        return list(self._running)

    async def run(self, request: RunRequest, deployment: str = Owner.deployment) -> RunResult:
        """The result, whatever the ending. With an id that the deployment has given in the last minutes: of that run;
        nothing runs twice.

        Cancelled, a run with an id goes on to be joined by a retry, one without is ended. Raises InvalidInput (a
        missing interpreter is named with its package), TooLarge, Conflict for an id of another run and for one that was
        cancelled within the last minute, and what making a box raises.
        """
        self._forget_old()
        key = (deployment, check_id(request.id)) if request.id else None
        known = self._by_id.get(key) if key else None
        if known is not None:
            if known.request != request:
                raise Conflict(f"{request.id} is the id of another run; choose a new one", field="id")
            return await _result(known)
        if self._tasks.closed:
            raise BoxLost("the station is stopping")
        if key is None:
            return await self._unnamed(request, deployment)
        if key in self._cancelled:
            raise Conflict(f"{request.id} was cancelled before it began; nothing ran", field="id")
        return await _result(self._begin(key, request))

    async def _unnamed(self, request: RunRequest, deployment: str) -> RunResult:
        """Its caller's alone: nobody can join it, and it ends with the call."""
        run = self._begin((deployment, new_id("run", self._now())), request)
        try:
            return await _result(run)
        finally:
            if not run.result.done():
                run.abandon()
            self._drop(run)

    def _begin(self, key: Key, request: RunRequest) -> _Run:
        def left() -> None:
            self._end(run, reason=run.callers.reason)

        callers = Callers(left, seconds=self._left_seconds, clock=self._clock)
        run = self._by_id[key] = _Run(key, request, asyncio.get_running_loop().create_future(), callers)
        run.abandon = self._tasks.start(self._keep(run), name=f"run {request.id}")
        if request.end_when_left:
            callers.watch()
        return run

    def cancel(self, run_id: str, deployment: str = Owner.deployment) -> None:
        """Ends a run of the deployment by its id: its program by TERM, then KILL (who waits gets `cancelled` and the
        output so far), and one that still waits for a box at once. An id that has ended is no error, nor one that is
        not known (yet): what comes under it within a minute is refused."""
        run = self._by_id.get((deployment, run_id))
        if run is not None and run.result.done():
            return
        if run is None or not self._end(run):
            self._cancelled.note((deployment, check_id(run_id)))  # its request may still come, or come again

    def cancel_all(self, deployment: str) -> None:
        """Ends all runs of the deployment, as `cancel` does."""
        for run in [run for run in self._by_id.values() if run.key[0] == deployment and not run.result.done()]:
            self._end(run)

    def _end(self, run: _Run, *, reason: str | None = None) -> bool:
        """Whether its program is told to end; else it had not begun, and will not."""
        program = next((one for one in self._running if one.key == run.key), None)
        if program is None or program.process is None:
            run.abandon()
            self._fail(run, BoxLost(_GIVEN_UP))  # its task may not have begun, and then tells nobody
            return False
        program.left = program.left or reason
        program.process.cancel(GRACE_SECONDS)
        return True

    async def _keep(self, run: _Run) -> None:
        try:
            result = await self._execute(run.request, run.key)
        except StationError as error:
            self._fail(run, error)
        else:
            if not run.result.done():
                run.callers.stop()
                run.result.set_result(result)
                run.ended_at = self._now()
        finally:
            self._fail(run, BoxLost(_GIVEN_UP))

    def _fail(self, run: _Run, error: StationError) -> None:
        """Without a result: whoever waits is told, and nothing stays to be joined, so that a retry tries again."""
        if run.result.done():
            return
        run.callers.stop()
        self._drop(run)
        run.result.set_exception(error)
        run.result.exception()  # whoever waited may have gone

    def _drop(self, run: _Run) -> None:
        if self._by_id.get(run.key) is run:
            del self._by_id[run.key]

    def _forget_old(self) -> None:
        ended = sorted((run.ended_at, key) for key, run in self._by_id.items() if run.ended_at is not None)
        deadline = self._now() - self._kept_seconds
        newer: Counter[str] = Counter()
        for at, key in reversed(ended):
            newer[key[0]] += 1
            if newer[key[0]] > KEPT_RESULTS or at < deadline:
                del self._by_id[key]

    async def _execute(self, request: RunRequest, key: Key) -> RunResult:
        files = packs_of(request)
        request = replace(request, timeout_seconds=request.timeout_seconds or self._timeout_seconds)
        spec = await self._spec_of(request)
        with self._meter.running(spec.backend) as ended:
            async with self._room.one(key[0]):
                claim = await self._pool.claim(spec)
                try:
                    result = await self._in_box(claim, request, files, key)
                finally:
                    self._pool.release(claim.live)
            ended(result.ending)
        return result

    async def _in_box(self, claim: Claim, request: RunRequest, files: Mapping[str, bytes], key: Key) -> RunResult:
        live = claim.live
        for root, pack in files.items():
            await live.files.unpack(SandboxPath(root, "."), pack)
        running = RunProgram(live, self._now(), request, key)
        self._running.add(running)
        try:
            ended = await self._program(running, request)
            ending = await self._ending(running, request, ended)
        except BoxLost as error:
            ended, ending = None, Ending.lost(error.message)
        finally:
            self._running.discard(running)
        artifacts: list[Artifact] = []
        missing = list(request.artifacts)
        if request.artifacts and ending.kind is not EndingKind.LOST:
            artifacts, missing = await collect(live, request.artifacts, leave_out=frozenset({_main(request).relative}))
        usage = ended.usage() if ended else None
        return RunResult(
            ok=ending.ok,
            runtime=request.runtime,
            ending=ending,
            exit_code=ending.exit_code,
            timed_out=ending.kind is EndingKind.TIMED_OUT,
            stdout=running.output.streams[1].view(),
            stderr=running.output.streams[2].view(),
            duration_ms=round(usage.wall_seconds * 1000, 3) if usage else 0.0,
            isolation=isolation_of(live.capabilities, live.spec),
            warm=claim.warm,
            artifacts=artifacts,
            artifacts_missing=missing,
            ended_children=ended.ended_children if ended else 0,
            usage=usage,
            id=request.id,
        )

    async def _program(self, running: RunProgram, request: RunRequest) -> GuestExit:
        live = running.live
        seconds = request.timeout_seconds
        assert seconds is not None, "as _execute has set it"
        given = request.stdin.to_bytes() if request.stdin is not None else None
        process = running.process = live.session.start(
            _start(live, request, with_stdin=given is not None), guest_id=live.session.next_id(), sink=running.output
        )
        if given is not None:
            self._tasks.start(_feed(process, given), name="stdin of a run")  # ends with the process
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS + GUARD_SECONDS):
                return await process.exit()
        except TimeoutError:
            raise BoxLost("the guest did not end it at its time-out; its box was given up") from None

    async def _ending(self, running: RunProgram, request: RunRequest, ended: GuestExit) -> Ending:
        interpreter = INTERPRETERS[request.runtime]
        if ended.kind is ExitKind.NO_PROGRAM:
            told = running.live.capabilities
            where = f"its image {told.image} has none" if told.image else f"install the package {interpreter.package}"
            raise InvalidInput(
                f"there is no {interpreter.program} in this sandbox, so {request.runtime} code cannot run; "
                f"{where}{'' if told.image else ' on this machine'}",
                field="runtime",
                package=interpreter.package,
            )
        oom = running.over_memory
        if not oom and ended.reason is Reason.NONE and ended.looks_killed:
            oom = bool(await oom_kills(running.live))
        ending = ended.to_ending(program=interpreter.program, cwd=WORKSPACE, oom=oom)
        return replace(ending, reason=running.left) if ending.kind is EndingKind.CANCELLED else ending


async def _result(run: _Run) -> RunResult:
    with run.callers.one():
        return await asyncio.shield(run.result)


async def _feed(process: GuestProcess, data: bytes) -> None:
    try:
        await process.write(data)
        await process.close_stdin()
    except (BrokenPipeError, BoxLost):
        return  # it did not read all, or `exit` tells


def _start(live: LiveBox, request: RunRequest, *, with_stdin: bool) -> StartRecord:
    layout = live.layout
    main = _main(request)
    name = main.relative if main.root == WORKSPACE else f"{layout.tmp}/{main.relative}"
    return StartRecord(
        argv=(INTERPRETERS[request.runtime].program, name, *request.args),
        cwd=layout.workspace,
        env=dict(layout.env) | request.env,
        stdin=with_stdin,
        timeout_seconds=request.timeout_seconds,
        grace_seconds=GRACE_SECONDS,
        output_limit=request.output_limit_bytes or 0,
    )


def _main(request: RunRequest) -> SandboxPath:
    """Where the code goes: not into a folder of the user's."""
    return SandboxPath(WORKSPACE if request.mount is None else TMP, INTERPRETERS[request.runtime].main)


def packs_of(request: RunRequest) -> dict[str, bytes]:
    """By root, what is put into the box before the program starts. Raises InvalidInput, TooLarge, PathRefused."""
    if len(request.files) > MAX_FILES:
        raise TooLarge(f"a run has at most {MAX_FILES} files; give an archive to an opened sandbox", field="files")
    main = _main(request)
    try:
        contents = {main: request.code.encode()}
    except UnicodeEncodeError as error:
        raise InvalidInput("code must be text", field="code") from error
    for name, content in request.files.items():
        place = resolve(decode_name(name))
        if place.is_root or place in contents:
            sentence = f"files: {name!r} is the workspace itself, given twice, or the code's own file"
            raise InvalidInput(sentence, field="files")
        contents[place] = content.to_bytes()
    packs: dict[str, bytearray] = {}
    made: set[tuple[str, str]] = set()
    for place, data in contents.items():
        pack = packs.setdefault(place.root, bytearray())
        for parent in _parents(place.relative):
            if (place.root, parent) not in made:
                made.add((place.root, parent))
                pack += Entry("d", 0o755, 0, 0, 1, parent).encode()
        pack += Entry("f", 0o644, len(data), 0, 1, place.relative).encode() + data
    return {root: bytes(pack) + END for root, pack in packs.items()}


def _parents(path: str) -> list[str]:
    parents: list[str] = []
    while path := posixpath.dirname(path):
        parents.insert(0, path)
    return parents
