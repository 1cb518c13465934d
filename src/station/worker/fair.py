"""Room for so many at once, of which one deployment has half."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from station.core.records import Owner


class FairRoom:
    """In the order of those who ask. A deployment waits for itself first, and so cannot stand before all others; the
    operator, who owns the machine, may have all of it."""

    def __init__(self, most: int) -> None:
        self._room = asyncio.Semaphore(most)
        self._each = max(1, most // 2)
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def one(self, deployment: str) -> AsyncIterator[None]:
        """Within, it has a place."""
        if deployment == Owner.deployment:
            async with self._room:
                yield
        else:
            # Kept by those who use it, and gone with the last of them.
            own = self._of.setdefault(deployment, asyncio.Semaphore(self._each))
            async with own, self._room:
                yield
