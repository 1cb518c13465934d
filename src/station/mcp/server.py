"""The MCP server: our tools and one page of documentation, for whoever a transport says is calling."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError

import station
from station.core.errors import InternalError, StationError

from . import docs, texts
from .call import Call, Reply, Tell
from .caller import Caller
from .errors import failure
from .tools import TOOLS, Tool, input_schema, output_schema

Context = ServerRequestContext[Any, Any]
WhoCalls = Callable[[Context], Caller]

_log = logging.getLogger(__name__)


def build(who: WhoCalls) -> Server[Any]:
    """A server that keeps nothing of its own: `who` tells whose sandboxes a call may reach."""

    async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(listed()))

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:80]!r}; there are {', '.join(TOOLS)}")
        return await answer(tool, lambda: Call(who(context), _tell(context)), params.arguments or {})

    async def list_resources(
        _context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        page = types.Resource(
            uri=docs.URI,
            name="sandbox",
            title="How to use the sandbox tools",
            description=docs.ABOUT,
            mime_type="text/markdown",
        )
        return types.ListResourcesResult(resources=[page])

    async def read_resource(_context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if str(params.uri) != docs.URI:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {params.uri[:200]}; there is {docs.URI}")
        page = types.TextResourceContents(uri=docs.URI, mime_type="text/markdown", text=docs.page())
        return types.ReadResourceResult(contents=[page])

    return Server(
        "station",
        version=station.__version__,
        title="Station sandbox",
        instructions=docs.INSTRUCTIONS,
        get_tool_input_schema=lambda name: input_schema(TOOLS[name]) if name in TOOLS else None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


@cache
def listed() -> tuple[types.Tool, ...]:
    """As clients see them."""
    return tuple(
        types.Tool(
            name=tool.name,
            title=tool.title,
            description=tool.does,
            input_schema=input_schema(tool),
            output_schema=output_schema(tool),
            annotations=types.ToolAnnotations(
                read_only_hint=tool.read_only,
                destructive_hint=tool.destructive,
                idempotent_hint=tool.idempotent,
                open_world_hint=False,
            ),
        )
        for tool in TOOLS.values()
    )


async def answer(tool: Tool, make_call: Callable[[], Call], arguments: dict[str, Any]) -> types.CallToolResult:
    """What the tool answers; whatever goes wrong is an answer too, so that no fault ends the run of a model."""
    try:
        return success(await tool(make_call(), arguments))
    except StationError as error:
        return failure(error)
    except Exception:  # noqa: BLE001 - the boundary to a client: what is not foreseen is told and logged
        _log.exception("a call of %s failed", tool.name)
        return failure(InternalError(f"{tool.name} failed; this is a fault of Station, its log has the details"))


def success(reply: Reply) -> types.CallToolResult:
    images = [types.ImageContent(data=image.base64, mime_type=image.mime_type) for image in reply.images]
    return types.CallToolResult(
        content=[types.TextContent(text=texts.name(reply.text)), *images], structured_content=reply.structured
    )


def _tell(context: Context) -> Tell | None:
    if not context.meta or "progress_token" not in context.meta:
        return None

    async def tell(seconds: float, written: str | None) -> None:
        await context.session.report_progress(round(seconds, 1), message=written or f"still running, {seconds:.0f} s")

    return tell
