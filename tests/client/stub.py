"""A station in a thread that answers by a script: what a real one does seldom, such as breaking off in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import station
from station.core.ids import uid_of

ISOLATION = {
    "backend": "stub",
    "grade": "none",
    "network": "none",
    "guest_uid": "shared",
    "containment": "none",
    "image": "x",
}


def sandbox_view(name: str, **more: Any) -> dict[str, Any]:
    view = {"id": uid_of("local", name), "name": name, "state": "running", "generation": 1, "workdir": "/workspace"}
    return {**view, "isolation": ISOLATION, "created_at": 1.0, "last_active_at": 2.0, **more}


def process_view(prc: str, out: bytes = b"", code: int = 0) -> dict[str, Any]:
    stream = {"head": {"data": out.decode(), "encoding": "utf-8"}, "total_bytes": len(out)}
    ending = {"kind": "exited", "code": code}
    facts = {"id": prc, "sandbox": "s", "command": ["true"], "shell": True, "cwd": "/workspace", "state": "ended"}
    return {
        **facts,
        "started_at": 1.0,
        "ended_at": 2.0,
        "ending": ending,
        "exit_code": code,
        "stdout": stream,
        "stderr": stream,
    }


def run_result(request: dict[str, Any], out: str = "") -> dict[str, Any]:
    stream = {"head": {"data": out}, "total_bytes": len(out)}
    facts = {"ok": True, "runtime": request["runtime"], "ending": {"kind": "exited", "code": 0}, "exit_code": 0}
    more = {"timed_out": False, "duration_ms": 1.0, "warm": True, "isolation": ISOLATION, "id": request["id"]}
    return {**facts, **more, "stdout": stream, "stderr": stream}


class Hangup(BaseException):
    """Ends the connection without an answer; no exception that the framework would answer 500 to."""


class Stub:
    """What it was asked, and what it will do."""

    def __init__(self) -> None:
        self.version = station.__version__
        self.seen: Counter[str] = Counter()
        self.ids: list[str] = []
        self.queries: list[str] = []
        self.break_next = 0
        self.break_health = 0
        self.files: dict[str, bytes] = {}
        self.damage = False
        self.events: list[list[dict[str, Any]]] = []
        self.together = 0
        self.most_together = 0
        self.barrier: asyncio.Barrier | None = None
        self.asked = threading.Event()

    async def healthz(self, request: Request) -> Response:
        self.seen["healthz"] += 1
        if self.break_health:
            self.break_health -= 1
            raise Hangup
        return JSONResponse({"status": "ok", "version": self.version, "pid": 1})

    async def open(self, request: Request) -> Response:
        body = await request.json()
        self.seen["open"] += 1
        if body["backend"] == "nowhere":
            return error(422, "cannot_enforce", "no such limit here", detail={"limit": "memory_mb"})
        return JSONResponse(sandbox_view(body["name"], created=True), status_code=201)

    async def exec(self, request: Request) -> Response:
        body = await request.json()
        self.ids.append(body["id"])
        await self.maybe_break()
        self.asked.set()
        if body["command"] == "wait for all":
            assert self.barrier is not None
            await self.barrier.wait()
        return JSONResponse(process_view(body["id"], (body["command"] or "argv").encode()))

    async def start(self, request: Request) -> Response:
        body = await request.json()
        self.ids.append(body["id"])
        return JSONResponse({**process_view(body["id"]), "state": "running", "ending": None}, status_code=201)

    async def process(self, request: Request) -> Response:
        return JSONResponse(process_view(request.path_params["prc"], b"done"))

    async def output(self, request: Request) -> Response:
        self.queries.append(request.url.query)
        lines = self.events.pop(0)

        async def body() -> AsyncIterator[bytes]:
            for line in lines:
                if "hangup" in line:
                    raise Hangup
                yield json.dumps(line).encode() + b"\n"

        return StreamingResponse(body())

    async def signal(self, request: Request) -> Response:
        self.seen["signal"] += 1
        return Response(status_code=204)

    async def run(self, request: Request) -> Response:
        body = await request.json()
        self.ids.append(body["id"])
        await self.maybe_break()
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        try:
            if body["code"] == "wait for all":
                assert self.barrier is not None
                await self.barrier.wait()
            await asyncio.sleep(0)
        finally:
            self.together -= 1
        if body["code"] == "refused":
            return error(400, "invalid_input", "this cannot run")
        if body["code"] == "crash":
            return Response("oh", status_code=500)
        return JSONResponse(run_result(body, body["code"]))

    async def read(self, request: Request) -> Response:
        self.queries.append(request.url.query)
        path = request.query_params["path"]
        if path not in self.files:
            return error(404, "file_not_found", f"there is no {path}")
        data = self.files[path]
        digest = hashlib.sha256(data).digest()
        return Response((b"X" + data[1:] if self.damage else data) + digest)

    async def write(self, request: Request) -> Response:
        self.queries.append(request.url.query)
        body = await request.body()
        data, digest = body[:-32], body[-32:]
        if hashlib.sha256(data).digest() != digest:
            return error(400, "invalid_input", "the digest differs")
        path = request.query_params["path"]
        created = path not in self.files
        self.files[path] = data
        entry = {"path": f"/workspace/{path}", "type": "file", "size": len(data), "mode": "644", "mtime": 1.0}
        return JSONResponse({"entry": entry, "created": created, "sha256": digest.hex()})

    async def maybe_break(self) -> None:
        if self.break_next:
            self.break_next -= 1
            raise Hangup

    def app(self) -> Any:
        box = "/api/v1/sandboxes/{sid}"
        return Starlette(
            routes=[
                Route("/healthz", self.healthz),
                Route("/api/v1/sandboxes", self.open, methods=["POST"]),
                Route(box + "/exec", self.exec, methods=["POST"]),
                Route(box + "/processes", self.start, methods=["POST"]),
                Route(box + "/processes/{prc}", self.process),
                Route(box + "/processes/{prc}/output", self.output),
                Route(box + "/processes/{prc}/signal", self.signal, methods=["POST"]),
                Route(box + "/files", self.read, methods=["GET"]),
                Route(box + "/files", self.write, methods=["PUT"]),
                Route("/api/v1/runs", self.run, methods=["POST"]),
            ]
        )


def error(status: int, code: str, message: str, **more: Any) -> Response:
    return JSONResponse(
        {"error": "E", "code": code, "message": message, "retryable": False, **more}, status_code=status
    )


@contextlib.contextmanager
def serving(stub: Stub, home: Path) -> Iterator[None]:
    """The stub on `<home>/station.sock`, bound by its short relative name where the home is long."""
    home.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(home):
        listener.bind("station.sock")
    listener.listen(256)

    async def closing(scope: Any, receive: Any, send: Any) -> None:
        # uvicorn answers 500 where an application fails; the transport itself must go for a broken connection.
        try:
            await app(scope, receive, send)
        except* Hangup:
            for protocol in list(server.server_state.connections):
                if getattr(protocol, "scope", None) is scope:
                    protocol.transport.abort()

    app = stub.app()
    config = uvicorn.Config(
        closing, log_level="critical", lifespan="off", loop="asyncio", http="h11", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        (home / "station.sock").unlink()
