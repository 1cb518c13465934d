"""What was answered, and how late the event loop was: counted here, shown by `metrics`."""

from __future__ import annotations

import asyncio
from collections import Counter

from station.worker.meter import Durations

UNKNOWN_ROUTE = "unknown"
LOOK_SECONDS = 1.0


class Traffic:
    """Of one station."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, int]] = Counter()
        """By method, template of the path, and status."""
        self.lag = Durations()

    async def watch_loop(self) -> None:
        """Runs until it is cancelled: a loop that is late for this is late for everybody."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self.lag.note(loop.time() - due)
