"""The live boxes of kept sandboxes: made, adopted, watched and destroyed here, and nowhere else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Protocol, TypeAlias

from station.backends.base import Backend, Box, Fetching, Labels
from station.core.capabilities import Capabilities, Isolation
from station.core.errors import (
    BackendUnavailable,
    BoxLost,
    CannotEnforce,
    InternalError,
    InvalidInput,
    Refused,
    StationError,
)
from station.core.records import BoxRef, SandboxRecord
from station.core.spec import NETWORK_NONE, NETWORK_OPERATOR, Spec
from station.core.suggest import suggestion
from station.core.wire import PullView
from station.guest.files import GuestFiles
from station.guest.session import GuestSession

from .failpoints import failpoint
from .live import LiveBox, isolation_of, network_of
from .meter import Meter
from .turns import Turns

log = logging.getLogger(__name__)

OnLost: TypeAlias = Callable[[str, int, str], Awaitable[None]]
Admit: TypeAlias = Callable[[Capabilities, str], Awaitable[None]]
REACH_SECONDS = 5.0
"""How long a call waits for a box that cannot be asked for: an engine that is updated is back by then."""
_REASON_SECONDS = 0.25


class ProcessHooks(Protocol):
    """What boxes need of processes: they begin and end with their box."""

    def wanted(self, uid: str, generation: int) -> Mapping[int, tuple[int, int]]: ...

    async def recover(self, live: LiveBox) -> None: ...

    async def box_lost(self, uid: str, generation: int, reason: str) -> None: ...

    def forget_sandbox(self, uid: str) -> None: ...


def box_id_of(uid: str, generation: int) -> str:
    """Derived, so that a second try finds what the first one made. 26 characters of the uid are 130 bits."""
    return f"{uid[:26]}-{generation}"


class LiveBoxes:
    """Owns the boxes, their sessions and one watcher task each, until `aclose`. Implements control's `Boxes`: whoever
    calls `create`, `adopt`, `destroy`, `lose` or `remove_files` holds the lock of that sandbox; the sweep, which does
    not, takes turns with the first four."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        *,
        station: str,
        processes: ProcessHooks,
        on_lost: OnLost,
        forbidden: Mapping[str, str] = MappingProxyType({}),
        admit: Admit | None = None,
        meter: Meter | None = None,
    ) -> None:
        """`on_lost(uid, generation, reason)` is called once for each box that ended by itself, with no lock held.
        `forbidden` gives, for a backend that is not among `backends`, the sentence why. `admit` raises where policy
        says no to a box of that backend with that network."""
        self.backends = backends
        self._forbidden = forbidden
        self._admit = admit
        self._meter = meter or Meter()
        self._station = station
        self._processes = processes
        self._on_lost = on_lost
        self._live: dict[str, LiveBox] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._given_up: dict[str, asyncio.Future[str]] = {}
        self._probes: dict[str, asyncio.Task[Capabilities]] = {}
        self._turns = Turns()
        self.unsettled: set[str] = set()
        """Sandboxes whose record may say what is no longer so: nothing could be asked when it was to be decided. Their
        owner settles them when that is over."""

    def get(self, uid: str) -> LiveBox | None:
        """The live box of a sandbox, at once."""
        return self._live.get(uid)

    def __len__(self) -> int:
        return len(self._live)

    def is_live(self, record: SandboxRecord) -> bool:
        live = self._live.get(record.uid)
        return live is not None and live.generation == record.generation

    async def capabilities(self, name: str) -> Capabilities:
        """What a backend can do here; probed until it is available: what helps may have been done meanwhile. Raises
        InvalidInput for a name that no backend has."""
        probe = self._probes.get(name)
        if probe is None or (_has_answered(probe) and not probe.result().available):
            probe = self._probes[name] = asyncio.create_task(self.backend(name).probe())
        return await asyncio.shield(probe)

    async def isolation(self, record: SandboxRecord) -> Isolation | None:
        """Where its code runs, or would; `None`: this station has no such backend."""
        live = self._live.get(record.uid)
        if live is None and record.spec.backend not in self.backends:
            return None
        known = live.capabilities if live else await self.capabilities(record.spec.backend)
        return isolation_of(known, record.spec)

    def backend(self, name: str) -> Backend:
        """Raises InvalidInput for a name that no backend of this station has, Refused for one that the operator
        forbids."""
        if name in self._forbidden:
            raise Refused(self._forbidden[name], backend=name)
        if name not in self.backends:
            raise InvalidInput(f"there is no backend {name!r} here{suggestion(name, self.backends)}", field="backend")
        return self.backends[name]

    async def default_network(self, backend: str) -> str:
        """What the spec of a box says whose caller names no network. It is not widened later: `none` stays."""
        return NETWORK_OPERATOR if (await self.capabilities(backend)).operator_network else NETWORK_NONE

    async def given(self, spec: Spec) -> dict[str, str]:
        """The operator's choices that a box of that spec would be made with now; nothing where no backend can tell."""
        if spec.backend not in self.backends:
            return {}
        found = dict((await self.capabilities(spec.backend)).given)
        if spec.network == NETWORK_NONE and found:
            found["network"] = NETWORK_NONE
        return found

    async def check(self, spec: Spec) -> None:
        """Raises what a backend cannot give, and what policy refuses. Nothing is made or written."""
        backend = self.backend(spec.backend)
        found = await self.capabilities(spec.backend)
        if not found.available:
            with suppress(BackendUnavailable):
                backend.check(spec)  # it may be a setting that cannot be kept: no failure, and told as that
            kind = CannotEnforce if found.unkept else BackendUnavailable
            raise kind(
                f"backend {spec.backend} cannot run here: {found.reason}",
                retryable=found.passing,
                remedy=found.remedy,
                backend=spec.backend,
            )
        if self._admit is not None:
            await self._admit(found, network_of(found, spec))
        backend.check(spec)

    async def fetch(self, spec: Spec) -> None:
        """What a box of a spec that was checked needs and has to come from elsewhere is here when this returns."""
        backend = self.backend(spec.backend)
        if isinstance(backend, Fetching):
            await backend.fetch(spec)

    def fetches(self) -> list[PullView]:
        """What is on its way now."""
        return [item for one in self.backends.values() if isinstance(one, Fetching) for item in one.fetches()]

    async def create(self, record: SandboxRecord) -> tuple[BoxRef, str]:
        async with self._turns.taking(record.uid):
            if record.uid in self._live:
                raise InternalError(f"sandbox {record.uid} has a live box already")
            backend = self.backend(record.spec.backend)
            with self._meter.making_box(backend.name):
                box = await backend.create(record.spec, self._labels(record))
                try:
                    failpoint("create.after_start")
                    live = await self._connect(record, box)
                except StationError:
                    await box.destroy()
                    raise
            self._keep(live)
            return box.ref, live.session.hello.guest_version

    async def adopt(self, record: SandboxRecord) -> tuple[BoxRef, str]:
        async with self._turns.taking(record.uid):
            if self.is_live(record):
                raise InternalError(f"sandbox {record.uid} is live already")
            backend = self.backend(record.spec.backend)
            ref = record.box or await self._find(backend, record)
            if ref is None:
                raise BoxLost("its box is gone", uid=record.uid)
            box = await backend.adopt(ref)
            try:
                live = await self._connect(record, box)
            except BoxLost:
                # It lives and its guest does not answer: nobody could use or end what runs in it.
                await box.destroy()
                raise
            try:
                await self._processes.recover(live)
            except StationError:
                await live.session.aclose()
                raise
            self._keep(live)
            return box.ref, live.session.hello.guest_version

    async def destroy(self, record: SandboxRecord) -> None:
        """Raises Unavailable, and has done nothing, while the box cannot be asked for."""
        async with self._turns.taking(record.uid):
            if (live := self._live.get(record.uid)) is not None and live.session.away is not None:
                await live.session.reachable(REACH_SECONDS)
            live = await self._let_go(record.uid)
            self.unsettled.add(record.uid)
            if live is not None:
                await live.box.destroy()
            else:
                # Nothing is known to live: only the labels tell what an interrupted try left.
                await self._destroy_labelled(record)
            self.unsettled.discard(record.uid)
            await self._processes.box_lost(record.uid, record.generation, "its box was destroyed")

    async def lose(self, record: SandboxRecord, reason: str) -> None:
        async with self._turns.taking(record.uid):
            live = await self._let_go(record.uid)
            await self._processes.box_lost(record.uid, record.generation, reason)
            if live is not None:
                await live.box.destroy()
            elif record.box is not None:
                await destroy_by_ref(self.backend(record.spec.backend), record.box)

    def is_used(self, labels: Labels) -> bool:
        """Whether that very box is live here, or something is under way with a box of that sandbox."""
        live = self._live.get(labels.uid)
        return not self._turns.free(labels.uid) or (live is not None and live.generation == labels.generation)

    async def destroy_if(self, labels: Labels, ref: BoxRef, unwanted: Callable[[], Awaitable[bool]]) -> bool:
        """Destroys a box, unless it `is_used` or is wanted after all; whether it did. For the sweep, which holds no
        lock: until it is done, nothing else begins with a box of that sandbox."""
        if self.is_used(labels):
            return False
        async with self._turns.taking(labels.uid):
            if not await unwanted():
                return False
            await destroy_by_ref(self.backends[ref.backend], ref)
            return True

    async def remove_files_if(self, backend: str, uid: str, unwanted: Callable[[], Awaitable[bool]]) -> bool:
        """Removes what a sandbox without a record has left with that backend, unless it is wanted after all; whether it
        did. For whoever holds no lock, as `destroy_if`."""
        async with self._turns.taking(uid):
            if gone := await unwanted():
                await self.backends[backend].remove_files(uid)
            return gone

    async def remove_files(self, record: SandboxRecord) -> None:
        for backend in self._backends_of(record):
            await backend.remove_files(record.uid)
        self._processes.forget_sandbox(record.uid)

    async def _destroy_labelled(self, record: SandboxRecord) -> None:
        """Destroys every box that its labels give to the sandbox."""
        for backend in self._backends_of(record):
            found = [ref async for labels, ref in backend.boxes() if labels.uid == record.uid]
            for ref in found:
                await destroy_by_ref(backend, ref)

    def _backends_of(self, record: SandboxRecord) -> list[Backend]:
        """The one that the record names; all, where the record was lost and names none."""
        if not record.spec.backend:
            return list(self.backends.values())
        return [self.backend(record.spec.backend)]

    def give_up(self, live: LiveBox, reason: str) -> None:
        """The box cannot be used any more: it is destroyed and counts as lost. Returns at once."""
        given_up = self._given_up.get(live.uid)
        if self._live.get(live.uid) is live and given_up and not given_up.done():
            given_up.set_result(reason)

    async def aclose(self) -> None:
        """Ends the connections; the boxes live on and are adopted by the next station."""
        for uid in list(self._live):
            await self._let_go(uid)
        for probe in self._probes.values():
            probe.cancel()
        await asyncio.gather(*self._probes.values(), return_exceptions=True)
        self._probes.clear()

    async def _connect(self, record: SandboxRecord, box: Box) -> LiveBox:
        wanted = self._processes.wanted(record.uid, record.generation)
        session = await GuestSession.connect(box.connect, wanted=wanted, patience_seconds=box.patience_seconds)
        return LiveBox(
            uid=record.uid,
            generation=record.generation,
            spec=record.spec,
            box=box,
            session=session,
            files=GuestFiles(session, box.layout),
            timeout_seconds=record.timeout_seconds,
        )

    def _keep(self, live: LiveBox) -> None:
        self._live[live.uid] = live
        self._given_up[live.uid] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._watch(live), name=f"watch {live.uid}")
        self._watchers[live.uid] = task
        task.add_done_callback(partial(_report, live.uid))

    async def _let_go(self, uid: str) -> LiveBox | None:
        """Stops to watch and to speak to a box."""
        live = self._live.pop(uid, None)
        watcher = self._watchers.pop(uid, None)
        self._given_up.pop(uid, None)
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])
        if live is not None:
            await live.session.aclose()
        return live

    async def _watch(self, live: LiveBox) -> None:
        reason = await _end_of(live, self._given_up[live.uid])
        log.warning("sandbox %s lost its box of generation %d: %s", live.uid, live.generation, reason)
        # Who comes next finds no live box and waits for this turn: one that was given up could be adopted again.
        async with self._turns.taking(live.uid):
            # From here on the sandbox has no live box; whoever holds its lock sees that and need not stop this task.
            del self._live[live.uid], self._watchers[live.uid], self._given_up[live.uid]
            # Told before the session ends, so that commands end with the reason of the box.
            await self._processes.box_lost(live.uid, live.generation, reason)
            await live.session.aclose()
            self.unsettled.add(live.uid)
            # Also a box that ended by itself has left something: its directory, its place in a list.
            await live.box.destroy()
        await self._on_lost(live.uid, live.generation, reason)
        self.unsettled.discard(live.uid)

    def _labels(self, record: SandboxRecord) -> Labels:
        return Labels.ours(
            box_id_of(record.uid, record.generation),
            uid=record.uid,
            generation=record.generation,
            fence=record.fence,
            station=self._station,
        )

    async def _find(self, backend: Backend, record: SandboxRecord) -> BoxRef | None:
        """A box of which no record got to know: the station died between the box and the record."""
        wanted = box_id_of(record.uid, record.generation)
        return next(iter([ref async for labels, ref in backend.boxes() if labels.box_id == wanted]), None)


