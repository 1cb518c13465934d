"""Which sandbox each tool id stands for: an index in memory, so that a use by tool id asks no registry."""

from __future__ import annotations

from station.core.errors import SandboxNotFound
from station.core.records import SandboxRecord
from station.core.states import State


class ToolIds:
    """Kept true by whoever reads all records at the start and writes them from then on, who notes each one."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}
        self._by_uid: dict[str, str] = {}

    def uid_of(self, tool_id: str) -> str:
        """Raises SandboxNotFound for an id that no sandbox has, or has any more."""
        uid = self._uids.get(tool_id)
        if uid is None:
            raise SandboxNotFound(
                f"there is no sandbox {tool_id}; it was never opened, or it was deleted, and a new one has a new id",
                id=tool_id,
            )
        return uid

    def note(self, record: SandboxRecord) -> None:
        """The record as it is now."""
        self._uids.pop(self._by_uid.pop(record.uid, ""), None)
        if record.tool_id and record.state is not State.TOMBSTONE:
            self._uids[record.tool_id] = record.uid
            self._by_uid[record.uid] = record.tool_id
