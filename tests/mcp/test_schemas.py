"""What clients and models are shown of the tools."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from station.mcp import docs
from station.mcp.server import listed
from station.mcp.tools import TOOLS, input_schema, output_schema, parse
from tests.mcp.driver import Tools, in_memory
from tests.mcp.test_parse import needed

TWO_SETS = {
    "sandbox_run", "sandbox_open", "sandbox_exec", "sandbox_start", "sandbox_output", "sandbox_kill",
    "sandbox_fs_write", "sandbox_fs_read", "sandbox_fs_list", "sandbox_fs_delete", "sandbox_close",
    "sandbox_stage_file", "sandbox_publish_file",
}  # fmt: skip
# What needs no word: it is what it is called.
SELF_EVIDENT = {
    "duration_ms", "exit_code", "stdout", "stderr", "timed_out", "stdout_truncated", "stderr_truncated",
    "stderr_bytes", "sandbox_id", "process_id", "stderr_next", "ending", "ok", "runtime", "artifacts",
    "timeout_seconds", "size_bytes", "total_size_bytes", "path", "size", "mode", "mtime_unix", "entries", "truncated",
    "type", "workdir", "created", "encoding", "limits", "running", "already_ended", "stderr_lost_bytes", "network",
}  # fmt: skip
SCHEMAS = [(name, kind) for name in TOOLS for kind in ("input", "output")]


def schema(name: str, kind: str) -> dict[str, Any]:
    return (input_schema if kind == "input" else output_schema)(TOOLS[name])


def objects(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [schema, *schema.get("$defs", {}).values()]


def test_the_sandbox_tools_are_listed_and_no_other() -> None:
    """A21: what manages agents is the operator's."""
    assert set(TOOLS) == {tool.name for tool in listed()} == TWO_SETS


@pytest.mark.parametrize(("name", "kind"), SCHEMAS)
def test_a_schema_is_valid_and_of_an_object(name: str, kind: str) -> None:
    found = schema(name, kind)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["type"] == "object"
    json.dumps(found)


@pytest.mark.parametrize(("name", "kind"), SCHEMAS)
def test_a_schema_has_no_titles(name: str, kind: str) -> None:
    for found in objects(schema(name, kind)):
        assert "title" not in found
        assert all("title" not in field for field in found["properties"].values())


@pytest.mark.parametrize("name", list(TOOLS))
def test_every_field_that_is_taken_is_described(name: str) -> None:
    for field, kind in input_schema(TOOLS[name])["properties"].items():
        assert kind.get("description"), field


@pytest.mark.parametrize("name", list(TOOLS))
def test_every_field_that_is_answered_is_described_or_self_evident(name: str) -> None:
    for found in objects(output_schema(TOOLS[name])):
        for field, kind in found["properties"].items():
            assert kind.get("description") or field in SELF_EVIDENT, field


@pytest.mark.parametrize("name", list(TOOLS))
def test_a_default_that_is_shown_is_what_an_absent_field_means(name: str) -> None:
    tool = TOOLS[name]
    meant = dataclasses.asdict(parse(tool, needed(name)))
    for field, kind in input_schema(tool)["properties"].items():
        if "default" in kind:
            assert meant[field] == kind["default"], field
            jsonschema.validate(kind["default"], kind)


def test_what_a_tool_does_to_the_world_is_told() -> None:
    hints = {tool.name: tool.annotations for tool in listed()}
    reads = {name for name, hint in hints.items() if hint and hint.read_only_hint}
    destroys = {name for name, hint in hints.items() if hint and hint.destructive_hint}
    assert reads == {"sandbox_output", "sandbox_fs_read", "sandbox_fs_list"}
    assert {"sandbox_close", "sandbox_fs_delete", "sandbox_exec"} <= destroys
    assert not reads & destroys


def test_the_page_mentions_every_field_every_tool_and_every_spelling() -> None:
    page = docs.page()
    for name, tool in TOOLS.items():
        section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for found in (*objects(input_schema(tool)), *objects(output_schema(tool))):
            for field in found["properties"]:
                assert f"`{field}`" in section or f"{field}" in section, (name, field)
        for spelling in tool.spellings:
            assert f"`{spelling}`" in section, (name, spelling)


def test_the_list_is_small_enough_to_stand_in_front_of_every_question() -> None:
    """A bar of 4,000 tokens, at 4 characters each, of what a model sees: name, description and input."""
    shown = [{"name": x.name, "description": x.description, "input_schema": x.input_schema} for x in listed()]
    assert len(json.dumps(shown)) < 16_000


async def test_the_page_is_read_as_a_resource(home: Path, tools: Tools) -> None:
    resources = (await tools.client.list_resources()).resources
    assert [str(resource.uri) for resource in resources] == ["station://docs/sandbox"]
    page = (await tools.client.read_resource("station://docs/sandbox")).contents[0]
    assert getattr(page, "text", None) == docs.page()


async def test_what_is_listed_over_the_protocol_is_the_table(home: Path) -> None:
    async with in_memory(home) as tools:
        found = (await tools.client.list_tools()).tools
    assert [tool.name for tool in found] == list(TOOLS)
    for tool in found:
        assert tool.input_schema == input_schema(TOOLS[tool.name])
        assert tool.output_schema == output_schema(TOOLS[tool.name])
