"""What the SDK needs of threads. `_io_async` has the same names for asyncio."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import ParamSpec, TypeVar

from station.core.errors import StationError

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

INTERRUPTED = (KeyboardInterrupt,)
"""What ends a wait from outside."""


def to_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Blocking work: right here."""
    return work(*args, **kwargs)


def last_act(work: Callable[[str], None], what: str, seconds: float) -> None:  # noqa: ARG001 - the twin's
    """Tries something on the way out although the caller is interrupted."""
    with suppress(StationError):
        work(what)


def watching(work: Callable[[], T], look: Callable[[], None], every_seconds: float) -> T:
    """The result of `work`; until it is there, `look` is called again and again. An error of `look` ends that alone."""
    ended = threading.Event()

    def looking() -> None:
        with suppress(StationError):
            while not ended.wait(every_seconds):
                look()

    thread = threading.Thread(target=looking, name="station-progress", daemon=True)
    thread.start()
    try:
        return work()
    finally:
        ended.set()
        thread.join()


def each(
    work: Callable[[T], R], items: Iterable[T], concurrency: int, abort: Callable[[], object]
) -> Iterator[tuple[int, R]]:
    """`work` over `items`, at most `concurrency` at once: (index, result) as they end. `items` are taken as needed.

    Left early, what has not begun is dropped; `abort` is called to shorten what runs, which is awaited.
    """
    numbered = enumerate(items)
    running: dict[Future[R], int] = {}
    with ThreadPoolExecutor(concurrency, thread_name_prefix="station-map") as threads:

        def fill() -> None:
            while len(running) < concurrency:
                try:
                    index, item = next(numbered)
                except StopIteration:
                    return
                running[threads.submit(work, item)] = index

        try:
            fill()
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
                fill()
        finally:
            if running:
                abort()
