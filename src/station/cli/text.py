"""Text for a terminal: what a program or a name says must not drive it."""

from __future__ import annotations

import codecs
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

from station.core.display import COLOUR, escape

if TYPE_CHECKING:
    from station.core.capabilities import Isolation

# The beginning of what may become a colour once the next chunk is there.
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,64})?\Z")
_HARMLESS = "\n\t\r\b"


class Passage:
    """Output of a program on its way to `sink`: byte for byte, but to a terminal (unless `raw`) only text and colours.

    Titles, the clipboard, links and questions to the terminal show as text instead of working.
    """

    def __init__(self, sink: BinaryIO, *, raw: bool = False) -> None:
        self._sink = sink
        self._filter = sink.isatty() and not raw
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._coloured = False

    def write(self, data: bytes) -> None:
        self._sink.write(self._safe(self._decoder.decode(data)) if self._filter else data)
        self._sink.flush()

    def close(self) -> None:
        """Writes what was held back, and takes colours off again. The sink stays open."""
        if self._filter:
            rest = escape(self._held + self._decoder.decode(b"", final=True), keep=_HARMLESS)
            self._held = ""
            self._sink.write(rest.encode() + (b"\x1b[0m" if self._coloured else b""))
            self._sink.flush()

    def _safe(self, text: str) -> bytes:
        text = self._held + text
        unfinished = _UNFINISHED.search(text)
        self._held = unfinished[0] if unfinished else ""
        text = text[: len(text) - len(self._held)]
        parts, at = [], 0
        for colour in COLOUR.finditer(text):
            parts += [escape(text[at : colour.start()], keep=_HARMLESS), colour[0]]
            at = colour.end()
            self._coloured = True
        return "".join([*parts, escape(text[at:], keep=_HARMLESS)]).encode()


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Columns as wide as their widest cell; each cell escaped."""
    cells = [list(heads), *([escape(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    return "\n".join(
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in cells
    )


def dim(text: str) -> str:
    """Quieter where standard error is a terminal."""
    return f"\x1b[2m{text}\x1b[0m" if sys.stderr.isatty() else text


def isolation_line(isolation: Isolation) -> str:
    """Where code ran, in one line, from the answer."""
    held = sorted(name for name, report in isolation.limits.items() if report.level == "enforced")
    limits = f"limits held: {', '.join(held)}" if held else "no limit held"
    parts = (isolation.backend, f"isolation {isolation.grade}", f"network {isolation.network}", isolation.image, limits)
    return " · ".join(parts)


def ago(when: float) -> str:
    """`3 min`, counted from the clock of this machine."""
    return _span(time.time() - when)


def until(when: float) -> str:
    """As `ago`, of what is still to come."""
    return _span(when - time.time())


def _span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
