"""What the SDK needs of asyncio. `_io_sync` has the same names for threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from station.core.errors import StationError

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

INTERRUPTED = (asyncio.CancelledError, KeyboardInterrupt)
"""What ends a wait from outside."""


async def to_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Blocking work, away from the event loop."""
    return await asyncio.to_thread(work, *args, **kwargs)


async def last_act(work: Callable[[str], Awaitable[None]], what: str, seconds: float) -> None:
    """Tries something on the way out although the caller is interrupted; given up after `seconds`."""
    with suppress(TimeoutError, StationError):
        async with asyncio.timeout(seconds):
            await work(what)


async def watching(work: Callable[[], Awaitable[T]], look: Callable[[], Awaitable[None]], every_seconds: float) -> T:
    """The result of `work`; until it is there, `look` is called again and again. An error of `look` ends that alone."""

    async def looking() -> None:
        with suppress(StationError):
            while True:
                await asyncio.sleep(every_seconds)
                await look()

    task = asyncio.create_task(looking())
    try:
        return await work()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def each(
    work: Callable[[T], Awaitable[R]], items: Iterable[T], concurrency: int, _abort: Callable[[], object]
) -> AsyncIterator[tuple[int, R]]:
    """`work` over `items`, at most `concurrency` at once: (index, result) as they end. `items` are taken as needed.

    Left early, what still runs is cancelled, so that it cleans up itself (`_abort` is for threads), and awaited.
    """
    numbered = enumerate(items)
    running: dict[asyncio.Task[R], int] = {}

    def fill() -> None:
        while len(running) < concurrency:
            try:
                index, item = next(numbered)
            except StopIteration:
                return
            running[asyncio.ensure_future(work(item))] = index

    try:
        fill()
        while running:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield running.pop(task), task.result()
            fill()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
