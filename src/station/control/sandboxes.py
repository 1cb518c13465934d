"""The life of sandboxes: open, use, lose, delete. Every step is written down before the next is taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from station.core.errors import BoxLost, Busy, SandboxFailed, StationError, Unavailable
from station.core.ids import check_name, new_tool_id, uid_of
from station.core.records import Owner, SandboxRecord, Timers
from station.core.spec import LifecycleClass, Spec
from station.core.states import State, check_transition
from station.core.stored import session_prefix
from station.core.wire import OpenRequest
from station.store.registry import Damaged, Listing, Registry

from .admission import Admission
from .decisions import GIVEN, Defaults, Step, check_same, is_over, make_spec, next_step, undone
from .locks import KeyedLocks
from .ports import UNKNOWN_BACKEND, Boxes, Made
from .tool_ids import ToolIds, existing
from .uses import Uses

T = TypeVar("T")

log = logging.getLogger(__name__)


def _no_failpoint(_name: str) -> None:
    return


RemoveStored: TypeAlias = Callable[[Owner, str], Awaitable[object]]
"""Removes from the file store what an owner has below a prefix."""


async def _nothing_stored(_owner: Owner, _prefix: str) -> None:
    return


def _no_bound(_owner: Owner) -> None:
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
        max_sandboxes: int | None = None,
        most_of: Callable[[Owner], int | None] = _no_bound,
        failpoint: Callable[[str], None] = _no_failpoint,
        remove_stored: RemoveStored = _nothing_stored,
    ) -> None:
        """`most_of`: how many names an owner may have; `None` is no bound."""
        self._registry = registry
        self.ids = ToolIds()
        """Given all records before anything else is done."""
        self._admission = Admission(registry, max_sandboxes, most_of=most_of, taken=self.ids.taken)
        self._boxes = boxes
        self._station = station
        self._defaults = defaults
        self._now = now
        self._failpoint = failpoint
        self._remove_stored = remove_stored
        self._locks = KeyedLocks()
        self._changes: set[asyncio.Task[Any]] = set()
        self._going: set[str] = set()
        self.uses = Uses(now)
        """Written down by `flush`."""

    async def open(self, request: OpenRequest, owner: Owner | None = None) -> tuple[SandboxRecord, bool]:
        """The sandbox of that name, with a box in which a command can run, and whether this call made it.

        Raises InvalidInput for the name, Conflict where it exists with a differing explicit field, SandboxFailed
        where it is failed or quarantined, LimitReached for a new one beyond the bound, and what `Boxes.check` and
        `Boxes.create` raise; then nothing is left of a new one.
        """
        owner = owner or Owner()
        uid = uid_of(owner.deployment, check_name(request.name))
        self.uses.touch(uid)
        return await self._change(uid, self._open(uid, request, owner))

    async def exists(self, name: str, owner: Owner | None = None) -> bool:
        """Whether `open` would find one, whatever its state. Raises InvalidInput for the name."""
        record = await self._read(uid_of((owner or Owner()).deployment, check_name(name)))
        return next_step(record) is not Step.CLAIM

    async def ready(self, uid: str) -> SandboxRecord:
        """The record of an existing sandbox, with a box in which a command can run. Raises SandboxNotFound,
        SandboxFailed, or why the next box could not be made."""
        return await self._change(uid, self._ready(uid))

    async def get(self, uid: str) -> SandboxRecord:
        """Raises SandboxNotFound, or SandboxFailed for a damaged record."""
        return self._seen(existing(uid, await self._read(uid)))

    async def list(self) -> Listing:
        """All but tombstones, and the damaged ones."""
        found = await self._registry.list()
        return Listing([self._seen(r) for r in found.records if r.state is not State.TOMBSTONE], found.damaged)

    async def of(self, owner: Owner) -> Sequence[str]:
        """The uids of his, damaged ones too; what somebody is just claiming for him is among them."""
        async with self._admission.turn:
            found = await self.list()
        owners = {item.uid: item.owner for item in found.records} | {item.uid: item.owner for item in found.damaged}
        return [uid for uid, his in owners.items() if his == owner]

    async def delete(
        self, uid: str, *, tool_id: str | None = None, is_busy: Callable[[str], bool] | None = None
    ) -> None:
        """Box, processes, files and name are gone; only the generation is remembered. Also for one that never was.
        On an error it stays `deleting`; calling again goes on where it stopped. With a `tool_id` that is not that of
        its present life, nothing happens. Raises Busy, and nothing has changed, where `is_busy` says so."""
        await self._change(uid, self._delete(uid, tool_id, is_busy))

    async def save(self, uid: str, *, tool_id: str | None = None) -> None:
        """Its box and processes are gone; name and files wait for the next use. Nothing happens where there is none,
        and as in `delete`. Raises SandboxFailed for one that is failed or quarantined."""
        await self._change(uid, self._save(uid, tool_id))

    def is_going(self, uid: str) -> bool:
        """Whether its box is about to be destroyed: who comes now waits for that (`settled`, `ready`)."""
        return uid in self._going

    async def settled(self, uid: str) -> None:
        """Waits for the changes under way. Raises SandboxNotFound where it is deleted after them."""
        await self._change(uid, self.get(uid))

    async def remove_unused(self, is_busy: Callable[[str], bool]) -> None:
        """Deletes each temporary sandbox that nobody has used for its time. `is_busy`: whether a command with a time
        limit runs in it. One that cannot be deleted does not stop the others, and is tried again with the next call.
        """
        now = self._now()
        found = [record.uid for record in (await self.list()).records if is_over(record, in_use=False, now=now)]
        await asyncio.gather(*(self._remove_one(uid, is_busy) for uid in found))

    async def _remove_one(self, uid: str, is_busy: Callable[[str], bool]) -> None:
        try:
            removed = await self._change(uid, self._remove_unused(uid, is_busy))
        except (StationError, OSError) as error:
            log.error("sandbox %s was not used for its time and could not be deleted: %s", uid, error)
        else:
            if removed is not None:
                log.info("sandbox %s (%s) was not used for its time and is deleted", uid, removed.name)

    async def flush(self) -> None:
        """Writes what `uses` noted. A sandbox whose record cannot be written does not stop the others, and is tried
        again by the next call."""
        for uid in self.uses.noted():
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
        check_same(record, request, timeout_seconds=self._defaults().timeout_seconds)
        if not record.tool_id:  # of a station that gave none yet
            record = await self._put(record, tool_id=new_tool_id(self._now()))
        return await self._running(record), False

    async def _ready(self, uid: str) -> SandboxRecord:
        return await self._running(existing(uid, await self._settled(uid)))

    async def _settled(self, uid: str) -> SandboxRecord | None:
        """The record after leftovers of earlier tries are gone. Raises SandboxFailed where that needs a person, and
        Unavailable where it cannot be done now."""
        record = await self._read(uid)
        step = next_step(record)
        if record is not None and step is Step.UNDO:
            record = await self._undo(record, "an earlier start of it did not come to an end")
            step = next_step(record)
            if step is Step.UNDO:
                raise Unavailable(f"sandbox {record.name!r} cannot be started now: {record.reason}", uid=uid)
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
        network = await self._boxes.default_network(request.backend or defaults.backend)
        spec = make_spec(request, backend=defaults.backend, defaults=defaults.limits, network=network)
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
            timers=Timers(remove_after_idle_seconds=defaults.idle_timeout_seconds if request.temporary else None),
            tool_id=new_tool_id(now),
            policy={GIVEN: await self._boxes.given(spec)},
            timeout_seconds=request.timeout_seconds,
        )
        async with self._admission.place(owner):
            claimed = await (self._registry.put(claim) if old else self._registry.create(claim))
            self.ids.note(claimed)
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
        """Never raises StationError. Where even the undo fails, the record stays `creating` for the next try, with the
        reason, or is `failed` if another try would not help."""
        after = undone(record)
        try:
            await self._boxes.destroy(record)
            if after is State.TOMBSTONE:
                await self._boxes.remove_files(record)
            return await self._put(record, state=after, box=None, reason=reason if after is State.SAVED else None)
        except StationError as error:
            log.error("sandbox %s: a failed start could not be undone: %s", record.uid, error)
            failed = State.CREATING if error.retryable else State.FAILED
            try:
                return await self._put(record, state=failed, reason=f"{reason}; and it could not be undone: {error}")
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
        if self._boxes.is_live(record):  # somebody has used it meanwhile
            return record.state
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

    async def _delete(self, uid: str, tool_id: str | None, is_busy: Callable[[str], bool] | None) -> None:
        found = await self._registry.get(uid)
        # As in `_remove_unused`: who comes after this look waits, and finds it deleted.
        if is_busy is not None and (self.uses.under_way(uid) or is_busy(uid)):
            raise Busy("a command runs in this sandbox, or somebody uses it; end it first", uid=uid)
        if isinstance(found, Damaged):
            await self._finish_delete(self._salvaged(found))
        elif found is not None and found.state is not State.TOMBSTONE and tool_id in (None, found.tool_id):
            await self._finish_delete(found)

    async def _remove_unused(self, uid: str, is_busy: Callable[[str], bool]) -> SandboxRecord | None:
        record = await self._read(uid)
        if record is None:
            return None
        # From here to `_holding_off` nothing else runs: a use was seen, or it waits and finds the sandbox deleted.
        in_use = self.uses.under_way(uid) or is_busy(uid)
        if not is_over(self._seen(record), in_use=in_use, now=self._now()):
            return None
        return await self._finish_delete(record)

    async def _finish_delete(self, record: SandboxRecord) -> SandboxRecord:
        with self._holding_off(record.uid):
            record = await self._put(record, state=State.DELETING, reason=None)
            self._failpoint("delete.after_mark")
            try:
                await self._boxes.destroy(record)
                self._failpoint("delete.after_destroy")
                await self._boxes.remove_files(record)
                for name in (record.uid, record.tool_id):
                    if name:
                        await self._remove_stored(record.owner, session_prefix(name))
                self._failpoint("delete.after_files")
            except (StationError, OSError) as error:
                await self._note_reason(record, f"it could not be deleted: {error}")
                raise
            gone = await self._put(record, state=State.TOMBSTONE, box=None, reason=None, guest_version=None)
        self.uses.forget(record.uid)
        return gone

    async def _note_reason(self, record: SandboxRecord, reason: str) -> None:
        try:
            await self._put(record, reason=reason)
        except StationError as error:
            log.error("sandbox %s: %s; nor could that be written: %s", record.uid, reason, error)

    async def _save(self, uid: str, tool_id: str | None) -> None:
        record = await self._read(uid)
        if record is None or record.state is State.TOMBSTONE or tool_id not in (None, record.tool_id):
            return
        settled = await self._settled(uid)
        if settled is None or settled.state is not State.RUNNING:
            return
        with self._holding_off(uid):
            # A kill in between leaves a running record without a box, which becomes `saved` like every other.
            await self._boxes.destroy(settled)
            await self._put(settled, state=State.SAVED, box=None, reason=None)
        self.uses.touch(uid)

    @contextmanager
    def _holding_off(self, uid: str) -> Iterator[None]:
        """Uses that take the way past the lock, to a live box, wait until it is decided what becomes of it."""
        self._going.add(uid)
        try:
            yield
        finally:
            self._going.discard(uid)

    def _salvaged(self, damaged: Damaged) -> SandboxRecord:
        """Enough of a record to delete what a damaged one stood for. Where its generation is unreadable, the clock
        gives one that is larger than any that was."""
        now = self._now()
        return SandboxRecord(
            uid=damaged.uid,
            name=damaged.name or "?",
            owner=damaged.owner or Owner(),
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
        at = self.uses.last(uid)
        found = await self._registry.get(uid)
        if isinstance(found, SandboxRecord) and found.last_active_at < at and found.state is not State.TOMBSTONE:
            await self._registry.put(replace(found, last_active_at=at))
        self.uses.forget(uid, at)

    async def _read(self, uid: str) -> SandboxRecord | None:
        found = await self._registry.get(uid)
        if isinstance(found, Damaged):
            raise found.error()
        return found

    async def _put(self, record: SandboxRecord, **changes: Any) -> SandboxRecord:
        new = replace(record, updated_at=self._now(), **changes)
        check_transition(record.state, new.state)
        written = await self._registry.put(new)
        self.ids.note(written)
        return written

    def _seen(self, record: SandboxRecord) -> SandboxRecord:
        at = self.uses.last(record.uid)
        return replace(record, last_active_at=at) if at > record.last_active_at else record
