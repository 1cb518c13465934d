"""Between a station and an engine over TCP: bytes pass, whatever they are, until the connections are cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class Relay:
    def __init__(self, upstream: int | Path) -> None:
        """A port of loopback, or a socket."""
        self._upstream = upstream
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @classmethod
    @asynccontextmanager
    async def before(cls, upstream: int | Path) -> AsyncIterator[Relay]:
        relay = cls(upstream)
        await relay.come_back()
        try:
            yield relay
        finally:
            await relay.go_away()

    @property
    def connections(self) -> int:
        return len(self._tasks)

    async def cut(self) -> None:
        """Every connection; new ones are taken."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def go_away(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.cut()

    async def come_back(self) -> None:
        """On the same port as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        up_writer = None
        try:
            up_reader, up_writer = await self._connected()
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, up_writer))
                group.create_task(_copy(up_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, up_writer):
                if end is not None:
                    end.transport.abort()
            self._tasks.discard(task)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._upstream, Path):
            return await asyncio.open_unix_connection(self._upstream)
        return await asyncio.open_connection("127.0.0.1", self._upstream)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
        writer.write_eof() if writer.can_write_eof() else None
