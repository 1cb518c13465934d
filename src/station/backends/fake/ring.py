"""What a stream has produced and the host has not acknowledged, addressed by absolute offsets."""

from __future__ import annotations

import asyncio


class Ring:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.start = 0
        """The oldest offset still held."""
        self.end = 0
        self.sent = 0
        """What the present connection gets next."""
        self.active = True
        """Whether the present connection asked for this stream."""
        self._data = bytearray()
        self._roomy = asyncio.Event()

    @property
    def room(self) -> int:
        return self.capacity - (self.end - self.start)

    @property
    def drained(self) -> bool:
        """Whether the connection has all of it."""
        return self.active and self.sent == self.end

    def put(self, data: bytes) -> int:
        """Takes as much as there is room for; how much that was."""
        piece = data[: self.room]
        self._data += piece
        self.end += len(piece)
        return len(piece)

    def forget(self, before: int) -> None:
        before = min(before, self.end)
        if before > self.start:
            del self._data[: before - self.start]
            self.start = before
            self._roomy.set()

    def rewind(self, offset: int) -> None:
        """A connection asks for the stream from there on."""
        self.active = True
        self.sent = min(offset, self.end)

    def take(self, limit: int) -> tuple[int, bytes]:
        """The next piece for the connection and its offset; `sent` has no gap before `start`."""
        at = self.sent - self.start
        piece = bytes(self._data[at : at + limit])
        offset, self.sent = self.sent, self.sent + len(piece)
        return offset, piece

    async def wait_for_room(self) -> None:
        while self.room == 0:
            self._roomy.clear()
            await self._roomy.wait()
