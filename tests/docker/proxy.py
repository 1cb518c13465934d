"""Between a backend and its engine: slow, gone, cut off, or lying, as a test says."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

_REQUEST = re.compile(rb"(GET|POST|PUT|DELETE|HEAD) (\S+) HTTP/1.1\r\n")


class FaultProxy:
    """Listens on a unix socket of its own and passes everything on to the engine's, unless it is told otherwise."""

    def __init__(self, engine: str, place: Path) -> None:
        self._engine = engine.removeprefix("unix://")
        self._place = place
        self.url = f"unix://{place}"
        self.delay_seconds = 0.0
        """Before each request is passed on."""
        self.lies: dict[str, bytes] = {}
        """By pattern of `METHOD path`: the whole answer that is given, and the engine never hears of it."""
        self.lost: list[str] = []
        """Patterns of requests that the engine gets and whose answer nobody gets. Each is used once."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def before(cls, engine: str) -> AsyncIterator[Self]:
        with tempfile.TemporaryDirectory(prefix="stn-proxy-") as directory:
            proxy = cls(engine, Path(directory) / "sock")
            await proxy.come_back()
            try:
                yield proxy
            finally:
                await proxy.go_away()

    async def go_away(self) -> None:
        """The socket is gone, and every connection is cut."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._place.unlink(missing_ok=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def come_back(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, path=self._place)

    def answer(self, pattern: str, status: str, body: bytes, kind: str = "application/json") -> None:
        """A lie."""
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.lies[pattern] = head.encode() + body

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            up_reader, up_writer = await asyncio.open_unix_connection(self._engine)
            back = asyncio.create_task(self._copy(up_reader, writer))
            try:
                await self._requests(reader, writer, up_writer, back)
            finally:
                back.cancel()
                await asyncio.gather(back, return_exceptions=True)
                up_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_writer: asyncio.StreamWriter,
        back: asyncio.Task[None],
    ) -> None:
        while data := await reader.read(1 << 18):
            if found := _REQUEST.match(data):
                line = f"{found[1].decode()} {found[2].decode()}"
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                lie = next((answer for pattern, answer in self.lies.items() if re.search(pattern, line)), None)
                if lie is not None:
                    writer.write(lie)
                    await writer.drain()
                    continue
                lost = next((pattern for pattern in self.lost if re.search(pattern, line)), None)
                if lost is not None:
                    self.lost.remove(lost)
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                    up_writer.write(data)
                    await up_writer.drain()
                    await asyncio.sleep(0.5)  # the engine is at work
                    return
            up_writer.write(data)
            await up_writer.drain()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 18):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
