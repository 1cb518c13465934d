"""Work that is not left half-way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What `work` returns. Also when this is cancelled, and however often, it has ended on return: nobody closes a file
    that a thread still uses."""
    return await to_its_end(asyncio.to_thread(work, *arguments, **named))


async def to_its_end(work: Awaitable[T]) -> T:
    """What `work` returns. Also when this is cancelled, and however often, it has ended on return."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # it was seen: nobody else will ask for it
        raise cancelled
    return task.result()
