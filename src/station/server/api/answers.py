"""Answers, encoded the short way."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from station.validate import to_json

JSON = "application/json"


def one(value: Any, status: int = 200) -> Response:
    """A dataclass of the wire."""
    return Response(to_json(value), status, media_type=JSON)


def many(key: str, values: list[Any]) -> Response:
    """A list of them, under a key."""
    listed = b"[" + b",".join(to_json(value) for value in values) + b"]"
    return Response(b'{"%s":%s}' % (key.encode(), listed), media_type=JSON)


def facts(http_status: int = 200, **values: Any) -> Response:
    """A few plain values by name."""
    return Response(json.dumps(values).encode(), http_status, media_type=JSON)


def nothing() -> Response:
    return Response(status_code=204)
