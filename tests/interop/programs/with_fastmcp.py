"""PyPI `fastmcp`: its own client, which pydantic-ai and others build on."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from lines import HEADERS, TARGET, called, follow, tool


async def main() -> None:
    if "url" in TARGET:
        transport = StreamableHttpTransport(TARGET["url"], headers=HEADERS)
    else:
        transport = StdioTransport(TARGET["command"], TARGET["args"], env=TARGET["env"], keep_alive=False)
    async with Client(transport) as client:

        async def info(_step, _progress):
            return {"protocol": client.protocol_version, "server": client.server_info.name}

        async def tools(_step, _progress):
            return [tool(found) for found in await client.list_tools()]

        async def call(step, progress):
            return called(await client.call_tool_mcp(step["tool"], step["arguments"], progress_handler=progress))

        async def resources(_step, _progress):
            return [str(found.uri) for found in await client.list_resources()]

        async def read_resource(step, _progress):
            return (await client.read_resource(step["uri"]))[0].text

        await follow({"info": info, "tools": tools, "call": call, "resources": resources, "read": read_resource})


asyncio.run(main())
