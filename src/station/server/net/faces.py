"""Faces: apps at paths of their own beside the API, each of them a client of this station.

The API does not know them. Whoever starts the server hands over how each is loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from station.core.errors import InternalError, StationError, Unavailable
from station.server.errors import answer

log = logging.getLogger(__name__)

Face: TypeAlias = Callable[[Path], AbstractAsyncContextManager[ASGIApp]]
"""An app over the station of a state directory, within `async with`. It speaks to it as any client does."""
Loader: TypeAlias = Callable[[], Face]
"""Imports it; that may take a second, so it runs in a thread."""

CALLS_SECONDS = 3.0
LEAVE_SECONDS = 1.0


class Faces:
    """Those of one station. `aclose` belongs before the end of the API, which their last calls need."""

    def __init__(self, home: Path, loaders: Mapping[str, Loader]) -> None:
        self._faces = {path: _LazyFace(path, home, loader) for path, loader in loaders.items()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def find(self, path: str) -> ASGIApp | None:
        """That of exactly this path; a slash at its end is none."""
        return self._faces.get(path) or self._faces.get(path.removesuffix("/"))

    def has(self, path: str) -> bool:
        return self.find(path) is not None

    async def aclose(self) -> None:
        """Every face is left when this returns, or was cancelled and that logged. Calls under way get `CALLS_SECONDS`
        to end; all of it takes 6 seconds at most. Repeating is no error."""
        await asyncio.gather(*(face.aclose() for face in self._faces.values()))

    def hurry(self) -> None:
        """An `aclose` under way waits for no call any more."""
        for face in self._faces.values():
            face.hurry()


class _LazyFace:
    """One face, loaded and entered at its first request, by a task that also leaves it: a task group must be left by
    the task that entered it."""

    def __init__(self, path: str, home: Path, loader: Loader) -> None:
        self._path = path
        self._home = home
        self._loader = loader
        self._opened: asyncio.Future[ASGIApp | None] | None = None
        self._lives: set[asyncio.Task[None]] = set()
        self._leave = asyncio.Event()
        self._closing = False
        self._calls: dict[asyncio.Timeout, str] = {}
        """Each call under way, by what ends it; its method."""
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began: Message | None = None

        async def watched(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = message
            await send(message)

        bound = asyncio.timeout(None)
        try:
            async with bound:
                with self._noted(bound, scope["method"]):
                    try:
                        app = await self._app()
                    except StationError as error:
                        await answer(error)(scope, receive, watched)
                    else:
                        await app(scope, receive, watched)
        except TimeoutError:
            if not bound.expired():
                raise
            await _cut_off(began, scope, receive, send)

    @contextmanager
    def _noted(self, bound: asyncio.Timeout, method: str) -> Iterator[None]:
        self._calls[bound] = method
        self._quiet.clear()
        try:
            yield
        finally:
            del self._calls[bound]
            if not self._calls:
                self._quiet.set()

    async def _app(self) -> ASGIApp:
        """Raises InternalError where it cannot be loaded; the next request tries it again."""
        if self._closing:
            raise _the_end()
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            life = asyncio.create_task(self._live(self._opened), name=f"face {self._path}")
            self._lives.add(life)
            life.add_done_callback(self._ended)
        # One caller that hangs up must not take it from the others.
        app = await asyncio.shield(self._opened)
        if app is None:
            raise InternalError(f"Station failed to load what answers at {self._path}; its log has the details")
        return app

    async def _live(self, opened: asyncio.Future[ASGIApp | None]) -> None:
        try:
            face = await asyncio.to_thread(self._loader)
            async with face(self._home) as app:
                opened.set_result(app)
                await self._leave.wait()
        finally:
            self._opened = None
            if not opened.done():
                opened.set_result(None)

    def _ended(self, life: asyncio.Task[None]) -> None:
        self._lives.discard(life)
        if not life.cancelled() and (error := life.exception()) is not None:
            log.error("the face at %s failed", self._path, exc_info=error)

    def hurry(self) -> None:
        self._quiet.set()

    async def aclose(self) -> None:
        self._closing = True
        # What is fetched with GET is a stream, which ends when the client does and not before.
        self._end_calls({"GET"})
        await _within(CALLS_SECONDS, self._quiet.wait())
        if self._calls:
            self._quiet.clear()
            self._end_calls(set(self._calls.values()))
            await _within(LEAVE_SECONDS, self._quiet.wait())
        self._leave.set()
        if self._lives:
            _, late = await asyncio.wait(self._lives, timeout=LEAVE_SECONDS)
            for life in late:
                log.error("the face at %s was not left in time, and is cancelled", self._path)
                life.cancel()
            if late:
                await asyncio.wait(late, timeout=LEAVE_SECONDS)

    def _end_calls(self, methods: set[str]) -> None:
        now = asyncio.get_running_loop().time()
        for bound, method in self._calls.items():
            if method in methods and not bound.expired():
                bound.reschedule(now)


async def _within(seconds: float, waiting: Coroutine[None, None, object]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await waiting


def _the_end() -> Unavailable:
    return Unavailable("this station is about to end; ask the next one")


async def _cut_off(began: Message | None, scope: Scope, receive: Receive, send: Send) -> None:
    """The end of an answer that we ended. What is no stream of events must not look complete: the server hangs up on an
    answer without an end."""
    if began is None:
        await answer(_the_end())(scope, receive, send)
    elif dict(began["headers"]).get(b"content-type", b"").startswith(b"text/event-stream"):
        await send({"type": "http.response.body", "body": b"", "more_body": False})
