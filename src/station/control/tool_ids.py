"""Which sandbox each id stands for, and whose it is: an index in memory, so that no use asks the registry for that."""

from __future__ import annotations

from collections.abc import Iterable

from station.core.errors import SandboxNotFound
from station.core.ids import is_uid
from station.core.records import Owner, SandboxRecord
from station.core.states import State
from station.store.registry import Damaged, Listing


class ToolIds:
    """Kept true by whoever reads all records at the start and writes them from then on, who notes each one."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}
        self._by_uid: dict[str, str] = {}
        self._owners: dict[str, Owner] = {}
        """By uid, of every name that ever was: a uid is of one owner for ever."""
        self._taken: set[str] = set()

    def uid_of(self, sid: str, owner: Owner) -> str:
        """The uid of the sandbox of `owner` that has that uid, or that tool id in its present life. Raises
        SandboxNotFound, the same for another's, for one that never was, and for a tool id of an earlier life."""
        uid = sid if is_uid(sid) else self._uids.get(sid, "")
        if self._owners.get(uid) != owner:
            raise not_found(sid)
        return uid

    def taken(self, owner: Owner) -> int:
        """How many names of his are in use."""
        return sum(self._owners[uid] == owner for uid in self._taken)

    def know(self, listing: Listing) -> None:
        """All that there are."""
        for record in listing.records:
            self.note(record)
        self._note_damaged(listing.damaged)

    def note(self, record: SandboxRecord) -> None:
        """The record as it is now."""
        self._uids.pop(self._by_uid.pop(record.uid, ""), None)
        self._owners[record.uid] = record.owner
        if record.state is State.TOMBSTONE:
            self._taken.discard(record.uid)
            return
        self._taken.add(record.uid)
        if record.tool_id:
            self._uids[record.tool_id] = record.uid
            self._by_uid[record.uid] = record.tool_id

    def _note_damaged(self, damaged: Iterable[Damaged]) -> None:
        """As far as it can be read whose they are."""
        for item in damaged:
            if item.owner is not None:
                self._owners[item.uid] = item.owner
                self._taken.add(item.uid)


def not_found(sid: str) -> SandboxNotFound:
    """Of an id that no sandbox has, or has any more, or that is another's."""
    if is_uid(sid):
        return SandboxNotFound("there is no such sandbox; it was never opened, or it was deleted", uid=sid)
    return SandboxNotFound(
        f"there is no sandbox {sid}; it was never opened, or it was deleted, and a new one has a new id", id=sid
    )


def existing(uid: str, record: SandboxRecord | None) -> SandboxRecord:
    """`record` itself. Raises SandboxNotFound where there is none, or it was deleted."""
    if record is None:
        raise not_found(uid)
    if record.state is State.TOMBSTONE:
        raise SandboxNotFound(f"there is no sandbox {record.name!r} any more: it was deleted", uid=uid)
    return record
