"""Frames of docs/guest-protocol.md, both directions. Pure: no I/O, no clock.

Towards the guest a frame is made without its trailer: `seal` adds the session's as it goes out, so that what is queued
outlives a reconnection. From the guest, `Decoder` cuts frames out of bytes and `parse_*` reads their payloads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from station.core.errors import InvalidInput, TooLarge

from .endings import ExitKind, GuestExit, Reason

MAGIC: Final = b"STN1"
PROTOCOL_VERSION: Final = 1
MAX_PAYLOAD: Final = 65_536
MAX_RECORD: Final = 2 << 20
MAX_OFFSET: Final = 1 << 62
MAX_TEXT: Final = 1024
"""Of the guest's words: they get into errors and logs."""
STDIN_WINDOW: Final = 262_144
DEFAULT_RING: Final = 1 << 20
MIN_RING: Final = 4096
MAX_RING: Final = 16 << 20
RESYNC_ZEROS: Final = 65_560
STDOUT, STDERR = 1, 2

HELLO, START, START_PART, STDIN, SIGNAL, CANCEL, ACK, CREDIT, FORGET, PING = range(0x01, 0x0B)
HELLO_ACK, STARTED, OUTPUT, GAP, EXIT, STDIN_ACK, STDIN_CLOSED, PONG, ERROR = range(0x81, 0x8A)

CAPABILITIES = (
    "pidns", "subreaper", "pidfd", "children_file", "openat2", "seccomp", "separate_uid", "filtered", "doors_shut",
)  # fmt: skip

_HEADER = struct.Struct("<4sIII")
_HEADER_SIZE = _HEADER.size
_U32, _U64, _TWO, _ACK = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<II"), struct.Struct("<IQ")
_OUTPUT = _ACK
_GAP = struct.Struct("<IQQ")
_EXIT = struct.Struct("<IiIIQQQQQQ")
_HELLO = struct.Struct("<16sIII")
_WANTED = struct.Struct("<IQQ")
_HELLO_ACK = struct.Struct("<16sIIII")
_PROCESS = struct.Struct("<IIIQQQQQ")
_RECORD = struct.Struct("<IIIIIQII")
_NONCE_SIZE = 16
_RUNNING, _ENDED = 1, 2
_STDIN_FLAG, _APPLET_FLAG = 1, 2


class ProtocolError(Exception):
    """The guest sent what the protocol does not allow."""


class OnFull(IntEnum):
    """What happens when a ring is full and nobody takes its bytes."""

    BLOCK = 0
    """The process waits: nothing is lost."""
    DROP_OLDEST = 1
    """The oldest bytes go; a gap tells which."""
    KILL = 2
    """The process ends with reason output_limit."""


@dataclass(frozen=True)
class StartRecord:
    """How a process is started. Text is encoded as UTF-8 with surrogate escapes: names are bytes."""

    argv: tuple[str, ...]
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bool = False
    """Whether stdin will be sent; else it is /dev/null."""
    applet: bool = False
    on_full: OnFull = OnFull.BLOCK
    timeout_seconds: float | None = None
    grace_seconds: float = 1.0
    """Between TERM and KILL at the timeout."""
    ring_bytes: int = 0
    """Each stream; 0: 1 MiB. The guest keeps to 4 KiB .. 16 MiB."""
    output_limit: int = 0
    """Bytes of both streams; 0: none."""

    def encode(self) -> bytes:
        """Raises InvalidInput for NUL or text that is no Unicode, TooLarge above 2 MiB."""
        fixed = _RECORD.pack(
            self.stdin * _STDIN_FLAG | self.applet * _APPLET_FLAG,
            self.on_full,
            0 if self.timeout_seconds is None else _milliseconds(self.timeout_seconds),
            _milliseconds(self.grace_seconds) if self.grace_seconds else 0,
            self.ring_bytes,
            self.output_limit,
            len(self.argv),
            len(self.env),
        )
        strings = [self.cwd, *self.argv, *(f"{key}={value}" for key, value in self.env.items())]
        try:
            raw = "\0".join(strings).encode("utf-8", "surrogateescape") + b"\0"
        except UnicodeEncodeError as error:
            raise InvalidInput("a command, its folder and environment must be text", field="argv") from error
        if raw.count(b"\0") != len(strings):
            raise InvalidInput("a command, its folder and environment must not contain NUL", field="argv")
        if len(fixed) + len(raw) > MAX_RECORD:
            raise TooLarge("a command with its environment is over 2 MiB; put the data into a file", field="argv")
        return fixed + raw


