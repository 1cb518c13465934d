"""What a station says in its log: one event a line, nothing that was forged, and no secret."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from station import spans
from station.server.logs import Json, Plain, set_up

from .served import Served

FORGED = 'a\n{"level": "error", "message": "forged"}\r\x1b[2J\x7f\x85\u2028\u202e\udcff'
CANARY = "canary-7Qw4x"


def record(message: str, error: BaseException | None = None) -> logging.LogRecord:
    told = (type(error), error, None) if error is not None else None
    return logging.LogRecord("station.x", logging.WARNING, __file__, 1, "%s", (message,), told)


@pytest.fixture
def trace() -> Iterator[spans.Trace]:
    found = spans.Trace("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "01")
    token = spans.CURRENT.set(found)
    yield found
    spans.CURRENT.reset(token)


def test_hd_w05_control_characters_forge_no_line_of_json() -> None:
    line = Json().format(record(FORGED, ValueError(FORGED)))
    assert line.isascii()
    assert line.isprintable()
    told = json.loads(line)
    assert (told["level"], told["logger"], told["message"]) == ("warning", "station.x", FORGED)
    assert FORGED.splitlines()[0] in told["exception"]
    # The control: what logging does by itself.
    assert len(logging.Formatter().format(record(FORGED)).splitlines()) > 1


def test_hd_w05_control_characters_forge_no_line_of_text() -> None:
    line = Plain().format(record(FORGED))
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert [part for part in Plain().format(record("x", ValueError(FORGED))).splitlines() if part.startswith("{")] == []


def test_an_event_within_a_trace_says_which(trace: spans.Trace) -> None:
    assert json.loads(Json().format(record("x")))["trace_id"] == trace.trace_id
    assert trace.trace_id in Plain().format(record("x"))


def test_an_event_without_a_trace_says_nothing_of_one() -> None:
    assert "trace" not in Json().format(record("x")) + Plain().format(record("x"))


def test_a_file_is_written_in_the_form_that_is_wanted(tmp_path: Path) -> None:
    handler = set_up(tmp_path, background=True, megabytes=1, form="json")
    try:
        logging.getLogger("test.form").warning("a\nb")
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    assert json.loads((tmp_path / "station.log").read_text())["message"] == "a\nb"


async def use_every_secret(served: Served, token: str) -> None:
    """Whatever may be secret of a request comes once where it belongs, and once where it makes the request fail."""
    async with served.tcp(authorization=f"Bearer {CANARY}-wrong") as stranger:
        assert (await stranger.get("/api/v1/station")).status_code == 401
    secret = {"authorization": f"Bearer {token}", "Idempotency-Key": f"{CANARY}-key", "Cookie": f"a={CANARY}"}
    async with served.tcp(**secret) as client:

        async def call(method: str, path: str, body: Any = None, **more: Any) -> int:
            return (await client.request(method, f"/api/v1{path}", json=body, **more)).status_code

        opened = await client.post("/api/v1/sandboxes", json={"name": "a"}, headers={"Idempotency-Key": "open"})
        one = f"/sandboxes/{opened.json()['id']}"
        env, given = {"TOKEN": f"{CANARY}-env"}, {"data": f"{CANARY}-stdin"}
        assert await call("POST", f"{one}/exec", {"command": "true", "env": env, "stdin": given}) == 200
        assert await call("POST", f"{one}/exec", {"command": "false", "env": env}) == 409
        assert await call("POST", f"{one}/processes", {"argv": [f"/{CANARY}"], "env": env, "id": CANARY}) == 409
        assert await call("POST", "/runs", {"code": f"# {CANARY}", "env": {CANARY: "\0"}}) == 409
        assert await call("PUT", f"{one}/files?path=/etc/{CANARY}&digest={CANARY}") == 400
        assert await call("PUT", f"{one}/files?path=secret", content=CANARY.encode()) == 201
        assert await call("PUT", f"/files/{CANARY}?ttl={CANARY}", content=CANARY.encode()) == 400
        assert (await client.post("/mcp", content=CANARY.encode())).status_code == 404


async def test_no_secret_stands_in_a_log(serve: Callable[..., Served], tmp_path: Path) -> None:
    secrets = {
        "STN_TOKEN": f"stn_op_{CANARY}-operator",
        "STN_SANDBOX_REGISTRY_USERNAME": f"{CANARY}-user",
        "STN_SANDBOX_REGISTRY_PASSWORD": f"{CANARY}-password",
        "STN_CODE_API_KEY": f"{CANARY}-of-code",
    }
    home, words = tmp_path / "home", ""
    for form, ending in (("text", signal.SIGKILL), ("json", signal.SIGTERM)):
        served = serve("often", home=home, STN_LISTEN="127.0.0.1:0", STN_LOG_FORMAT=form, **secrets)
        assert served.ready
        await use_every_secret(served, secrets["STN_TOKEN"])
        words += served.end(ending)[1] + served.printed
        words += "".join(file.read_text() for file in home.glob("*.log*"))
    assert words.count("reconciled") == words.count("listening on") == 2
    assert CANARY not in words