def _has_answered(probe: asyncio.Task[Capabilities]) -> bool:
    return probe.done() and not probe.cancelled() and probe.exception() is None


async def destroy_by_ref(backend: Backend, ref: BoxRef) -> None:
    """Destroys a box of which only the label is known. One that is gone by now is destroyed."""
    try:
        box = await backend.adopt(ref)
    except BoxLost:
        return
    await box.destroy()


async def _end_of(live: LiveBox, given_up: asyncio.Future[str]) -> str:
    """Waits until the box ended, its guest cannot be reached any more or it was given up, and says which."""
    ended = asyncio.create_task(live.box.ended())
    closed = asyncio.create_task(live.session.wait_closed())
    try:
        await asyncio.wait((ended, closed, given_up), return_when=asyncio.FIRST_COMPLETED)
        if given_up.done():
            return given_up.result()
        if not ended.done():
            # A box that dies breaks its stream first; its own reason is the better one.
            await asyncio.wait([ended], timeout=_REASON_SECONDS)
        return ended.result() if ended.done() else f"its guest does not answer: {closed.result()}"
    finally:
        for task in (ended, closed):
            task.cancel()
        await asyncio.gather(ended, closed, return_exceptions=True)


def _report(uid: str, task: asyncio.Task[None]) -> None:
    """A watcher that failed leaves a record that says running, and an unsettled sandbox."""
    if not task.cancelled() and (error := task.exception()):
        log.error("the loss of the box of sandbox %s could not be recorded: %s", uid, error)
