"""A message of a stream, however it was asked for."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nats.aio.msg import Msg


@dataclass(frozen=True)
class Message:
    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def from_api(message: Mapping[str, Any]) -> Message:
    """Of an answer of the API, which has everything in base64."""
    return Message(
        message["subject"],
        message["seq"],
        base64.b64decode(message.get("data") or ""),
        _headers(base64.b64decode(message.get("hdrs") or "")),
    )


def from_direct(answer: Msg) -> Message | None:
    """Of an answer of a stream itself; `None`: it has no such message."""
    told = answer.headers or {}
    if "Nats-Sequence" not in told:
        return None
    return Message(told["Nats-Subject"], int(told["Nats-Sequence"]), answer.data, told)


def _headers(raw: bytes) -> dict[str, str]:
    """After a first line, which is the version."""
    lines = raw.decode("utf-8", "replace").split("\r\n")[1:]
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
