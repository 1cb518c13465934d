"""What the Python programs share: one step a line in, what came of it a line out. The standard library alone, as each
program runs in an environment of its own.

    in   {"id": 1, "op": "call", "tool": "sandbox_exec", "arguments": {...}}   also info, tools, resources, read
         {"id": 2, "op": "cancel", "call": 1}                                    gives up on an earlier step
    out  {"id": 1, "progress": "..."}* and then one of
         {"id": 1, "result": ...}, {"id": 1, "failed": "..."}, {"id": 1, "cancelled": true}

Steps run side by side. The program ends at the end of its input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Step = dict[str, Any]
Progress = Callable[[float, "float | None", "str | None"], Awaitable[None]]
Operation = Callable[[Step, Progress], Awaitable[Any]]
TARGET: dict[str, Any] = json.loads(os.environ["STN_INTEROP_TARGET"])
"""`command`, `args` and `env` of a server on stdio, or `url` and `token` of one on HTTP."""
HEADERS = {"Authorization": f"Bearer {TARGET.get('token')}"}
MAX_LINE = 16 * 1024 * 1024


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


async def follow(operations: dict[str, Operation]) -> None:
    """Does the steps of standard input with these, until it ends."""
    reader = asyncio.StreamReader(limit=MAX_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running: dict[int, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            step = json.loads(line)
            if step["op"] == "cancel":
                running[step["call"]].cancel()
                say(id=step["id"], result=None)
            else:
                running[step["id"]] = group.create_task(_one(operations[step["op"]], step))


async def _one(operation: Operation, step: Step) -> None:
    async def progress(_done: float, _total: float | None, message: str | None) -> None:
        say(id=step["id"], progress=message or "")

    try:
        say(id=step["id"], result=await operation(step, progress))
    except asyncio.CancelledError:
        say(id=step["id"], cancelled=True)
        raise
    except Exception as error:  # noqa: BLE001 - whatever a client's package raises is a finding
        say(id=step["id"], failed=f"{type(error).__name__}: {error}")


def tool(found: Any) -> dict[str, Any]:
    """A tool as every client's package gives it, in one form."""
    plain = found.model_dump(mode="json", by_alias=True)
    return {"name": plain["name"], "input": plain["inputSchema"], "output": plain.get("outputSchema")}


def called(found: Any) -> dict[str, Any]:
    """A tool's result, in one form."""
    plain = found.model_dump(mode="json", by_alias=True)
    return {
        "is_error": bool(plain.get("isError")),
        "structured": plain.get("structuredContent"),
        "text": "".join(part.get("text", "") for part in plain["content"]),
    }
