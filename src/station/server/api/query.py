"""The parameters of a request's query: declared once, for whoever reads them and for the description of the API.

Values may be any bytes: what is no UTF-8 becomes surrogate escapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast
from urllib.parse import unquote_to_bytes

from station.core.errors import InvalidInput, TooLarge
from station.core.suggest import suggestion

T = TypeVar("T")

MAX_QUERY_BYTES = 32 * 1024
_YES, _NO = ("true", "1", "yes"), ("false", "0", "no", "")
_REQUIRED: Any = object()


@dataclass(frozen=True, eq=False)
class Parameter(Generic[T]):
    """One name, what its value means, and what holds where it is missing or empty."""

    name: str
    summary: str
    schema: Mapping[str, Any]
    read: Callable[[str, str], T]
    """From the name and a value that is not empty. Raises InvalidInput."""
    default: T

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED


class Query:
    """The parameters of one request. A name that is not `known` is refused, one given twice too."""

    def __init__(self, raw: bytes, known: Mapping[str, Parameter[Any]]) -> None:
        self._known = known
        self._values: dict[str, str] = {}
        if raw:
            self._parse(raw)

    def _parse(self, raw: bytes) -> None:
        if len(raw) > MAX_QUERY_BYTES:
            raise TooLarge(f"a query has at most {MAX_QUERY_BYTES} bytes", field="query")
        for pair in filter(None, raw.split(b"&")):
            name, _, value = pair.partition(b"=")
            key = _decoded(name)
            if key not in self._known:
                raise InvalidInput(f"unknown parameter {key!r}{suggestion(key, self._known)}", field=key)
            if key in self._values:
                raise InvalidInput(f"the parameter {key} is given twice", field=key)
            self._values[key] = _decoded(value)

    def __getitem__(self, parameter: Parameter[T]) -> T:
        """Raises InvalidInput for a value that makes no sense, and where a required one is missing or empty."""
        assert self._known.get(parameter.name) is parameter, f"{parameter.name} is not declared by this operation"
        if value := self._values.get(parameter.name):
            return parameter.read(parameter.name, value)
        if parameter.required:
            raise InvalidInput(f"the parameter {parameter.name} is missing", field=parameter.name)
        return parameter.default


def needed(name: str, summary: str) -> Parameter[str]:
    return Parameter(name, summary, {"type": "string", "minLength": 1}, _text, cast("str", _REQUIRED))


def text(name: str, summary: str) -> Parameter[str | None]:
    return Parameter(name, summary, {"type": "string"}, _text, None)


def flag(name: str, summary: str, *, default: bool = False) -> Parameter[bool]:
    return Parameter(name, summary, {"type": "boolean", "default": default}, _flag, default)


def whole(name: str, summary: str, *, default: int = 0, least: int = 0, most: int = 1 << 62) -> Parameter[int]:
    return Parameter(name, summary, _whole_schema(least, most) | {"default": default}, _whole(least, most), default)


def whole_or_none(name: str, summary: str) -> Parameter[int | None]:
    return Parameter(name, summary, _whole_schema(0, 1 << 62), _whole(0, 1 << 62), None)


def seconds(name: str, summary: str, *, most: float) -> Parameter[float]:
    schema = {"type": "number", "minimum": 0, "maximum": most, "default": 0}
    return Parameter(name, summary, schema, _seconds(most), 0.0)


def mode(name: str, summary: str, *, default: int) -> Parameter[int]:
    """Permission bits in octal; the special bits are not among them."""
    schema = {"type": "string", "pattern": "^0?[0-7]{1,3}$", "default": f"{default:o}"}
    return Parameter(name, summary, schema, _mode, default)


def word(name: str, summary: str, only: str) -> Parameter[bool]:
    """Whether that one word is given."""
    return Parameter(name, summary, {"type": "string", "enum": [only]}, _word(only), False)


def _text(_name: str, value: str) -> str:
    return value


def _flag(name: str, value: str) -> bool:
    if value.lower() not in _YES + _NO:
        raise InvalidInput(f"{name} is true or false, not {value!r}", field=name)
    return value.lower() in _YES


def _whole_schema(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _whole(least: int, most: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        if not (value.isascii() and value.isdigit() and len(value) < 20 and least <= int(value) <= most):
            raise InvalidInput(f"{name} is a whole number from {least} to {most}, not {value[:40]!r}", field=name)
        return int(value)

    return read


def _seconds(most: float) -> Callable[[str, str], float]:
    def read(name: str, value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number <= most:
            raise InvalidInput(f"{name} is a number of seconds from 0 to {most:g}, not {value[:40]!r}", field=name)
        return number

    return read


def _mode(name: str, value: str) -> int:
    if not (1 <= len(value) <= 4 and all(digit in "01234567" for digit in value) and int(value, 8) <= 0o777):
        raise InvalidInput(f"{name} is octal permission bits from 0 to 777, not {value[:40]!r}", field=name)
    return int(value, 8)


def _word(only: str) -> Callable[[str, str], bool]:
    def read(name: str, value: str) -> bool:
        if value != only:
            raise InvalidInput(f"{name} is {only!r} or left out, not {value!r}", field=name)
        return True

    return read


def _decoded(raw: bytes) -> str:
    return unquote_to_bytes(raw.replace(b"+", b" ")).decode("utf-8", "surrogateescape")
