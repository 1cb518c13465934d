"""What a caller hears while something takes long: that it goes on, and what it wrote meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import anyio

from station.client._async.client import AsyncClient
from station.client._async.sandbox import AsyncSandbox
from station.core.display import plain
from station.core.errors import StationError

from .call import Tell

T = TypeVar("T")
_log = logging.getLogger(__name__)

QUIET_SECONDS = 0.5
"""Whatever ends sooner needs no progress, and pays nothing for it."""
TICK_SECONDS = 0.5
SILENCE_SECONDS = 5.0
"""A sign of life at least so often: clients give up on a call that is silent for long."""
_TOLD_CHARS = 4000


async def beside(work: Coroutine[Any, Any, T], tell: Tell | None = None, output: AsyncIterator[str] | None = None) -> T:
    """The result of `work`, telling of it meanwhile where somebody listens. Cancelled, it cancels `work` and waits for
    that to clean up, as ending a command takes a request of its own."""
    running = asyncio.ensure_future(work)
    tasks: set[asyncio.Future[Any]] = {running}
    if tell is not None:
        tasks.add(asyncio.ensure_future(_tell(tell, output)))
    try:
        # Not `await running`: a scope of anyio that is cancelled cancels what is awaited again and again, and so the
        # cleaning up as well.
        await asyncio.wait({running})
        return running.result()
    finally:
        for task in tasks:
            task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait(tasks)
        for failed in [task.exception() for task in tasks - {running} if not task.cancelled()]:
            _log.debug("progress was not told: %s", failed)


async def output_of(sandbox: AsyncSandbox, process_id: str) -> AsyncIterator[str]:
    """What the process writes, both streams as they come."""
    process = await sandbox.processes.get(process_id)
    async for chunk in process.output():
        yield chunk.text


async def pulls_of(client: AsyncClient) -> AsyncIterator[str]:
    """A line about each image that is pulled, every few seconds."""
    while True:
        await asyncio.sleep(SILENCE_SECONDS)
        for pull in (await client.info()).pulls:
            size = f", {pull.done_bytes >> 20} of {pull.total_bytes >> 20} MiB" if pull.total_bytes else ""
            yield f"pulling {pull.image}: {pull.layers_done} of {pull.layers} layers{size}\n"


async def _tell(tell: Tell, output: AsyncIterator[str] | None) -> None:
    clock = asyncio.get_running_loop().time
    begun = last = clock()
    await asyncio.sleep(QUIET_SECONDS)
    pending = _Pending()
    async with asyncio.TaskGroup() as group:
        if output is not None:
            group.create_task(pending.fill(output))
        while True:
            text = pending.take()
            if text or clock() - last >= SILENCE_SECONDS:
                last = clock()
                await tell(last - begun, text or None)
            await asyncio.sleep(TICK_SECONDS)


class _Pending:
    """What was written and not told yet: the end of it, where it is much."""

    def __init__(self) -> None:
        self._text = ""

    async def fill(self, output: AsyncIterator[str]) -> None:
        # Progress is a courtesy: whatever is amiss will be told by the call itself.
        with suppress(StationError):
            async for text in output:
                self._text = (self._text + text)[-_TOLD_CHARS:]

    def take(self) -> str:
        text, self._text = self._text, ""
        return plain(text)
