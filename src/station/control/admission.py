"""How many sandboxes a station may have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from station.core.errors import LimitReached
from station.core.states import State
from station.store.registry import Registry


class Admission:
    """The bound on names that are taken. Looking and claiming are one step: of many who come at once, none is one too
    many."""

    def __init__(self, registry: Registry, most: int | None) -> None:
        """`most`: `None` is no bound."""
        self._registry = registry
        self._most = most
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Within it a new name may be claimed. Raises LimitReached; a damaged record holds its place too."""
        if self._most is None:
            yield
            return
        async with self._turn:
            found = await self._registry.list()
            taken = sum(record.state is not State.TOMBSTONE for record in found.records) + len(found.damaged)
            if taken >= self._most:
                raise LimitReached(
                    f"there are {taken} sandboxes, and sandbox.max_sandboxes is {self._most}; delete one, or raise it",
                    limit=self._most,
                )
            yield
