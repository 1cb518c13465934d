"""The registry in a bucket of NATS KV: a record a key, its revision the fence."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from station.core.errors import AlreadyExists, Conflict, Unavailable
from station.core.ids import is_uid
from station.core.records import SandboxRecord
from station.store import documents
from station.store.registry import Damaged, Listing

from .connection import ChangedMeanwhile, NatsConnection
from .follow import Followed
from .messages import Message
from .seen import Seen

_SEEN = "sandbox/"
_MARK = "KV-Operation"
"""On a message that says: this key was deleted. By somebody else: records stay, as tombstones."""


def bucket_config(bucket: str, replicas: int) -> dict[str, object]:
    """Of a KV bucket as other clients make it, so that they can read it."""
    return {
        "subjects": [f"$KV.{bucket}.>"],
        "storage": "file",
        "num_replicas": replicas,
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "deny_delete": True,
    }


class NatsRegistry:
    """A `Registry`, of many stations too. The connection is the caller's."""

    def __init__(self, connection: NatsConnection, bucket: str, seen: Seen) -> None:
        """Use `opened`."""
        self._seen = seen
        self._connection = connection
        self._bucket = bucket
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}.sandbox."
        self._known: dict[str, SandboxRecord | Damaged] = {}
        self._deleted: dict[str, int] = {}
        """By uid the sequence of what says that somebody deleted it."""
        self._followed = Followed(connection, self._stream, f"$KV.{bucket}.>", take=self._take, forget=self._forget)
        self._closed = False

    @classmethod
    async def opened(
        cls, connection: NatsConnection, *, bucket: str, replicas: int = 1, seen: Seen | None = None
    ) -> Self:
        """Makes the bucket where there is none. Raises what asking does. `seen`: by which a record that the servers
        have lost is told as damaged; it is the caller's."""
        await connection.make_stream(f"KV_{bucket}", bucket_config(bucket, replicas))
        return cls(connection, bucket, seen or Seen())

    async def get(self, uid: str) -> SandboxRecord | Damaged | None:
        self._check_open()
        message = await self._last(uid)
        if message is not None and _MARK not in message.headers:
            return _read(uid, message)
        return _lost(uid, 0 if message is None else message.sequence) if _SEEN + uid in self._seen else None

    async def create(self, record: SandboxRecord) -> SandboxRecord:
        self._check_open()
        last = 0
        while True:
            try:
                return await self._write(record, last)
            except ChangedMeanwhile:
                found = await self._last(record.uid)
                if found is None or _MARK not in found.headers or found.sequence == last:
                    raise AlreadyExists(f"there is a record of sandbox {record.name} already", uid=record.uid) from None
                last = found.sequence

    async def put(self, record: SandboxRecord) -> SandboxRecord:
        self._check_open()
        try:
            if record.fence > 0 or _SEEN + record.uid in self._seen:
                return await self._write(record, record.fence)
        except ChangedMeanwhile:
            pass
        raise Conflict(
            f"the record of sandbox {record.name} was changed by another writer", retryable=True, uid=record.uid
        )

    async def list(self) -> Listing:
        self._check_open()
        await self._followed.refresh()
        await self._seen.add(*(_SEEN + uid for uid in self._known))
        lost = {uid: _lost(uid, self._deleted.get(uid, 0)) for uid in self._seen.below(_SEEN) - self._known.keys()}
        found = [(self._known | lost)[uid] for uid in sorted(self._known | lost)]
        return Listing(
            [item for item in found if isinstance(item, SandboxRecord)],
            [item for item in found if isinstance(item, Damaged)],
        )

    async def aclose(self) -> None:
        self._closed = True

    async def is_done(self, what: str) -> bool:
        """Whether `note_done` was told of it, by whatever station."""
        return await self._connection.last(self._stream, self._done(what)) is not None

    async def note_done(self, what: str) -> None:
        await self._connection.publish(self._stream, self._done(what), b"done")

    def _done(self, what: str) -> str:
        return f"$KV.{self._bucket}.done.{what}"

    async def _last(self, uid: str) -> Message | None:
        # Nothing else becomes a part of a subject.
        return await self._connection.last(self._stream, self._prefix + uid) if is_uid(uid) else None

    async def _write(self, record: SandboxRecord, last: int) -> SandboxRecord:
        document = documents.encode(record)
        fence = await self._connection.publish(self._stream, self._prefix + record.uid, document, last=last)
        await self._seen.add(_SEEN + record.uid)
        return replace(record, fence=fence)

    def _take(self, message: Message) -> None:
        if not message.subject.startswith(self._prefix):
            return  # not of a sandbox
        uid = message.subject.removeprefix(self._prefix)
        self._deleted.pop(uid, None)
        if _MARK in message.headers:
            self._known.pop(uid, None)
            self._deleted[uid] = message.sequence
        else:
            self._known[uid] = _read(uid, message)

    def _forget(self) -> None:
        self._known.clear()
        self._deleted.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the registry is closed: the station is stopping")


def _lost(uid: str, fence: int) -> Damaged:
    return Damaged(
        uid, "NATS acknowledged it and has it no more: its files were damaged, or it was removed", b"", fence
    )


def _read(uid: str, message: Message) -> SandboxRecord | Damaged:
    return documents.decode(uid, message.data, message.sequence)
