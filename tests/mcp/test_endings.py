"""A call that is given up ends its command and all that it started, over every transport; seen from outside the box."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from station import Client
from tests.mcp.driver import WAIT, Tools, in_memory, over_http, over_stdio, raw
from tests.observer import Observer, command_line, descendants, pids

TREE = "sleep 1001 & (setsid sleep 1002 &) ; trap '' TERM; sh -c 'sleep 1003; :'; sleep 1004"
# The others too, in tests/interop: with a tree that is easier to end.
TRANSPORTS = [
    "memory",
    "http-legacy",
    *(pytest.param(x, marks=pytest.mark.full) for x in ("stdio", "stdio-legacy", "http")),
]


@asynccontextmanager
async def reached(transport: str, home: Path) -> AsyncIterator[Tools]:
    kind, _, era = transport.partition("-")
    mode: Any = "legacy" if era else "auto"
    match kind:
        case "memory":
            made: Any = in_memory(home)
        case "stdio":
            made = over_stdio(home, mode=mode)
        case _:
            made = over_http(home, mode=mode)
    async with made as tools:
        yield tools


class Inside:
    """The processes of a sandbox, as the host sees them."""

    def __init__(self, observer: Observer, client: Client, sandbox_id: str) -> None:
        self.observer = observer
        self.uid = client.get_by_id(sandbox_id).id
        self.idle = self.now()

    def now(self) -> set[int]:
        return descendants(self.observer.guests(self.uid))

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await anyio.to_thread.run_sync(self.observer.until, condition, what, 20)

    async def until_begun(self, count: int = 4) -> None:
        await self.until(lambda: len(self.now()) >= len(self.idle) + count, "the command did not start")

    async def until_idle(self) -> None:
        await self.until(lambda: self.now() <= self.idle, "what the command started is left")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_cancelled_call_ends_the_commands_whole_tree(
    transport: str, home: Path, client: Client, observer: Observer, ran: Callable[[str], None]
) -> None:
    ran("bubblewrap")
    async with reached(transport, home) as tools:
        opened = await tools.open()
        inside = Inside(observer, client, opened["sandbox_id"])
        task = asyncio.create_task(tools.exec(TREE))
        await inside.until_begun()
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        await inside.until_idle()
        assert (await tools.exec("echo ok"))["stdout"] == "ok\n"
        await tools.close()


async def test_a_cancelled_run_ends_its_box(home: Path, client: Client, observer: Observer) -> None:
    def sleeps() -> bool:
        return any("1017" in command_line(pid) for pid in pids())

    async with reached("stdio", home) as tools:
        task = asyncio.create_task(tools.run("import subprocess; subprocess.run(['sleep', '1017'])"))
        await anyio.to_thread.run_sync(observer.until, sleeps, "the program did not start", 15)
        task.cancel()
        await asyncio.wait({task})
        await anyio.to_thread.run_sync(observer.until, lambda: not sleeps(), "the program is left", 15)


async def test_a_cancellation_means_the_call_of_that_session_and_no_other(
    home: Path, client: Client, observer: Observer
) -> None:
    """Ids of requests are the clients' own: two have the same ones."""
    async with reached("http-legacy", home) as one, reached("http-legacy", home) as two:
        opened = await one.open()
        await two.open()  # both have sent as many requests
        inside = Inside(observer, client, opened["sandbox_id"])
        first, second = asyncio.create_task(one.exec(WAIT)), asyncio.create_task(two.exec(WAIT))
        await inside.until_begun(2)
        first.cancel()
        await asyncio.wait({first})
        assert not second.done()
        await two.write("go", "")
        async with asyncio.timeout(20):
            assert (await second)["exit_code"] == 0
        await one.close()


async def test_at_the_end_of_its_input_commands_end_and_so_does_the_process(
    home: Path, client: Client, observer: Observer
) -> None:
    async with raw(home) as server:
        inside = Inside(observer, client, (await server.call("sandbox_open"))["sandbox_id"])
        await server.send("tools/call", {"name": "sandbox_exec", "arguments": {"command": TREE}})
        await inside.until_begun()
        code, words = await server.hang_up()
        assert code == 0, words
        await inside.until_idle()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
async def test_a_process_that_is_told_to_end_ends_its_commands(
    home: Path, client: Client, observer: Observer, number: signal.Signals
) -> None:
    async with raw(home) as server:
        inside = Inside(observer, client, (await server.call("sandbox_open"))["sandbox_id"])
        await server.send("tools/call", {"name": "sandbox_exec", "arguments": {"command": "sleep 1001"}})
        await inside.until_begun(1)
        server.process.send_signal(number)
        async with asyncio.timeout(30):
            await server.process.wait()
        await inside.until_idle()


@pytest.mark.full
async def test_what_a_killed_process_waited_for_is_ended_soon(home: Path, client: Client, observer: Observer) -> None:
    """Nobody else knows of the command, and its time limit may be an hour away."""
    async with raw(home) as server:
        inside = Inside(observer, client, (await server.call("sandbox_open"))["sandbox_id"])
        wanted = {"command": "sleep 1001", "timeout_seconds": 3600}
        await server.send("tools/call", {"name": "sandbox_exec", "arguments": wanted})
        await inside.until_begun(1)
        server.process.kill()
        await server.process.wait()
        await inside.until_idle()


@pytest.mark.full
async def test_a_sandbox_outlives_the_process_that_opened_it_and_its_started_programs_too(
    home: Path, client: Client, observer: Observer
) -> None:
    async with raw(home) as server:
        opened = await server.call("sandbox_open")
        inside = Inside(observer, client, opened["sandbox_id"])
        await server.call("sandbox_start", command="sleep 1001")
        await inside.until_begun(1)
        await server.hang_up()
    assert len(inside.now()) > len(inside.idle)
    client.get_by_id(opened["sandbox_id"]).delete()
    await inside.until(lambda: not inside.now(), "the box is left")
