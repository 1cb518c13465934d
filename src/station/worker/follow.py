"""Output of a process for any number of readers, each by its own offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Literal

from station.core.wire import Content, OutputEvent

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


async def follow(running: Running, after: tuple[int, int], *, keepalive_seconds: float) -> AsyncIterator[OutputEvent]:
    """Everything from the offsets on until the end, then one `end`; a `keepalive` when nothing happened for that long.

    A slow reader holds nobody up: it reads the spool at its own pace.
    """
    positions = {STDOUT: after[0], STDERR: after[1]}
    while True:
        ended = running.ended  # looked at first: what comes before the end is then in the spool
        moved = False
        for stream, position in positions.items():
            if (piece := running.spool.stream(stream).read(position)) is not None:
                positions[stream] = piece.end
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
