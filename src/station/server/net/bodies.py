"""Large bodies: how much of them is under way at once over TCP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from station.core.errors import LimitReached
from station.core.principals import Principal
from station.core.wire import API
from station.server.errors import answer
from station.server.refusable import Refusable
from station.server.requests import LARGE_BODY

MAX_BYTES = 128 * 1024 * 1024
"""A body that is taken whole costs several times its size while it is worked on."""
FREE_BYTES = 64 * 1024
"""Of each body, uncounted: large ones that take their time must not keep out a call that cancels them."""


class Bodies:
    """Around the app of the TCP listener, within its guard. A body that would go over the bound is refused: before it
    is read where its length is announced, else when that much has come. Each counts until its request is answered.
    Those of one deployment may have half of it."""

    def __init__(
        self, app: ASGIApp, *, most: int = MAX_BYTES, speaks_rpc: Callable[[str], bool] = lambda _path: False
    ) -> None:
        self._app = app
        self._most = most
        self._speaks_rpc = speaks_rpc
        self._of: Counter[str] = Counter()
        """By deployment."""
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_taken_whole(scope):
            await self._app(scope, receive, send)
            return
        principal: Principal | None = scope.get("state", {}).get("principal")  # as the guard has left it
        share = _Share(self, principal.tag if principal is not None and principal.is_deployment else None, receive)
        request = Refusable(share.receive, send)
        try:
            try:
                share.take(_announced(scope))
            except LimitReached as error:
                request.refuse(error)
            else:
                await self._app(scope, request.receive, request.send)
            if (full := request.unanswered) is not None:
                await answer(full, rpc=self._speaks_rpc(scope["path"]))(scope, receive, send)
        finally:
            self._give_back(share.size, share.deployment)

    def take(self, size: int, deployment: str | None) -> None:
        """Raises LimitReached."""
        most = self._most if deployment is None else self._most // 2
        of_it = 0 if deployment is None else self._of[deployment]
        if self.under_way + size > self._most or of_it + size > most:
            raise LimitReached(
                f"the bodies of requests over TCP may have {self._most >> 20} MiB in all at once, those of one "
                "deployment half of it; ask again when others are answered",
                limit=most,
            )
        if deployment is not None:
            self._of[deployment] += size
        self.under_way += size

    def _give_back(self, size: int, deployment: str | None) -> None:
        self.under_way -= size
        if deployment is not None:
            self._of[deployment] -= size
            if not self._of[deployment]:
                del self._of[deployment]


class _Share:
    """What one request has of the bound."""

    def __init__(self, bodies: Bodies, deployment: str | None, receive: Receive) -> None:
        self._bodies = bodies
        self.deployment = deployment
        self._receive = receive
        self._arrived = 0
        self.size = 0

    def take(self, body: int) -> None:
        """Raises LimitReached."""
        # More than the largest body that anything takes is refused for that, not here.
        more = min(body, LARGE_BODY) - FREE_BYTES - self.size
        if more > 0:
            self._bodies.take(more, self.deployment)
            self.size += more

    async def receive(self) -> Message:
        message = await self._receive()
        self._arrived += len(message.get("body", b""))
        self.take(self._arrived)
        return message


def _is_taken_whole(scope: Scope) -> bool:
    """Of the bodies that are read, those of files (PUT, and a form) and of standard input stream; a piece of an upload
    is in memory until its digest is known."""
    path: str = scope["path"]
    if scope["method"] == "PUT":
        return path.startswith(f"{API}/uploads/")
    return scope["method"] == "POST" and not path.endswith("/stdin") and path != f"{API}/files"


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value.lstrip(b"0")[:20] or b"0")
    return 0
