"""Entries, and packs of them: how file primitives tell what is there, and how trees travel. Pure and streaming.

A pack is entries, each regular file followed by its bytes, then `e` and NUL (docs/guest-protocol.md, "Applets").
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Literal

from station.core.errors import InternalError
from station.core.paths import encode_name
from station.core.wire import FileEntry

EntryKind = Literal["f", "d", "l", "o"]
END = b"e\0"
MAX_FIELD = 16_384
"""Longer than any path or link target can be, with the numbers before it."""

_WORDS: dict[str, Literal["file", "dir", "symlink", "other"]] = {"f": "file", "d": "dir", "l": "symlink", "o": "other"}
_LINE = re.compile(rb"([fdlo]) ([0-7]{1,4}) (\d{1,19}) (-?\d{1,19}) (\d{1,10}) (.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a sandbox. `path` is as the primitive tells it, text with surrogate escapes."""

    kind: EntryKind
    mode: int
    """Permission bits."""
    size: int
    mtime_ns: int
    links: int
    path: str
    target: str | None = None
    """Of a link alone."""

    def encode(self) -> bytes:
        head = f"{self.kind} {self.mode:o} {self.size} {self.mtime_ns} {self.links} {self.path}\0"
        if self.kind == "l":
            head += f"{self.target}\0"
        return head.encode("utf-8", "surrogateescape")

    def to_wire(self, absolute: str) -> FileEntry:
        """As the API tells it. `absolute`: where it is inside the sandbox, which an entry alone cannot know."""
        return FileEntry(
            path=encode_name(absolute),
            type=_WORDS[self.kind],
            size=self.size,
            mode=f"{self.mode:o}",
            mtime=self.mtime_ns / 1e9,
            target=None if self.target is None else encode_name(self.target),
        )


def parse_entry(field: bytes, target: bytes | None = None) -> Entry:
    """The entry of one field without its NUL. Raises InternalError for anything else: the guest makes these."""
    found = _LINE.fullmatch(field)
    if found is None or (found[1] == b"l") != (target is not None):
        raise InternalError("the guest told an entry that cannot be read")
    kind, mode, size, mtime, links, path = found.groups()
    return Entry(
        kind.decode(),  # type: ignore[arg-type]  # the pattern allows no other
        int(mode, 8),
        int(size),
        int(mtime),
        int(links),
        _text(path),
        None if target is None else _text(target),
    )


def parse_entries(data: bytes) -> tuple[list[Entry], bool]:
    """The entries of `list`, and whether there are more. Raises InternalError."""
    fields = data.split(b"\0")
    if fields.pop() != b"":
        raise InternalError("the guest told half an entry")
    entries: list[Entry] = []
    at = 0
    while at < len(fields) and fields[at] != b"m":
        is_link = fields[at].startswith(b"l ")
        if is_link and at + 1 >= len(fields):
            raise InternalError("the guest told half an entry")
        entries.append(parse_entry(fields[at], fields[at + 1] if is_link else None))
        at += 1 + is_link
    if at < len(fields) - 1:
        raise InternalError("the guest told more after the end of a list")
    return entries, at < len(fields)


class PackReader:
    """Reads a pack as it comes: entries, and after each regular file's its bytes.

    `feed` returns what is new: an Entry, or bytes of the file last named. `complete` tells whether the end was seen.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0
        """Bytes of the current file that are still to come."""
        self.complete = False

    def feed(self, data: bytes) -> list[Entry | bytes]:
        """Raises InternalError for what is no pack."""
        events: list[Entry | bytes] = []
        if self._left and not self._buffer and len(data) <= self._left:  # the middle of a large file
            self._left -= len(data)
            return [data] if data else []
        buffer = self._buffer + data
        at = 0
        while at < len(buffer):
            if self.complete:
                raise InternalError("the pack goes on after its end")
            if self._left:
                piece = buffer[at : at + self._left]
                events.append(piece)
                self._left -= len(piece)
                at += len(piece)
                continue
            end = self._field(buffer, at, events)
            if end is None:
                break
            at = end
        self._buffer = buffer[at:]
        return events

    def _field(self, buffer: bytes, at: int, events: list[Entry | bytes]) -> int | None:
        """Reads one entry; the offset behind it. `None`: not all of it is there yet."""
        end = buffer.find(b"\0", at)
        target: bytes | None = None
        field = buffer[at:end]
        if end != -1 and field.startswith(b"l "):
            start, end = end + 1, buffer.find(b"\0", end + 1)
            target = buffer[start:end]
        if end == -1:
            if len(buffer) - at > 2 * MAX_FIELD:
                raise InternalError("the pack has an entry that is too long")
            return None
        if field == b"e":
            self.complete = True
            return end + 1
        entry = parse_entry(field, target)
        events.append(entry)
        self._left = entry.size if entry.kind == "f" else 0
        return end + 1

    def finish(self) -> None:
        """Raises InternalError unless the pack is whole."""
        if not self.complete or self._buffer:
            raise InternalError("the pack ends before its end")


async def read_pack(chunks: AsyncIterable[bytes]) -> AsyncIterator[Entry | bytes]:
    """The events of a whole pack. Raises InternalError for one that is cut or damaged."""
    reader = PackReader()
    async for chunk in chunks:
        for event in reader.feed(chunk):
            yield event
    reader.finish()


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
