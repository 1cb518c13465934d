"""PyPI `pydantic-ai-slim[mcp]`: an agent whose scripted model asks for one tool and then stops."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio

from lines import HEADERS, TARGET, follow, tool
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset, StdioTransport
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel


def asking_for(name, arguments):
    """A model that calls this tool with these arguments, and says that it is done whatever comes of it."""

    def answer(messages, _info):
        first = len(messages) == 1
        return ModelResponse(parts=[ToolCallPart(name, arguments) if first else TextPart("done")])

    return FunctionModel(answer)


def outcome(run):
    """What the model was told of its call."""
    parts = [part for message in run.all_messages() for part in message.parts]
    told = next(part for part in parts if isinstance(part, ToolReturnPart))
    structured = told.content if isinstance(told.content, dict) else None
    return {"is_error": told.outcome != "success", "structured": structured, "text": told.model_response_str()}


async def main() -> None:
    listening = set()  # the handler of progress is the toolset's, not the call's: all calls under way hear everything

    async def progress_of_any(done, total, message):
        for progress in listening:
            await progress(done, total, message)

    if "url" in TARGET:
        toolset = MCPToolset(TARGET["url"], headers=HEADERS, progress_handler=progress_of_any)
    else:
        transport = StdioTransport(TARGET["command"], TARGET["args"], env=TARGET["env"], keep_alive=False)
        toolset = MCPToolset(transport, progress_handler=progress_of_any)
    agent = Agent(toolsets=[toolset])
    async with agent:

        async def info(_step, _progress):
            return {"protocol": toolset.client.protocol_version, "server": toolset.server_info.name}

        async def tools(_step, _progress):
            return [tool(found) for found in await toolset.list_tools()]

        async def call(step, progress):
            listening.add(progress)
            try:
                return outcome(await agent.run("go", model=asking_for(step["tool"], step["arguments"])))
            finally:
                listening.remove(progress)

        async def made_up(step, _progress):
            return outcome(await agent.run("go", model=TestModel(call_tools=[step["tool"]])))

        async def resources(_step, _progress):
            return [str(found.uri) for found in await toolset.list_resources()]

        async def read_resource(step, _progress):
            return await toolset.read_resource(step["uri"])

        operations = {"info": info, "tools": tools, "call": call, "resources": resources, "read": read_resource}
        await follow({**operations, "made_up": made_up})


asyncio.run(main())
