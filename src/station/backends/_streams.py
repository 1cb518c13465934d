"""A connection to a guest's socket, as the port's ByteStream."""

from __future__ import annotations

import asyncio
import socket

_READ = 1 << 18


class SocketStream:
    """A ByteStream over a connected unix socket. Owned by whoever called `connect`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> SocketStream:
        """Takes `sock` over, also when it fails."""
        try:
            return cls(*await asyncio.open_connection(sock=sock, limit=_READ))
        except OSError:
            sock.close()
            raise

    async def receive(self) -> bytes:
        return await self._reader.read(_READ)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()
        try:
            # Shielded: a cancelled waiter would cancel the future that every later waiter shares (Python 3.11).
            await asyncio.shield(self._writer.wait_closed())
        except OSError:
            return  # it broke before: closed is closed
