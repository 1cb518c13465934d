"""Output of a process for any number of readers, each by its own offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Literal

from station.core.wire import Content, OutputEvent

from .readers import Reader
from .running import Running
from .spool import STDERR, STDOUT, Piece, ProcessSpool
from .views import process_view

_NAMES: dict[int, Literal["stdout", "stderr"]] = {STDOUT: "stdout", STDERR: "stderr"}


def stored(spool: ProcessSpool, after: tuple[int, int]) -> Iterator[OutputEvent]:
    """What is there from the offsets on, both streams in turns."""
    positions = {STDOUT: after[0], STDERR: after[1]}
    while pieces := [(s, p) for s, at in positions.items() if (p := spool.stream(s).read(at)) is not None]:
        for stream, piece in pieces:
            positions[stream] = piece.end
            yield _event(stream, piece)


async def follow(
    running: Running, after: tuple[int, int], *, keepalive_seconds: float
) -> AsyncGenerator[OutputEvent, None]:
    """Everything from the offsets on until the end, then one `end`; a `keepalive` when nothing happened for that long.

    Who reads more slowly than the process writes holds it up once the spool is full, and misses nothing.
    """
    reader = running.readers.enter(after)
    try:
        async for event in _follow(running, reader, keepalive_seconds):
            running.readers.gives(reader)
            yield event
            running.readers.asks(reader)
    finally:
        running.readers.leave(reader)


async def _follow(running: Running, reader: Reader, keepalive_seconds: float) -> AsyncIterator[OutputEvent]:
    while True:
        ended = running.ended  # looked at first: what comes before the end is then in the spool
        moved = False
        for stream in (STDOUT, STDERR):
            if (piece := running.spool.stream(stream).read(reader.positions[stream])) is not None:
                reader.positions[stream] = piece.end
                moved = True
                yield _event(stream, piece)
        if moved:
            continue
        if ended:
            yield OutputEvent("end", process=process_view(running.record))
            return
        try:
            async with asyncio.timeout(keepalive_seconds):
                await running.changed()
        except TimeoutError:
            yield OutputEvent("keepalive")


def _event(stream: int, piece: Piece) -> OutputEvent:
    if piece.data is None:
        return OutputEvent("gap", _NAMES[stream], piece.offset, piece.end)
    return OutputEvent("data", _NAMES[stream], piece.offset, piece.end, Content.of(piece.data))
