"""What arrives: queries whose values may be any bytes, and bodies within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect, Request

from station.core.errors import InvalidInput, TooLarge
from station.core.suggest import suggestion
from station.validate import from_json

T = TypeVar("T")

SMALL_BODY, LARGE_BODY = 1 << 20, 64 << 20
MAX_QUERY_BYTES = 32 * 1024
_YES, _NO = ("true", "1", "yes"), ("false", "0", "no", "")


class Query:
    """The parameters of a request. A name that is not `known` is refused, one given twice too."""

    def __init__(self, request: Request, *known: str) -> None:
        raw: bytes = request.scope["query_string"]
        if len(raw) > MAX_QUERY_BYTES:
            raise TooLarge(f"a query has at most {MAX_QUERY_BYTES} bytes", field="query")
        self._values: dict[str, str] = {}
        for pair in filter(None, raw.split(b"&")):
            name, _, value = pair.partition(b"=")
            key = _decoded(name)
            if key not in known:
                raise InvalidInput(f"unknown parameter {key!r}{suggestion(key, known)}", field=key)
            if key in self._values:
                raise InvalidInput(f"the parameter {key} is given twice", field=key)
            self._values[key] = _decoded(value)

    def need(self, name: str) -> str:
        """Raises InvalidInput where it is missing or empty."""
        if value := self._values.get(name):
            return value
        raise InvalidInput(f"the parameter {name} is missing", field=name)

    def text(self, name: str) -> str | None:
        return self._values.get(name) or None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if value.lower() not in _YES + _NO:
            raise InvalidInput(f"{name} is true or false, not {value!r}", field=name)
        return value.lower() in _YES

    def whole(self, name: str, default: int | None = None, *, least: int = 0, most: int = 1 << 62) -> int | None:
        value = self._values.get(name)
        if not value:
            return default
        if not (value.isascii() and value.isdigit() and len(value) < 20 and least <= int(value) <= most):
            raise InvalidInput(f"{name} is a whole number from {least} to {most}, not {value[:40]!r}", field=name)
        return int(value)

    def seconds(self, name: str, *, most: float) -> float:
        value = self._values.get(name)
        if not value:
            return 0.0
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number <= most:
            raise InvalidInput(f"{name} is a number of seconds from 0 to {most:g}, not {value[:40]!r}", field=name)
        return number

    def mode(self, default: int | None = None) -> int | None:
        """Permission bits in octal; the special bits are not among them."""
        value = self._values.get("mode")
        if not value:
            return default
        if not (1 <= len(value) <= 4 and all(digit in "01234567" for digit in value) and int(value, 8) <= 0o777):
            raise InvalidInput(f"mode is octal permission bits from 0 to 777, not {value[:40]!r}", field="mode")
        return int(value, 8)

    def digest(self) -> bool:
        """Whether the SHA-256 of the body follows it."""
        value = self._values.get("digest")
        if value not in (None, "", "append"):
            raise InvalidInput(f"digest is 'append' or left out, not {value!r}", field="digest")
        return value == "append"


def _decoded(raw: bytes) -> str:
    return unquote_to_bytes(raw.replace(b"+", b" ")).decode("utf-8", "surrogateescape")


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
