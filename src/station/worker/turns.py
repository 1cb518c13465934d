"""One at a time at the box of a sandbox: the calls of control, and the sweep, which stands back for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    def __init__(self) -> None:
        self._taken: dict[str, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def taking(self, uid: str) -> AsyncIterator[None]:
        """Waits for whoever has the turn. Where `free` has just said so, it is taken without a wait."""
        while (other := self._taken.get(uid)) is not None:
            await asyncio.wait({other})
        mine = self._taken[uid] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._taken[uid]
            mine.set_result(None)

    def free(self, uid: str) -> bool:
        return uid not in self._taken
