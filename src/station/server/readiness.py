"""Whether a station can do its work: it may answer and have nowhere to write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from station.core.errors import StationError
from station.core.ids import uid_of
from station.durable import write_private
from station.store.registry import Registry
from station.store.threads import in_thread

LOOK_SECONDS = 4.0
_FRESH_SECONDS = 1.0
_FILE = "ready"
_NOBODY = uid_of("", "")


class Readiness:
    """Looked at when somebody asks, at most once a second: those without a token may ask too."""

    def __init__(self, registry: Registry, home: Path, *, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._home = home
        self._clock = clock
        self._looking = asyncio.Lock()
        self._found: str | None = None
        self._until = float("-inf")

    async def fault(self) -> str | None:
        """Why it cannot work, in a sentence; `None`: it can."""
        async with self._looking:
            if self._clock() >= self._until:
                self._found = await self._look()
                self._until = self._clock() + _FRESH_SECONDS
        return self._found

    async def _look(self) -> str | None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._registry.get(_NOBODY)
        except StationError as error:
            return f"the registry cannot be used: {error.message}"
        except TimeoutError:
            return f"the registry has not answered for {LOOK_SECONDS:g} s"
        try:
            await in_thread(write_private, self._home / _FILE, b"")
        except OSError as error:
            return f"the state directory cannot be written: {error.strerror}"
        return None
