"""uvicorn, as a station needs it: one server for each socket it listens on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import re
import socket
import ssl
from collections.abc import Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from station.core.errors import InvalidInput, StationError, TooLarge
from station.worker.tasks import Tasks

log = logging.getLogger(__name__)

GRACEFUL_SECONDS = 5.0
MAX_TCP_CONNECTIONS = 256
HEAD_SECONDS = 10.0
"""From a connection to the end of the headers of its first request. After an answer it is what idle ones get."""
MAX_HEAD_BYTES = 64 * 1024
"""Of request line and headers, or of trailers: give or take a piece."""
MAX_HEADERS = 100
MAX_WAITING = 16
"""Requests that a connection sends ahead of their turn."""
MAX_HANDSHAKES = 64
"""Of TLS, at once; each has HEAD_SECONDS."""

_PIECE = 8 * 1024
_RETRY_SECONDS = 1.0
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class Server(uvicorn.Server):
    """Told to stop by us alone: uvicorn's own signal handling would end the process before boxes are let go."""

    def __init__(self, app: ASGIApp, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: all that comes is to be TLS. `None`: nothing is."""
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
        self._tls = tls
        self._accepting = Tasks()
        self.listening = asyncio.Event()

    async def run_until_stopped(self) -> None:
        async with self._accepting:
            await self.serve(sockets=[self._sock])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None:
            await super().startup(sockets)
        else:
            self.servers = []
            self._sock.setblocking(False)
            self._accepting.start(self._accept(self._tls), name="accepting TLS")
            self.started = True
        self.listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._accepting.aclose()
        await super().shutdown(sockets)

    async def _accept(self, tls: ssl.SSLContext) -> None:
        """Ours, as asyncio's own server bounds neither number nor time of the handshakes under way: strangers would
        take the descriptors that those on the unix socket need."""
        loop = asyncio.get_running_loop()
        shaking = 0

        async def shake(accepted: socket.socket) -> None:
            nonlocal shaking
            try:
                await loop.connect_accepted_socket(
                    self._protocol, accepted, ssl=tls, ssl_handshake_timeout=HEAD_SECONDS
                )
            except (TimeoutError, OSError) as error:  # no TLS, or none of ours: a stranger's
                log.debug("a TLS handshake failed: %s", error)
            finally:
                shaking -= 1

        while True:
            try:
                accepted, _ = await loop.sock_accept(self._sock)
            except OSError as error:
                log.warning("a connection could not be accepted: %s", error.strerror)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if shaking >= MAX_HANDSHAKES:
                accepted.close()
                continue
            shaking += 1
            self._accepting.start(shake(accepted), name="TLS handshake")

    def _protocol(self) -> asyncio.Protocol:
        return TcpProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

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
    """For callers that nobody has vouched for yet. The parser below keeps all that it is fed, as long as it takes: here
    heads are bounded in bytes, number and time.

    The unix socket does without: its callers are the user.
    """

    _deadline: asyncio.TimerHandle | None = None
    _in_head = True
    """The headers of the next request are not complete."""
    _went_on = False
    """The parser has come to an end of a head or a message, or to a piece of a body."""
    _held = 0
    """Bytes fed since it did."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Else whoever can connect uses up the descriptors that those on the unix socket need.
        if len(self.connections) > MAX_TCP_CONNECTIONS:
            transport.abort()
        else:
            self._end_within(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_within(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data), _PIECE):
            if self.transport.is_closing():
                return
            piece = data[at : at + _PIECE]
            self._went_on = False
            super().data_received(piece)
            self._held = 0 if self._went_on else self._held + len(piece)
            if self._held > MAX_HEAD_BYTES:
                self._too_large(f"{MAX_HEAD_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come here too: behind the body, where the guard has long decided. They are nobody's headers.
        if not self._in_head:
            return
        if len(self.headers) >= MAX_HEADERS:
            self._too_large(f"{MAX_HEADERS} lines")
            raise _Ended
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_WAITING:
            self._end(TooLarge(f"a connection has at most {MAX_WAITING} requests that wait"), 431)
            raise _Ended
        # The host of an absolute target goes before the Host header (RFC 9112, 3.2.2), and uvicorn drops it. Where the
        # two differ the guard sees two, and refuses.
        target = _ABSOLUTE.match(self.url)
        if target is not None and (b"host", target[1]) not in self.headers:
            self.headers.append((b"host", target[1]))
        super().on_headers_complete()
        self._in_head, self._went_on = False, True
        self._end_within(None)

    def on_body(self, body: bytes) -> None:
        self._went_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._went_on = True, True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # uvicorn's own timer ends with the first byte that comes.
        if self.cycle.response_complete and not self.transport.is_closing():
            self._end_within(self.timeout_keep_alive)

    def send_400_response(self, _msg: str) -> None:
        self._end(InvalidInput("this is no request of HTTP/1.1"), 400)

    def _unsupported_upgrade_warning(self) -> None:
        """Answered as if nothing else had been offered. uvicorn loses some of what follows: so it ends there."""
        self.cycle.keep_alive = False
        if self.cycle.response_complete:
            self.transport.close()

    def _too_large(self, limit: str) -> None:
        self._end(TooLarge(f"the headers of a request have at most {limit}"), 431)

    def _end_within(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.transport.close)

    def _end(self, error: StationError, status: int) -> None:
        """Nothing more is read. What was being read is answered where nothing else is, or is about to be."""
        if self.transport.is_closing():
            return
        last = cast("RequestResponseCycle | None", self.cycle)
        under_way = None if last is None or last.response_complete else last
        if self._in_head:
            due = under_way is None
        else:
            due = under_way is not None and not self.pipeline and not under_way.response_started
        if due:
            body = json.dumps(error.to_body()).encode()
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        if under_way is not None:
            under_way.disconnected = True
            under_way.message_event.set()
        self.transport.close()


class _Ended(Exception):
    """Stops the parser, once the connection is at its end."""
