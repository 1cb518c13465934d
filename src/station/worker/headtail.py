"""Output kept in memory: head and tail with exact offsets, for a run, whose box dies with the station anyway."""

from __future__ import annotations

from station.core.wire import DEFAULT_KEPT_BYTES, Content, StreamView


class HeadTail:
    """One stream in bounded memory."""

    def __init__(self, head: int, tail: int) -> None:
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

    def __init__(self, kept_bytes: int = DEFAULT_KEPT_BYTES) -> None:
        """`kept_bytes`: of each stream, half of it the head."""
        head = kept_bytes // 2
        self.streams = {number: HeadTail(head, kept_bytes - head) for number in (1, 2)}

    def output(self, stream: int, offset: int, data: bytes) -> bool:
        self.streams[stream].gap(offset)
        self.streams[stream].append(data)
        return True

    def gap(self, stream: int, _start: int, end: int) -> None:
        self.streams[stream].gap(end)
