"""Untrusted data to the dataclasses of `core`, and every failure of that as one `InvalidInput` that helps."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from itertools import chain, islice
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError

from station.core import codec
from station.core.errors import InvalidInput
from station.core.suggest import suggestion

T = TypeVar("T")

_MOST_NAMED = 10
_MOST_COUNTED = 10_000
"""Errors that are looked at. Whoever sends more means harm, and each costs the event loop microseconds."""
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_PLAINLY = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dataclass_type": "must be an object, that is a section with keys of its own",
}
"""Where the library speaks of itself."""
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
    if error.error_count() > _MOST_COUNTED:
        sentence = f"{error.error_count()} fields or values are not what they must be, too many to name them"
        return InvalidInput(where + sentence, field="", errors=[])
    items = error.errors(include_url=False, include_context=False, include_input=False)
    # An unknown name explains the missing one beside it.
    unknown = (item for item in items if item["type"] in _UNKNOWN)
    others = (item for item in items if item["type"] not in _UNKNOWN)
    first = list(islice(chain(unknown, others), _MOST_NAMED))
    # To find what somebody may have meant is the dearest part of it, and once is enough to help.
    found = [_one(cls, item, suggest=item is first[0]) for item in first]
    field, sentence = found[0]
    errors = [{"field": name, "message": text} for name, text in found]
    return InvalidInput(where + sentence, field=field, errors=errors)


def _one(cls: type, item: ErrorDetails, *, suggest: bool) -> tuple[str, str]:
    parts = [str(part) for part in item["loc"] if not _KIND.fullmatch(str(part))]
    if item["type"] in _UNKNOWN:
        place = ".".join(parts[:-1])
        meant = suggestion(parts[-1], _names(cls, parts[:-1])) if suggest else ""
        return ".".join(parts), f"unknown field {parts[-1]!r}{f' in {place}' if place else ''}{meant}"
    if item["type"] == "json_invalid":
        return "", f"the body is not valid JSON: {item['msg'].removeprefix('Invalid JSON: ')}"
    field = ".".join(parts)
    message = _PLAINLY.get(item["type"]) or item["msg"][:1].lower() + item["msg"][1:]
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
