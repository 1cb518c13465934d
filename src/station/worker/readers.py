"""Who reads the output of one process while it runs. The slowest one slows the sender, so that it misses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

PATIENCE_SECONDS = 60.0
"""A reader that takes nothing for so long holds the process up no more; it will be told of a gap."""


class Reader:
    """One of them, from `Readers.enter` to `Readers.leave`."""

    def __init__(self, after: tuple[int, int]) -> None:
        self.positions = {1: after[0], 2: after[1]}
        self.since: float | None = None
        """When it got its last piece; `None`: it has asked for more."""


class Readers:
    """Of one process. `release` is called whenever there may be less to wait for than before."""

    def __init__(
        self, release: Callable[[], None], *, patience_seconds: float = PATIENCE_SECONDS, now: Callable[[], float]
    ) -> None:
        self._release = release
        self._patience_seconds = patience_seconds
        self._now = now
        self._all: set[Reader] = set()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, after: tuple[int, int]) -> Reader:
        reader = Reader(after)
        self._all.add(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        self._all.discard(reader)
        self._release()

    def gives(self, reader: Reader) -> None:
        """It gets what is before its `positions`, and has time to deal with it."""
        reader.since = self._now()

    def asks(self, reader: Reader) -> None:
        """It wants more."""
        reader.since = None
        self._release()

    def slowest(self, stream: int) -> float:
        """Up to where all have read who are waited for; infinite without any."""
        return min((each.positions[stream] for each in self._all if self._left(each) > 0), default=inf)

    def look_again(self) -> None:
        """Something is held up: `release` is called when the patience with somebody ends."""
        waits = [left for each in self._all if each.since is not None and (left := self._left(each)) > 0]
        if waits and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(min(waits), self._expired)

    def stop(self) -> None:
        """Nothing is held up any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        self._timer = None
        self._release()

    def _left(self, reader: Reader) -> float:
        return inf if reader.since is None else reader.since + self._patience_seconds - self._now()
