"""A guest played by the test, over socket pairs; and the real one, as a sub-reaper on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from station.guest import frames
from station.guest.binary import guest_binary
from station.guest.endings import ExitKind, Reason

HEADER = struct.Struct("<4sIII")


class SocketStream:
    """A ByteStream over a connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock

    async def receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.sock, 1 << 18)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def aclose(self) -> None:
        self.sock.close()


def exit_payload(kind: int = ExitKind.EXITED, value: int = 0, *, stdout: int = 0, stderr: int = 0) -> bytes:
    return struct.pack("<IiIIQQQQQQ", kind, value, Reason.NONE, 0, stdout, stderr, 1000, 2000, 3000, 4000)


def listed(guest_id: int, *, state: int = 1, pid: int = 7, taken: int = 0, out: int = 0, err: int = 0) -> bytes:
    return struct.pack("<IIIQQQQQ", guest_id, state, pid, taken, 0, out, 0, err)


class Peer:
    """The guest's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.stream = SocketStream(sock)
        self.buffer = b""
        self.nonce = b""
        self.wanted: dict[int, tuple[int, int]] = {}

    async def read(self) -> tuple[int, int, bytes]:
        """The next frame of the host; asserts its trailer."""
        while True:
            self.buffer = self.buffer.lstrip(b"\0")
            if len(self.buffer) >= HEADER.size:
                magic, kind, guest_id, length = HEADER.unpack_from(self.buffer)
                assert magic == frames.MAGIC
                end = HEADER.size + length
                if len(self.buffer) >= end + 8:
                    payload, trailer = self.buffer[HEADER.size : end], self.buffer[end : end + 8]
                    self.buffer = self.buffer[end + 8 :]
                    if kind == frames.HELLO:
                        self.nonce = payload[:16]
                    assert trailer == self.nonce[:8]
                    return kind, guest_id, payload
            data = await self.stream.receive()
            if not data:
                raise EOFError
            self.buffer += data

    async def expect(self, kind: int) -> tuple[int, bytes]:
        """Id and payload of the next frame, which is of that kind; acknowledgements and credit are skipped."""
        while True:
            got, guest_id, payload = await self.read()
            if got == kind:
                return guest_id, payload
            assert got in (frames.ACK, frames.CREDIT), f"frame {got:#x} instead of {kind:#x}"

    async def expect_ack(self, stream: int, offset: int) -> None:
        """Waits until that much of a stream is acknowledged."""
        while True:
            kind, _, payload = await self.read()
            if kind == frames.ACK and struct.unpack("<IQ", payload) == (stream, offset):
                return

    async def send(self, kind: int, guest_id: int, payload: bytes = b"") -> None:
        await self.stream.send(frames.frame(kind, guest_id, payload))

    async def output(self, guest_id: int, stream: int, offset: int, data: bytes) -> None:
        await self.send(frames.OUTPUT, guest_id, struct.pack("<IQ", stream, offset) + data)

    async def greet(self, *processes: bytes, last_id: int = 0, version: int = 1) -> None:
        """Takes the hello and answers it."""
        _, payload = await self.expect(frames.HELLO)
        _, _, _, count = struct.unpack_from("<16sIII", payload)
        self.wanted = {i: (out, err) for i, out, err in struct.iter_unpack("<IQQ", payload[28 : 28 + 20 * count])}
        head = struct.pack("<16sIIII", self.nonce, version, 0b10, last_id, len(processes))
        await self.send(frames.HELLO_ACK, 0, head + b"".join(processes) + b"0.1.0\0")

    def close(self) -> None:
        self.stream.sock.close()


class Door:
    """Opens streams whose other ends the test takes with `peer`."""

    def __init__(self) -> None:
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.all: list[Peer] = []
        self.shut: Exception | None = None

    async def open(self) -> SocketStream:
        if self.shut is not None:
            raise self.shut
        here, there = socket.socketpair()
        peer = Peer(there)
        self.all.append(peer)
        self.peers.put_nowait(peer)
        return SocketStream(here)

    async def peer(self) -> Peer:
        return await self.peers.get()

    def close(self) -> None:
        for peer in self.all:
            peer.close()


class CuttingStream(SocketStream):
    """Ends after a number of received bytes, in the middle of whatever that is."""

    def __init__(self, sock: socket.socket, left: int) -> None:
        super().__init__(sock)
        self.left = left

    async def receive(self) -> bytes:
        if self.left <= 0:
            return b""
        data = await asyncio.get_running_loop().sock_recv(self.sock, min(self.left, 1 << 16))
        self.left -= len(data)
        return data


class RealGuest:
    """The guest's program as a sub-reaper of this test, on a socket below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "box.sock"
        listener = socket.socket(socket.AF_UNIX)
        with listener:
            listener.bind(str(self.path))
            listener.listen(8)
            fd = listener.fileno()
            arguments = ["serve", "--fd", str(fd), "--box", "test", "--containment", "subreaper"]
            self.process = subprocess.Popen([guest_binary(), *arguments], pass_fds=[fd], stdin=subprocess.DEVNULL)

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(os.fspath(self.path))
        except OSError:
            sock.close()
            raise
        return sock

    async def open(self) -> SocketStream:
        return SocketStream(self._connect())

    async def open_cut(self, after: int) -> CuttingStream:
        return CuttingStream(self._connect(), after)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def real_guest(directory: Path) -> Iterator[RealGuest]:
    guest = RealGuest(directory)
    try:
        yield guest
    finally:
        guest.process.terminate()
        guest.process.wait()


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece
