"""Every failure of a request as an answer."""

from __future__ import annotations

import json
import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from station.core.errors import InternalError, MethodNotAllowed, NotFound, StationError, Unavailable

from .requests import Gone

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1
GONE = 499
"""No status that anybody sees: the client hung up."""
RPC_REFUSED = -32000
"""Of the codes that JSON-RPC leaves to a server."""


def answer(error: StationError, *, rpc: bool = False) -> Response:
    """`rpc`: as the error of a JSON-RPC message that could not be read. A client of a face shows nothing else."""
    headers = {}
    if error.retryable and error.status in (429, 503):
        headers["retry-after"] = str(error.detail.get("retry_after_seconds", RETRY_AFTER_SECONDS))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.detail["allowed"])
    body = error.to_body()
    if rpc:
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": RPC_REFUSED, "message": error.message, "data": body}}
    content = json.dumps(body, default=str).encode()
    return Response(content, error.status, headers=headers, media_type="application/json")


async def on_station_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StationError)
    if error.status >= 500 and not isinstance(error, Unavailable):
        log.error("%s %s: %s", request.method, request.url.path, error)
    return answer(error)


async def on_http_error(_request: Request, error: Exception) -> Response:
    """The framework's own: a path that there is not."""
    assert isinstance(error, HTTPException)
    return answer(NotFound("there is no such path"))


async def on_gone(_request: Request, _error: Exception) -> Response:
    """For nobody: the client hung up."""
    return Response(status_code=GONE)


async def on_fault(_request: Request, _error: Exception) -> Response:
    """A fault of ours: the log gets the traceback (from the server that runs us), the caller a sentence."""
    return answer(InternalError("Station failed at this; its log has the details"))


HANDLERS: dict[Any, Any] = {
    StationError: on_station_error,
    HTTPException: on_http_error,
    Gone: on_gone,
    Exception: on_fault,
}
