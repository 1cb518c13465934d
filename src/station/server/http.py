"""uvicorn, as a station needs it: one server for each socket it listens on."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

GRACEFUL_SECONDS = 5.0
MAX_TCP_CONNECTIONS = 256

_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class Server(uvicorn.Server):
    """Told to stop by us alone: uvicorn's own signal handling would end the process before boxes are let go."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpToolsProtocol if sock.family == socket.AF_UNIX else TcpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                # Above what clients keep: a client must be the one to drop an idle connection.
                timeout_keep_alive=30,
            )
        )
        self._sock = sock
        self.listening = asyncio.Event()

    async def run_until_stopped(self) -> None:
        await self.serve(sockets=[self._sock])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self, seconds: float) -> None:
        """Requests that run are finished, within so long."""
        self.config.timeout_graceful_shutdown = max(1, math.ceil(seconds))
        self.should_exit = True

    def hurry(self) -> None:
        """Requests that run are cut off."""
        self.force_exit = True


class TcpProtocol(HttpToolsProtocol):
    """For callers that nobody has vouched for yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Else whoever can connect uses up the descriptors that those on the unix socket need.
        if len(self.connections) > MAX_TCP_CONNECTIONS:
            transport.abort()

    def on_headers_complete(self) -> None:
        # The host of an absolute target goes before the Host header (RFC 9112, 3.2.2), and uvicorn drops it. Where the
        # two differ the guard sees two, and refuses.
        target = _ABSOLUTE.match(self.url)
        if target is not None and (b"host", target[1]) not in self.headers:
            self.headers.append((b"host", target[1]))
        super().on_headers_complete()
