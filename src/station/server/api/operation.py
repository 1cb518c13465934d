"""What an operation of the API is: said once, for the router, the description of the API, and whoever counts calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from station.core.errors import (
    BackendUnavailable,
    BoxLost,
    Busy,
    CannotEnforce,
    Conflict,
    InternalError,
    InvalidInput,
    LimitReached,
    Misdirected,
    Refused,
    SandboxFailed,
    SandboxNotFound,
    StationError,
    StorageFull,
    TooLarge,
    Unauthenticated,
    Unavailable,
)

from .query import Parameter, Query

if TYPE_CHECKING:
    from station.server.station import Station

Errors: TypeAlias = tuple[type[StationError], ...]

ALWAYS: Errors = (
    InvalidInput, TooLarge, Unauthenticated, Refused, Misdirected, LimitReached, InternalError, Unavailable
)  # fmt: skip
"""What any operation may answer with."""

BOX: Errors = (BackendUnavailable, BoxLost, Busy, CannotEnforce, Conflict, SandboxFailed, StorageFull)
"""Where a box is needed: it may have to be made first."""
LIVE: Errors = (SandboxNotFound, *BOX)


@dataclass(frozen=True)
class Many:
    """An object with one list in it."""

    key: str
    of: type


@dataclass(frozen=True)
class Facts:
    """An object of a few plain values by name."""

    values: Mapping[str, type]


@dataclass(frozen=True)
class Raw:
    """Bytes: a body, or an answer with these headers."""

    media: str
    summary: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lines:
    """One JSON value a line."""

    of: type


Shape: TypeAlias = type | Many | Facts | Raw | Lines | None
"""A dataclass of the wire, or one of the above. `None`: no body."""


@dataclass(frozen=True)
class Link:
    """A value of the answer that is a parameter in the path of other operations, by their ids."""

    parameter: str
    value: str
    """A runtime expression of OpenAPI: `$response.body#/id`."""
    to: tuple[str, ...]


class Again(StrEnum):
    """What a request gets that comes again under its Idempotency-Key."""

    ANSWER = "answer"
    """The first answer, which is kept."""
    JOINS = "joins"
    """What has become of the process that the key has named: nothing is kept but that."""
    NOTHING = "nothing"
    """409: the answer holds a secret, which is told once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """One method at one path."""

    id: str
    method: str
    path: str
    """A template: `{sid}` is one segment, `{key:path}` may be several."""
    handler: Handler
    summary: str
    query: tuple[Parameter[Any], ...] = ()
    body: Shape = None
    answers: Mapping[int, Shape]
    errors: Errors = ()
    """Beside those of ALWAYS."""
    links: tuple[Link, ...] = ()
    again: Again = Again.ANSWER
    to_all: bool = False
    """Whether it is answered to those without a token too."""

    @cached_property
    def takes_key(self) -> bool:
        """Whether an Idempotency-Key has a meaning here. All else but bodies that stream may be repeated as it is."""
        return self.method == "POST" and not isinstance(self.body, Raw)

    @cached_property
    def known(self) -> Mapping[str, Parameter[Any]]:
        return {parameter.name: parameter for parameter in self.query}


class Call(Request):
    """A request for an operation."""

    def __init__(self, operation: Operation, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises InvalidInput for a query that the operation does not know."""
        super().__init__(scope, receive, send)
        self.operation = operation
        self.query = Query(scope["query_string"], operation.known)


Handler: TypeAlias = "Callable[[Station, Call], Awaitable[Response]]"


def facts(**values: type) -> Facts:
    return Facts(values)
