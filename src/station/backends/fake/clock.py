"""The time of a fake box. Tests set it forward instead of waiting."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None:
        """The callback does not happen any more; repeating is no error."""


class Clock(Protocol):
    """What a fake box asks of time. Seconds, from any origin; never goes back."""

    def monotonic(self) -> float: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...


class LoopClock:
    """Real time, of the running event loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


class _ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback:
            callback()


class ManualClock:
    """Time that stands still until `advance`: for `sleep`, time-outs, graces and delayed frames without waiting."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _ManualTimer]] = []

    def monotonic(self) -> float:
        return self._now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (self._now + max(0.0, seconds), next(self._order), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Sets the clock forward. Whatever falls due on the way happens in order, each with time to have its effect."""
        goal = self._now + seconds
        await _settle()
        while self._timers and self._timers[0][0] <= goal:
            due, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, due)
            timer.fire()
            await _settle()
        self._now = goal


async def _settle() -> None:
    # Enough turns of the loop for a frame to travel from end to end; a turn without work costs a microsecond.
    for _ in range(50):
        await asyncio.sleep(0)


async def sleep(clock: Clock, seconds: float) -> None:
    """Returns after `seconds` of that clock."""
    passed = asyncio.Event()
    timer = clock.call_later(seconds, passed.set)
    try:
        await passed.wait()
    finally:
        timer.cancel()
