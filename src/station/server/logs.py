"""Where a station's own words go: stderr in the foreground, a bounded file in the background."""

from __future__ import annotations

import json
import logging
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal, TypeAlias

from station.core.wire import LOG
from station.spans import CURRENT

_KEPT = 2


Form: TypeAlias = Literal["text", "json"]


class Plain(logging.Formatter):
    """One line an event, and below it the traceback of a fault. Control characters are escaped: what a sandbox made up
    can forge no line and move no cursor."""

    def format(self, record: logging.LogRecord) -> str:
        trace = CURRENT.get()
        told = f" (trace {trace.trace_id})" if trace is not None else ""
        text = f"{_time(record)} {record.levelname.lower()} {record.name}: {record.getMessage()}{told}"
        lines = [escape(text)]
        if record.exc_info:
            lines += [f"  | {escape(line)}" for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


class Json(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`; `trace_id` where a request named its trace;
    `exception` of a fault. All in ASCII: what a sandbox made up stays within its string."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (trace := CURRENT.get()) is not None:
            told["trace_id"] = trace.trace_id
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told).replace("\x7f", "\\u007f")


def _time(record: logging.LogRecord) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{at}.{int(record.msecs):03d}Z"


def escape(text: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text
    )


def set_up(home: Path, *, background: bool, megabytes: int, form: Form = "text") -> logging.Handler:
    """Sends the log of this process there. The caller closes the handler."""
    handler: logging.Handler
    if background:
        handler = RotatingFileHandler(
            home / LOG, maxBytes=megabytes << 20, backupCount=_KEPT, encoding="utf-8", errors="backslashreplace"
        )
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Plain())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    # Tells of every connection that breaks, and warns of every odd request, a stranger's too; what matters of it we say
    # ourselves.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    return handler
