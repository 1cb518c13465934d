"""A server with one tool that returns at once, on stdio, or with `http` on a free port that it prints: what any call
costs with this SDK.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import mcp_types as types
import uvicorn
import uvloop
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

ANSWER = types.CallToolResult(content=[types.TextContent(text="done")], structured_content={"ok": True})
TOOL = types.Tool(
    name="empty",
    description="Does nothing.",
    input_schema={"type": "object", "properties": {}},
    output_schema={"type": "object", "properties": {"ok": {"type": "boolean"}}},
)


def server() -> Server[Any]:
    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[TOOL])

    async def call_tool(_context: Any, _params: Any) -> types.CallToolResult:
        return ANSWER

    return Server("empty", on_list_tools=list_tools, on_call_tool=call_tool)


async def stdio() -> None:
    empty = server()
    async with stdio_server() as (read, write):
        await empty.run(read, write, empty.create_initialization_options())


async def http() -> None:
    manager = StreamableHTTPSessionManager(server(), stateless=True)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(manager.handle_request, interface="asgi3", lifespan="off", log_level="warning")
        print(listening.getsockname()[1], flush=True)
        async with manager.run():
            await uvicorn.Server(config).serve([listening])


if __name__ == "__main__":
    program = http if sys.argv[1:] == ["http"] else stdio
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(program())
