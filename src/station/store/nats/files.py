"""The files port in the object store of NATS.

Contents come under ids of their own and are named when they are whole, by one message under compare-and-set: a writer
that lost, or died, leaves bytes that no name has, and the sweep finds them. Nothing is counted by reference: what no
name of the bucket has, and nobody reads or writes, goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import replace
from typing import Self

from station.core.errors import Conflict, InternalError, StationError, StorageFull, Unavailable
from station.core.records import Owner
from station.core.stored import StoredFile
from station.store.files import Facts, MayReplace, Page, Room, StoredContent, Swept
from station.store.room import GIB, Quota, check_announced, check_offset, living
from station.store.threads import to_its_end

from .connection import ChangedMeanwhile, NatsConnection
from .content import Incoming, Outgoing, size_of
from .follow import Followed, in_turn
from .index import Content, Entry, Index, Layout, Resting, object_name
from .seen import Seen

log = logging.getLogger(__name__)

RELEASED_SECONDS = 60.0
"""How long the bytes of a file that was replaced or deleted stay for readers of other stations."""
LOOSE_SECONDS = 3600.0
"""How long bytes without a name, of which no more come, wait for one: an upload that rests so long has ended."""
LOOK_SECONDS = 600.0
"""How often they are looked for."""
_TRIES = 20
_SEEN = "file/"
_ROLLUP = {"Nats-Rollup": "sub"}


class NatsFiles:
    """A `FileStore`, of many stations too; `max_bytes` is of each, over what all have stored. The connection is the
    caller's."""

    def __init__(
        self,
        connection: NatsConnection,
        bucket: str,
        *,
        now: Callable[[], float],
        seen: Seen,
        max_file_bytes: int = 5 * GIB,
        max_bytes: int = 10 * GIB,
    ) -> None:
        """Use `opened`."""
        self._seen = seen
        self._connection = connection
        self._layout = Layout(bucket)
        self._now = now
        self._quota = Quota(max_file_bytes=max_file_bytes, max_bytes=max_bytes)
        self._index = Index()
        self._followed = Followed(
            connection, self._layout.stream, self._layout.all_names, take=self._index.take, forget=self._index.clear
        )
        self._turn = asyncio.Lock()
        """Of who changes a name: our own writers need not lose to each other."""
        self._coming: set[str] = set()
        self._read: Counter[str] = Counter()
        self._released: dict[str, float] = {}
        """By id when its last name went."""
        self._loose, self._deleted = Resting(), Resting()
        """Contents without a name by their ids and number of chunks; deleted names by their sequence."""
        self._look_at = 0.0
        self._closed = False

    @classmethod
    async def opened(
        cls,
        connection: NatsConnection,
        *,
        bucket: str,
        now: Callable[[], float],
        replicas: int = 1,
        seen: Seen | None = None,
        max_file_bytes: int = 5 * GIB,
        max_bytes: int = 10 * GIB,
    ) -> Self:
        """Makes the bucket where there is none, and reads what is in it. Raises what asking does. `seen`: by which a
        file that the servers have lost is told as damaged; it is the caller's."""
        seen = seen or Seen()
        made = cls(connection, bucket, now=now, seen=seen, max_file_bytes=max_file_bytes, max_bytes=max_bytes)
        await connection.make_stream(made._layout.stream, made._layout.config(replicas))
        await made._refresh()
        there = {_SEEN + object_name(it.owner, it.file.key) for it in made._index}
        if lost := seen.below(_SEEN) - {name.removeprefix(_SEEN) for name in there}:
            log.error(
                "files: %d that NATS acknowledged are damaged or gone; delete them, or store them anew", len(lost)
            )
        await seen.add(*there)
        return made

    # ── the port ────────────────────────────────────────────────────────────────────────────────────────────────

    async def put(
        self,
        owner: Owner,
        key: str,
        content: AsyncIterable[bytes],
        facts: Facts,
        *,
        may_replace: MayReplace = lambda _there: True,
    ) -> StoredFile:
        taken = facts.size or 0
        self._quota.reserve(taken)
        incoming = Incoming(self._connection, self._layout)
        self._coming.add(incoming.nuid)
        try:
            await self._refresh()
            async for chunk in content:
                size = incoming.size + len(chunk)
                self._quota.check_size(size)
                if (more := size - taken) > 0:
                    self._quota.reserve(more)
                    taken += more
                await incoming.write(chunk)
            came = await incoming.finish()
            check_announced(incoming.size, incoming.checksum, facts)
            file = _file(key, incoming, facts, self._now())
            return await self._commit(owner, file, came, incoming, may_replace=may_replace)
        except Unavailable:
            # What has come of it cannot be removed now either: a sweep finds it.
            incoming.may_be_named = True
            raise
        finally:
            self._coming.discard(incoming.nuid)
            if incoming.size and not incoming.may_be_named:
                await to_its_end(self._discard(incoming.nuid))
            self._quota.release(taken)

    async def get(self, owner: Owner, key: str, now: float) -> StoredFile | None:
        await self._refresh()
        return living(_of(self._found(owner, key)), now)

    async def open(self, owner: Owner, key: str, now: float, *, offset: int = 0) -> StoredContent | None:
        await self._refresh()
        entry = self._found(owner, key)
        if entry is None or living(entry.file, now) is None:
            return None
        check_offset(offset, entry.file)
        content = self._index.content(entry)
        self._read[content.nuid] += 1

        def closed() -> None:
            self._read -= Counter([content.nuid])  # and without those that nobody reads

        return Outgoing(self._connection, self._layout, entry.file, content, offset=offset, closed=closed)

    async def list(self, owner: Owner, prefix: str, now: float, *, after: str = "", limit: int = 1000) -> Page:
        await self._refresh()
        found = [it.file for it in self._index.below(owner, prefix, after) if living(it.file, now)][: limit + 1]
        return Page(found[:limit], found[limit - 1].key if len(found) > limit else None)

    async def delete(self, owner: Owner, key: str) -> bool:
        await self._refresh()
        is_lost = _SEEN + object_name(owner, key) in self._seen
        return await self._delete(owner, key) or is_lost

    async def delete_below(self, owner: Owner, prefix: str) -> int:
        """One after the other: where the servers go away meanwhile, some are gone and the next call goes on."""
        await self._refresh()
        keys = {entry.file.key for entry in self._index.below(owner, prefix)}
        lost = {prefix + rest for rest in self._seen.below(_SEEN + object_name(owner, prefix))} - keys
        return sum([await self._delete(owner, key) or key in lost for key in sorted(keys | lost)])

    def reserve(self, size: int, *, anyway: bool = False) -> None:
        self._quota.reserve(size, anyway=anyway)

    def release(self, size: int) -> None:
        self._quota.release(size)

    async def room(self) -> Room:
        await self._refresh()
        return self._quota.room()

    async def sweep(self, now: float) -> Swept:
        await self._refresh()
        expired = sum([await self._delete(it.owner, it.file.key, it) for it in self._index.expired(now)])
        for entry in self._index.twice():
            await self._point(entry)
        if self._index.unreadable:
            log.warning("files: %d names cannot be read; no content is removed", len(self._index.unreadable))
            return Swept(expired, 0)
        freed = sum([await self._discard(nuid) for nuid in self._over(now)])
        if now >= self._look_at:
            freed += sum([await self._discard(nuid) for nuid in await self._rested(now)])
            await self._forget_deleted(now)
            self._look_at = now + LOOK_SECONDS
        return Swept(expired, freed)

    async def aclose(self) -> None:
        self._closed = True

    def _found(self, owner: Owner, key: str) -> Entry | None:
        """Raises InternalError for what was acknowledged, not deleted, and is not there."""
        entry = self._index.get(owner, key)
        if entry is None and _SEEN + object_name(owner, key) in self._seen:
            raise InternalError(f"the stored file {key} is gone: NATS acknowledged it and lost it", key=key)
        return entry

    # ── names ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _refresh(self) -> None:
        if self._closed:
            raise Unavailable("the file store is closed: the station is stopping")
        await self._followed.refresh()
        self._quota.files, self._quota.used = len(self._index), self._index.used

    async def _commit(
        self, owner: Owner, file: StoredFile, content: Content, incoming: Incoming, *, may_replace: MayReplace
    ) -> StoredFile:
        await self._refresh()
        async with in_turn(self._turn):
            for _ in range(_TRIES):
                before = self._index.get(owner, file.key)
                self._quota.check_key(file.key, _of(before), may_replace)
                incoming.may_be_named = True
                if await self._write(Entry(owner, file, content)):
                    return file
                incoming.may_be_named = False
        raise Conflict(f"{file.key} is written by others all the time", retryable=True, key=file.key)

    async def _delete(self, owner: Owner, key: str, only: Entry | None = None) -> bool:
        """Whether there was one. `only`: not where the key has something else now."""
        async with in_turn(self._turn):
            for _ in range(_TRIES):
                entry = self._index.get(owner, key)
                # First: a name that is deleted and remembered would seem to be lost.
                await self._seen.drop(_SEEN + object_name(owner, key))
                if entry is None or (only is not None and entry != only):
                    return False
                if await self._remove(entry):
                    return True
        raise Conflict(f"{key} is written by others all the time", retryable=True, key=key)

    async def _remove(self, entry: Entry) -> bool:
        """As `_write`. Where there is no room even for the word that it is deleted, its bytes go first."""
        try:
            return await self._write(entry, deleted=True)
        except StorageFull:
            if not await self._discard(entry.content.nuid):
                raise
        return await self._write(entry, deleted=True)

    async def _point(self, entry: Entry) -> None:
        """The same file, with another copy of its content. Nothing happens where it was written meanwhile."""
        async with in_turn(self._turn):
            found = self._index.get(entry.owner, entry.file.key)
            if found is not None and found.sequence == entry.sequence and self._index.is_named(entry.content.nuid):
                await self._write(entry)

    async def _write(self, entry: Entry, *, deleted: bool = False) -> bool:
        """False, and nothing has changed, where the name is not as it is known here."""
        subject = self._layout.name(entry.owner, entry.file.key)
        before = self._index.get(entry.owner, entry.file.key)
        payload = self._layout.encode_deleted(entry) if deleted else self._layout.encode(entry)
        last = self._index.sequence(subject)
        try:
            sequence = await self._connection.publish(self._layout.stream, subject, payload, last=last, headers=_ROLLUP)
        except ChangedMeanwhile:
            # Asked for it alone: that its message is gone again is told to nobody.
            self._index.forget(subject)
            if (found := await self._connection.last(self._layout.stream, subject)) is not None:
                self._index.take(found)
            return False
        if not deleted:
            await self._seen.add(_SEEN + object_name(entry.owner, entry.file.key))
        self._index.note(subject, None if deleted else replace(entry, sequence=sequence), sequence)
        self._quota.files, self._quota.used = len(self._index), self._index.used
        if before is not None and not self._index.is_named(before.content.nuid):
            self._released[before.content.nuid] = self._now()
        return True

    # ── contents without a name ─────────────────────────────────────────────────────────────────────────────────

    def _over(self, now: float) -> Sequence[str]:
        """Of what was released here, what no reader can have any more."""
        for nuid in [nuid for nuid in self._released if self._index.is_named(nuid)]:
            del self._released[nuid]
        return [nuid for nuid, at in self._released.items() if now >= at + RELEASED_SECONDS and not self._read[nuid]]

    async def _rested(self, now: float) -> Sequence[str]:
        """What has no name, and was as it is now a while ago: it was left by who lost or died."""
        subjects = await self._connection.subjects(self._layout.stream, self._layout.all_chunks)
        # Named since they were listed, perhaps.
        await self._refresh()
        found = {self._layout.nuid(subject): count for subject, count in subjects.items()}
        ours = self._coming | self._read.keys() | self._released.keys()
        loose = {nuid: n for nuid, n in found.items() if nuid not in ours and not self._index.is_named(nuid)}
        self._loose.see(loose, now)
        return self._loose.since(now - LOOSE_SECONDS)

    async def _discard(self, nuid: str) -> int:
        """How many bytes that were; what cannot be removed now is found by a later sweep."""
        try:
            size = await size_of(self._connection, self._layout, nuid)
            await self._connection.purge(self._layout.stream, self._layout.chunks(nuid))
        except StationError as error:
            log.warning("files: a content without a name was not removed: %s", error)
            return 0
        self._released.pop(nuid, None)
        return size

    async def _forget_deleted(self, now: float) -> None:
        """Every deleted name leaves a message that says so. It goes when all who keep up have long been told."""
        self._deleted.see(self._index.gone, now)
        for subject in self._deleted.since(now - LOOSE_SECONDS):
            await self._connection.remove(self._layout.stream, self._index.gone[subject])
            self._index.forget(subject)


def _of(entry: Entry | None) -> StoredFile | None:
    return None if entry is None else entry.file


def _file(key: str, incoming: Incoming, facts: Facts, now: float) -> StoredFile:
    return StoredFile(key, incoming.size, facts.content_type, incoming.checksum, now, facts.expires_at, facts.metadata)
