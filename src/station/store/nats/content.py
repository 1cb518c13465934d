"""The bytes of one stored file in NATS: a message a chunk, written and read one after the other."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Callable

from station.core.stored import StoredFile
from station.store.room import damaged

from .connection import NatsConnection
from .index import Content, Layout
from .messages import Message

CHUNK_BYTES = 512 * 1024
"""Each is on the disk before the next goes out; NATS takes a megabyte at most, unless it is told otherwise."""
_OFFSET = "Stn-Offset"


class Incoming:
    """A content that comes, under an id that nothing names yet."""

    def __init__(self, connection: NatsConnection, layout: Layout) -> None:
        self._connection, self._layout = connection, layout
        self.nuid = secrets.token_hex(12)
        self._chunk_bytes = min(CHUNK_BYTES, connection.max_payload // 2)
        self._buffer = bytearray()
        self._hash = hashlib.sha256()
        self._chunks = self._first = self._last = 0
        self.size = 0
        self.may_be_named = False
        """From the moment on when a name may point to it, whatever was heard of that."""

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()

    async def write(self, data: bytes) -> None:
        self._hash.update(data)
        self.size += len(data)
        self._buffer += data
        while len(self._buffer) >= self._chunk_bytes:
            await self._send(bytes(self._buffer[: self._chunk_bytes]))
            del self._buffer[: self._chunk_bytes]

    async def finish(self) -> Content:
        """Durable when this returns."""
        if self._buffer:
            await self._send(bytes(self._buffer))
            self._buffer.clear()
        return Content(self.nuid, self._chunks, self._chunk_bytes, self._first, self._last)

    async def _send(self, chunk: bytes) -> None:
        headers = {_OFFSET: self._chunks * self._chunk_bytes}
        subject = self._layout.chunks(self.nuid)
        self._last = await self._connection.publish(self._layout.stream, subject, chunk, headers=headers)
        self._first = self._first or self._last
        self._chunks += 1


class Outgoing:
    """See `StoredContent`. A chunk at a time is in memory, and nothing of the read is kept by the servers."""

    def __init__(
        self,
        connection: NatsConnection,
        layout: Layout,
        file: StoredFile,
        content: Content,
        *,
        offset: int,
        closed: Callable[[], None],
    ) -> None:
        self.file = file
        self._connection, self._layout, self._content = connection, layout, content
        self._offset = offset
        self._closed: Callable[[], None] | None = closed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        digest, offset = hashlib.sha256(), self._offset
        sequence = await self._find(offset) if offset < self.file.size else 0
        while offset < self.file.size:
            message = await self._chunk(sequence)
            begin = 0 if message is None else offset - _offset_of(message)
            if message is None or not 0 <= begin < len(message.data):
                raise damaged(self.file)
            data = message.data[begin:]
            offset += len(data)
            if not self._offset:
                digest.update(data)
                # The last chunk is given only after the whole was found to be good.
                if offset >= self.file.size and digest.hexdigest() != self.file.checksum:
                    raise damaged(self.file)
            yield data
            sequence = message.sequence + 1
        if offset != self.file.size:
            raise damaged(self.file)

    async def aclose(self) -> None:
        if self._closed is not None:
            self._closed()
            self._closed = None

    async def _find(self, offset: int) -> int:
        """A sequence from which on the chunk with that byte is the next one."""
        low, high = self._content.first, self._content.last
        if offset < self._content.chunk_bytes:
            return low
        while low < high:
            middle = (low + high + 1) // 2
            message = await self._chunk(middle)
            if message is None or _offset_of(message) > offset:
                high = middle - 1
            else:
                low = message.sequence
                if offset < _offset_of(message) + self._content.chunk_bytes:
                    break
        return low

    async def _chunk(self, sequence: int) -> Message | None:
        return await self._connection.chunk(
            self._layout.stream, self._layout.chunks(self._content.nuid), max(sequence, 1)
        )


async def size_of(connection: NatsConnection, layout: Layout, nuid: str) -> int:
    """How many bytes lie under an id."""
    message = await connection.last(layout.stream, layout.chunks(nuid))
    return 0 if message is None else max(0, _offset_of(message)) + len(message.data)


def _offset_of(message: Message) -> int:
    """-1 for a message that is no chunk of ours."""
    found = message.headers.get(_OFFSET, "")
    return int(found) if found.isdigit() else -1
