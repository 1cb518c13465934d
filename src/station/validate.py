"""Untrusted data to the dataclasses of `core`, and every failure of that as one `InvalidInput` that helps."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError

from station.core import codec
from station.core.errors import InvalidInput
from station.core.suggest import suggestion

T = TypeVar("T")

_MOST_NAMED = 10
# Which side of a union was tried stands in a place too, and is nothing that anybody wrote.
_KIND = re.compile(r"(str|int|float|bool|list\[.+\]|dict\[.+\])")

_adapters: dict[type, TypeAdapter[Any]] = {}


def adapter(cls: type[T]) -> TypeAdapter[T]:
    """Made once for each class, at its first use."""
    found = _adapters.get(cls)
    if found is None:
        found = _adapters[cls] = TypeAdapter(cls)
    return found


def from_json(cls: type[T], raw: bytes, *, strict: bool | None = None) -> T:
    """Raises InvalidInput that names the first thing amiss; all of them are in `detail.errors`. `strict`: a value of
    another type is never turned into the right one."""
    try:
        return adapter(cls).validate_json(raw, strict=strict)
    except ValidationError as error:
        raise _explained(cls, error, "") from None


def from_plain(cls: type[T], data: Any, *, where: str) -> T:
    """As `from_json`, for data that was read already; `where` begins the sentence (`station.yaml: `)."""
    try:
        return adapter(cls).validate_python(data)
    except ValidationError as error:
        raise _explained(cls, error, where) from None
    except InvalidInput as error:
        raise InvalidInput(where + error.message, **error.detail) from None


def to_json(value: Any) -> bytes:
    """A dataclass as JSON. Text that is no Unicode (names with surrogate escapes) takes the slow way and is escaped."""
    try:
        return adapter(type(value)).dump_json(value)
    except PydanticSerializationError:
        return json.dumps(codec.to_plain(value)).encode()


def _explained(cls: type, error: ValidationError, where: str) -> InvalidInput:
    found = [_one(cls, item) for item in error.errors(include_url=False, include_context=False, include_input=False)]
    # An unknown name explains the missing one beside it.
    found.sort(key=lambda item: not item[1].startswith("unknown field"))
    field, sentence = found[0]
    errors = [{"field": name, "message": text} for name, text in found[:_MOST_NAMED]]
    return InvalidInput(where + sentence, field=field, errors=errors)


def _one(cls: type, item: ErrorDetails) -> tuple[str, str]:
    parts = [str(part) for part in item["loc"] if not _KIND.fullmatch(str(part))]
    if item["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        place = ".".join(parts[:-1])
        known = _names(cls, parts[:-1])
        field = ".".join(parts)
        return field, f"unknown field {parts[-1]!r}{f' in {place}' if place else ''}{suggestion(parts[-1], known)}"
    if item["type"] == "json_invalid":
        return "", f"the body is not valid JSON: {item['msg'].removeprefix('Invalid JSON: ')}"
    field = ".".join(parts)
    message = item["msg"][:1].lower() + item["msg"][1:]
    return field, f"{field}: {message}" if field else f"the body: {message}"


def _names(kind: Any, parts: list[str]) -> list[str]:
    """The fields that there are at a place below `kind`."""
    for part in parts:
        kind = _bare(kind)
        if dataclasses.is_dataclass(kind):
            kind = typing.get_type_hints(kind).get(part)
        elif typing.get_origin(kind) in (dict, list):
            kind = typing.get_args(kind)[-1]
    kind = _bare(kind)
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def _bare(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next((arg for arg in typing.get_args(kind) if arg is not type(None)), None)
    return kind