def _milliseconds(seconds: float) -> int:
    """At least 1: 0 means `none` on the wire."""
    return min(max(round(seconds * 1000), 1), 0xFFFF_FFFF)


# ── to the guest ────────────────────────────────────────────────────────────────────────────────────────────────


def frame(kind: int, guest_id: int, payload: bytes = b"") -> bytes:
    """A frame without its trailer. The payload has at most 65,536 bytes."""
    return _HEADER.pack(MAGIC, kind, guest_id, len(payload)) + payload


def seal(frames: Iterable[bytes], nonce: bytes) -> bytes:
    """The frames as they go out in the session of `nonce`."""
    trailer = nonce[:8]
    return trailer.join([*frames, b""])


def hello_frame(nonce: bytes, credit: int, wanted: Mapping[int, tuple[int, int]]) -> bytes:
    """`wanted`: by id, the stdout and stderr offsets to go on from."""
    entries = b"".join(_WANTED.pack(guest_id, *offsets) for guest_id, offsets in wanted.items())
    return frame(HELLO, 0, _HELLO.pack(nonce, PROTOCOL_VERSION, credit, len(wanted)) + entries)


def start_frames(guest_id: int, record: bytes) -> list[bytes]:
    """One START, after as many START_PARTs as the record needs."""
    if len(record) <= MAX_PAYLOAD:
        return [frame(START, guest_id, record)]
    parts = [record[at : at + MAX_PAYLOAD] for at in range(0, len(record), MAX_PAYLOAD)]
    return [*(frame(START_PART, guest_id, part) for part in parts[:-1]), frame(START, guest_id, parts[-1])]


def signal_frame(guest_id: int, number: int) -> bytes:
    return frame(SIGNAL, guest_id, _U32.pack(number))


def cancel_frame(guest_id: int, grace_seconds: float, reason: Reason) -> bytes:
    return frame(CANCEL, guest_id, _TWO.pack(_milliseconds(grace_seconds) if grace_seconds else 0, reason))


def ack_frame(guest_id: int, stream: int, offset: int) -> bytes:
    return frame(ACK, guest_id, _ACK.pack(stream, offset))


def credit_frame(count: int) -> bytes:
    return frame(CREDIT, 0, _U32.pack(count))


# ── from the guest ──────────────────────────────────────────────────────────────────────────────────────────────


class Frame(NamedTuple):
    kind: int
    id: int
    payload: bytes


class Decoder:
    """Cuts frames out of a stream, however it is chunked; what is none is skipped up to the next magic. Never raises.

    With `nonce`, everything before the HELLO_ACK that carries it is discarded, whatever it looks like.
    """

    def __init__(self, nonce: bytes | None = None) -> None:
        self._nonce = nonce
        self._parts: list[bytes] = []
        self._held = 0
        self._needed = _HEADER_SIZE
        """How many bytes must be there before looking again is worth it: slow drips cost no quadratic copying."""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete with `data`."""
        held = self._held + len(data)
        if held < self._needed:
            self._parts.append(data)
            self._held = held
            return []
        if self._parts:
            self._parts.append(data)
            data = b"".join(self._parts)
        frames: list[Frame] = []
        rest = self._cut(data, frames)
        self._parts = [data[rest:]] if rest < len(data) else []
        self._held = len(data) - rest
        return frames

    def _cut(self, data: bytes, frames: list[Frame]) -> int:
        """Appends what is complete to `frames`; the offset of the first byte to keep."""
        at, size = 0, len(data)
        if self._nonce is not None:
            at = self._synchronise(data, self._nonce)
            if self._nonce is not None:
                return at
        while size - at >= _HEADER_SIZE:
            magic, kind, guest_id, length = _HEADER.unpack_from(data, at)
            if magic != MAGIC or length > MAX_PAYLOAD:
                at = _next_magic(data, at + 1)
                continue
            end = at + _HEADER_SIZE + length
            if end > size:
                self._needed = end - at
                return at
            frames.append(Frame(kind, guest_id, data[at + _HEADER_SIZE : end]))
            at = end
        self._needed = _HEADER_SIZE
        return at

    def _synchronise(self, data: bytes, nonce: bytes) -> int:
        """The offset of the HELLO_ACK with `nonce`; if it is not there, of a tail that may be the beginning of one."""
        found = data.find(nonce, _HEADER_SIZE)
        while found != -1:
            magic, kind, _, length = _HEADER.unpack_from(data, found - _HEADER_SIZE)
            if magic == MAGIC and kind == HELLO_ACK and length <= MAX_PAYLOAD:
                self._nonce = None
                return found - _HEADER_SIZE
            found = data.find(nonce, found + 1)
        return max(0, len(data) - (_HEADER_SIZE + _NONCE_SIZE - 1))


def _next_magic(data: bytes, start: int) -> int:
    """Where the next magic is, or where one may have begun at the end."""
    found = data.find(MAGIC, start)
    return found if found != -1 else max(start, len(data) - len(MAGIC) + 1)


@dataclass(frozen=True)
class HelloProcess:
    """One process that the guest knows, as of the hello."""

    id: int
    running: bool
    pid: int
    stdin_taken: int
    stdout_from: int
    stdout_to: int
    stderr_from: int
    stderr_to: int


@dataclass(frozen=True)
class Hello:
    """The guest's answer to HELLO."""

    version: int
    capabilities: frozenset[str]
    last_id: int
    processes: dict[int, HelloProcess]
    guest_version: str


