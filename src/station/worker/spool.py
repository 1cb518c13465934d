"""The output of one process on disk: written before it is acknowledged to the guest, so a killed station loses nothing.

A stream is a row of segment files. The first `PINNED` of them stay, of the rest the newest `ROLLING` do: 64 MiB a
stream. Offsets are absolute; which bytes are held follows from names and sizes of the files: nothing to keep in step.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path

from station.core.errors import InternalError, StationError, StorageFull
from station.core.records import StreamTotals
from station.core.wire import DEFAULT_KEPT_BYTES, Content, StreamView
from station.durable import is_full

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 8 * 1024 * 1024
PINNED, ROLLING = 4, 4
MEMORY_BYTES = 64 * 1024
"""As much of a stream's start is kept in memory too: a short command is answered without reading a file."""
STDOUT, STDERR = 1, 2


@dataclass(frozen=True)
class Piece:
    """What a reader gets at `offset`: bytes, or (`data` is None) the news that all before `end` is gone."""

    offset: int
    end: int
    data: bytes | None


class StreamSpool:
    """One output stream. Not thread-safe: the loop writes and reads it."""

    def __init__(
        self, base: str | Path, *, segment_bytes: int = SEGMENT_BYTES, kept_bytes: int = DEFAULT_KEPT_BYTES
    ) -> None:
        """`kept_bytes`: of a longer stream `view` has the first and the last half of so many."""
        self._base = os.fspath(base)  # text, not a Path: each command makes two of these
        self._kept = kept_bytes // 2, kept_bytes - kept_bytes // 2
        self._segment_bytes = segment_bytes
        self._fd = -1
        self._segment = -1
        self._memory = bytearray()
        self._gaps: list[tuple[int, int]] = []
        self.total = 0

    @classmethod
    def load(
        cls, base: str | Path, *, segment_bytes: int = SEGMENT_BYTES, kept_bytes: int = DEFAULT_KEPT_BYTES
    ) -> StreamSpool:
        """The stream as an earlier station left it; of one that wrote nothing, an empty one."""
        spool = cls(base, segment_bytes=segment_bytes, kept_bytes=kept_bytes)
        try:
            last, size = 0, os.stat(spool._base).st_size
        except FileNotFoundError:
            return spool
        if size >= segment_bytes:
            last = max(spool._numbers())
            size = os.stat(spool._file(last)).st_size
        spool.total = last * segment_bytes + size
        with suppress(FileNotFoundError):
            lines = spool._gaps_file.read_text(encoding="ascii").splitlines()
            pairs = [line.split() for line in lines]
            spool._gaps = [(int(pair[0]), int(pair[1])) for pair in pairs if len(pair) == 2]
        return spool

    def append(self, offset: int, data: bytes) -> None:
        """Stores `data`, which begins at `offset`. Bytes known already are skipped, missing ones become a gap.

        When it returns they outlive this process. What the disk did not take becomes a gap: readers are told.
        """
        if offset > self.total:
            self.gap(self.total, offset)
        end = offset + len(data)
        view = memoryview(data)[self.total - offset :]
        if end <= self.total:
            return
        if self.total == len(self._memory) and self.total + len(view) <= MEMORY_BYTES:
            self._memory += view
        try:
            while view:
                view = view[self._write(view) :]
        except OSError as error:
            logger.warning("output is lost, %d bytes of %s: %s", end - self.total, self._base, error)
            self.gap(self.total, end)

    def gap(self, start: int, end: int) -> None:
        """Bytes from `start` to `end` will never come."""
        start = max(start, self.total)
        if end <= start:
            return
        self._gaps.append((start, end))
        self.total = end
        try:
            Path(self._base).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._gaps_file.open("a", encoding="ascii") as file:
                file.write(f"{start} {end}\n")
            self._make_hole(0, min(end, self._segment_bytes))
            self._make_hole(end // self._segment_bytes, end % self._segment_bytes)
        except OSError as error:
            logger.warning("a gap in %s is not written down: %s", self._base, error)

    def read(self, offset: int, limit: int = 65536) -> Piece | None:
        """What is held at `offset`; `None` at the end of what is known."""
        if offset >= self.total:
            return None
        for start, end in self._holes():
            if start <= offset < end:
                return Piece(offset, end, None)
            if offset < start:
                limit = min(limit, start - offset)
                break
        if offset < len(self._memory):
            data = bytes(self._memory[offset : offset + limit])
        else:
            data = self._read_file(offset, min(limit, self.total - offset))
        if not data:  # a file that vanished under us: say so instead of waiting for ever
            return Piece(offset, self.total, None)
        return Piece(offset, offset + len(data), data)

    def view(self) -> StreamView:
        """All of it, or its head and tail with exact offsets."""
        if self.total == len(self._memory) and self.total <= sum(self._kept):
            return StreamView(Content.of(bytes(self._memory)), self.total)
        start, end = self._bounds()
        omitted = end - start
        if not omitted:
            return StreamView(Content.of(self._span(0, self.total)), self.total)
        return StreamView(
            Content.of(self._span(0, start)), self.total, omitted, Content.of(self._span(end, self.total))
        )

    def totals(self) -> StreamTotals:
        start, end = self._bounds()
        return StreamTotals(self.total, end - start)

    def room(self, reader: float, spare: int) -> float:
        """How far the stream may grow, and by `spare` bytes more, without losing what comes after `reader`."""
        if reader == inf:
            return inf
        first = max(int(reader) // self._segment_bytes, PINNED)
        return (first + ROLLING) * self._segment_bytes - 1 - spare

    def close(self) -> None:
        """Gives the descriptor back; reading and even writing go on to work."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._segment = -1, -1

    def remove(self) -> None:
        self.close()
        if not self.total:
            return
        for number in self._numbers() if self.total >= self._segment_bytes else [0]:
            _unlink(self._file(number))
        if self._gaps:
            _unlink(os.fspath(self._gaps_file))

    def _bounds(self) -> tuple[int, int]:
        """Where the head ends and where the tail begins."""
        head, tail = self._kept
        if self.total <= head + tail and not self._gaps:
            return self.total, self.total
        holes = self._holes()
        start = min([head, self.total, *[hole[0] for hole in holes[:1]]])
        end = max([self.total - tail, start, *[hole[1] for hole in holes[-1:]]])
        return start, end

    def _holes(self) -> list[tuple[int, int]]:
        """Ranges below `total` that are not held, in order."""
        holes = list(self._gaps)
        last = self.total // self._segment_bytes
        first_kept = last - ROLLING + 1
        if first_kept > PINNED:
            holes.append((PINNED * self._segment_bytes, first_kept * self._segment_bytes))
        merged: list[tuple[int, int]] = []
        for start, end in sorted(holes):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def _write(self, view: memoryview) -> int:
        number, position = divmod(self.total, self._segment_bytes)
        if number != self._segment:
            self._open(number)
        written = os.write(self._fd, view[: self._segment_bytes - position])
        self.total += written
        if position + written == self._segment_bytes:
            self._open(number + 1)  # at once: its being there is how `load` knows that this one is full
        return written

    def _open(self, number: int) -> None:
        self.close()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._fd = os.open(self._file(number), flags, 0o600)
        except FileNotFoundError:
            Path(self._base).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = os.open(self._file(number), flags, 0o600)
        self._segment = number
        stale = number - ROLLING
        if stale >= PINNED:
            _unlink(self._file(stale))

    def _make_hole(self, number: int, size: int) -> None:
        for stale in self._numbers():
            if PINNED <= stale <= number - ROLLING:
                _unlink(self._file(stale))
        self._open(number)
        os.ftruncate(self._fd, size)

    def _file(self, number: int) -> str:
        return self._base if number == 0 else f"{self._base}.{number}"

    @property
    def _gaps_file(self) -> Path:
        return Path(f"{self._base}.gaps")

    def _numbers(self) -> list[int]:
        base = Path(self._base)
        suffixes = (path.name.rpartition(".")[2] for path in base.parent.glob(f"{base.name}.*"))
        return [0, *(int(suffix) for suffix in suffixes if suffix.isdecimal())]

    def _read_file(self, offset: int, length: int) -> bytes:
        number, position = divmod(offset, self._segment_bytes)
        length = min(length, self._segment_bytes - position)
        try:
            with Path(self._file(number)).open("rb") as file:
                return os.pread(file.fileno(), length, position)
        except OSError as error:
            logger.warning("%s cannot be read: %s", self._base, error)
            return b""

    def _span(self, start: int, end: int) -> bytes:
        return b"".join(piece.data for piece in self.pieces(start, end) if piece.data is not None)

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Everything from `start` to `end`, holes included."""
        while start < end and (piece := self.read(start, min(end - start, 1024 * 1024))):
            yield piece
            start = piece.end


class ProcessSpool:
    """Both streams of one process, and where its given stdin waits."""

    def __init__(
        self, directory: str | Path, process_id: str, *, loaded: bool = False, kept_bytes: int = DEFAULT_KEPT_BYTES
    ) -> None:
        make = partial(StreamSpool.load if loaded else StreamSpool, kept_bytes=kept_bytes)
        self._base = f"{directory}/{process_id}"
        self.stdout = make(f"{self._base}.out")
        self.stderr = make(f"{self._base}.err")
        self._keeps_stdin = loaded

    def stream(self, number: int) -> StreamSpool:
        return self.stdout if number == STDOUT else self.stderr

    @property
    def offsets(self) -> tuple[int, int]:
        """What is safe here: where a new session asks the guest to go on."""
        return self.stdout.total, self.stderr.total

    def keep_stdin(self, data: bytes) -> None:
        """Holds given input until the process has ended, so that a new station can go on feeding it. Raises
        StorageFull where there is no room for it, and leaves nothing."""
        temporary = Path(f"{self._base}.in~")
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_bytes(data)
            temporary.replace(f"{self._base}.in")
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise _not_kept(error) from error
        self._keeps_stdin = True

    def stdin(self) -> bytes | None:
        """The input kept; `None`: there is none."""
        try:
            return Path(f"{self._base}.in").read_bytes()
        except FileNotFoundError:
            return None

    def mark_open(self) -> None:
        """Remembers that its stdin takes later writes. Raises StorageFull where there is no room."""
        mark = Path(f"{self._base}.open")
        try:
            mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            mark.touch()
        except OSError as error:
            raise _not_kept(error) from error
        self._keeps_stdin = True

    @property
    def stdin_open(self) -> bool:
        return Path(f"{self._base}.open").exists()

    def drop_stdin(self) -> None:
        if self._keeps_stdin:
            _unlink(f"{self._base}.in")
            _unlink(f"{self._base}.open")

    def close(self) -> None:
        self.stdout.close()
        self.stderr.close()

    def remove(self) -> None:
        self.remove_output()
        self.drop_stdin()

    def remove_output(self) -> None:
        """Of an ended process that is all there is."""
        self.stdout.remove()
        self.stderr.remove()


def _not_kept(error: OSError) -> StationError:
    if is_full(error):
        return StorageFull("the disk of the station's state directory is full; nothing was started", retryable=True)
    return InternalError(f"the input of a command cannot be kept: {error.strerror}")


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
