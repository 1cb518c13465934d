"""Whoever waits for a program, and what follows where nobody does; and ids that were cancelled before their start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

LEFT_SECONDS = 10.0
"""How long a program that is to end with its callers goes on without one: time to connect again, also to a station that
was restarted."""
CANCELLED_SECONDS = 60.0
MOST_CANCELLED = 4096
_LOOK_SECONDS = 1.0


class Callers:
    """Those who wait for one program. From `watch` to `stop`, `left` is called once nobody has waited for `seconds`."""

    def __init__(self, left: Callable[[], None], *, seconds: float, clock: Callable[[], float]) -> None:
        self._left = left
        self._seconds = seconds
        self._clock = clock
        self._count = 0
        self._watched = False
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def reason(self) -> str:
        """For the ending of what was left."""
        return f"nobody had waited for it for {self._seconds:g} s, and it was to end then"

    @contextmanager
    def one(self) -> Iterator[None]:
        """Within, somebody waits."""
        self._count += 1
        self._stop_timer()
        try:
            yield
        finally:
            self._count -= 1
            self._begin()

    def watch(self) -> None:
        """The time begins, unless somebody waits already."""
        self._watched = True
        self._begin()

    def stop(self) -> None:
        """It has ended, or is given into other hands. Repeating is no error."""
        self._watched = False
        self._stop_timer()

    def _begin(self) -> None:
        if self._watched and not self._count:
            self._deadline = self._clock() + self._seconds
            self._wait()

    def _wait(self) -> None:
        self._stop_timer()
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            self._watched = False
            self._left()
        else:
            # Not all at once: the clock is the one that was given, and the timer goes by the loop's.
            self._timer = asyncio.get_running_loop().call_later(min(remaining, _LOOK_SECONDS), self._wait)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class CancelledAhead:
    """Ids that were cancelled before anything was known of them: a cancellation, which comes on a connection of its
    own, may overtake what it is meant for. Each is remembered for a minute, the newest `most` of them."""

    def __init__(
        self, clock: Callable[[], float], *, seconds: float = CANCELLED_SECONDS, most: int = MOST_CANCELLED
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._noted: dict[Hashable, float] = {}
        """When, oldest first."""

    def note(self, key: Hashable) -> None:
        self._noted.pop(key, None)
        self._noted[key] = self._clock()
        self._forget_old()

    def __contains__(self, key: Hashable) -> bool:
        self._forget_old()
        return key in self._noted

    def __len__(self) -> int:
        return len(self._noted)

    def _forget_old(self) -> None:
        oldest = self._clock() - self._seconds
        while self._noted:
            key, at = next(iter(self._noted.items()))
            if at > oldest and len(self._noted) <= self._most:
                return
            del self._noted[key]
