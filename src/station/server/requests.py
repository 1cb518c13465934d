"""Bodies, as they arrive and within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from station.core.errors import InvalidInput, TooLarge, UnsupportedMedia
from station.validate import from_json

T = TypeVar("T")

SMALL_BODY, LARGE_BODY = 1 << 20, 64 << 20


async def read_body(request: Request, most: int = SMALL_BODY) -> bytes:
    """The whole body. Raises TooLarge as soon as it is known to be."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most:
        raise TooLarge(f"this body has at most {most} bytes; {announced} were announced", limit=most)
    chunks, size = [], 0
    async for chunk in body(request):
        size += len(chunk)
        if size > most:
            raise TooLarge(f"this body has at most {most} bytes", limit=most)
        chunks.append(chunk)
    return b"".join(chunks)


async def read_json(request: Request, cls: type[T], most: int = SMALL_BODY) -> T:
    """The body as JSON, whatever it says it is: `curl -d` calls everything a form. Raises UnsupportedMedia for what is
    one indeed."""
    if request.headers.get("content-type", "").lstrip().lower().startswith("multipart/"):
        raise UnsupportedMedia("this takes JSON, not a form in parts: send content-type: application/json")
    return from_json(cls, await read_body(request, most) or b"{}")


async def body(request: Request) -> AsyncIterator[bytes]:
    """The body as it comes. Raises InvalidInput where the client went away within it, so that it never looks whole."""
    try:
        async for chunk in request.stream():
            if chunk:
                yield chunk
    except ClientDisconnect:
        raise InvalidInput("the body was cut short; nothing was changed", field="body") from None


class Gone(Exception):
    """The client hung up; nobody reads the answer."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises Gone, and stops waiting, when the client hangs up first. What is left of the body
    is thrown away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Gone
    finally:
        for future in (task, gone):
            if not future.done():
                future.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
