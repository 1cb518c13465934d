"""Whether an answer is one that the description of the API promises."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import httpx2
import jsonschema

from station.server.api.openapi import describe, template
from station.server.api.operations import OPERATIONS


@cache
def description() -> dict[str, Any]:
    return describe(OPERATIONS)


@cache
def _paths() -> list[tuple[re.Pattern[str], str]]:
    def pattern(path: str) -> str:
        return re.sub(r"{\w+:path}", ".+", re.sub(r"{\w+}", "[^/]+", path))

    return [(re.compile(pattern(path)), template(path)) for path in dict.fromkeys(each.path for each in OPERATIONS)]


@cache
def _validator(path: str, method: str, status: str, media: str) -> jsonschema.Draft202012Validator:
    schema = description()["paths"][path][method]["responses"][status]["content"][media]["schema"]
    return jsonschema.Draft202012Validator({**schema, "components": description()["components"]})


def fault(method: str, path: str, status: int, answer: httpx2.Response | None = None) -> str | None:
    """What the description does not promise of it, in words. Paths that it does not know are nobody's promise."""
    known = next((name for form, name in _paths() if form.fullmatch(path)), None)
    operation = description()["paths"].get(known, {}).get(method.lower().replace("head", "get"))
    if operation is None or known is None:
        return None
    promised = operation["responses"].get(str(status))
    where = f"{method} {known}: {status}"
    if promised is None:
        return f"{where} is not described"
    if answer is None or method == "HEAD" or "content" not in promised:
        return None
    media = answer.headers.get("content-type", "").partition(";")[0]
    if media not in promised["content"] and "*/*" not in promised["content"]:
        return f"{where}: {media} is not described"
    if media != "application/json" or media not in promised["content"]:
        return None
    errors = _validator(known, method.lower(), str(status), media).iter_errors(answer.json())
    return next((f"{where}: {error.message[:300]} at {error.json_path}" for error in errors), None)
