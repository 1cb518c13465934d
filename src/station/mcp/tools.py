"""The table of all tools, and the schemas that clients see of them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from station.core.errors import InvalidInput
from station.validate import adapter, from_json

from . import answers, files, inputs, lifecycle, programs, staging
from .call import Call, Reply

Handler = Callable[[Call, Any], Awaitable[Reply]]


@dataclass(frozen=True)
class Tool:
    name: str
    title: str
    does: str
    """For the model: what it does and when to use it."""
    takes: type
    """One of `inputs`."""
    answers: type
    """One of `answers`."""
    handler: Handler
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False

    @property
    def spellings(self) -> Mapping[str, str]:
        """Other names that are taken for its fields, and the field that each means."""
        found: dict[str, str] = getattr(self.takes, "SPELLINGS", {})
        return found

    async def __call__(self, call: Call, arguments: dict[str, Any]) -> Reply:
        """Raises StationError."""
        return await self.handler(call, parse(self, arguments))


TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "sandbox_run",
            "Run code in a fresh sandbox",
            "Run a Python, JavaScript or bash program in a fresh, isolated Linux sandbox that is gone afterwards. For "
            "calculations and for transforming data: give files with `files`, get them back with `artifacts`. Nothing "
            "stays between two calls; for work that goes on, use sandbox_exec.",
            inputs.RunInput,
            answers.RunAnswer,
            programs.run,
        ),
        Tool(
            "sandbox_open",
            "Open a sandbox",
            "Get a Linux sandbox whose files stay between calls, or the same one again. Optional: every other tool "
            "opens the default one at need. Open others by `session_key`.",
            inputs.OpenInput,
            answers.OpenAnswer,
            lifecycle.open_,
            idempotent=True,
        ),
        Tool(
            "sandbox_exec",
            "Run a command",
            "Run a shell command in a sandbox, to its end, and get its output and exit code. Files stay, processes do "
            "not: what still runs when the command ends is ended too; use sandbox_start for what is to go on.",
            inputs.ExecInput,
            answers.ExecAnswer,
            programs.exec_,
            destructive=True,
        ),
        Tool(
            "sandbox_start",
            "Start a program",
            "Start a program in a sandbox and return at once: a server, a long build. Read what it writes with "
            "sandbox_output, end it with sandbox_kill.",
            inputs.StartInput,
            answers.StartAnswer,
            programs.start,
            destructive=True,
        ),
        Tool(
            "sandbox_output",
            "Read output",
            "Read what a program wrote, by offset, while it runs or afterwards, and learn whether it has ended. Also "
            "for the rest of a long output of sandbox_exec.",
            inputs.OutputInput,
            answers.OutputAnswer,
            programs.output,
            read_only=True,
            idempotent=True,
        ),
        Tool(
            "sandbox_kill",
            "End a program",
            "End a program, with all that it started, or send it a signal.",
            inputs.KillInput,
            answers.KillAnswer,
            programs.kill,
            destructive=True,
            idempotent=True,
        ),
        Tool(
            "sandbox_fs_write",
            "Write a file",
            "Write a file in a sandbox, whole; folders on the way are made. Readers see the old file or the new one.",
            inputs.WriteInput,
            answers.WriteAnswer,
            files.write,
            destructive=True,
            idempotent=True,
        ),
        Tool(
            "sandbox_fs_read",
            "Read a file",
            "Read a file of a sandbox, or a part of it. Pictures are shown.",
            inputs.ReadInput,
            answers.ReadAnswer,
            files.read,
            read_only=True,
            idempotent=True,
        ),
        Tool(
            "sandbox_fs_list",
            "List files",
            "List a folder of a sandbox, sorted by path.",
            inputs.ListInput,
            answers.ListAnswer,
            files.list_,
            read_only=True,
            idempotent=True,
        ),
        Tool(
            "sandbox_fs_delete",
            "Delete a file or folder",
            "Delete a file or folder of a sandbox. One that is not there is no error.",
            inputs.DeleteInput,
            answers.DeleteAnswer,
            files.delete,
            destructive=True,
            idempotent=True,
        ),
        Tool(
            "sandbox_stage_file",
            "Bring in a stored file",
            "Bring a file that the user has put into the file store (`file_key`, as files/f_…) into a sandbox. Of any "
            "size: its content does not pass through you. Folders on the way are made.",
            inputs.StageInput,
            answers.StageAnswer,
            staging.stage,
            destructive=True,
            idempotent=True,
        ),
        Tool(
            "sandbox_publish_file",
            "Hand out a file",
            "Put a file of a sandbox into the file store, for the user or for a later step, and get its `file_key`. Of "
            "any size: its content does not pass through you.",
            inputs.PublishInput,
            answers.PublishAnswer,
            staging.publish,
        ),
        Tool(
            "sandbox_close",
            "Close a sandbox",
            "End a sandbox with its processes and files, for good. Repeating is no error.",
            inputs.CloseInput,
            answers.CloseAnswer,
            lifecycle.close,
            destructive=True,
            idempotent=True,
        ),
    )
}


def parse(tool: Tool, arguments: dict[str, Any]) -> Any:
    """The input of `tool` from what a model gave. Raises InvalidInput that names the field and what it should be."""
    return from_json(tool.takes, json.dumps(_spelled(tool, arguments)).encode(), strict=True)


def _spelled(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Every spelling as the one that the schema has. Absent and null are one: models write either."""
    given: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, value in arguments.items():
        known = tool.spellings.get(name, name)
        if value is None:
            continue
        if known in given and given[known] != value:
            raise InvalidInput(f"{said[known]} and {name} mean the same and differ; give one of them", field=known)
        given[known], said[known] = value, name
    return given


@cache
def input_schema(tool: Tool) -> dict[str, Any]:
    """JSON Schema of what it takes. Additional properties are not ruled out: other spellings are taken too, and the
    call itself names what nobody knows."""
    schema = _lean(adapter(tool.takes).json_schema())
    del schema["additionalProperties"]
    return schema


@cache
def output_schema(tool: Tool) -> dict[str, Any]:
    """JSON Schema of its structured content."""
    return _lean(adapter(tool.answers).json_schema())


def _lean(schema: dict[str, Any]) -> dict[str, Any]:
    """Without what says nothing to a model: names of classes, and null beside the type of what may be left out."""
    required = schema.get("required", [])
    lean = {key: value for key, value in schema.items() if key not in ("title", "description", "$defs")}
    lean["properties"] = {name: _field(kind, name in required) for name, kind in schema.get("properties", {}).items()}
    if "$defs" in schema:
        lean["$defs"] = {name: _lean(inner) for name, inner in schema["$defs"].items()}
    return lean


def _field(schema: dict[str, Any], required: bool) -> dict[str, Any]:
    field = {key: value for key, value in schema.items() if key != "title"}
    if required or "anyOf" not in field:
        return field
    kinds = [kind for kind in field.pop("anyOf") if kind != {"type": "null"}]
    if field.get("default", kinds) is None:
        del field["default"]
    return {**kinds[0], **field} if len(kinds) == 1 else {"anyOf": kinds, **field}
