"""Two headers of a request, looked for in one go: `traceparent` and Idempotency-Key."""

from __future__ import annotations

from starlette.types import Message, Scope, Send

from station import spans
from station.spans import Trace

from .idempotency import HEADER, KEY

_TRACEPARENT = b"traceparent"


def taken_over(scope: Scope, send: Send) -> Send:
    """How the request is to be answered. The trace that it belongs to is the current one from here on."""
    found: Trace | None = None
    for name, value in scope["headers"]:
        if name == _TRACEPARENT:
            found = spans.parse(value.decode("latin-1"))
        elif name == HEADER:
            scope[KEY] = value
    # Also where there is none: one connection may be worked on in one context.
    spans.CURRENT.set(found)
    return send if found is None else _answering(found, send)


def _answering(trace: Trace, send: Send) -> Send:
    async def answering(message: Message) -> None:
        if message["type"] == "http.response.start":
            header = (_TRACEPARENT, trace.answered().header().encode())
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await send(message)

    return answering
