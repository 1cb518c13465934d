"""The tools as a client sees them. Every answer is checked against what is listed, and that it drives no terminal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import mcp_types as types
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from station import AsyncClient, aconnect
from station.client._build import Isolated
from station.mcp.caller import Caller
from station.mcp.scope import Scope
from station.mcp.server import build
from station.mcp.tools import TOOLS, output_schema

UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LEGACY = "2025-06-18"
WAIT = "until [ -e go ]; do sleep 0.05; done"


@dataclass(frozen=True)
class Answer:
    value: dict[str, Any]
    text: str
    failed: bool
    raw: types.CallToolResult

    @property
    def error(self) -> dict[str, Any]:
        assert self.failed, f"it did not fail: {self.value}"
        error: dict[str, Any] = self.value["error"]
        return error

    def __getitem__(self, name: str) -> Any:
        assert not self.failed, self.text
        return self.value[name]


def checked(name: str, result: types.CallToolResult) -> Answer:
    """The answer, once it has the form that every answer has."""
    texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
    assert len(texts) == 1, texts
    assert not UNSAFE.search(texts[0]), f"control characters: {UNSAFE.findall(texts[0])}"
    if result.is_error:
        # Several clients hold what is structured against the schema of a good answer.
        assert result.structured_content is None
        value = json.loads(texts[0])
        assert set(value) == {"ok", "error"}
        assert value["ok"] is False
        assert set(value["error"]) == {"code", "message", "retryable", "detail"}, value
        assert value["error"]["code"] != "internal", value
    else:
        value = result.structured_content
        assert isinstance(value, dict)
        schema = output_schema(TOOLS[name])
        jsonschema.validate(value, schema)
        assert set(value) <= set(schema["properties"])
    return Answer(value, texts[0], bool(result.is_error), result)


class Tools:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, name: str, arguments: dict[str, Any], **options: Any) -> Answer:
        return checked(name, await self.client.call_tool(name, arguments, **options))

    async def run(self, code: str, **more: Any) -> Answer:
        return await self.call("sandbox_run", {"code": code, **more})

    async def open(self, **arguments: Any) -> Answer:
        return await self.call("sandbox_open", arguments)

    async def exec(self, command: str | list[str], **more: Any) -> Answer:
        return await self.call("sandbox_exec", {"command": command, **more})

    async def start(self, command: str | list[str], **more: Any) -> Answer:
        return await self.call("sandbox_start", {"command": command, **more})

    async def output(self, process_id: str, **more: Any) -> Answer:
        return await self.call("sandbox_output", {"process_id": process_id, **more})

    async def kill(self, process_id: str, **more: Any) -> Answer:
        return await self.call("sandbox_kill", {"process_id": process_id, **more})

    async def write(self, path: str, content: str | None = None, **more: Any) -> Answer:
        return await self.call("sandbox_fs_write", {"path": path, "content": content, **more})

    async def read(self, path: str, **more: Any) -> Answer:
        return await self.call("sandbox_fs_read", {"path": path, **more})

    async def list(self, **arguments: Any) -> Answer:
        return await self.call("sandbox_fs_list", arguments)

    async def delete(self, path: str, **more: Any) -> Answer:
        return await self.call("sandbox_fs_delete", {"path": path, **more})

    async def close(self, **arguments: Any) -> Answer:
        return await self.call("sandbox_close", arguments)


@asynccontextmanager
async def in_memory(home: Path, sandbox: str | None = None, **where: Any) -> AsyncIterator[Tools]:
    """A process's tools without the process; the sandboxes they opened are gone afterwards."""
    scope = Scope.of_process(sandbox, time.time())
    isolated: Isolated = where  # type: ignore[assignment]
    async with aconnect(home) as client:
        caller = Caller(client, scope, isolated)
        async with Client(build(lambda _context: caller)) as inner:
            yield Tools(inner)
        await remove(client, scope)


async def remove(client: AsyncClient, scope: Scope) -> None:
    for view in await client.list():
        if scope.owns(view.name):
            await client.delete(view.name)


def pid_of(home: Path) -> int:
    """Of the station that runs."""
    return int((home / "station.lock").read_text().split()[0])


def environment(home: Path, **env: str) -> dict[str, str]:
    return {**os.environ, "STN_HOME": str(home), **env}


@asynccontextmanager
async def over_stdio(home: Path, *words: str, mode: Any = "auto", **env: str) -> AsyncIterator[Tools]:
    """`stn mcp` as a client starts it."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "station", "mcp", *words], env=environment(home, **env)
    )
    async with Client(stdio_client(server), mode=mode) as client:
        yield Tools(client)


@asynccontextmanager
async def over_http(
    home: Path, *, mode: Any = "auto", query: str = "", token: str | None = None
) -> AsyncIterator[Tools]:
    """The tools of a station that listens. `token`: `None` is the operator's."""
    told = json.loads((home / "listening.json").read_text())
    headers = {"authorization": f"Bearer {token or (home / 'operator.token').read_text().strip()}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
        Client(streamable_http_client(f"{told['url']}/mcp{query}", http_client=http), mode=mode) as client,
    ):
        yield Tools(client)


class Raw:
    """A process `stn mcp` spoken to line by line, as its client may hang up, cancel and look at what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.notes: list[dict[str, Any]] = []
        self._number = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    async def send(self, method: str, params: dict[str, Any], *, request: bool = True) -> int:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if request:
            self._number += 1
            message["id"] = self._number
        await self.write(json.dumps(message))
        return self._number

    async def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        await self.process.stdin.drain()

    async def answer(self, number: int) -> dict[str, Any]:
        """To that request; what comes before goes to `notes`."""
        assert self.process.stdout is not None
        while True:
            async with asyncio.timeout(30):
                line = await self.process.stdout.readline()
            assert line, "it hung up"
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == number:
                return message
            self.notes.append(message)

    async def answers(self, numbers: list[int]) -> None:
        """To all of those, in any order."""
        left = set(numbers)
        while left:
            assert self.process.stdout is not None
            async with asyncio.timeout(30):
                message = json.loads(await self.process.stdout.readline())
            assert "result" in message, message
            left.remove(message["id"])

    async def call(self, name: str, **arguments: Any) -> Answer:
        number = await self.send("tools/call", {"name": name, "arguments": arguments})
        message = await self.answer(number)
        return checked(name, types.CallToolResult.model_validate(message["result"]))

    async def hang_up(self) -> tuple[int, str]:
        """Ends its input; its exit code, and what it said on standard error."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(30):
            _, words = await self.process.communicate()
        return self.process.returncode or 0, words.decode()


@asynccontextmanager
async def raw(home: Path, *words: str, **env: str) -> AsyncIterator[Raw]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "station", "mcp", *words],
        stdin=pipe, stdout=pipe, stderr=pipe, limit=64 * 1024 * 1024, env=environment(home, **env),
    )  # fmt: skip
    made = Raw(process)
    try:
        number = await made.send(
            "initialize",
            {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
        )
        assert (await made.answer(number))["result"]["protocolVersion"] == LEGACY
        await made.send("notifications/initialized", {}, request=False)
        yield made
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
