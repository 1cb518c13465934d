"""Who calls: decided here, for the API and for every face, before a handler sees the request.

On the unix socket everybody is the user of the station: its mode let nobody else in. On TCP the guard asks, in this
order: is it us that the request means (421), does no foreign page send it (403), does the caller show a token that
holds (401), may he do that (403), and not too often (429).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from station.core.access import ACTS_FOR
from station.core.errors import Misdirected, Refused, StationError
from station.core.identity import unauthenticated
from station.core.principals import LOCAL, NOBODY, Action, Principal, check_may
from station.core.wire import API
from station.server.errors import answer

from .visits import Visitor, Visits, last

PRINCIPAL = "principal"
"""In the state of a request: a Principal."""
HEALTH, READY = "/healthz", "/readyz"
"""Open to those without a token."""

_ASK = frozenset({HEALTH, READY})
_LOOK = frozenset({f"{API}/station", f"{API}/openapi.json"})
_TOOLS = frozenset({"/mcp", "/mcp/"})
_USE = frozenset({"sandboxes", "runs", "files", "uploads"})
_ACTS_FOR = ACTS_FOR.encode()

_LOOPBACK = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
_HOST = rb"(\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z._-]{1,253})(?::[0-9]{1,5})?"
_AUTHORITY = re.compile(_HOST)
_ORIGIN = re.compile(rb"https?://" + _HOST)
_BEARER = re.compile(rb"bearer +([\x21-\x7e]+)", re.IGNORECASE)

Headers = Iterable[tuple[bytes, bytes]]


class Access(Protocol):
    """What the guard asks."""

    def principal(self, token: bytes) -> Principal:
        """Raises Unauthenticated, and Refused for one who is known and not served."""

    def acting(self, deployment_id: str) -> Principal:
        """The deployment that somebody on the socket acts for. Raises NotFound and Refused."""

    def take(self, principal: Principal) -> None:
        """One more request over TCP. Raises LimitReached."""

    @property
    def visits(self) -> Visits:
        """The requests under way."""


def decide(headers: Headers, path: str, *, hosts: Collection[str], who: Callable[[bytes], Principal]) -> Principal:
    """The principal of a request on TCP, where we go by the names of loopback and by `hosts`, and `who` tells whose a
    token is.

    Raises Misdirected, Refused or Unauthenticated.
    """
    headers = list(headers)
    ours = _LOOPBACK | {host.lower().encode() for host in hosts}
    # A page can have its own name lead to 127.0.0.1 (DNS rebinding); it cannot choose the Host header.
    if not _all_of(_AUTHORITY, ours, found := _values(headers, b"host")) or not found:
        raise Misdirected(
            f"this station answers to one Host header with localhost, 127.0.0.1, [::1]{_or(hosts)}; a proxy in front "
            "must send one of these, or the setting `hosts` name what it sends"
        )
    if not _all_of(_ORIGIN, ours, _values(headers, b"origin")):
        raise Refused("pages of another origin may not call this station")
    try:
        principal = _known(headers, who)
    except StationError:
        if path in _ASK:
            return NOBODY
        raise
    check_may(principal, action_at(path))
    if _values(headers, _ACTS_FOR):
        raise Refused(f"the header {ACTS_FOR} is for who is on the unix socket: over TCP the token says who calls")
    return principal


def _known(headers: Headers, who: Callable[[bytes], Principal]) -> Principal:
    shown = _values(headers, b"authorization")
    bearer = _BEARER.fullmatch(shown[0]) if len(shown) == 1 else None
    if bearer is None:
        raise unauthenticated()
    return who(bearer[1])


def caller(request: HTTPConnection) -> Principal:
    """Who was let in."""
    principal: Principal = request.scope["state"][PRINCIPAL]
    return principal


def action_at(path: str) -> Action:
    """What is done at a path; what is not named here is the operator's."""
    if path in _ASK:
        return Action.ASK
    if path in _LOOK:
        return Action.LOOK
    if path in _TOOLS:
        return Action.TOOLS
    below = path.removeprefix(f"{API}/") if path.startswith(f"{API}/") else ""
    return Action.USE if below.partition("/")[0] in _USE else Action.OPERATE


def _or(hosts: Collection[str]) -> str:
    return "".join(f" or {host}" for host in sorted(hosts))


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def _all_of(form: re.Pattern[bytes], hosts: frozenset[bytes], values: list[bytes]) -> bool:
    """At most one value, and it names one of ours."""
    found = [form.fullmatch(value) for value in values]
    return len(found) <= 1 and all(match is not None and match[1].lower() in hosts for match in found)


class Guard:
    """Around the app of the TCP listener. Of a request that it refuses no body is read, and who shows no token gets one
    answer a connection: strangers keep none. Whether the token holds is asked again with each piece of the body."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        access: Access,
        speaks_rpc: Callable[[str], bool] = lambda _path: False,
    ) -> None:
        """`speaks_rpc`: whether what answers at that path speaks JSON-RPC: its clients are refused in it."""
        self._app = app
        self._hosts = frozenset(hosts)
        self._access = access
        self._speaks_rpc = speaks_rpc

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _only_http(scope)
        try:
            principal = decide(scope["headers"], scope["path"], hosts=self._hosts, who=self._access.principal)
            if scope["path"] not in _ASK:
                self._access.take(principal)
            self._access.visits.check_room(principal)
        except StationError as error:
            await answer(error, rpc=self._speaks_rpc(scope["path"]))(scope, receive, last(send))
            return
        scope.setdefault("state", {})[PRINCIPAL] = principal

        def still() -> None:
            if principal is not NOBODY:
                _known(scope["headers"], self._access.principal)

        visitor = Visitor(
            self._app,
            self._access.visits,
            principal.tag,
            still,
            over_tcp=True,
            rpc=self._speaks_rpc(scope["path"]),
        )
        await visitor(scope, receive, last(send) if principal is NOBODY else send)


def local(app: ASGIApp, access: Access) -> ASGIApp:
    """Around the app of the unix socket. Who is there owns all that a deployment has, and may act for one: so a face
    does for its callers."""

    async def known(scope: Scope, receive: Receive, send: Send) -> None:
        _only_http(scope)
        try:
            principal = _there(scope, access)
        except StationError as error:
            await answer(error)(scope, receive, send)
            return
        scope.setdefault("state", {})[PRINCIPAL] = principal
        if principal is LOCAL:
            await app(scope, receive, send)
        else:
            visitor = Visitor(app, access.visits, principal.tag, lambda: _there(scope, access), over_tcp=False)
            await visitor(scope, receive, send)

    return known


def _there(scope: Scope, access: Access) -> Principal:
    named = _values(scope["headers"], _ACTS_FOR)
    if not named:
        return LOCAL
    # Two are none: which one was meant must not be a question of their order.
    principal = access.acting(b",".join(named).decode("latin-1"))
    check_may(principal, action_at(scope["path"]))
    return principal


def _only_http(scope: Scope) -> None:
    # The server is set up to make nothing else; what is added one day must not come past this unseen.
    if scope["type"] != "http":
        raise RuntimeError(f"{scope['type']} is not guarded here")
