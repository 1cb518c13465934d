"""The one way to a station: HTTP on its unix socket, a station started where none listens, errors translated."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

import station
from station.client._address import Remote
from station.client._build import Call
from station.client._home import SocketAddress, find_home
from station.client._io_async import to_thread
from station.client._start import ensure_station, listens
from station.core.access import ACTS_FOR
from station.core.errors import Conflict, InternalError, StationError, StationUnreachable, from_body
from station.core.records import Owner

_TRIES = 6
_HEALTH_SECONDS = 30.0
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=4)
"""An idle connection is dropped well before the station would: a request must not meet one that is being closed."""
# Never used on a unix socket, and the usual one reads the certificates of the machine for 20 ms.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class AsyncConnection:
    """To the station of one state directory. Many calls at once; nothing is sent before the first.

    With `start`, a station is started where none listens, also when it ends between two calls. Raises
    StationUnreachable where none answers, Conflict where its version is another (`any_version`: then too it is used).
    """

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        *,
        start: bool = True,
        any_version: bool = False,
        remote: Remote | None = None,
        acts_for: str | None = None,
    ) -> None:
        """`remote`: a station on TCP, instead of the one of a state directory; it is never started. `acts_for`: on the
        socket, the id of a deployment that all calls are made for."""
        self.home: Path = find_home(home)
        self.deployment = acts_for or (remote.deployment if remote else Owner.deployment)
        """Whose sandboxes a name is of."""
        self._acts_for = acts_for
        self._remote = remote
        self._start = start and remote is None
        self._any_version = any_version
        self._checked = False
        self._http: httpx2.AsyncHTTPTransport | None = None
        self._address: SocketAddress | None = None

    async def aclose(self) -> None:
        """Ends this connection only; nothing in any sandbox changes. Repeating is no error."""
        http, self._http, self._checked = self._http, None, False
        if http is not None:
            await http.aclose()
        address, self._address = self._address, None
        if address is not None:
            address.close()

    async def request(self, call: Call) -> Any:
        """The JSON of the answer, `None` without one. Raises what the station answered with."""
        response = await self._send(call, stream=False)
        return response.json() if response.content else None

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[httpx2.Response]:
        """An answer whose body is still to be read, within `async with`."""
        response = await self._send(call, stream=True)
        try:
            yield response
        except httpx2.TransportError as error:
            raise _broken(call, error) from error
        finally:
            await response.aclose()

    async def _send(self, call: Call, *, stream: bool) -> httpx2.Response:
        for tries_left in reversed(range(_TRIES)):
            try:
                http = await self._ready()
            except httpx2.TransportError as error:
                # Whoever took the connection has died since; of the call nothing was sent. Silence is not waited for
                # again.
                if not tries_left or isinstance(error, httpx2.TimeoutException):
                    raise StationUnreachable(f"the station {self._where} does not answer: {error}") from error
                continue
            try:
                response = await self._ask(http, call, stream=stream)
            except httpx2.TransportError as error:
                self._checked = False
                # A refused connection carried nothing; with any other it is not known what the station did.
                unsent = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
                if not tries_left or not (call.replay or (unsent and self._start)):
                    raise _broken(call, error) from error
                continue
            if response.is_success:
                return response
            raise await _refusal(response)
        raise AssertionError("the loop returns or raises")

    async def _ready(self) -> httpx2.AsyncHTTPTransport:
        """To a station that listens, and is of our version. Raises TransportError where it ends meanwhile."""
        if self._checked and self._http is not None:
            return self._http
        if self._start:
            await to_thread(ensure_station, self.home)
        elif self._remote is None and not await to_thread(listens, self.home):
            raise StationUnreachable(f"no station runs for {self.home}", home=os.fspath(self.home))
        if self._http is None:
            self._http = self._transport()
        # On a connection of its own: one that was kept may lead to a station that is gone.
        async with self._transport() as fresh:
            answer = await self._ask(fresh, Call("GET", "/healthz", read_seconds=_HEALTH_SECONDS))
        self._check_version(answer)
        self._checked = True
        return self._http

    def _transport(self) -> httpx2.AsyncHTTPTransport:
        if self._remote is not None:
            return httpx2.AsyncHTTPTransport(limits=_LIMITS, verify=self._tls())
        if self._address is None:
            self._address = SocketAddress(self.home)
        return httpx2.AsyncHTTPTransport(uds=self._address.path, limits=_LIMITS, verify=_NO_TLS)

    def _tls(self) -> ssl.SSLContext:
        if self._remote is not None and self._remote.url.startswith("https:"):
            return self._remote.context()
        return _NO_TLS

    @property
    def _where(self) -> str:
        return f"of {self.home}" if self._remote is None else f"at {self._remote.url}"

    async def _ask(self, http: httpx2.AsyncHTTPTransport, call: Call, *, stream: bool = False) -> httpx2.Response:
        """Straight to the transport: a client's cookies, redirects, proxies and hooks have no place here."""
        timeout = {"connect": 10.0, "write": 60.0, "read": call.read_seconds, "pool": None}
        base, headers = "http://station", _headers(call)
        if self._remote is not None:
            base = self._remote.url
            headers["authorization"] = f"Bearer {self._remote.token}"
        if self._acts_for is not None:
            headers[ACTS_FOR] = self._acts_for
        request = httpx2.Request(
            call.method, base + call.path, content=call.raw, headers=headers, extensions={"timeout": timeout}
        )
        response = await http.handle_async_request(request)
        if not stream:
            try:
                await response.aread()
            finally:
                await response.aclose()
        return response

    def _check_version(self, answer: httpx2.Response) -> None:
        theirs = answer.json().get("version") if answer.is_success else None
        if not self._any_version and theirs != station.__version__:
            raise Conflict(
                f"the station that runs is {theirs or 'of an unknown version'}, this is {station.__version__}: "
                "`stn stop` ends it (sandboxes stay), the next command starts the new one",
                running=theirs,
                ours=station.__version__,
            )


@asynccontextmanager
async def owned(connection: AsyncConnection) -> AsyncIterator[AsyncConnection]:
    """Closes `connection` unless the body gets to its end, and with it an owner for it."""
    done = False
    try:
        yield connection
        done = True
    finally:
        if not done:
            await connection.aclose()


def _headers(call: Call) -> dict[str, str]:
    return {"content-type": "application/json", **call.headers} if call.body is not None else dict(call.headers)


def _broken(call: Call, error: httpx2.TransportError) -> StationUnreachable:
    what = str(error) or type(error).__name__
    sure = "" if call.method == "GET" else "; it is not known whether it was done"
    return StationUnreachable(
        f"the connection to the station broke ({what}){sure}", request=f"{call.method} {call.path}"
    )


async def _refusal(response: httpx2.Response) -> StationError:
    try:
        await response.aread()
        body = response.json()
    except (ValueError, httpx2.TransportError):
        body = None
    finally:
        await response.aclose()
    if isinstance(body, dict) and "code" in body:
        return from_body(body)
    return InternalError(
        f"the station answered {response.status_code} without saying why; its log may tell more",
        status=response.status_code,
    )
