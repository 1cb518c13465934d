"""Requests under way of those who were let in: how many, whether their caller still may, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from station.core.errors import Busy, InvalidInput, LimitReached
from station.core.identity import unauthenticated
from station.core.principals import Principal
from station.server.errors import answer
from station.server.refusable import Refusable

MOST_OF_ONE = 64
"""Over TCP, of one deployment: the connections of the listener are everybody's."""
PIECE_SECONDS = 60.0
"""How long a body over TCP may stand still."""
LEAVE_SECONDS = 3.0

Still: TypeAlias = Callable[[], object]
"""Raises StationError where the caller would not be let in any more."""


class Visits:
    """Those of one station, by who makes them."""

    def __init__(
        self, *, most: int = MOST_OF_ONE, piece_seconds: float = PIECE_SECONDS, leave_seconds: float = LEAVE_SECONDS
    ) -> None:
        self.most = most
        self.piece_seconds = piece_seconds
        self.leave_seconds = leave_seconds
        self._guests: dict[str, _Guest] = {}

    def check_room(self, principal: Principal) -> None:
        """Raises LimitReached for a deployment with too many requests over TCP."""
        guest = self._guests.get(principal.tag)
        if principal.is_deployment and guest is not None and guest.over_tcp >= self.most:
            raise LimitReached(
                f"a deployment may have {self.most} requests over TCP under way at once; ask again when some of yours "
                "are answered",
                limit=self.most,
                current=guest.over_tcp,
            )

    @contextmanager
    def one(self, tag: str, bound: asyncio.Timeout, *, over_tcp: bool) -> Iterator[None]:
        """Within, a request is under way, which `bound` can end."""
        guest = self._guests.setdefault(tag, _Guest())
        guest.visits[bound] = over_tcp
        try:
            yield
        finally:
            del guest.visits[bound]
            if not guest.visits:
                del self._guests[tag]
                guest.gone.set()

    async def end(self, tag: str) -> None:
        """Nothing is under way of `tag`, whom nobody lets in any more: what does not end by itself within some seconds
        is cut off. Raises Busy where it does not end even so."""
        for cut in (False, True):
            guest = self._guests.get(tag)
            if guest is None:
                return
            if cut:
                guest.cut_off()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.leave_seconds):
                    await guest.gone.wait()
        if tag in self._guests:
            raise Busy("what it has asked for is still under way, and does not end; try it again in a while")


class _Guest:
    """Somebody with requests under way."""

    def __init__(self) -> None:
        self.visits: dict[asyncio.Timeout, bool] = {}
        """By what ends it, whether it came over TCP."""
        self.gone = asyncio.Event()

    @property
    def over_tcp(self) -> int:
        return sum(self.visits.values())

    def cut_off(self) -> None:
        now = asyncio.get_running_loop().time()
        for bound in self.visits:
            if not bound.expired():
                bound.reschedule(now)


class Visitor:
    """An app for one request: its caller is asked for with each piece of the body, so that who is no longer let in by
    its end has done nothing."""

    def __init__(
        self, app: ASGIApp, visits: Visits, tag: str, still: Still, *, over_tcp: bool, rpc: bool = False
    ) -> None:
        self._app = app
        self._visits = visits
        self._tag = tag
        self._still = still
        self._over_tcp = over_tcp
        self._rpc = rpc
        self._whole = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def pieces() -> Message:
            message = await self._piece(receive)
            if message["type"] == "http.request":
                self._still()
                self._whole = not message.get("more_body", False)
            return message

        request = Refusable(pieces, send)
        bound = asyncio.timeout(None)
        try:
            async with bound:
                with self._visits.one(self._tag, bound, over_tcp=self._over_tcp):
                    await self._app(scope, request.receive, request.send)
        except TimeoutError:
            if not bound.expired():
                raise
            request.refuse(unauthenticated())
        if (error := request.unanswered) is not None:
            await answer(error, rpc=self._rpc)(scope, receive, last(send))

    async def _piece(self, receive: Receive) -> Message:
        """Raises InvalidInput where none comes. After the whole there is only the end of the connection to wait for."""
        seconds = self._visits.piece_seconds if self._over_tcp and not self._whole else None
        bound = asyncio.timeout(seconds)
        try:
            async with bound:
                return await receive()
        except TimeoutError:
            if not bound.expired():
                raise
            raise InvalidInput(f"no more of the body came for {seconds:g} s; nothing was done", field="body") from None


def last(send: Send) -> Send:
    """The answer ends its connection."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return closing
