"""The guest's end of the protocol: frames of the host in, frames of the guest out. Pure.

Numbers and names are those of `station.guest`, the host's end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from station.guest import frames
from station.guest.binary import GUEST_VERSION
from station.guest.endings import GuestExit
from station.guest.frames import MAGIC, MAX_PAYLOAD, Frame, HelloProcess, OnFull

OUTPUT_HEAD = 12
MAX_CHUNK = MAX_PAYLOAD - OUTPUT_HEAD
_HEADER = struct.Struct("<4sIII")
_HELLO = struct.Struct("<16sIII")
_WANTED = struct.Struct("<IQQ")
_RECORD = struct.Struct("<IIIIIQII")
_TRAILER = 8
_STDIN_FLAG, _APPLET_FLAG, _FLAGS = 1, 2, 3


class HostDecoder:
    """Bytes of one connection to whole frames with the right trailer; all else is dropped."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._trailer: bytes | None = None

    def feed(self, data: bytes) -> list[Frame]:
        self._buffer += data
        complete = []
        while frame := self._next():
            complete.append(frame)
        return complete

    def _next(self) -> Frame | None:
        while self._skip_to_magic():
            _, kind, number, length = _HEADER.unpack_from(self._buffer)
            if length > MAX_PAYLOAD:
                del self._buffer[: len(MAGIC)]
                continue
            whole = _HEADER.size + length + _TRAILER
            if len(self._buffer) < whole:
                return None
            payload = bytes(self._buffer[_HEADER.size : whole - _TRAILER])
            trailer = bytes(self._buffer[whole - _TRAILER : whole])
            # A bad frame goes whole: looking for magic inside it would execute what a user uploaded.
            del self._buffer[:whole]
            if self._accept(kind, payload, trailer):
                return Frame(kind, number, payload)
        return None

    def _skip_to_magic(self) -> bool:
        """Whether a whole header stands at the front now."""
        at = self._buffer.find(MAGIC)
        keep = len(self._buffer) - len(MAGIC) + 1 if at < 0 else at
        del self._buffer[: max(0, keep)]
        return at >= 0 and len(self._buffer) >= _HEADER.size

    def _accept(self, kind: int, payload: bytes, trailer: bytes) -> bool:
        if kind == frames.HELLO:
            if len(payload) < _HELLO.size or payload[:_TRAILER] != trailer:
                return False
            self._trailer = trailer
        return trailer == self._trailer


@dataclass(frozen=True)
class HostHello:
    nonce: bytes
    version: int
    credit: int
    wanted: dict[int, tuple[int, int]]


def parse_hello(payload: bytes) -> HostHello:
    """Raises struct.error where the count does not fit."""
    nonce, version, credit, count = _HELLO.unpack_from(payload)
    wanted = {}
    for index in range(count):
        number, out, err = _WANTED.unpack_from(payload, _HELLO.size + index * _WANTED.size)
        wanted[number] = (out, err)
    return HostHello(nonce, version, credit, wanted)


@dataclass(frozen=True)
class Record:
    """A start record, as the guest reads it."""

    wants_stdin: bool
    applet: bool
    on_full: OnFull
    timeout_seconds: float
    """0: none."""
    grace_seconds: float
    ring_bytes: int
    output_limit: int
    cwd: bytes
    argv: tuple[bytes, ...]
    env: tuple[bytes, ...]


def parse_record(raw: bytes) -> Record:
    """Raises ValueError for one that the guest refuses with ERROR 22."""
    if len(raw) < _RECORD.size:
        raise ValueError("too short")
    flags, on_full, timeout_ms, grace_ms, ring, limit, argc, envc = _RECORD.unpack_from(raw)
    texts = raw[_RECORD.size :].split(b"\0")
    if argc == 0 or flags > _FLAGS or len(texts) != 1 + argc + envc + 1 or texts[-1] or not texts[1]:
        raise ValueError("counts do not fit")
    return Record(
        wants_stdin=bool(flags & _STDIN_FLAG),
        applet=bool(flags & _APPLET_FLAG),
        on_full=OnFull(on_full),
        timeout_seconds=timeout_ms / 1000,
        grace_seconds=grace_ms / 1000,
        ring_bytes=min(max(ring, frames.MIN_RING), frames.MAX_RING) if ring else frames.DEFAULT_RING,
        output_limit=limit,
        cwd=texts[0],
        argv=tuple(texts[1 : 1 + argc]),
        env=tuple(texts[1 + argc : -1]),
    )


def hello_ack(nonce: bytes, capabilities: int, last_id: int, processes: Iterable[HelloProcess]) -> bytes:
    listed = [
        struct.pack(
            "<IIIQQQQQ",
            process.id,
            1 if process.running else 2,
            process.pid,
            process.stdin_taken,
            process.stdout_from,
            process.stdout_to,
            process.stderr_from,
            process.stderr_to,
        )
        for process in processes
    ]
    head = struct.pack("<16sIIII", nonce, frames.PROTOCOL_VERSION, capabilities, last_id, len(listed))
    return frames.frame(frames.HELLO_ACK, 0, head + b"".join(listed) + GUEST_VERSION.encode() + b"\0")


def started(number: int, pid: int) -> bytes:
    return frames.frame(frames.STARTED, number, struct.pack("<I", pid))


def output(number: int, stream: int, offset: int, data: bytes) -> bytes:
    return frames.frame(frames.OUTPUT, number, struct.pack("<IQ", stream, offset) + data)


def gap(number: int, stream: int, start: int, end: int) -> bytes:
    return frames.frame(frames.GAP, number, struct.pack("<IQQ", stream, start, end))


def stdin_ack(number: int, taken: int) -> bytes:
    return frames.frame(frames.STDIN_ACK, number, struct.pack("<Q", taken))


def exited(number: int, end: GuestExit) -> bytes:
    words = (end.kind, end.value, end.reason, end.ended_children)
    longs = (end.stdout_total, end.stderr_total, end.user_us, end.system_us, end.max_rss_kib, end.wall_us)
    return frames.frame(frames.EXIT, number, struct.pack("<IiII6Q", *words, *longs))


def error(number: int, code: int, text: str) -> bytes:
    return frames.frame(frames.ERROR, number, struct.pack("<I", code) + text.encode() + b"\0")
