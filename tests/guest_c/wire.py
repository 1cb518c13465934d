"""The guest protocol without any I/O: just enough of docs/guest-protocol.md to test the C side on its own.

It is not the host side of Station (`station.guest`), on purpose: two readings of one page find its gaps.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

HELLO, START, START_PART, STDIN, SIGNAL, CANCEL, ACK, CREDIT, FORGET, PING = range(1, 11)
HELLO_ACK, STARTED, OUTPUT, GAP, EXIT, STDIN_ACK, STDIN_CLOSED, PONG, ERROR = range(0x81, 0x8A)
PIDNS, SUBREAPER, PIDFD, CHILDREN, OPENAT2, SECCOMP, SEPARATE_UID = (1 << bit for bit in range(7))
PATH = "PATH=/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Frame:
    kind: int
    ident: int
    payload: bytes


@dataclass(frozen=True)
class Ending:
    kind: int
    value: int
    reason: int
    ended_children: int
    stdout_total: int
    stderr_total: int
    user_us: int
    system_us: int
    max_rss_kib: int
    wall_us: int

    @classmethod
    def parse(cls, payload: bytes) -> Ending:
        return cls(*struct.unpack("<IiIIQQQQQQ", payload))


def record(
    argv: list[str | bytes],
    *,
    cwd: str = "/",
    env: tuple[str, ...] = (PATH,),
    stdin: bool = False,
    applet: bool = False,
    on_full: int = 0,
    timeout_ms: int = 0,
    grace_ms: int = 0,
    ring_bytes: int = 0,
    output_limit: int = 0,
) -> bytes:
    words = [cwd, *argv, *env]
    tail = b"".join((word if isinstance(word, bytes) else os.fsencode(word)) + b"\0" for word in words)
    flags = stdin | applet << 1
    head = struct.pack("<IIIIIQII", flags, on_full, timeout_ms, grace_ms, ring_bytes, output_limit, len(argv), len(env))
    return head + tail


class Wire:
    """One session: what to send, and the frames in what was received since its HELLO_ACK."""

    def __init__(self) -> None:
        self.nonce = os.urandom(16)
        self._buffer = bytearray()
        self._synchronised = False

    def frame(self, kind: int, ident: int = 0, payload: bytes = b"") -> bytes:
        return b"STN1" + struct.pack("<III", kind, ident, len(payload)) + payload + self.nonce[:8]

    def hello(self, credit: int, wanted: dict[int, tuple[int, int]] | None = None, *, version: int = 1) -> bytes:
        entries = [struct.pack("<IQQ", ident, *offsets) for ident, offsets in (wanted or {}).items()]
        return self.frame(HELLO, 0, self.nonce + struct.pack("<III", version, credit, len(entries)) + b"".join(entries))

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._buffer += data
        if not self._synchronised:
            # Only the acknowledgement of this very HELLO ends the bytes of sessions before.
            at = self._buffer.find(self.nonce)
            if at < 16:
                return
            del self._buffer[: at - 16]
            self._synchronised = True
        while len(self._buffer) >= 16:
            magic, kind, ident, length = struct.unpack_from("<4sIII", self._buffer)
            assert (magic, length <= 65536) == (b"STN1", True), "the guest has lost its place"
            if len(self._buffer) < 16 + length:
                return
            payload = bytes(self._buffer[16 : 16 + length])
            del self._buffer[: 16 + length]
            yield Frame(kind, ident, payload)
