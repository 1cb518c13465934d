"""Between a backend and its engine: slow, gone, cut off, or lying, as a test says."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Self

_REQUEST = re.compile(rb"(GET|POST|PUT|DELETE|HEAD) (\S+) HTTP/1.1\r\n")


STATUSES = {
    404: b'{"message": "No such container"}',
    409: b'{"message": "removal of container is already in progress"}',
    500: b'{"message": "driver failed: device or resource busy"}',
}


class Chaos:
    """What a seeded engine does to each call: passes it on, most of the time."""

    def __init__(self, seed: int, *, share: float, longest_seconds: float) -> None:
        """`share` of the calls gets a fault, in equal parts: a delay of up to `longest_seconds` (and a sixtieth at
        least), an error that is not true, or an answer that is cut off."""
        self._random = Random(seed)
        self._share = share
        self._longest = longest_seconds
        self.struck = 0

    def strike(self) -> tuple[str, float]:
        """The kind of fault, and how long, which status, or after how many bytes."""
        if self._random.random() >= self._share:
            return "", 0
        self.struck += 1
        kind = self._random.choice(("delay", "status", "cut"))
        if kind == "delay":
            return kind, self._random.uniform(self._longest / 60, self._longest)
        return kind, self._random.choice(list(STATUSES)) if kind == "status" else self._random.randrange(200)


@dataclass
class _Exchange:
    """What goes on over one connection."""

    counted: bool = False
    """A request that is counted waits for its answer."""
    left: int | None = None
    """So many bytes of the answer are passed on yet; `None`: all."""


class FaultProxy:
    """Listens on a unix socket of its own and passes everything on to the engine's, unless it is told otherwise."""

    def __init__(self, engine: str, place: Path) -> None:
        self._engine = engine.removeprefix("unix://")
        self._place = place
        self.url = f"unix://{place}"
        self.delay_seconds = 0.0
        """Before each request is passed on."""
        self.delays: dict[str, float] = {}
        """By pattern of `METHOD path`, the same for some."""
        self.lies: dict[str, bytes] = {}
        """By pattern of `METHOD path`: the whole answer that is given, and the engine never hears of it."""
        self.lost: list[str] = []
        """Patterns of requests that the engine gets and whose answer nobody gets. Each is used once."""
        self.chaos: Chaos | None = None
        self.counted = r"POST \S+(containers/create|/start)"
        """Pattern of requests of which it is counted how many are under way."""
        self.under_way = self.most_under_way = self.requests = 0
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
        """Repeating is no error."""
        if self._server is None:
            self._server = await asyncio.start_unix_server(self._accept, path=self._place)

    def answer(self, pattern: str, status: str, body: bytes, kind: str = "application/json") -> None:
        """A lie."""
        self.lies[pattern] = _answer(status, body, kind)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        exchange = _Exchange()
        try:
            up_reader, up_writer = await asyncio.open_unix_connection(self._engine)
            back = asyncio.create_task(self._copy(up_reader, writer, exchange))
            try:
                while data := await reader.read(1 << 18):
                    if found := _REQUEST.match(data):
                        line = f"{found[1].decode()} {found[2].decode()}"
                        if await self._is_answered(line, writer, exchange):
                            continue
                        if await self._is_lost(line, data, up_writer, back):
                            break
                    up_writer.write(data)
                    await up_writer.drain()
            finally:
                back.cancel()
                await asyncio.gather(back, return_exceptions=True)
                up_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._answered(exchange)
            writer.transport.abort()
            self._tasks.discard(task)

    async def _is_answered(self, line: str, writer: asyncio.StreamWriter, exchange: _Exchange) -> bool:
        """Whether the engine never hears of it; waits where that is slow."""
        self.requests += 1
        if re.search(self.counted, line):
            exchange.counted = True
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        delay = next((seconds for pattern, seconds in self.delays.items() if re.search(pattern, line)), 0.0)
        await asyncio.sleep(max(delay, self.delay_seconds))
        lie = next((answer for pattern, answer in self.lies.items() if re.search(pattern, line)), None)
        kind, how = self.chaos.strike() if self.chaos is not None else ("", 0)
        if kind == "delay":
            await asyncio.sleep(how)
        elif kind == "cut":
            exchange.left = int(how)
        elif kind == "status":
            lie = lie or _answer(f"{how} Chaos", STATUSES[int(how)])
        if lie is None:
            return False
        self._answered(exchange)
        writer.write(lie)
        await writer.drain()
        return True

    async def _is_lost(self, line: str, data: bytes, up_writer: asyncio.StreamWriter, back: asyncio.Task[None]) -> bool:
        """Whether the engine has it, and nobody gets the answer."""
        lost = next((pattern for pattern in self.lost if re.search(pattern, line)), None)
        if lost is None:
            return False
        self.lost.remove(lost)
        back.cancel()
        await asyncio.gather(back, return_exceptions=True)
        up_writer.write(data)
        await up_writer.drain()
        await asyncio.sleep(0.5)  # the engine is at work
        return True

    def _answered(self, exchange: _Exchange) -> None:
        self.under_way -= exchange.counted
        exchange.counted = False

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, exchange: _Exchange) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 18):
                self._answered(exchange)
                writer.write(data[: exchange.left])
                await writer.drain()
                if exchange.left is not None:
                    exchange.left -= len(data)
                    if exchange.left <= 0:
                        break
        writer.transport.abort()


def _answer(status: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
