"""Which sandbox each tool id stands for: an index in memory, so that a use by tool id asks no registry."""

from __future__ import annotations

import asyncio

from station.core.errors import SandboxNotFound
from station.core.records import SandboxRecord
from station.core.states import State
from station.store.registry import Registry


class ToolIds:
    """Read from the registry at the first look-up, and kept true by whoever writes records, who notes each one."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._loading = asyncio.Lock()
        self._loaded = False
        self._uids: dict[str, str] = {}
        self._by_uid: dict[str, str] = {}
        """What was noted last of each sandbox; empty of a deleted one, until the registry was read."""

    async def uid_of(self, tool_id: str) -> str:
        """Raises SandboxNotFound for an id that no sandbox has, or has any more."""
        if not self._loaded:
            await self._load()
        if (uid := self._uids.get(tool_id)) is None:
            raise SandboxNotFound(
                f"there is no sandbox {tool_id}; it was never opened, or it was deleted, and a new one has a new id",
                id=tool_id,
            )
        return uid

    def note(self, record: SandboxRecord) -> None:
        """The record as it was just written."""
        self._uids.pop(self._by_uid.pop(record.uid, ""), None)
        current = "" if record.state is State.TOMBSTONE else record.tool_id
        if current:
            self._uids[current] = record.uid
        if current or not self._loaded:
            self._by_uid[record.uid] = current

    async def _load(self) -> None:
        async with self._loading:
            if self._loaded:
                return
            listing = await self._registry.list()
            for record in listing.records:
                # What was noted meanwhile is newer than this list.
                if record.uid not in self._by_uid:
                    self.note(record)
            self._by_uid = {uid: tool_id for uid, tool_id in self._by_uid.items() if tool_id}
            self._loaded = True
