"""The tools over streamable HTTP, as an app for the station. Nothing is kept in an MCP session: whose sandboxes a call
may reach is decided by who calls (and the `?sandbox=` of the address), so any station answers any request.

Older clients expect an `Mcp-Session-Id`. It is given, any is accepted, and it only tells which of the calls under way a
cancellation means.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from station.client._async.client import AsyncClient
from station.core.errors import InvalidInput
from station.core.principals import Principal

from .caller import Caller
from .scope import Scope
from .server import Context, build

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Of one request: a file of 16 MiB as base64, and room."""
ANSWER_BYTES = 1_000_000
"""Of one answer: httpx2, which the Python clients are built on, takes no larger event than 1 MiB."""
_SESSION = "mcp-session-id"
_CALLERS = 64
_CLIENTS = 32


@asynccontextmanager
async def app(home: Path) -> AsyncIterator[ASGIApp]:
    """The app of one station, over its unix socket. Left, it ends the calls under way."""
    # At info it tells of every request, as a session that begins and ends.
    logging.getLogger("mcp").setLevel(logging.WARNING)
    # Started by nobody but its owner: a late call while this one ends must not begin another.
    async with aclosing(Callers(lambda acts_for: AsyncClient(home, start=False, acts_for=acts_for))) as callers:
        cancellable = Cancellable()
        server = build(callers.of)
        server.middleware.append(cancellable)
        server.add_notification_handler(
            "notifications/cancelled", types.CancelledNotificationParams, cancellable.cancel
        )
        manager = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=MAX_BODY_BYTES)
        async with manager.run():
            yield _face(manager.handle_request, callers)


class Callers:
    """Who calls, told from the request. Ended by `aclose`."""

    def __init__(self, connect: Callable[[str | None], AsyncClient], *, most: int = _CLIENTS) -> None:
        """`connect`: a client that acts for a deployment, or for the operator (`None`). `most`: how many of them are
        kept beside those that are just used."""
        self._connect = connect
        self._most = most
        self._clients: dict[str | None, AsyncClient] = {}
        """The last one that was used is the last here."""
        self._calls: Counter[str | None] = Counter()
        """Under way."""
        self._known: dict[tuple[str | None, Scope], Caller] = {}

    async def aclose(self) -> None:
        """Repeating is no error."""
        self._known.clear()
        while self._clients:
            await self._clients.popitem()[1].close()

    @asynccontextmanager
    async def calling(self, scope: AsgiScope) -> AsyncIterator[None]:
        """Within, what `of` tells of that request stays good."""
        deployment = _deployment(scope)
        self._calls[deployment] += 1
        try:
            yield
        finally:
            self._calls[deployment] -= 1
            if not self._calls[deployment]:
                del self._calls[deployment]
            await self._close_idle()

    async def _close_idle(self) -> None:
        while len(idle := [deployment for deployment in self._clients if deployment not in self._calls]) > self._most:
            self._known = {key: caller for key, caller in self._known.items() if key[0] != idle[0]}
            await self._clients.pop(idle[0]).close()

    def of(self, context: Context) -> Caller:
        """Raises InvalidInput for a name in the address that no sandbox can have."""
        request = context.request
        assert request is not None, "every call over HTTP has its request"
        deployment = _deployment(request.scope)
        key = deployment, Scope.of_principal(_principal(request.scope).tag, _sandbox_of(request.scope))
        caller = self._known.get(key)
        client = self._client(deployment)
        if caller is None:
            while len(self._known) >= _CALLERS:
                del self._known[next(iter(self._known))]
            caller = self._known[key] = Caller(client, key[1], answer_bytes=ANSWER_BYTES)
        return caller

    def _client(self, deployment: str | None) -> AsyncClient:
        client = self._clients.pop(deployment) if deployment in self._clients else self._connect(deployment)
        self._clients[deployment] = client
        return client


def _principal(scope: AsgiScope) -> Principal:
    principal: Principal = scope["state"]["principal"]
    return principal


def _deployment(scope: AsgiScope) -> str | None:
    principal = _principal(scope)
    return principal.owner.deployment if principal.is_deployment else None


class Cancellable:
    """The calls under way of clients that cancel by a message: middleware that notes them, and the handler of it."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str, types.RequestId], anyio.CancelScope] = {}

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        key = _key(ctx, ctx.request_id)
        if ctx.method != "tools/call" or key is None:
            return await call_next(ctx)
        with anyio.CancelScope() as scope:
            self._calls[key] = scope
            try:
                return await call_next(ctx)
            finally:
                if self._calls.get(key) is scope:
                    del self._calls[key]
        return types.CallToolResult(content=[types.TextContent(text="cancelled")], is_error=True)

    async def cancel(self, context: Context, params: types.CancelledNotificationParams) -> None:
        """Only a call of the same principal and session id can be meant."""
        key = _key(context, params.request_id)
        if key is not None and key in self._calls:
            self._calls[key].cancel()


def _key(context: Context, request_id: types.RequestId | None) -> tuple[str, str, types.RequestId] | None:
    request = context.request
    if request is None or request_id is None:
        return None
    session = request.headers.get(_SESSION)
    return None if session is None else (_principal(request.scope).tag, session, request_id)


def _sandbox_of(scope: AsgiScope) -> str | None:
    try:
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput("a name in the address of the tools is no UTF-8", field="sandbox") from None
    unknown = sorted(set(query) - {"sandbox"})
    if unknown:
        raise InvalidInput(
            f"the address of the tools knows ?sandbox=NAME, not {unknown[0][:80]!r}", field=unknown[0][:80]
        )
    names = query.get("sandbox", [])
    if len(names) > 1:
        raise InvalidInput("the address of the tools names two sandboxes", field="sandbox")
    return names[0] if names else None


def _face(inner: ASGIApp, callers: Callers) -> ASGIApp:
    async def face(scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            # There is no stream of its own and nothing to end: the revision without sessions asks for this answer too.
            body = {"jsonrpc": "2.0", "id": None, "error": {"code": types.INVALID_REQUEST, "message": "only POST"}}
            await JSONResponse(body, 405, headers={"allow": "POST"})(scope, receive, send)
            return
        named = any(name == _SESSION.encode() for name, _ in scope["headers"])

        async def with_session(message: Message) -> None:
            if message["type"] == "http.response.start" and not named:
                MutableHeaders(scope=message)[_SESSION] = secrets.token_hex(16)
            await send(message)

        async with callers.calling(scope):
            await inner(scope, receive, with_session)

    return face
