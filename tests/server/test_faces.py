"""Faces: entered when somebody asks, left before the API stops answering."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from station.server.net import faces as module
from station.server.net.faces import Face, Faces
from station.server.net.http import GRACEFUL_SECONDS

from .served import Served

HOME = Path("/nowhere")


class Stub:
    """A face that notes what happens to it."""

    def __init__(self) -> None:
        self.loads = 0
        self.threads: set[int] = set()
        self.fails = 0
        self.tasks: list[asyncio.Task[Any] | None] = []
        self.homes: list[Path] = []
        self.left = 0
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.stuck = False

    def load(self) -> Face:
        self.loads += 1
        self.threads.add(threading.get_ident())
        if self.loads <= self.fails:
            raise ImportError("no such package")
        return self.enter

    @asynccontextmanager
    async def enter(self, home: Path) -> AsyncIterator[ASGIApp]:
        self.homes.append(home)
        self.tasks.append(asyncio.current_task())
        try:
            yield self.app
        finally:
            self.tasks.append(asyncio.current_task())
            self.left += 1
            if self.stuck:
                await asyncio.Event().wait()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = b"text/event-stream" if scope["method"] == "GET" else b"text/plain"
        if scope["query_string"] != b"late":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
            await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
        self.began.set()
        if scope["query_string"] != b"now":
            await self.go_on.wait()
        await send({"type": "http.response.body", "body": b"done", "more_body": False})


class Call:
    def __init__(self, faces: Faces, method: str = "POST", query: str = "now") -> None:
        self.sent: list[Any] = []
        app = faces.find("/stub")
        assert app is not None
        scope = {"type": "http", "method": method, "path": "/stub", "query_string": query.encode(), "headers": []}
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        raise AssertionError("not read")

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def end(self) -> tuple[int, bytes, bool]:
        """Status, body, and whether the answer has an end."""
        async with asyncio.timeout(30):
            await self.task
        body = b"".join(message.get("body", b"") for message in self.sent)
        last = self.sent[-1]
        return self.sent[0]["status"], body, last["type"] == "http.response.body" and not last.get("more_body", False)


@pytest.fixture
def stub() -> Stub:
    return Stub()


@pytest.fixture
async def faces(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Faces]:
    monkeypatch.setattr(module, "LEAVE_SECONDS", 0.05)
    async with Faces(HOME, {"/stub": stub.load}) as made:
        yield made


def test_a_face_has_exactly_its_path_and_a_slash_at_the_end_is_none(stub: Stub) -> None:
    faces = Faces(HOME, {"/stub": stub.load})
    assert faces.find("/stub") is faces.find("/stub/") is not None
    for path in ("/", "", "/stub//", "/stub/x", "/stubs", "/STUB", "stub", "//stub", "/api/v1/station"):
        assert faces.find(path) is None
    assert stub.loads == 0


async def test_it_is_loaded_once_in_a_thread_at_the_first_of_many_requests(faces: Faces, stub: Stub) -> None:
    calls = [Call(faces) for _ in range(5)]
    assert [await call.end() for call in calls] == [(200, b"begun done", True)] * 5
    assert await Call(faces).end() == (200, b"begun done", True)
    assert (stub.loads, stub.homes) == (1, [HOME])
    assert threading.get_ident() not in stub.threads


async def test_it_is_left_by_the_task_that_entered_it_which_is_of_no_request(faces: Faces, stub: Stub) -> None:
    call = Call(faces)
    await call.end()
    await faces.aclose()
    await faces.aclose()
    assert stub.left == 1
    assert stub.tasks[0] is stub.tasks[1]
    assert stub.tasks[0] not in (call.task, asyncio.current_task())


async def test_one_that_cannot_be_loaded_answers_500_and_is_tried_again(
    faces: Faces, stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    stub.fails = 1
    answers = [await call.end() for call in [Call(faces), Call(faces)]]
    for status, body, ended in answers:
        assert (status, json.loads(body)["code"], ended) == (500, "internal", True)
        assert b"no such package" not in body
    assert "no such package" in caplog.text
    assert stub.loads == 1
    assert (await Call(faces).end())[0] == 200


async def test_the_first_caller_hangs_up_and_the_second_is_served(faces: Faces, stub: Stub) -> None:
    first, second = Call(faces), Call(faces)
    await asyncio.sleep(0)
    first.task.cancel()
    assert (await second.end())[0] == 200
    assert first.task.cancelled()
    assert stub.loads == 1


async def test_a_call_under_way_is_finished_before_the_face_is_left(faces: Faces, stub: Stub) -> None:
    call = Call(faces, query="wait")
    await stub.began.wait()
    closing = asyncio.ensure_future(faces.aclose())
    await asyncio.sleep(0)
    assert (await Call(faces).end())[0] == 503, "no new one is taken"
    assert stub.left == 0
    stub.go_on.set()
    assert await call.end() == (200, b"begun done", True)
    await closing
    assert stub.left == 1


async def test_a_stream_is_ended_at_once_and_has_an_end(faces: Faces, stub: Stub) -> None:
    stream = Call(faces, "GET", "forever")
    await stub.began.wait()
    begun = time.monotonic()
    await faces.aclose()
    assert await stream.end() == (200, b"begun ", True)
    assert time.monotonic() - begun < 1
    assert stub.left == 1


async def test_a_call_that_takes_too_long_is_cut_off_and_looks_like_it(
    faces: Faces, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALLS_SECONDS", 0.05)
    begun, late = Call(faces, query="forever"), Call(faces, query="late")
    await stub.began.wait()
    await faces.aclose()
    assert await begun.end() == (200, b"begun ", False)
    status, body, ended = await late.end()
    assert (status, json.loads(body)["code"], ended) == (503, "unavailable", True)


async def test_in_a_hurry_no_call_is_waited_for(faces: Faces, stub: Stub) -> None:
    call = Call(faces, query="forever")
    await stub.began.wait()
    begun = time.monotonic()
    closing = asyncio.ensure_future(faces.aclose())
    await asyncio.sleep(0)
    faces.hurry()
    await closing
    assert time.monotonic() - begun < 1
    assert await call.end() == (200, b"begun ", False)


async def test_a_face_that_will_not_be_left_holds_nobody_up(
    faces: Faces, stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    stub.stuck = True
    await Call(faces).end()
    begun = time.monotonic()
    await faces.aclose()
    assert time.monotonic() - begun < 1
    assert "not left in time" in caplog.text


async def test_a_face_that_ends_by_itself_is_entered_again(
    faces: Faces, stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    await Call(faces).end()
    life = stub.tasks[0]
    assert life is not None
    life.cancel()
    await asyncio.wait([life])
    assert (await Call(faces).end())[0] == 200
    assert stub.loads == 2


async def test_a_station_ends_in_time_with_streams_open_and_leaves_its_face_while_it_answers(
    serve: Callable[..., Served],
) -> None:
    served = serve("face", STN_LISTEN="127.0.0.1:0")
    async with served.tcp() as tcp, served.client() as local:
        async with tcp.stream("GET", "/stub") as one, local.stream("GET", "/stub") as two:
            for stream in (one, two):
                chunks = stream.aiter_bytes()
                assert await anext(chunks) == b"data: begun\n\n"
                stream.extensions["chunks"] = chunks
            begun = time.monotonic()
            assert (await local.post("/api/v1/station/stop")).status_code == 202
            for stream in (one, two):
                assert [chunk async for chunk in stream.extensions["chunks"]] == []
        code, words = served.wait()
    assert (code, "Traceback" in words) == (0, False), words
    assert time.monotonic() - begun < GRACEFUL_SECONDS
    assert (served.home / "left").read_text() == "True", "its last call was answered"


async def test_a_stream_whose_client_reads_nothing_holds_no_stop_up(serve: Callable[..., Served]) -> None:
    served = serve("face", STN_LISTEN="127.0.0.1:0")
    with served.connect() as raw:
        raw.sendall(f"GET /stub HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {served.token}\r\n\r\n".encode())
        assert raw.recv(10) == b"HTTP/1.1 2"
        begun = time.monotonic()
        code, words = served.end()
    assert code == 0, words
    assert time.monotonic() - begun < GRACEFUL_SECONDS + 2


async def test_a_face_that_nobody_asked_for_is_never_entered(serve: Callable[..., Served]) -> None:
    served = serve("face")
    async with served.client() as client:
        assert (await client.get("/api/v1/station")).status_code == 200
    assert served.end()[0] == 0
    assert not (served.home / "left").exists()
