"""What is counted of a worker's boxes, commands and runs: plain numbers, for whoever shows them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from station import spans
from station.core.endings import Ending

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Of the durations that are told apart, in seconds: at most so many."""
MADE, FAILED = "made", "failed"


class Durations:
    """How many took how long."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        """For each bound those above the one before it; at last those above all."""
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class Meter:
    """Of one worker. Nothing in it names a sandbox or a user."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.boxes: defaultdict[tuple[str, str], Durations] = defaultdict(Durations)
        """By backend, and whether it was made: from the wish to the guest's first word."""
        self.runs: defaultdict[tuple[str, str], Durations] = defaultdict(Durations)
        """By backend and kind of ending: with the wait for a box; `failed` without any ending."""
        self.endings: Counter[str] = Counter()
        """Of commands, by kind."""

    @contextmanager
    def making_box(self, backend: str) -> Iterator[None]:
        """Around the making of one."""
        begun, outcome = self._clock(), FAILED
        try:
            with spans.span("create box", backend=backend):
                yield
            outcome = MADE
        finally:
            self.boxes[backend, outcome].note(self._clock() - begun)

    @contextmanager
    def running(self, backend: str) -> Iterator[Callable[[Ending], None]]:
        """Around a run, which tells its ending."""
        begun, outcome = self._clock(), FAILED

        def ended(ending: Ending) -> None:
            nonlocal outcome
            outcome = ending.kind.value

        try:
            yield ended
        finally:
            self.runs[backend, outcome].note(self._clock() - begun)
