"""A request that may be refused while its body comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Message, Send

from station.core.errors import StationError


class Refusable:
    """For its app it is one of a client that went away within its body, which never looks whole; and what the app says
    to a body that was cut is no answer. Whoever made it answers then."""

    def __init__(self, pieces: Callable[[], Awaitable[Message]], send: Send) -> None:
        """`pieces` is asked for each message of the request, and raises StationError to refuse it."""
        self._pieces = pieces
        self._send = send
        self._begun = False
        self._refused: StationError | None = None

    def refuse(self, error: StationError) -> None:
        self._refused = error

    @property
    def unanswered(self) -> StationError | None:
        """What it is to be answered with; `None`: it was not refused, or the app had begun to answer."""
        return None if self._begun else self._refused

    async def receive(self) -> Message:
        if self._refused is None:
            try:
                return await self._pieces()
            except StationError as error:
                self._refused = error
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.unanswered is None:
            self._begun = True
            await self._send(message)
