"""Byte streams in memory, and the faults that may befall them."""

from __future__ import annotations

import asyncio
from collections import deque

from .clock import Clock, sleep
from .faults import Faults

_BOUND = 262_144


class _Pipe:
    """One direction."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._moved = asyncio.Event()
        self.closed = False
        self.broken = False

    async def put(self, data: bytes) -> None:
        while self._held >= _BOUND and not self.closed:
            await self._wait()
        if self.closed:
            raise BrokenPipeError("the other end of the stream is closed")
        if data:
            self._pieces.append(data)
            self._held += len(data)
            self._moved.set()

    async def get(self) -> bytes:
        while not self._pieces and not self.closed:
            await self._wait()
        if self.broken:
            raise ConnectionResetError("the stream broke")
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        self._held -= len(piece)
        self._moved.set()
        return piece

    def close(self, *, broken: bool = False) -> None:
        self.closed = True
        self.broken = self.broken or broken
        self._moved.set()

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()


class MemoryStream:
    """One end of a connection; a `ByteStream`."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self) -> bytes:
        return await self._incoming.get()

    async def send(self, data: bytes) -> None:
        await self._outgoing.put(data)

    async def aclose(self) -> None:
        self._incoming.close()
        self._outgoing.close()

    def break_off(self) -> None:
        """Both ends get a connection reset, and what was under way is lost."""
        self._incoming.close(broken=True)
        self._outgoing.close(broken=True)


class FaultyStream(MemoryStream):
    """The guest's end, with the faults of the box."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, faults: Faults, clock: Clock) -> None:
        super().__init__(incoming, outgoing)
        self._faults = faults
        self._clock = clock
        self._sent = 0

    async def send(self, data: bytes) -> None:
        if self._faults.delay_seconds > 0:
            await sleep(self._clock, self._faults.delay_seconds)
        data = self._corrupted(data)
        cut = self._faults.cut_after_bytes
        if cut is None or self._sent + len(data) < cut:
            self._sent += len(data)
            await super().send(data)
            return
        if not self._faults.cut_each_time:
            self._faults.cut_after_bytes = None
        await super().send(data[: max(0, cut - self._sent)])
        # An orderly end, so that the host gets the bytes before the cut: a frame torn in two is the case to test.
        await self.aclose()
        raise ConnectionResetError("cut by Faults.cut_after_bytes")

    def _corrupted(self, data: bytes) -> bytes:
        at = self._faults.corrupt_byte_at
        if at is None or not self._sent <= at < self._sent + len(data):
            return data
        self._faults.corrupt_byte_at = None
        at -= self._sent
        return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def pair(faults: Faults, clock: Clock) -> tuple[MemoryStream, FaultyStream]:
    """The two ends of a new connection: the host's and the guest's."""
    up, down = _Pipe(), _Pipe()
    return MemoryStream(down, up), FaultyStream(up, down, faults, clock)
