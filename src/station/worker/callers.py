"""Whoever waits for a program, and what follows where nobody does; and ids that were cancelled before their start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
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
    own, may overtake what it is meant for. Each is remembered for a minute, the newest `most` of whoever gave them."""

    def __init__(
        self, clock: Callable[[], float], *, seconds: float = CANCELLED_SECONDS, most: int = MOST_CANCELLED
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._noted: dict[str, dict[str, float]] = {}
        """By whose they are; when, oldest first."""

    def note(self, key: tuple[str, str]) -> None:
        """`key`: whose it is, and the id that this one gave."""
        whose, name = key
        noted = self._noted.setdefault(whose, {})
        noted.pop(name, None)
        noted[name] = self._clock()
        self._forget_old()

    def __contains__(self, key: tuple[str, str]) -> bool:
        self._forget_old()
        return key[1] in self._noted.get(key[0], ())

    def __len__(self) -> int:
        return sum(len(noted) for noted in self._noted.values())

    def _forget_old(self) -> None:
        until = self._clock() - self._seconds
        for whose, noted in list(self._noted.items()):
            while noted:
                name, at = next(iter(noted.items()))
                if at > until and len(noted) <= self._most:
                    break
                del noted[name]
            if not noted:
                del self._noted[whose]
