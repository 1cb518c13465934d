"""Which trace a request belongs to (W3C Trace Context), and spans of it for whoever has set up OpenTelemetry.

Without its SDK nothing of OpenTelemetry is loaded, and a span costs nothing.
"""

from __future__ import annotations

import importlib.util
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True)
class Trace:
    """Where a request stands in a trace."""

    trace_id: str
    parent_id: str
    """The span that it comes from; of an answer, the span that has answered."""
    flags: str

    def header(self) -> str:
        return f"00-{self.trace_id}-{self.parent_id}-{self.flags}"

    def answered(self) -> Trace:
        """As the answer says it: with the span that is open, else with a new one."""
        return Trace(self.trace_id, _open_span() or secrets.token_hex(8), self.flags)


CURRENT: ContextVar[Trace | None] = ContextVar("station.trace", default=None)
"""Of the request that is being worked on; `None`: it named none."""


def parse(header: str) -> Trace | None:
    """`None`: it is no `traceparent`, and is passed over as the standard wants."""
    found = _FORM.fullmatch(header)
    if found is None or found[1] == "ff" or not found[2].strip("0") or not found[3].strip("0"):
        return None
    if found[1] == "00" and found[5]:
        return None
    return Trace(found[2], found[3], found[4])


def span(name: str, **attributes: str) -> AbstractContextManager[Any]:
    """Around a piece of work."""
    tracer = _tracer()
    return _NOTHING if tracer is None else tracer.start_as_current_span(name, attributes=attributes)


@contextmanager
def serving(name: str, trace: Trace | None) -> Iterator[None]:
    """Around a request: the span of a server, below the one that `trace` names."""
    tracer = _tracer()
    if tracer is None:
        yield
        return
    from opentelemetry import trace as api

    context = None
    if trace is not None:
        parent = api.SpanContext(
            int(trace.trace_id, 16), int(trace.parent_id, 16), True, api.TraceFlags(int(trace.flags, 16))
        )
        context = api.set_span_in_context(api.NonRecordingSpan(parent))
    with tracer.start_as_current_span(name, context=context, kind=api.SpanKind.SERVER):
        yield


@cache
def _tracer() -> Any:
    """`None` where nobody could receive a span."""
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        return None
    from opentelemetry import trace as api

    return api.get_tracer("station")


def is_on() -> bool:
    """Whether spans are made."""
    return _tracer() is not None


def _open_span() -> str | None:
    if _tracer() is None:
        return None
    from opentelemetry import trace as api

    found = api.get_current_span().get_span_context()
    return f"{found.span_id:016x}" if found.is_valid else None
