"""PyPI `mcp` 2.x, in the mode of its choice: the stateless revision where the server has it, `initialize` elsewhere.
With the argument `legacy`: `initialize` in any case.
"""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

import httpx2
from lines import HEADERS, TARGET, called, follow, tool
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


async def main() -> None:
    async with AsyncExitStack() as stack:
        if "url" in TARGET:
            timeout = httpx2.Timeout(30, read=300)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=HEADERS, timeout=timeout))
            server = streamable_http_client(TARGET["url"], http_client=http)
        else:
            server = StdioServerParameters(command=TARGET["command"], args=TARGET["args"], env=TARGET["env"])
        client = await stack.enter_async_context(Client(server, mode=(sys.argv[1:] or ["auto"])[0]))

        async def info(_step, _progress):
            return {"protocol": client.protocol_version, "server": client.server_info.name}

        async def tools(_step, _progress):
            return [tool(found) for found in (await client.list_tools()).tools]

        async def call(step, progress):
            return called(await client.call_tool(step["tool"], step["arguments"], progress_callback=progress))

        async def resources(_step, _progress):
            return [str(found.uri) for found in (await client.list_resources()).resources]

        async def read_resource(step, _progress):
            return (await client.read_resource(step["uri"])).contents[0].text

        await follow({"info": info, "tools": tools, "call": call, "resources": resources, "read": read_resource})


asyncio.run(main())
