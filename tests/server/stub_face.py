"""A face for tests: who called, a call that waits, a stream without an end; left, it asks its station for the last
time."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
from starlette.types import ASGIApp, Receive, Scope, Send


@asynccontextmanager
async def stub(home: Path) -> AsyncIterator[ASGIApp]:
    transport = httpx2.AsyncHTTPTransport(uds=str(home / "station.sock"))
    async with (
        httpx2.AsyncClient(transport=transport, base_url="http://station", trust_env=False) as client,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(asyncio.sleep(0))
        yield app
        answer = await client.get("/api/v1/station")
        (home / "left").write_text(str(answer.json()["pid"] == os.getpid()))


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["method"] == "POST":
        body = json.dumps({"principal": scope["state"]["principal"].tag, "path": scope["path"]}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": b"data: begun\n\n", "more_body": True})
    await asyncio.Event().wait()
