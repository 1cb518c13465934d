"""Output kept in memory: head and tail with exact offsets, for a run, whose box dies with the station anyway."""

from __future__ import annotations

from station.core.wire import Content, StreamView

from .spool import HEAD_BYTES, TAIL_BYTES


class HeadTail:
    """One stream in bounded memory."""

    def __init__(self, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._limits = head, tail
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        self._head_open = True
        """Until something is missing behind the head."""

    def append(self, data: bytes) -> None:
        self.total += len(data)
        head, tail = self._limits
        if self._head_open:
            room = head - len(self._head)
            self._head += data[:room]
            data = data[room:]
            self._head_open = len(self._head) < head
        self._tail += data
        if len(self._tail) > 2 * tail:  # by halves: each byte is moved at most once
            del self._tail[: len(self._tail) - tail]

    def gap(self, end: int) -> None:
        """Bytes up to the offset `end` will never come."""
        if end > self.total:
            self.total = end
            self._head_open = False
            self._tail.clear()

    def view(self) -> StreamView:
        tail = bytes(self._tail[-self._limits[1] :])
        omitted = self.total - len(self._head) - len(tail)
        if not omitted:
            return StreamView(Content.of(bytes(self._head) + tail), self.total)
        return StreamView(Content.of(bytes(self._head)), self.total, omitted, Content.of(tail))


class MemoryOutput:
    """Both streams, as the sink of a process."""

    def __init__(self) -> None:
        self.streams = {1: HeadTail(), 2: HeadTail()}

    def output(self, stream: int, offset: int, data: bytes) -> None:
        self.streams[stream].gap(offset)
        self.streams[stream].append(data)

    def gap(self, stream: int, _start: int, end: int) -> None:
        self.streams[stream].gap(end)
