"""What the newest messages of a stream say, kept up with.

Neither keys() nor a watch of the client is used: each can be empty for a moment, without an error, on servers that are
well, and who believes an empty list deletes what is there. A stream tells its last sequence, so it is known when all
has been read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from station.core.errors import Unavailable

from .connection import ANSWER_SECONDS, NatsConnection
from .messages import Message


@asynccontextmanager
async def in_turn(lock: asyncio.Lock) -> AsyncIterator[None]:
    """Raises Unavailable where the others wait for servers that do not answer, and so would this one."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await lock.acquire()
    except TimeoutError:
        raise Unavailable("NATS is too slow for all that is asked of it just now; nothing was changed") from None
    try:
        yield
    finally:
        lock.release()


class Followed:
    """The messages below one pattern, told in their order, each once and as of its leader."""

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        pattern: str,
        *,
        take: Callable[[Message], None],
        forget: Callable[[], None],
    ) -> None:
        """`take` gets what is new; before all is told anew, `forget` is called. A pattern that all subjects of the
        stream match is checked by their number too."""
        self._connection = connection
        self._stream, self._pattern = stream, pattern
        self._take, self._forget = take, forget
        self._is_whole = stream.startswith("KV_")
        self._turn = asyncio.Lock()
        self._seen = 0
        self._subjects: set[str] = set()
        self._created = ""

    async def refresh(self) -> None:
        """Until all that was written before the call is told. Raises what asking does."""
        seen = self._seen
        # Not in turn: where nobody answers, all who ask are told at once.
        info = await self._connection.stream(self._stream)
        if info is None:
            raise self._connection.gone(self._stream)
        state: dict[str, Any] = info["state"]
        async with in_turn(self._turn):
            if info["created"] != self._created or state["last_seq"] < seen:
                self.again()
                self._created = info["created"]
            if self._seen < state["last_seq"]:
                await self._read(state)
            if self._lacks(state):
                self.again()
                await self._read(state)

    async def _read(self, state: dict[str, Any]) -> None:
        """To the end, which is not where it was when the reading began: what is written again meanwhile moves there.
        Or until everything was read since."""
        unread = set(self._subjects)
        while message := await self._connection.next(self._stream, self._pattern, self._seen + 1):
            self._subjects.add(message.subject)
            self._take(message)
            self._seen = message.sequence
            unread.discard(message.subject)
            if self._is_whole and self._seen >= state["last_seq"] and not unread and not self._lacks(state):
                return
        self._seen = max(self._seen, state["last_seq"])

    def _lacks(self, state: dict[str, Any]) -> bool:
        return self._is_whole and len(self._subjects) < state.get("num_subjects", 0)

    def again(self) -> None:
        """With the next `refresh` all is told anew."""
        self._forget()
        self._subjects.clear()
        self._seen = 0
