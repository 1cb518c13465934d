"""Frozen dataclasses to plain JSON data and back, for records and answers.

The way back trusts its source (our own store, our own station): it ignores unknown keys and checks shapes only as far
as the constructors do. Untrusted input is validated by pydantic at the server's edge, on the same classes.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import Enum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Dataclasses, enums, tuples and mappings as dicts, strings and lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(cls: type[T], data: Any) -> T:
    """The `cls` that `to_plain` made `data` from. Raises TypeError, ValueError or KeyError for other data."""
    return typing.cast(T, _build(cls, data))


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _build(kind: Any, data: Any) -> Any:
    if data is None or kind is Any:
        return data
    origin = typing.get_origin(kind)
    args = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _build(next(a for a in args if a is not type(None)), data) if _one_sided(args) else data
    if origin is dict:
        return {key: _build(args[1], item) for key, item in data.items()}
    if origin is list:
        return [_build(args[0], item) for item in data]
    if origin is tuple:
        return tuple(_build(args[0], item) for item in data)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: _build(hints[name], item) for name, item in data.items() if name in hints})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    return data


def _one_sided(args: tuple[Any, ...]) -> bool:
    """Whether a union is `X | None`; other unions hold plain values, which need no building."""
    return len([a for a in args if a is not type(None)]) == 1
