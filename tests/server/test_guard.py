"""Who may call over TCP. Each refusal stands beside a request that passes and differs in nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from station.core.errors import Misdirected, Refused, StationError, Unauthenticated, from_body
from station.core.identity import unauthenticated
from station.core.principals import NOBODY, OPERATOR, Principal
from station.core.wire import API
from station.server.access.guard import Guard, decide, local
from station.server.access.visits import Visits
from station.server.api.operations import OPERATIONS

from .served import Served

TOKEN = "stn_op_0123456789abcdef"
GOOD = {"host": "127.0.0.1:8080", "authorization": f"Bearer {TOKEN}"}


def who(token: bytes) -> Principal:
    if token != TOKEN.encode():
        raise unauthenticated()
    return OPERATOR


class Anybody:
    """Access for tests that come to no token."""

    def __init__(self) -> None:
        self.visits = Visits()

    def principal(self, token: bytes) -> Principal:
        return who(token)

    def acting(self, deployment_id: str) -> Principal:
        raise AssertionError("nobody acts for another")

    def take(self, principal: Principal) -> None:
        return


def verdict(
    path: str = "/api/v1/station", *more: tuple[str, str], **changed: str | None
) -> Principal | type[StationError]:
    named = [(name, value) for name, value in (GOOD | changed).items() if value is not None]
    headers = [(name.encode(), value.encode("latin-1")) for name, value in [*named, *more]]
    try:
        return decide(headers, path, hosts=["127.0.0.7"], who=who)
    except StationError as error:
        return type(error) if TOKEN not in f"{error}{error.detail}" else StationError


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:1", "127.0.0.1", "127.0.0.1:65535", "[::1]", "[::1]:8080", "127.0.0.7:8080"],
)
def test_a_loopback_host_passes_with_any_port(host: str) -> None:
    assert verdict(host=host) == OPERATOR


@pytest.mark.parametrize(
    "host",
    [
        None, "", "attacker.example", "attacker.example:8080", "127.0.0.8", "localhost.", "localhost.attacker.example",
        "127.0.0.1.attacker.example", "127.0.0.1@attacker.example", "attacker.example@127.0.0.1", "127.0.0.1:", "::1",
        "127.0.0.1:x", "127.0.0.1:80:80", "127.0.0.1, attacker.example", "127.0.0.1 ", "127.0.0.1\n",
        "[::1", "[::ffff:127.0.0.1]", "0x7f000001", "2130706433", "127.1", "127.0.0.1/", "h\xe9", "0.0.0.0",
    ],
)  # fmt: skip
def test_hd_w07_another_host_is_misdirected_whatever_the_token(host: str | None) -> None:
    assert verdict(host=host) is Misdirected
    assert verdict("/healthz", host=host) is Misdirected


def test_two_hosts_are_misdirected_also_where_both_are_ours() -> None:
    assert verdict("/", ("host", "127.0.0.1:8080")) is Misdirected


@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "https://127.0.0.1", "http://[::1]:1"])
def test_no_origin_or_one_of_loopback_passes(origin: str | None) -> None:
    assert verdict(origin=origin) == OPERATOR


@pytest.mark.parametrize(
    "origin",
    ["null", "", "https://attacker.example", "http://localhost.attacker.example", "file://", "http://127.0.0.1@a.example",
     "chrome-extension://abc", "http://localhost/", "http://localhost http://attacker.example", "localhost"],
)  # fmt: skip
def test_a_foreign_origin_is_refused_whatever_the_token(origin: str) -> None:
    assert verdict(origin=origin) is Refused
    assert verdict("/healthz", origin=origin) is Refused


def test_two_origins_are_refused() -> None:
    assert verdict("/", ("origin", "http://localhost"), origin="http://localhost") is Refused


@pytest.mark.parametrize("shown", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER  {TOKEN}"])
def test_the_token_passes_however_its_scheme_is_written(shown: str) -> None:
    assert verdict(authorization=shown) == OPERATOR


@pytest.mark.parametrize(
    "shown",
    [None, "", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}",
     f"Bearer{TOKEN}", f"Bearer {TOKEN} x", f"Bearer {TOKEN}, Bearer {TOKEN}", "Bearer \xe9",
     f"Bearer {TOKEN.upper()}"],
)  # fmt: skip
def test_without_the_token_nobody_is_let_in(shown: str | None) -> None:
    assert verdict(authorization=shown) is Unauthenticated


def test_two_tokens_are_one_too_many() -> None:
    assert verdict("/", ("authorization", f"Bearer {TOKEN}")) is Unauthenticated


def test_host_goes_before_origin_and_origin_before_the_token() -> None:
    assert verdict(host="a.example", origin="null", authorization=None) is Misdirected
    assert verdict(origin="null", authorization=None) is Refused


def test_health_is_open_to_those_without_a_token_and_nothing_else_is() -> None:
    assert verdict("/healthz", authorization=None) == NOBODY
    for path in ("/", "/healthz/", "/healthz/x", "//healthz", "/HEALTHZ", "/mcp", "/api/v1/station"):
        assert verdict(path, authorization=None) is Unauthenticated


async def test_what_is_no_http_request_comes_past_neither_door() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("reached")

    async def none(*_: Any) -> Any:
        raise AssertionError("nothing is read or sent")

    for door in (Guard(app, hosts=["127.0.0.1"], access=Anybody()), local(app, Anybody())):
        for kind in ("websocket", "lifespan"):
            with pytest.raises(RuntimeError, match=kind):
                await door({"type": kind, "headers": [], "path": "/healthz"}, none, none)


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        self.status = int(head.split(b" ", 2)[1])
        self.head = head.lower()


def ask(
    served: Served, *lines: str, method: str = "GET", target: str = "/api/v1/station", version: str = "1.1"
) -> Answer:
    """One request of exactly these header lines, on a connection of its own."""
    text = "\r\n".join([f"{method} {target} HTTP/{version}", *lines, "Connection: close", "", ""])
    with served.connect() as raw:
        raw.sendall(text.encode("latin-1"))
        found = b""
        while piece := raw.recv(65536):
            found += piece
    return Answer(found)


def bearer(served: Served) -> str:
    return f"Authorization: Bearer {served.token}"


def test_hd_w07_a_rebound_name_is_answered_421_and_the_same_request_by_our_name_200(listening: Served) -> None:
    assert ask(listening, "Host: attacker.example", bearer(listening)).status == 421
    assert ask(listening, "Host: 127.0.0.1:1", bearer(listening)).status == 200
    assert ask(listening, "Host: attacker.example", target="/healthz").status == 421
    assert ask(listening, "Host: localhost", target="/healthz").status == 200


@pytest.mark.parametrize(
    ("lines", "target", "version", "status"),
    [
        (["Host: localhost"], "/api/v1/station", "1.1", 200),
        ([], "/api/v1/station", "1.1", 421),
        ([], "/api/v1/station", "1.0", 421),
        (["Host:"], "/api/v1/station", "1.1", 421),
        (["Host: localhost", "Host: localhost"], "/api/v1/station", "1.1", 421),
        (["Host: localhost", "host: attacker.example"], "/api/v1/station", "1.1", 421),
        (["Host: localhost"], "http://localhost/api/v1/station", "1.1", 200),
        (["Host: localhost"], "http://attacker.example/api/v1/station", "1.1", 421),
        (["Host: attacker.example"], "http://localhost/api/v1/station", "1.1", 421),
        (["Host: localhost"], "http://localhost@attacker.example/api/v1/station", "1.1", 421),
        (["Host: localhost"], "*", "1.1", 404),
    ],
)
def test_odd_hosts_on_the_wire(listening: Served, lines: list[str], target: str, version: str, status: int) -> None:
    assert ask(listening, *lines, bearer(listening), target=target, version=version).status == status


def test_connect_is_no_way_through(listening: Served) -> None:
    assert ask(listening, "Host: localhost", bearer(listening), method="CONNECT", target="a.example:443").status == 400


def test_each_refusal_has_our_form_and_none_lets_a_page_read_it(listening: Served) -> None:
    kinds = {
        401: (["Host: localhost"], Unauthenticated),
        403: (["Host: localhost", "Origin: https://attacker.example", bearer(listening)], Refused),
        421: (["Host: attacker.example", bearer(listening)], Misdirected),
    }
    for status, (lines, kind) in kinds.items():
        answer = ask(listening, *lines)
        body = json.loads(answer.body)
        assert (answer.status, type(from_body(body))) == (status, kind)
        assert set(body) == {"error", "code", "message", "retryable", "detail"}
        assert (b"\r\nwww-authenticate: bearer" in answer.head) == (status == 401)
        assert b"access-control" not in answer.head


def test_every_path_and_method_asks_for_the_token(listening: Served) -> None:
    known = [(each.method, re.sub(r"{[\w:]+}", "x", each.path)) for each in OPERATIONS if not each.to_all]
    for method, path in [
        *known,
        ("POST", "/stub"),
        ("GET", "/"),
        ("OPTIONS", API),
        ("TRACE", "/"),
        ("PATCH", "/nothing"),
    ]:
        assert ask(listening, "Host: localhost", method=method, target=path).status == 401, (method, path)


def test_a_preflight_of_a_page_gets_no_permission(listening: Served) -> None:
    lines = ["Host: localhost", "Origin: https://attacker.example", "Access-Control-Request-Method: POST"]
    assert ask(listening, *lines, method="OPTIONS", target="/stub").status == 403


def test_a_web_socket_is_asked_for_the_token_too(listening: Served) -> None:
    upgrade = [
        "Host: localhost",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ]
    assert ask(listening, *upgrade, target="/stub").status == 401
    assert ask(listening, *upgrade, bearer(listening), target="/nothing").status == 404


def test_of_a_request_that_is_refused_no_body_is_asked_for(listening: Served) -> None:
    def first(*lines: str) -> bytes:
        with listening.connect() as raw:
            head = ["POST /api/v1/sandboxes HTTP/1.1", "Host: localhost", "Content-Length: 9", "Expect: 100-continue"]
            raw.sendall("\r\n".join([*head, *lines, "", ""]).encode())
            return raw.recv(65536).split(b"\r\n")[0]

    assert first() == b"HTTP/1.1 401 Unauthorized"
    assert first(bearer(listening)) == b"HTTP/1.1 100 Continue"


async def test_a_face_knows_who_calls_from_the_guard_alone(listening: Served) -> None:
    async with listening.tcp(principal="root") as client:
        assert (await client.post("/stub")).json() == {"principal": "operator", "path": "/stub"}
    async with listening.client() as client:
        assert (await client.post("/stub/")).json() == {"principal": "local", "path": "/stub/"}
