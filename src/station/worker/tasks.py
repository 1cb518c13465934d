"""Tasks with one owner, which ends them all; the failure of one harms no other, and none passes unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Self

logger = logging.getLogger(__name__)


def _nothing() -> None:
    """Cancels what never began."""


class Tasks:
    """What an object or a block runs in the background: `aclose` belongs into the `aclose` of that object."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def start(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> Callable[[], object]:
        """Runs it to its end, to `aclose`, or until what is returned is called, which cancels it. An exception of it is
        logged: whoever waits must be told otherwise."""
        if self.closed:
            coroutine.close()
            return _nothing
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task.cancel

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)

    async def aclose(self) -> None:
        """Cancels what runs and returns when it has ended. Nothing starts any more; repeating is no error."""
        self.closed = True
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
