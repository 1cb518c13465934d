"""What a stranger on TCP can make a station keep: heads, time, lines of its log. And what the user can: bodies."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from station.core.principals import OPERATOR, Kind, Principal
from station.core.records import Owner
from station.server.access.guard import PRINCIPAL, Guard
from station.server.net import http
from station.server.net.bodies import FREE_BYTES, Bodies
from station.server.net.http import MAX_HEAD_BYTES, MAX_HEADERS, MAX_WAITING, Server
from station.server.net.listen import Address, bind

from .served import Served
from .test_guard import Anybody

TOKEN = "stn_op_0123456789abcdef"
HOST, BEARER = b"Host: localhost\r\n", f"Authorization: Bearer {TOKEN}\r\n".encode()
GET = b"GET / HTTP/1.1\r\n"
CHUNKED = b"POST /read HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"


class App:
    """Answers with the names of the headers that it saw; reads the body of /read; lets /wait wait."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cut_short = 0
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        if scope["path"] == "/wait":
            await self.go_on.wait()
        size = 0
        if scope["path"] == "/read":
            try:
                size = len(await Request(scope, receive).body())
            except ClientDisconnect:
                self.cut_short += 1
                return
        names = sorted(name.decode() for name, _ in scope["headers"])
        await JSONResponse({"names": names, "size": size})(scope, receive, send)


