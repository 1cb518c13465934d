"""Who calls: decided here, for the API and for every face, before a handler sees the request.

On the unix socket everybody is the user of the station: its mode let nobody else in. On TCP the guard asks, in this
order: is it us that the request means (421), does no foreign page send it (403), does the caller know the token (401).
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from station.core.errors import Misdirected, Refused, StationError, Unauthenticated

from .errors import answer

PRINCIPAL = "principal"
"""In the state of a request: LOCAL, OPERATOR or NOBODY."""
LOCAL, OPERATOR, NOBODY = "local", "operator", "nobody"
HEALTH = "/healthz"
"""Open to those without a token."""

_LOOPBACK = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
_HOST = rb"(\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z._-]{1,253})(?::[0-9]{1,5})?"
_AUTHORITY = re.compile(_HOST)
_ORIGIN = re.compile(rb"https?://" + _HOST)
_BEARER = re.compile(rb"bearer +([\x21-\x7e]+)", re.IGNORECASE)

Headers = Iterable[tuple[bytes, bytes]]


def decide(headers: Headers, path: str, *, host: str, token: bytes) -> str:
    """The principal of a request on TCP, where `host` is listened on.

    Raises Misdirected, Refused or Unauthenticated.
    """
    headers = list(headers)
    hosts = _LOOPBACK | {host.lower().encode()}
    # A page can have its own name lead to 127.0.0.1 (DNS rebinding); it cannot choose the Host header.
    if not _all_of(_AUTHORITY, hosts, found := _values(headers, b"host")) or not found:
        raise Misdirected(
            f"this station answers to one Host header with localhost, 127.0.0.1, [::1] or {host}; a proxy in front "
            "must send one of these"
        )
    if not _all_of(_ORIGIN, hosts, _values(headers, b"origin")):
        raise Refused("pages of another origin may not call this station")
    if path == HEALTH:
        return NOBODY
    shown = _values(headers, b"authorization")
    bearer = _BEARER.fullmatch(shown[0]) if len(shown) == 1 else None
    if bearer is None or not hmac.compare_digest(bearer[1], token):
        raise Unauthenticated(
            "the token is missing or not this station's: send one header `Authorization: Bearer TOKEN`, with the token "
            "in operator.token of its state directory"
        )
    return OPERATOR


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def _all_of(form: re.Pattern[bytes], hosts: frozenset[bytes], values: list[bytes]) -> bool:
    """At most one value, and it names one of ours."""
    found = [form.fullmatch(value) for value in values]
    return len(found) <= 1 and all(match is not None and match[1].lower() in hosts for match in found)


class Guard:
    """Around the app of the TCP listener. Of a request that it refuses no body is read, and who shows no token gets one
    answer a connection: strangers keep none."""

    def __init__(
        self, app: ASGIApp, *, host: str, token: bytes, speaks_rpc: Callable[[str], bool] = lambda _path: False
    ) -> None:
        """`speaks_rpc`: whether what answers at that path speaks JSON-RPC: its clients are refused in it."""
        self._app = app
        self._host = host
        self._token = token
        self._speaks_rpc = speaks_rpc

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _only_http(scope)
        try:
            principal = decide(scope["headers"], scope["path"], host=self._host, token=self._token)
        except StationError as error:
            await answer(error, rpc=self._speaks_rpc(scope["path"]))(scope, receive, _last(send))
            return
        scope.setdefault("state", {})[PRINCIPAL] = principal
        await self._app(scope, receive, _last(send) if principal == NOBODY else send)


def _last(send: Send) -> Send:
    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return closing


def local(app: ASGIApp) -> ASGIApp:
    """Around the app of the unix socket."""

    async def known(scope: Scope, receive: Receive, send: Send) -> None:
        _only_http(scope)
        scope.setdefault("state", {})[PRINCIPAL] = LOCAL
        await app(scope, receive, send)

    return known


def _only_http(scope: Scope) -> None:
    # The server is set up to make nothing else; what is added one day must not come past this unseen.
    if scope["type"] != "http":
        raise RuntimeError(f"{scope['type']} is not guarded here")