def parse_hello_ack(payload: bytes) -> Hello:
    """Raises ProtocolError for a damaged payload, like every `parse_*`."""
    try:
        _, version, bits, last_id, count = _HELLO_ACK.unpack_from(payload)
        end = _HELLO_ACK.size + count * _PROCESS.size
        listed = [
            HelloProcess(guest_id, state == _RUNNING, *rest)
            for guest_id, state, *rest in _PROCESS.iter_unpack(payload[_HELLO_ACK.size : end])
        ]
    except struct.error as error:
        raise ProtocolError(f"HELLO_ACK: {error}") from error
    if len(listed) != count:
        raise ProtocolError("HELLO_ACK: fewer processes than it says")
    capabilities = frozenset(name for bit, name in enumerate(CAPABILITIES) if bits >> bit & 1)
    text = payload[end : end + MAX_TEXT].partition(b"\0")[0].decode("utf-8", "replace")
    return Hello(version, capabilities, last_id, {process.id: process for process in listed}, text)


def parse_output(payload: bytes) -> tuple[int, int, bytes]:
    """Stream, offset, bytes."""
    if len(payload) < _OUTPUT.size:
        raise ProtocolError("OUTPUT: too short")
    stream, offset = _OUTPUT.unpack_from(payload)
    if stream not in (STDOUT, STDERR) or offset > MAX_OFFSET:
        raise ProtocolError("OUTPUT: no such stream or offset")
    return stream, offset, payload[_OUTPUT.size :]


def parse_gap(payload: bytes) -> tuple[int, int, int]:
    """Stream, first dropped offset, first offset after the gap."""
    stream, start, end = _unpack(_GAP, payload, "GAP")
    if stream not in (STDOUT, STDERR) or not start <= end <= MAX_OFFSET:
        raise ProtocolError("GAP: no such stream or offset")
    return stream, start, end


def parse_exit(payload: bytes) -> GuestExit:
    kind, value, reason, *rest = _unpack(_EXIT, payload, "EXIT")
    if max(rest[1:3]) > MAX_OFFSET:
        raise ProtocolError("EXIT: no such offset")
    try:
        return GuestExit(ExitKind(kind), value, Reason(reason), *rest)
    except ValueError as error:
        raise ProtocolError(f"EXIT: {error}") from error


def parse_started(payload: bytes) -> int:
    """The pid."""
    return int(_unpack(_U32, payload, "STARTED")[0])


def parse_stdin_ack(payload: bytes) -> int:
    """How many bytes the pipe has taken since the start."""
    return int(_unpack(_U64, payload, "STDIN_ACK")[0])


def parse_error(payload: bytes) -> tuple[int, str]:
    """An errno and the guest's words."""
    if len(payload) < _U32.size:
        raise ProtocolError("ERROR: too short")
    text = payload[_U32.size : _U32.size + MAX_TEXT].partition(b"\0")[0].decode("utf-8", "replace")
    return int(_U32.unpack_from(payload)[0]), text


def _unpack(layout: struct.Struct, payload: bytes, what: str) -> tuple[int, ...]:
    if len(payload) != layout.size:
        raise ProtocolError(f"{what}: {len(payload)} bytes instead of {layout.size}")
    return layout.unpack(payload)