class Line:
    """A connection. Not asyncio's streams: those forget what had come before a reset."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        self._found = b""

    def send(self, data: bytes) -> None:
        assert self.sock.send(data) == len(data)

    async def flood(self, piece: bytes, megabytes: int = 16) -> None:
        """Sends so much, or less where nobody takes it any more."""
        with suppress(OSError):
            for _ in range(megabytes << 20 >> 16):
                await self._loop.sock_sendall(self.sock, piece * (65536 // len(piece)))
            raise AssertionError("all of it was taken")

    async def answer(self) -> tuple[int, Any]:
        while b"\r\n\r\n" not in self._found:
            assert await self._more(), "the connection ended without an answer"
        head, _, self._found = self._found.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(self._found) < size:
            assert await self._more()
        body, self._found = self._found[:size], self._found[size:]
        return int(head.split(b" ", 2)[1]), json.loads(body)

    async def rest(self) -> bytes:
        """Until the other side ends the connection."""
        while await self._more():
            pass
        return self._found

    async def _more(self) -> bool:
        try:
            piece = await self._loop.sock_recv(self.sock, 65536)
        except OSError:
            piece = b""
        self._found += piece
        return bool(piece)


Connect = Callable[[], Awaitable[Line]]


@asynccontextmanager
async def serving(app: ASGIApp, *, keep_alive: float | None = None) -> AsyncIterator[Connect]:
    listener, address = bind(Address("127.0.0.1", 0))
    server = Server(app, listener)
    if keep_alive is not None:
        server.config.timeout_keep_alive = keep_alive  # type: ignore[assignment]
    lines: list[Line] = []

    async def connect() -> Line:
        sock = socket.socket()
        sock.setblocking(False)
        lines.append(Line(sock))
        await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
        return lines[-1]

    try:
        async with asyncio.timeout(8), asyncio.TaskGroup() as group:
            group.create_task(server.run_until_stopped())
            await server.listening.wait()
            try:
                async with asyncio.timeout(5):
                    yield connect
            finally:
                for line in lines:
                    line.sock.close()
                server.hurry()
                server.stop(1)
    finally:
        listener.close()


FLOODS = {
    "value": (GET + b"X-A: ", b"a"),
    "name": (GET, b"a"),
    "url": (b"GET /", b"a"),
    "lines": (GET, b"a:b\r\n"),
    "empty lines": (b"", b"\r\n"),
    "trailer": (CHUNKED + b"\r\n1\r\nx\r\n0\r\nX-A: ", b"a"),
    "trailers": (CHUNKED + b"\r\n1\r\nx\r\n0\r\n", b"a:b\r\n"),
    "chunk extension": (CHUNKED + b"\r\n1;", b"a"),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_an_endless_head_or_trailer_is_answered_431_and_read_no_further(kind: str) -> None:
    begin, piece = FLOODS[kind]
    app = App()
    async with serving(app) as connect:
        line = await connect()
        line.send(begin)
        await line.flood(piece)
        status, body = await line.answer()
        assert (status, body["code"], await line.rest()) == (431, "too_large", b"")
    # What had its headers was begun, and never looked whole.
    begun = begin.startswith(CHUNKED)
    assert (len(app.asked), app.cut_short) == (begun, begun)


async def test_heads_of_use_pass_and_those_beyond_the_bounds_do_not() -> None:
    def head(headers: int = 0, size: int = 1) -> bytes:
        return GET + b"".join(b"x-%d: %s\r\n" % (number, b"v" * size) for number in range(headers)) + b"\r\n"

    async with serving(App()) as connect:
        line = await connect()
        for whole in (head(1, MAX_HEAD_BYTES - 100), head(MAX_HEADERS), head(MAX_HEADERS, 600)):
            # However it is cut, and again on the same connection.
            for pieces in ([whole], [whole[:7], whole[7:]], [whole[:30_000], whole[30_000:]]):
                for piece in pieces:
                    line.send(piece)
                assert (await line.answer())[0] == 200
        for large in (head(MAX_HEADERS + 1), head(2, MAX_HEAD_BYTES)):
            line = await connect()
            line.send(large + GET + b"\r\n")
            assert (await line.answer())[0] == 431
            assert await line.rest() == b""


async def test_trailers_of_an_answered_request_end_the_connection_without_a_second_answer() -> None:
    async with serving(App()) as connect:
        line = await connect()
        line.send(CHUNKED.replace(b"/read", b"/") + b"\r\n0\r\n")
        assert (await line.answer())[0] == 200
        await line.flood(b"a:b\r\n")
        assert await line.rest() == b""


@pytest.mark.parametrize(("front", "behind", "status"), [(HOST, BEARER, 401), (BEARER, HOST, 421)])
async def test_trailers_are_nobodys_headers(front: bytes, behind: bytes, status: int) -> None:
    app = App()
    async with serving(Guard(app, hosts=["127.0.0.1"], access=Anybody())) as connect:
        line = await connect()
        line.send(CHUNKED + front + b"\r\n0\r\n" + behind + b"\r\n")
        assert (await line.answer())[0] == status
        assert app.asked == []
        line = await connect()
        whole = CHUNKED + HOST + BEARER + b"\r\n1\r\nx\r\n0\r\nX-Trailer: 1\r\nExpect: 100-continue\r\n\r\n"
        line.send(whole + GET + HOST + BEARER + b"\r\n")
        names = ["authorization", "host"]
        assert await line.answer() == (200, {"names": [*names, "transfer-encoding"], "size": 1})
        assert await line.answer() == (200, {"names": names, "size": 0})


async def test_requests_ahead_of_their_turn_are_bounded() -> None:
    app = App()
    async with serving(app) as connect:
        line = await connect()
        line.send((GET + b"\r\n") * (MAX_WAITING + 1))
        for _ in range(MAX_WAITING + 1):
            assert (await line.answer())[0] == 200
        line = await connect()
        line.send((GET + b"\r\n") * 1000)
        await line.rest()
        assert len(app.asked) <= 2 * MAX_WAITING + 2


@pytest.mark.parametrize("begin", [b"", GET, GET + b"X-A: a", b"\r\n"])
async def test_who_does_not_complete_the_headers_in_time_is_gone(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert http.HEAD_SECONDS == 10
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.3)
    app = App()
    async with serving(app) as connect:
        asks = await connect()
        asks.send(b"GET /wait HTTP/1.1\r\n\r\n")
        idle = await connect()
        idle.send(begin)
        assert await idle.rest() == b""
        # A request may take longer, and so may what follows it.
        app.go_on.set()
        for _ in range(2):
            assert (await asks.answer())[0] == 200
            asks.send(GET + b"\r\n")


@pytest.mark.parametrize("begin", [b"", GET, GET + b"X-A: a"])
async def test_after_an_answer_the_next_headers_have_their_time_too(begin: bytes) -> None:
    app = App()
    async with serving(app, keep_alive=0.05) as connect:
        line = await connect()
        line.send(GET + b"\r\n")
        assert (await line.answer())[0] == 200
        line.send(begin)
        assert await line.rest() == b""
        assert app.asked == ["/"]


async def test_strangers_that_hold_every_connection_lose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_TCP_CONNECTIONS", 2)
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.3)
    async with serving(App()) as connect:
        strangers = [await connect() for _ in range(2)]
        late = await connect()
        assert await late.rest() == b""
        for each in strangers:
            assert await each.rest() == b""
        line = await connect()
        line.send(GET + b"\r\n")
        assert (await line.answer())[0] == 200


async def test_who_shows_no_token_gets_one_answer_a_connection() -> None:
    async with serving(Guard(App(), hosts=["127.0.0.1"], access=Anybody())) as connect:
        body = b"Content-Length: 1000\r\n"
        for target, lines, status in (
            (b"/", HOST, b"401"),
            (b"/", HOST + body, b"401"),
            (b"/", BEARER + body, b"421"),
            (b"/", HOST + BEARER + b"Origin: null\r\n" + body, b"403"),
            (b"/healthz", HOST, b"200"),
        ):
            line = await connect()
            line.send(b"POST " + target + b" HTTP/1.1\r\n" + lines + b"\r\n")
            head = (await line.rest()).lower()
            assert head.startswith(b"http/1.1 " + status)
            assert b"\r\nconnection: close\r\n" in head
        line = await connect()
        for _ in range(2):
            line.send(GET + HOST + BEARER + b"\r\n")
            assert (await line.answer())[0] == 200


async def test_an_offer_of_another_protocol_is_answered_and_ends_the_connection() -> None:
    app = App()
    async with serving(app) as connect:
        line = await connect()
        line.send(GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        line.send(b"GET /more HTTP/1.1\r\n\r\n")
        assert (await line.answer())[0] == 200
        assert await line.rest() == b""
        assert app.asked == ["/"]


def test_what_a_stranger_sends_writes_no_line(serve: Callable[..., Served]) -> None:
    served = serve(STN_LISTEN="127.0.0.1:0")
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    for raw, status in (
        (b"GET /healthz HTTP/1.1\r\n" + HOST + upgrade + b"\r\n", 200),
        (b"POST /healthz HTTP/1.1\r\n" + HOST + upgrade + b"Content-Length: 2\r\n\r\nab", 405),
        (GET + HOST + upgrade.replace(b"h2c", b"websocket") + b"\r\n", 401),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (CHUNKED + HOST + b"\r\nz\r\n", 401),
        (GET + b"a:b\r\n" * 101 + b"\r\n", 431),
    ):
        with served.connect() as stranger:
            stranger.sendall(raw)
            found = b""
            while piece := stranger.recv(65536):
                found += piece
        assert found.count(b"HTTP/1.1 ") == 1
        assert int(found.split(b" ", 2)[1]) in {status, 400}
    code, words = served.end()
    assert code == 0
    assert [line for line in words.splitlines() if " info station." not in line] == []


MOST = 1 << 20
BODY = MOST // 2
MINE = BODY - FREE_BYTES


class Asked:
    """A request to `Bodies` around an app that takes the body whole, and then waits."""

    def __init__(
        self,
        bodies: Bodies,
        size: int | None = None,
        method: str = "POST",
        path: str = "/mcp",
        who: Principal = OPERATOR,
    ) -> None:
        announced = [] if size is None else [(b"content-length", b"%d" % size)]
        scope: Scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": announced}
        scope["state"] = {PRINCIPAL: who}
        self.read = 0
        self.sent: list[Message] = []
        self._pieces: asyncio.Queue[Message] = asyncio.Queue()
        self._task = asyncio.ensure_future(bodies(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        self.read += 1
        return await self._pieces.get()

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def sends(self, size: int, more: bool = True) -> None:
        self._pieces.put_nowait({"type": "http.request", "body": bytes(size), "more_body": more})
        await settled()

    async def ends(self) -> int:
        async with asyncio.timeout(5):
            await self._task
        return int(self.sent[0]["status"])


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def bodies(app: App) -> Bodies:
    async def takes(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "path": "/read"}, receive, send)

    return Bodies(takes, most=MOST, speaks_rpc=lambda path: path == "/mcp")


async def test_a_body_beyond_the_bound_is_refused_before_it_is_read_and_finds_room_later(bodies: Bodies) -> None:
    first, second = Asked(bodies, BODY), Asked(bodies, BODY)
    await settled()
    assert bodies.under_way == 2 * MINE
    third = Asked(bodies, BODY)
    assert (await third.ends(), third.read) == (429, 0)
    assert (b"retry-after", b"1") in third.sent[0]["headers"]
    data = json.loads(third.sent[1]["body"])["error"]["data"]
    assert (data["code"], data["retryable"], data["detail"]) == ("limit_reached", True, {"limit": MOST})
    await first.sends(BODY, more=False)
    assert await first.ends() == 200
    fourth = Asked(bodies, BODY)
    for each in (second, fourth):
        await each.sends(BODY, more=False)
        assert await each.ends() == 200
    assert bodies.under_way == 0


async def test_a_body_without_an_announced_length_counts_as_it_comes(bodies: Bodies, app: App) -> None:
    first, second = Asked(bodies), Asked(bodies, path="/api/v1/runs")
    await first.sends(BODY)
    await first.sends(BODY)
    assert bodies.under_way == MINE + BODY
    await second.sends(BODY)
    # The other was refused within its body, which the app took for cut short.
    assert (await second.ends(), app.cut_short) == (429, 1)
    assert json.loads(second.sent[1]["body"])["code"] == "limit_reached"
    await first.sends(0, more=False)
    assert (await first.ends(), bodies.under_way) == (200, 0)


async def test_bodies_of_one_deployment_have_half_and_leave_the_rest(bodies: Bodies) -> None:
    one, two = (Principal(Kind.DEPLOYMENT, Owner("local", name)) for name in ("dep_a", "dep_b"))
    held = Asked(bodies, BODY, who=one)
    await settled()
    over = Asked(bodies, BODY, who=one)
    await settled()
    assert over.sent, "it does not wait for its body"
    assert await over.ends() == 429
    assert json.loads(over.sent[1]["body"])["error"]["data"]["detail"] == {"limit": MOST // 2}
    for who in (two, OPERATOR):
        other = Asked(bodies, BODY, who=who)
        await other.sends(BODY, more=False)
        assert await other.ends() == 200
    await held.sends(BODY, more=False)
    assert await held.ends() == 200
    again = Asked(bodies, BODY, who=one)
    await again.sends(BODY, more=False)
    assert (await again.ends(), bodies.under_way, bodies._of) == (200, 0, {})


async def test_what_streams_and_what_is_small_is_not_kept_out(bodies: Bodies) -> None:
    holders = [Asked(bodies, BODY), Asked(bodies, BODY + 2 * FREE_BYTES)]
    await settled()
    assert bodies.under_way == MOST
    streams = [
        Asked(bodies, 1 << 40, "PUT", "/api/v1/sandboxes/x/files"),
        Asked(bodies, None, "POST", "/api/v1/sandboxes/x/processes/y/stdin"),
        Asked(bodies, FREE_BYTES),
    ]
    for each in streams:
        await each.sends(FREE_BYTES, more=False)
        assert await each.ends() == 200
    for each in holders:
        await each.sends(0, more=False)
        assert await each.ends() == 200
    assert bodies.under_way == 0


def test_the_listener_bounds_the_bodies_under_way(listening: Served) -> None:
    def begin() -> tuple[Any, bytes]:
        raw = listening.connect()
        size = f"Content-Length: {63 << 20}\r\nExpect: 100-continue\r\n\r\n"
        head = f"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {listening.token}\r\n"
        raw.sendall((head + size).encode())
        return raw, raw.recv(12)

    one, two, three = begin(), begin(), begin()
    with closing(one[0]), closing(two[0]), closing(three[0]):
        assert [one[1], two[1], three[1]] == [b"HTTP/1.1 100", b"HTTP/1.1 100", b"HTTP/1.1 429"]
