"""HTTP to an engine through aiodocker. The only file that knows aiodocker, and the only one that reaches into it: the
library reads archives whole, waits for ever, and lets nobody close an attached connection at once."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiodocker import Docker, DockerError
from aiodocker.stream import Stream

from station.backends.docker import podman
from station.backends.docker.tls import client_context
from station.core.errors import InvalidInput

NEWEST_API = (1, 51)
"""The newest whose answers this code was written for; a newer engine is spoken to in this one."""
ANSWER_BYTES = 64 << 20
_COMPLAINT_BYTES = 4096
_ALIVE = {
    socket.TCP_KEEPIDLE: 20,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 50_000,
}
_BROKEN = (aiohttp.ClientError, DockerError, RuntimeError, AssertionError, AttributeError)
"""What the library raises from the inside of a connection that has gone."""


@dataclass(frozen=True)
class Address:
    """Where an engine is."""

    url: str
    """As in DOCKER_HOST."""
    socket: str | None = None
    """The path of its unix socket; `None`: TCP."""
    tls: Path | None = None
    """The directory with ca.pem, cert.pem and key.pem."""

    @property
    def local(self) -> bool:
        """Whether its processes are surely processes of this machine."""
        return self.socket is not None


def address_of(environ: Mapping[str, str]) -> Address | None:
    """By DOCKER_HOST, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH, else the usual sockets; `None`: there is no sign of one.

    Raises InvalidInput for an address that cannot be spoken to.
    """
    host = environ.get("DOCKER_HOST", "")
    if not host:
        places = ["/var/run/docker.sock", "/run/docker.sock"]
        if runtime := environ.get("XDG_RUNTIME_DIR", ""):
            places.append(f"{runtime}/docker.sock")
        found = next((place for place in places if Path(place).is_socket()), None)
        return Address(f"unix://{found}", socket=found) if found else None
    parts = urlsplit(host)
    if parts.scheme == "unix" and (path := host.removeprefix("unix://")).startswith("/"):
        return Address(host, socket=path)
    if parts.scheme in ("tcp", "http", "https") and parts.hostname:
        verify = parts.scheme == "https" or bool(environ.get("DOCKER_TLS_VERIFY"))
        certificates = Path(environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
        return Address(f"{parts.scheme}://{parts.netloc}", tls=certificates if verify else None)
    raise InvalidInput(
        f"DOCKER_HOST is {host!r}; Station speaks to unix:///path and tcp://host:port "
        "(for ssh:// forward the socket: ssh -L /path:/var/run/docker.sock HOST)",
        field="DOCKER_HOST",
    )


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Raises ValueError for what is no JSON."""
        return json.loads(self.body) if self.body else None


class Api:
    """One engine's HTTP interface. Raises what aiodocker and aiohttp raise; `Engine` translates."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.podman = False
        """Known once `version` was asked."""
        self._docker: Docker | None = None
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        data: bytes | None = None,
        versioned: bool = True,
    ) -> Answer:
        """The whole answer. Raises DockerError for a status that tells of an error."""
        response = await self._send(method, path, params=params, body=body, data=data, versioned=versioned)
        try:
            chunks = bytearray()
            async for chunk in response.content.iter_chunked(1 << 18):
                chunks += chunk
                if len(chunks) > ANSWER_BYTES:
                    raise ValueError(f"an answer of more than {ANSWER_BYTES} bytes")
            return Answer(response.status, response.headers, bytes(chunks))
        finally:
            response.release()

    async def head(self, path: str, *, params: Mapping[str, str]) -> int:
        """The status alone: an error has no body here, which the library cannot read."""
        url = self._library()._canonicalize_url(path)
        async with self._library().session.head(url, params=dict(params)) as response:
            return response.status

    async def lines(
        self, method: str, path: str, *, params: Mapping[str, str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Any, None]:
        """The JSON values of an answer, one a line, as they come. Left early, the connection is cut."""
        response = await self._send(method, path, params=params, headers=headers)
        try:
            async for line in response.content:
                if line.strip():
                    yield json.loads(line)
        finally:
            response.close()

    async def attach(self, container: str) -> AttachedStream:
        """Both directions of a container's standard streams."""
        stream = self._library().containers.container(container).attach(stdin=True, stdout=True, stderr=True)
        attached = False
        try:
            await stream._init()
            attached = True
        finally:
            if not attached:
                _drop(stream)
        return AttachedStream(stream)

    async def version(self) -> tuple[int, int]:
        """What the engine speaks at most, by its ping; from now on everything is asked in the best that both speak."""
        answer = await self.request("GET", "_ping", versioned=False)
        theirs = parse_version(answer.headers.get("Api-Version", ""))
        self.podman = podman.HEADER in answer.headers
        major, minor = min(theirs, NEWEST_API)
        self._library().api_version = f"v{major}.{minor}"
        return theirs

    async def aclose(self) -> None:
        docker, self._docker = self._docker, None
        session, self._session = self._session, None
        if docker is not None:
            await docker.close()
        if session is not None:
            await session.close()

    async def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        data: bytes | None = None,
        versioned: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": "application/x-tar"} if data is not None else headers
        payload = data if body is None else json.dumps(body).encode()
        return await self._library()._do_query(
            path, method, params=dict(params or {}), data=payload, headers=headers, versioned_api=versioned
        )

    def _library(self) -> Docker:
        if self._docker is None:
            url, connector = _connector(self.address)
            # Every box holds two connections, one attached and one that waits for its end.
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout())
            self._docker = Docker(url, connector=connector, session=self._session)
        return self._docker


def _connector(address: Address) -> tuple[str, aiohttp.BaseConnector]:
    if address.socket is not None:
        return "unix://localhost", aiohttp.UnixConnector(address.socket, limit=0)
    place = urlsplit(address.url).netloc
    if address.tls is None:
        return f"http://{place}", aiohttp.TCPConnector(limit=0, socket_factory=_socket)
    return f"https://{place}", aiohttp.TCPConnector(limit=0, ssl=client_context(address.tls), socket_factory=_socket)


def _socket(info: aiohttp.AddrInfoType) -> socket.socket:
    """Notices within a minute that the other machine is gone: an attached connection may be silent for days."""
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _ALIVE.items():
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def parse_version(text: str) -> tuple[int, int]:
    """`1.41` is (1, 41); anything else is older than all."""
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


class AttachedStream:
    """A ByteStream over an attached container. What the guest writes to stderr is kept apart, for diagnosis."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._complaints = b""

    @property
    def complaints(self) -> str:
        """The last words on stderr."""
        return self._complaints.decode(errors="replace").strip()

    async def receive(self) -> bytes:
        while True:
            try:
                message = await self._stream.read_out()
            except _BROKEN as error:
                raise ConnectionResetError(f"the connection to the engine broke: {error}") from error
            if message is None:
                return b""
            if message.stream != 2:
                return message.data
            self._complaints = (self._complaints + message.data)[-_COMPLAINT_BYTES:]

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.write_in(data)
        except _BROKEN as error:
            raise ConnectionResetError(f"the connection to the engine broke: {error}") from error

    async def aclose(self) -> None:
        """At once, whatever waits to be sent: an attached connection that nobody reads blocks every other one."""
        _drop(self._stream)
        await asyncio.sleep(0)


def _drop(stream: Stream) -> None:
    response = stream._resp
    stream._closed = True
    if response is None:
        return
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()
