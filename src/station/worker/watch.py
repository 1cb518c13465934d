"""The memory watchdog: for boxes whose memory nothing enforces. A guard against accidents, no limit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from station.backends.base import Measurable
from station.core.capabilities import Level
from station.core.errors import StationError

if TYPE_CHECKING:
    from .live import LiveBox

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0


class Command(Protocol):
    """A command that runs, as the watchdog sees it."""

    live: LiveBox

    @property
    def started_at(self) -> float: ...

    def kill_over_memory(self) -> None:
        """Ends it at once, with the ending `oom`."""


class Watchdog:
    """Looks at intervals, while `run` runs, at every watched box in which a command runs."""

    def __init__(
        self,
        commands: Callable[[], Iterable[Command]],
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._commands = commands
        self._interval_seconds = interval_seconds
        self._sleep = sleep

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await self._sleep(self._interval_seconds)

    async def look(self) -> None:
        """One look. In a box that is over its limit the youngest command, the likeliest cause, is killed; the next look
        judges again."""
        by_box: dict[str, list[Command]] = {}
        for command in self._commands():
            if is_watched(command.live):
                by_box.setdefault(command.live.uid, []).append(command)
        for commands in by_box.values():
            try:
                await self._judge(commands)
            except (StationError, OSError) as error:  # a box that is just going
                logger.debug("memory of %s is not known: %s", commands[0].live.uid, error)

    async def _judge(self, commands: list[Command]) -> None:
        live = commands[0].live
        limit = (live.spec.effective.memory_mb or 0) * 1024 * 1024
        assert isinstance(live.box, Measurable)
        used = await live.box.memory_bytes()
        if not limit or used <= limit:
            return
        victim = max(commands, key=lambda command: command.started_at)
        logger.warning("box of %s uses %d bytes, %d are allowed: its youngest command is ended", live.uid, used, limit)
        victim.kill_over_memory()


def is_watched(live: LiveBox) -> bool:
    limit = live.capabilities.limits.get("memory_mb")
    return limit is not None and limit.level is Level.WATCHED and isinstance(live.box, Measurable)
