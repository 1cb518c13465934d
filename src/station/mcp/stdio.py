"""The tools on standard input and output, for a client that started this process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

import anyio
import uvloop
from mcp.server.stdio import stdio_server

from station.client._async.client import AsyncClient
from station.client._build import Isolated

from .caller import Caller
from .scope import Scope
from .server import build


def serve(sandbox: str | None, where: Isolated) -> None:
    """Returns when the client has gone, or at SIGTERM or SIGINT; commands under way are ended then. Sandboxes stay
    until they are idle.

    `sandbox`: the default one by name; `None`: one of this process's own. Raises InvalidInput for a bad name.
    """
    scope = Scope.of_process(sandbox, time.time())
    if sys.stdin.isatty():
        sys.stderr.write("stn: this speaks MCP with the client that starts it (docs/mcp.md); Ctrl-D ends it\n")
    uvloop.run(_serve(scope, where))


async def _serve(scope: Scope, where: Isolated) -> None:
    lines, ending = _standard_input()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.shutdown, socket.SHUT_WR)
    stdin = anyio.wrap_file(lines.makefile("r", encoding="utf-8", errors="replace"))
    async with AsyncClient() as client, stdio_server(stdin) as (read, write):
        caller = Caller(client, scope, where)
        server = build(lambda _context: caller)
        await server.run(read, write, server.create_initialization_options())


def _standard_input() -> tuple[socket.socket, socket.socket]:
    """What comes on standard input, and what ends that. Nothing wakes a thread that waits for a line of a client: so
    one that nobody waits for passes them on."""
    wire = os.dup(0)
    # Children find nothing on it.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    ours, filled = socket.socketpair()

    def fill() -> None:
        with suppress(OSError):  # ended from here
            while data := os.read(wire, 1 << 16):
                filled.sendall(data)
            filled.shutdown(socket.SHUT_WR)

    threading.Thread(target=fill, daemon=True, name="standard input").start()
    return ours, filled
