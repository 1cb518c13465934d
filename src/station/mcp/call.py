"""One call of a tool, and what it is answered with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .caller import Caller
from .texts import name

_LEAST_BYTES = 1024

Tell = Callable[[float, str | None], Awaitable[None]]
"""Progress: seconds since the call began, and new output, if there is any."""


@dataclass(frozen=True)
class Call:
    caller: Caller
    tell: Tell | None = None
    """`None`: nobody asked for progress."""

    async def shown_bytes(self) -> int:
        """Of each output stream, what an answer shows."""
        return (await self.caller.station()).max_stdout_bytes


@dataclass(frozen=True)
class Image:
    mime_type: str
    base64: str


@dataclass(frozen=True)
class Reply:
    value: Any
    """One of `answers`: the structured content."""
    text: str
    """The same for a model to read."""
    images: tuple[Image, ...] = ()

    @cached_property
    def structured(self) -> dict[str, Any]:
        """`value` as JSON data: a field whose default is `None` is left out where it is `None`."""
        plain: dict[str, Any] = _without_absent(self.value)
        return plain

    def json_bytes(self) -> int:
        """What it takes of a message, every character escaped that may be."""
        coded = sum(len(image.base64) for image in self.images)
        return len(json.dumps(self.structured)) + len(json.dumps(self.text)) + coded


def fitted(render: Callable[[int], Reply], most: int, room: int) -> Reply:
    """`render(most)`, an answer with at most `most` bytes of each thing, or with less of it where that has no `room` as
    JSON: some clients take no larger message, and quotes alone double what they hold."""
    while True:
        reply = render(most)
        size = reply.json_bytes()
        if size <= room or most <= _LEAST_BYTES:
            return reply
        most = max(_LEAST_BYTES, less(most, size, room))


def less(most: int, size: int, room: int) -> int:
    """What to try after an answer with `most` of something was `size` bytes, and more than there is `room` for."""
    return min(most * room // size, most * 3 // 4)


def _without_absent(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: _without_absent(getattr(value, item.name))
            for item in dataclasses.fields(value)
            if getattr(value, item.name) is not None or item.default is dataclasses.MISSING
        }
    if isinstance(value, list):
        return [_without_absent(item) for item in value]
    # The library dies of what JSON cannot carry, and with it every call under way.
    return name(value) if isinstance(value, str) else value


_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
MAX_IMAGE_BYTES = 1024 * 1024


def image_type(data: bytes) -> str | None:
    """Its MIME type where it is a picture that a model may look at; `None`: it is none, or too large."""
    if len(data) > MAX_IMAGE_BYTES:
        return None
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES.items() if data.startswith(magic)), None)
