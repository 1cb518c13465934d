"""The life of sandboxes: open, use, lose, delete. Every step is written down before the next is taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from station.core.errors import BoxLost, SandboxFailed, SandboxNotFound, StationError
from station.core.ids import check_name, uid_of
from station.core.records import Owner, SandboxRecord
from station.core.spec import LifecycleClass, Limits, Spec
from station.core.states import State, check_transition
from station.core.wire import OpenRequest
from station.store.registry import Damaged, Listing, Registry

from .decisions import Step, check_same, make_spec, next_step, undone
from .locks import KeyedLocks
from .ports import UNKNOWN_BACKEND, Boxes, Made

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Defaults:
    """What an open gets that names nothing."""

    backend: str
    limits: Limits = field(default_factory=Limits)
    """Only what the operator named."""


def _no_failpoint(_name: str) -> None:
    return


class Sandboxes:
    """The one owner of records. Changes of one sandbox happen one after the other; a change that has begun is ended
    even when the caller goes away."""

    def __init__(
        self,
        registry: Registry,
        boxes: Boxes,
        *,
        station: str,
        defaults: Callable[[], Defaults],
        now: Callable[[], float],
        failpoint: Callable[[str], None] = _no_failpoint,
    ) -> None:
        self._registry = registry
        self._boxes = boxes
        self._station = station
        self._defaults = defaults
        self._now = now
        self._failpoint = failpoint
        self._locks = KeyedLocks()
        self._changes: set[asyncio.Task[Any]] = set()
        self._touched: dict[str, float] = {}

    async def open(self, request: OpenRequest, owner: Owner | None = None) -> tuple[SandboxRecord, bool]:
        """The sandbox of that name, with a box in which a command can run, and whether this call made it.

        Raises InvalidInput for the name, Conflict where it exists with a differing explicit field, SandboxFailed
        where it is failed or quarantined, and what `Boxes.check` and `Boxes.create` raise; then nothing is left of a
        new one.
        """
        owner = owner or Owner()
        uid = uid_of(owner.deployment, check_name(request.name))
        self.touch(uid)
        return await self._change(uid, self._open(uid, request, owner))

    async def ready(self, uid: str) -> SandboxRecord:
        """The record of an existing sandbox, with a box in which a command can run. Raises SandboxNotFound,
        SandboxFailed, or why the next box could not be made."""
        return await self._change(uid, self._ready(uid))

    async def get(self, uid: str) -> SandboxRecord:
        """Raises SandboxNotFound, or SandboxFailed for a damaged record."""
        return self._seen(_existing(uid, await self._read(uid)))

    async def list(self) -> Listing:
        """All but tombstones, and the damaged ones."""
        found = await self._registry.list()
        return Listing([self._seen(r) for r in found.records if r.state is not State.TOMBSTONE], found.damaged)

    async def delete(self, uid: str) -> None:
        """Box, processes, files and name are gone; only the generation is remembered. Also for one that never was.
        On an error it stays `deleting`; calling again goes on where it stopped."""
        await self._change(uid, self._delete(uid))

    def touch(self, uid: str) -> None:
        """It is in use now. Written with the next `flush`."""
        self._touched[uid] = self._now()

    async def flush(self) -> None:
        """Writes what `touch` noted. A sandbox whose record cannot be written does not stop the others."""
        for uid in list(self._touched):
            try:
                await self._change(uid, self._flush(uid))
            except StationError as error:
                log.warning("the last use of sandbox %s was not written: %s", uid, error)

    async def box_lost(self, uid: str, generation: int, reason: str) -> None:
        """The box of that generation ended by itself: the sandbox is `saved`, its files wait for the next use.
        Nothing happens where the record has moved on."""
        await self._change(uid, self._box_lost(uid, generation, reason))

    async def adopt(self, uid: str) -> State:
        """For reconcile: takes over the box of a record, or, where that is gone, keeps the files for the next one.
        Answers the state that the record has now."""
        return await self._change(uid, self._adopt(uid))

    async def undo(self, uid: str, reason: str) -> State:
        """For reconcile: takes back a create that stopped half-way."""
        return await self._change(uid, self._undo_leftover(uid, reason))

    async def aclose(self) -> None:
        """Waits for the changes under way, and writes the last touches. Boxes live on."""
        while self._changes:
            await asyncio.wait(self._changes)
        await self.flush()

    # Everything below runs under the lock of its sandbox.

    async def _change(self, uid: str, work: Coroutine[Any, Any, T]) -> T:
        """A client that hangs up must not stop a create between the box and its record: the task is ours, not the
        caller's."""

        async def locked() -> T:
            async with self._locks.holding(uid):
                return await work

        task = asyncio.create_task(locked())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def _open(self, uid: str, request: OpenRequest, owner: Owner) -> tuple[SandboxRecord, bool]:
        record = await self._settled(uid)
        if next_step(record) is Step.CLAIM:
            return await self._create_first(uid, request, owner, old=record), True
        assert record is not None
        check_same(record.name, record.spec, request)
        return await self._running(record), False

    async def _ready(self, uid: str) -> SandboxRecord:
        return await self._running(_existing(uid, await self._settled(uid)))

    async def _settled(self, uid: str) -> SandboxRecord | None:
        """The record after leftovers of earlier tries are gone. Raises SandboxFailed where that needs a person."""
        record = await self._read(uid)
        step = next_step(record)
        if record is not None and step is Step.UNDO:
            record = await self._undo(record, "an earlier start of it did not come to an end")
            step = next_step(record)
        elif record is not None and step is Step.FINISH_DELETE:
            record = await self._finish_delete(record)
            step = next_step(record)
        if record is not None and step is Step.REFUSE:
            raise SandboxFailed(
                f"sandbox {record.name!r} is {record.state}: {record.reason or 'no reason is known'}. "
                "Deleting it frees the name",
                uid=uid,
                reason=record.reason,
            )
        return record

    async def _running(self, record: SandboxRecord) -> SandboxRecord:
        if record.state is State.RUNNING and not self._boxes.is_live(record):
            record = await self._take_over(record)
        if record.state is State.RUNNING:
            return record
        await self._boxes.check(record.spec)
        return await self._create(record)

    async def _create_first(
        self, uid: str, request: OpenRequest, owner: Owner, *, old: SandboxRecord | None
    ) -> SandboxRecord:
        defaults = self._defaults()
        spec = make_spec(request, backend=defaults.backend, defaults=defaults.limits)
        await self._boxes.check(spec)
        now = self._now()
        claim = SandboxRecord(
            uid=uid,
            name=request.name,
            owner=owner,
            spec=spec,
            class_=LifecycleClass.KEPT,
            state=State.CREATING,
            generation=old.generation if old else 0,
            created_at=now,
            updated_at=now,
            last_active_at=now,
            fence=old.fence if old else 0,
        )
        claimed = await (self._registry.put(claim) if old else self._registry.create(claim))
        self._failpoint("create.after_claim")
        return await self._create(claimed)

    async def _create(self, record: SandboxRecord) -> SandboxRecord:
        """From claimed or saved to running. On failure the record is where it was before, and no box is left."""
        try:
            record = await self._put(
                record,
                state=State.CREATING,
                generation=record.generation + 1,
                worker=self._station,
                box=None,
                reason=None,
            )
            self._failpoint("create.after_intent")
            made = await self._boxes.create(record)
            self._failpoint("create.after_ready")
            return await self._make_running(record, made)
        except StationError as error:
            await self._undo(record, f"its box could not be made: {error}")
            raise

    async def _make_running(self, record: SandboxRecord, made: Made) -> SandboxRecord:
        box, version = made
        return await self._put(
            record, state=State.RUNNING, box=box, guest_version=version, worker=self._station, reason=None
        )

    async def _undo(self, record: SandboxRecord, reason: str) -> SandboxRecord:
        """Never raises StationError: where even the undo fails, the record says so, or stays `creating` for the next
        try."""
        after = undone(record)
        try:
            await self._boxes.destroy(record)
            if after is State.TOMBSTONE:
                await self._boxes.remove_files(record)
            return await self._put(record, state=after, box=None, reason=reason if after is State.SAVED else None)
        except StationError as error:
            log.error("sandbox %s: a failed start could not be undone: %s", record.uid, error)
            try:
                return await self._put(
                    record, state=State.FAILED, reason=f"{reason}; and it could not be undone: {error}"
                )
            except StationError as second:
                log.error("sandbox %s: nor could that be written: %s", record.uid, second)
                return record

    async def _undo_leftover(self, uid: str, reason: str) -> State:
        record = await self._read(uid)
        if record is None or record.state is not State.CREATING:
            return record.state if record else State.TOMBSTONE
        return (await self._undo(record, reason)).state

    async def _take_over(self, record: SandboxRecord) -> SandboxRecord:
        """The box of a record that is not live here: adopted, or lost. Serves `creating` too: a box that is there and
        answers finishes the create."""
        try:
            made = await self._boxes.adopt(record)
        except BoxLost as error:
            return await self._lose(record, str(error))
        return await self._make_running(record, made)

    async def _adopt(self, uid: str) -> State:
        record = await self._read(uid)
        if record is None or record.state not in (State.RUNNING, State.CREATING):
            return record.state if record else State.TOMBSTONE
        return (await self._take_over(record)).state

    async def _lose(self, record: SandboxRecord, reason: str) -> SandboxRecord:
        if record.state is State.CREATING:
            return await self._undo(record, reason)
        await self._boxes.lose(record, reason)
        return await self._put(record, state=State.SAVED, box=None, reason=reason)

    async def _box_lost(self, uid: str, generation: int, reason: str) -> None:
        record = await self._read(uid)
        if record is not None and record.state is State.RUNNING and record.generation == generation:
            await self._lose(record, reason)

    async def _delete(self, uid: str) -> None:
        found = await self._registry.get(uid)
        self._touched.pop(uid, None)
        record = self._salvaged(found) if isinstance(found, Damaged) else found
        if record is not None and record.state is not State.TOMBSTONE:
            await self._finish_delete(record)

    async def _finish_delete(self, record: SandboxRecord) -> SandboxRecord:
        record = await self._put(record, state=State.DELETING)
        self._failpoint("delete.after_mark")
        await self._boxes.destroy(record)
        self._failpoint("delete.after_destroy")
        await self._boxes.remove_files(record)
        self._failpoint("delete.after_files")
        return await self._put(record, state=State.TOMBSTONE, box=None, reason=None, guest_version=None)

    def _salvaged(self, damaged: Damaged) -> SandboxRecord:
        """Enough of a record to delete what a damaged one stood for. Where its generation is unreadable, the clock
        gives one that is larger than any that was."""
        now = self._now()
        return SandboxRecord(
            uid=damaged.uid,
            name=damaged.name or "?",
            owner=Owner(),
            spec=Spec(backend=UNKNOWN_BACKEND),
            class_=LifecycleClass.KEPT,
            state=State.DELETING,
            generation=int(now) if damaged.generation is None else damaged.generation,
            created_at=now,
            updated_at=now,
            last_active_at=now,
            fence=damaged.fence,
        )

    async def _flush(self, uid: str) -> None:
        at = self._touched.pop(uid, None)
        found = await self._registry.get(uid)
        if at and isinstance(found, SandboxRecord) and found.last_active_at < at and found.state is not State.TOMBSTONE:
            await self._registry.put(replace(found, last_active_at=at))

    async def _read(self, uid: str) -> SandboxRecord | None:
        found = await self._registry.get(uid)
        if isinstance(found, Damaged):
            raise found.error()
        return found

    async def _put(self, record: SandboxRecord, **changes: Any) -> SandboxRecord:
        new = replace(record, updated_at=self._now(), **changes)
        check_transition(record.state, new.state)
        return await self._registry.put(new)

    def _seen(self, record: SandboxRecord) -> SandboxRecord:
        at = self._touched.get(record.uid, 0.0)
        return replace(record, last_active_at=at) if at > record.last_active_at else record


def _existing(uid: str, record: SandboxRecord | None) -> SandboxRecord:
    if record is None:
        raise SandboxNotFound("there is no such sandbox; it was never opened, or it was deleted", uid=uid)
    if record.state is State.TOMBSTONE:
        raise SandboxNotFound(f"there is no sandbox {record.name!r} any more: it was deleted", uid=uid)
    return record
