"""Tool calls over MCP, beside the SDK and beside a server that does nothing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from station import AsyncClient, AsyncSandbox

from .measure import Action, interleaved, timed

Report = dict[str, float]
NAME = "bench-tools"
SIDE_BY_SIDE = 15


async def tools(client: AsyncClient, home: Path, rounds: int) -> Report:
    """`true` by the SDK, and by `sandbox_exec` over each transport; an empty tool is the floor of any call over MCP."""
    async with (
        await client.open(NAME) as sandbox,
        Client(_program("-m", "station", "mcp", "--sandbox", NAME, home=home)) as station,
        Client(_program("-m", "bench.empty_tool")) as empty,
        _station_over_http() as station_http,
        _empty_over_http() as empty_http,
    ):
        peers = {"": (station, empty), "_http": (station_http, empty_http)}
        took = await interleaved(_actions(sandbox, peers), rounds, in_a_row=1)
        report = {f"tool_{name}_ms": seconds * 1e3 for name, seconds in took.items()}
        for name in ("exec", "exec_progress", "exec_http"):
            empty_took = took["empty_http" if name == "exec_http" else "empty"]
            report[f"tool_{name}_ratio"] = max(2 * took["sdk"], took["sdk"] + empty_took) / took[name]
        report |= await _beside_long(station, rounds)
        await sandbox.delete()
    return report


def _actions(sandbox: AsyncSandbox, peers: dict[str, tuple[Client, Client]]) -> dict[str, Action]:
    async def heard(_done: float, _total: float | None, _message: str | None) -> None:
        pass

    command = {"command": ["true"]}
    actions: dict[str, Action] = {"sdk": lambda: sandbox.exec(["true"])}
    for suffix, (station, empty) in peers.items():
        actions[f"exec{suffix}"] = partial(station.call_tool, "sandbox_exec", command)
        actions[f"empty{suffix}"] = partial(empty.call_tool, "empty", {})
    station = peers[""][0]
    actions["exec_progress"] = partial(station.call_tool, "sandbox_exec", command, progress_callback=heard)
    return actions


async def _beside_long(station: Client, rounds: int) -> Report:
    """Calls side by side while a long one is under way, against the same calls alone: 1 is no difference."""

    async def many() -> None:
        calls = (station.call_tool("sandbox_exec", {"command": ["true"]}) for _ in range(SIDE_BY_SIDE))
        await asyncio.gather(*calls)

    async def long(started: asyncio.Event) -> None:
        async def first(_done: float, _total: float | None, _message: str | None) -> None:
            started.set()

        await station.call_tool("sandbox_exec", {"command": "echo on; exec sleep 600"}, progress_callback=first)

    alone: list[float] = []
    beside: list[float] = []
    for _ in range(max(5, rounds // 10)):
        alone.append(await timed(many))
        started = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(long(started))
            await started.wait()
            beside.append(await timed(many))
            task.cancel()
    middle = len(alone) // 2
    one, other = sorted(alone)[middle], sorted(beside)[middle]
    return {"tools_alone_ms": one * 1e3, "tools_beside_long_ms": other * 1e3, "tools_beside_long_ratio": one / other}


def _program(*args: str, home: Path | None = None) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=list(args), env=_environment(home))


def _environment(home: Path | None) -> dict[str, str]:
    return {**os.environ, "STN_HOME": str(home)} if home else dict(os.environ)


@asynccontextmanager
async def _printing(*args: str, home: Path | None = None) -> AsyncIterator[str]:
    """A program of Python that runs as long as this, and the line that it begins with."""
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    environment = _environment(home)
    process = await asyncio.create_subprocess_exec(sys.executable, *args, stdout=pipe, stderr=nowhere, env=environment)
    assert process.stdout
    try:
        yield (await process.stdout.readline()).decode()
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def _empty_over_http() -> AsyncIterator[Client]:
    async with (
        _printing("-m", "bench.empty_tool", "http") as port,
        Client(streamable_http_client(f"http://127.0.0.1:{port.strip()}/mcp")) as client,
    ):
        yield client


@asynccontextmanager
async def _station_over_http() -> AsyncIterator[Client]:
    """A station of its own, as only `serve` listens; its default sandbox is opened by the first call."""
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="stn-bench-http-")))
        serve = ("-m", "station", "serve", "--listen", "127.0.0.1:0", "--json")
        told = json.loads(await stack.enter_async_context(_printing(*serve, home=home)))
        token = Path(told["token_file"]).read_text(encoding="ascii").strip()
        headers = {"Authorization": f"Bearer {token}"}
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
        url = f"{told['url']}/mcp"
        client = await stack.enter_async_context(Client(streamable_http_client(url, http_client=http)))
        yield client
        await client.call_tool("sandbox_close", {})
