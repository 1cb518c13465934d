"""Medians of alternating blocks: both sides of a ratio feel the same noise of a shared machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable

Action = Callable[[], Awaitable[object]]
BLOCK = 10
"""Calls of one kind in a row: an engine goes on working after it has answered, and the next in turn would pay."""


async def timed(action: Action) -> float:
    """Seconds that one call took."""
    begun = time.perf_counter()
    await action()
    return time.perf_counter() - begun


async def nothing() -> None:
    return


async def interleaved(
    actions: dict[str, Action], rounds: int, in_a_row: int = BLOCK, *, before: Action = nothing
) -> dict[str, float]:
    """The median seconds of each action over `rounds` calls or more, in blocks that take turns; the first warms up.
    `before` comes before each block, and is not counted."""
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for block in range(-1, -(-rounds // in_a_row)):
        for name, action in actions.items():
            await before()
            taken = [await timed(action) for _ in range(in_a_row)]
            if block >= 0:
                samples[name] += taken
    return {name: statistics.median(taken) for name, taken in samples.items()}
