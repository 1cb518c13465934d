"""Feeding a tree to the guest so that nothing of it stays when the feeding ends early, whoever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from station.core.paths import SandboxPath
    from station.guest.files import GuestFiles

CLEANING_SECONDS = 5.0


async def unpack(
    files: GuestFiles, place: SandboxPath, pack: AsyncIterable[bytes], *, mode: int = 0o755, durable: bool
) -> int:
    """As `GuestFiles.unpack`, with parents. Raises what `pack` raises; cancelled, it waits for the guest to tidy up.

    A primitive that is killed cannot remove its staging directory. So a source that fails is shown to the guest as a
    pack without an end, which it refuses by itself, and the reason is raised here.
    """
    feed = _Feed()
    pumping = asyncio.ensure_future(feed.pump(pack))
    unpacking = asyncio.ensure_future(files.unpack(place, feed.take(), mode=mode, parents=True, durable=durable))
    try:
        await asyncio.wait({unpacking})
    finally:
        pumping.cancel()
        await asyncio.wait({pumping})
        await asyncio.wait({unpacking}, timeout=CLEANING_SECONDS)
        unpacking.cancel()
        await asyncio.wait({unpacking})
        told = None if unpacking.cancelled() else unpacking.exception()
    if not pumping.cancelled():
        pumping.result()
    if told is not None:
        raise told
    return unpacking.result()


class _Feed:
    """A few chunks between a source that may fail and a consumer that then sees an early end."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(2)

    async def pump(self, source: AsyncIterable[bytes]) -> None:
        whole = False
        try:
            async for chunk in source:
                await self._queue.put(chunk)
            await self._queue.put(None)
            whole = True
        finally:
            if not whole:
                while not self._queue.empty():
                    self._queue.get_nowait()
                self._queue.put_nowait(None)

    async def take(self) -> AsyncIterator[bytes]:
        while (chunk := await self._queue.get()) is not None:
            yield chunk
