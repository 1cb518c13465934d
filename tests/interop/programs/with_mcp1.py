"""PyPI `mcp` 1.x: what most MCP hosts in Python have."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
from lines import HEADERS, TARGET, called, follow, tool
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


@asynccontextmanager
async def streams():
    if "url" not in TARGET:
        parameters = StdioServerParameters(command=TARGET["command"], args=TARGET["args"], env=TARGET["env"])
        async with stdio_client(parameters) as (read, write):
            yield read, write
        return
    timeout = httpx.Timeout(30, read=300)
    async with (
        httpx.AsyncClient(headers=HEADERS, timeout=timeout) as http,
        streamable_http_client(TARGET["url"], http_client=http) as (read, write, _session_id),
    ):
        yield read, write


async def main() -> None:
    async with streams() as (read, write), ClientSession(read, write) as session:
        started = await session.initialize()

        async def info(_step, _progress):
            return {"protocol": started.protocolVersion, "server": started.serverInfo.name}

        async def tools(_step, _progress):
            return [tool(found) for found in (await session.list_tools()).tools]

        async def call(step, progress):
            # This package tells nobody that it gave up on a call: the notification of the protocol is sent by hand,
            # with the number that the call below gets.
            number = session._request_id
            try:
                return called(await session.call_tool(step["tool"], step["arguments"], progress_callback=progress))
            except asyncio.CancelledError:
                gone = types.CancelledNotification(params=types.CancelledNotificationParams(requestId=number))
                await session.send_notification(types.ClientNotification(gone))
                raise

        async def resources(_step, _progress):
            return [str(found.uri) for found in (await session.list_resources()).resources]

        async def read_resource(step, _progress):
            return (await session.read_resource(step["uri"])).contents[0].text

        await follow({"info": info, "tools": tools, "call": call, "resources": resources, "read": read_resource})


asyncio.run(main())
