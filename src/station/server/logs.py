"""Where a station's own words go: stderr in the foreground, a bounded file in the background."""

from __future__ import annotations

import logging
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path

from station.core.wire import LOG

_KEPT = 2


class Plain(logging.Formatter):
    """One line an event. Control characters are escaped: what a sandbox made up can forge no line and move no
    cursor."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        text = f"{at}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name}: {record.getMessage()}"
        lines = [escape(text)]
        if record.exc_info:
            lines += [f"  | {escape(line)}" for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


def escape(text: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text
    )


def set_up(home: Path, *, background: bool, megabytes: int) -> logging.Handler:
    """Sends the log of this process there. The caller closes the handler."""
    handler: logging.Handler
    if background:
        handler = RotatingFileHandler(
            home / LOG, maxBytes=megabytes << 20, backupCount=_KEPT, encoding="utf-8", errors="backslashreplace"
        )
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Plain())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    # Tells of every connection that breaks, and warns of every odd request, a stranger's too; what matters of it we say
    # ourselves.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    return handler
