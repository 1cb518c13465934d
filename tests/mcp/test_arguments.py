"""Whatever a model gives, it gets an answer or an error that it can act on, and its next call works."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp import MCPError

from station.mcp.inputs import MAX_WRITE_BYTES
from station.mcp.tools import TOOLS, input_schema
from tests.mcp.driver import Answer, Tools, in_memory, raw
from tests.mcp.test_parse import needed

Call = Callable[..., Answer]
WRONG: list[Any] = [3, 1.5, True, "text", ["x"], [1], [["x"]], {"a": 1}, {"a": "b"}, {"a": None}, [None]]
NOBODYS = [
    "ses_01JGXYZ123ABC456DEF789GHJK", "ses_", "", "default", "*", "../default", "/", "%2e%2e%2f", "ß∂∆", "x" * 10_000,
    "a\0b", "a\nb", "-h", "fly_abc123", "?id=x", "http://127.0.0.1/", "prc_01JGXYZ123ABC456DEF789GHJK",
]  # fmt: skip
FIELDS = [(name, field) for name, tool in TOOLS.items() for field in input_schema(tool)["properties"]]


@pytest.fixture(scope="module")
def call(home: Path, ran: Callable[[str], None]) -> Iterator[Call]:
    """A call of a tool from a test that is no coroutine, as the property tests are."""
    ran("bubblewrap")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(in_memory(home, backend="bubblewrap")) as tools,
    ):

        def call(name: str, arguments: dict[str, Any]) -> Answer:
            answer: Answer = portal.call(tools.call, name, arguments)
            return answer

        yield call


@pytest.fixture(autouse=True)
def works(call: Call) -> Iterator[None]:
    """After each test the tools answer as if nothing had been."""
    yield
    assert call("sandbox_exec", {"command": "echo ok"})["stdout"] == "ok\n"


def strategy(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Whatever that schema, of those that we list, admits."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([strategy(kind) for kind in schema["anyOf"]])
    low, high = schema.get("minimum"), schema.get("maximum")
    match schema["type"]:
        case "string":
            words = st.sampled_from(["", ".", "..", "/", "../../etc/passwd", "a.txt", "*", "\0", "a\nb", "x" * 10_000])
            return st.one_of(st.text(max_size=20), words).filter(
                lambda text: len(text) <= schema.get("maxLength", 2**20)
            )
        case "integer":
            return st.integers(low, high if high is not None else 2**70)
        case "number":
            return st.floats(low, high, allow_nan=False)
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(strategy(schema["items"]), max_size=3)
        case _:
            return st.dictionaries(st.text(max_size=10), strategy(schema["additionalProperties"]), max_size=3)


def arguments_of(name: str) -> st.SearchStrategy[dict[str, Any]]:
    schema = input_schema(TOOLS[name])
    fields = {field: strategy(kind) for field, kind in schema["properties"].items()}
    required = {field: fields.pop(field) for field in schema.get("required", [])}
    return st.fixed_dictionaries(required, optional=fields)


@pytest.mark.parametrize("name", list(TOOLS))
def test_what_the_schema_admits_is_answered(name: str, call: Call) -> None:
    # Of those that make a box or a process each time, fewer.
    count = 8 if name in ("sandbox_open", "sandbox_run", "sandbox_start") else 25

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(arguments_of(name))
    def holds(arguments: dict[str, Any]) -> None:
        jsonschema.validate(arguments, input_schema(TOOLS[name]))
        answer = call(name, arguments)
        # Nothing that was started or opened stays for the next one: so many at once are not allowed.
        if not answer.failed and name == "sandbox_start":
            call("sandbox_kill", {"process_id": answer["process_id"], "sandbox_id": answer["sandbox_id"]})
        if not answer.failed and name == "sandbox_open":
            call("sandbox_close", {"sandbox_id": answer["sandbox_id"]})

    holds()


def invalid(answer: Answer, field: str) -> None:
    assert answer.error["code"] == "invalid_input", answer.error
    assert answer.error["retryable"] is False
    assert answer.error["detail"]["field"].partition(".")[0] == field, answer.error
    assert field in answer.text


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_each_wrong_type_of_each_field_is_one_error_that_names_it(name: str, field: str, call: Call) -> None:
    admits = jsonschema.Draft202012Validator(input_schema(TOOLS[name])["properties"][field]).is_valid
    wrong = [value for value in WRONG if not admits(value)]
    assert wrong
    for value in wrong:
        if (name, field, value) == ("sandbox_open", "runtime", "text"):
            continue  # one that is there and cannot run it is a conflict
        invalid(call(name, {**needed(name), field: value}), field)


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name in TOOLS for field in input_schema(TOOLS[name]).get("required", [])]
)
def test_each_missing_field_is_one_error_that_names_it(name: str, field: str, call: Call) -> None:
    invalid(call(name, needed(name, without=field)), field)
    invalid(call(name, {**needed(name, without=field), field: None}), field)


@pytest.mark.parametrize("name", list(TOOLS))
def test_each_unknown_field_is_one_error_that_names_it(name: str, call: Call) -> None:
    for field in ("sandboxid", "x", "Command", "__class__", "self"):
        invalid(call(name, {**needed(name), field: "x"}), field)
    answer = call(name, {**needed(name), "a\x1b]0;x\x07\nb": "x"})
    assert answer.error["code"] == "invalid_input"


@pytest.mark.parametrize(
    ("name", "field", "values"),
    [
        ("sandbox_exec", "timeout_seconds", [0, -1, 3601, 1e300]),
        ("sandbox_output", "wait_seconds", [-1, 61]),
        ("sandbox_output", "stdout_offset", [-1]),
        ("sandbox_output", "max_bytes", [0, 16 * 1024 * 1024 + 1]),
        ("sandbox_fs_read", "max_bytes", [0, -5, 16 * 1024 * 1024 + 1]),
        ("sandbox_fs_read", "offset", [-1]),
        ("sandbox_fs_read", "path", ["x" * 4097, "x" * 100_000]),
        ("sandbox_fs_write", "path", ["x" * 100_000]),
        ("sandbox_fs_delete", "path", ["x" * 100_000]),
        ("sandbox_fs_list", "path", ["x" * 100_000]),
        ("sandbox_fs_list", "cursor", ["x" * 100_000]),
        ("sandbox_fs_read", "encoding", ["latin-1", ""]),
        ("sandbox_fs_list", "limit", [0, 1001]),
        ("sandbox_fs_write", "mode", ["999", "rwx", "07777777", "-1", "4755"]),
    ],
)
def test_a_value_out_of_bounds_is_one_error_that_names_its_field(
    name: str, field: str, values: list[Any], call: Call
) -> None:
    for value in values:
        invalid(call(name, {**needed(name), field: value}), field)


@pytest.mark.parametrize("text", ["YQ=", "Y", "a b c!", "YQ==YQ==", "ä", "\0"])
def test_damaged_base64_is_one_error_that_names_its_field(text: str, call: Call) -> None:
    invalid(call("sandbox_fs_write", {"path": "a", "content_b64": text}), "content_b64")
    invalid(call("sandbox_run", {"code": "1", "files_b64": {"a": text}}), "files_b64")
    answer = call("sandbox_fs_write", {"path": "a", "content": text, "encoding": "base64"})
    assert answer.error["code"] == "invalid_input"


def test_a_file_has_exactly_one_content(call: Call) -> None:
    answer = call("sandbox_fs_write", {"path": "a"})
    invalid(answer, "content")
    assert "neither" in answer.text
    answer = call("sandbox_fs_write", {"path": "a", "content": "", "content_b64": ""})
    invalid(answer, "content")
    assert "both" in answer.text


def test_a_file_that_is_too_large_for_a_call_is_refused_and_the_largest_is_taken(call: Call) -> None:
    answer = call("sandbox_fs_write", {"path": "big", "content": "x" * (MAX_WRITE_BYTES + 1)})
    assert answer.error["code"] == "too_large"
    assert answer.error["detail"]["field"] == "content"
    coded = base64.b64encode(bytes(MAX_WRITE_BYTES)).decode()
    assert call("sandbox_fs_write", {"path": "big", "content_b64": coded})["size_bytes"] == MAX_WRITE_BYTES
    call("sandbox_fs_delete", {"path": "big"})


@pytest.mark.parametrize("name", [tool for tool in TOOLS if "sandbox_id" in input_schema(TOOLS[tool])["properties"]])
def test_an_id_that_nobody_has_is_not_found(name: str, call: Call) -> None:
    for sandbox_id in NOBODYS:
        answer = call(name, {**needed(name), "sandbox_id": sandbox_id})
        if name == "sandbox_close":
            assert answer["already_closed"] is True
        else:
            assert answer.error["code"] == "sandbox_not_found", answer.error
            assert len(answer.text) < 1000


@pytest.mark.parametrize("name", ["sandbox_output", "sandbox_kill"])
@pytest.mark.parametrize(
    "process_id",
    [
        "prc_01JGXYZ123ABC456DEF789GHJK", "", "..", "*", "1", "x" * 10_000, "a\0b", "../../..", "prc_x?output=1",
        "prc_x/..", "prc_" + "x" * 65, "prc_x\n",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_process_that_nobody_has_is_not_found(name: str, process_id: str, call: Call) -> None:
    answer = call(name, {"process_id": process_id})
    assert answer.error["code"] == "process_not_found", answer.error
    assert len(answer.text) < 1000


async def test_an_unknown_tool_is_an_error_of_the_protocol_that_names_the_others(tools: Tools) -> None:
    with pytest.raises(MCPError, match="sandbox_exec"):
        await tools.client.call_tool("sandbox_exce", {})
    assert (await tools.exec("echo ok"))["stdout"] == "ok\n"


async def test_lines_that_are_no_message_do_not_end_the_process(home: Path) -> None:
    async with raw(home) as server:
        for line in (
            "", "{", "[]", "null", "42", '{"jsonrpc": "2.0"}', '{"jsonrpc": "2.0", "id": {}, "method": "tools/call"}',
            '{"jsonrpc":"2.0","id":"s","method":"tools/call","params":{"name":"sandbox_run","arguments":{"code":"\\ud800"}}}',
            '{"jsonrpc":"2.0","id":"t","method":"tools/call","params":{"name":"sandbox_run","arguments":[]}}',
            '{"jsonrpc":"2.0","id":"u","method":"tools/call"}', "\x1b]0;x\x07",
        ):  # fmt: skip
            await server.write(line)
        assert (await server.call("sandbox_run", code="print('ok')"))["stdout"] == "ok\n"
        code, words = await server.hang_up()
    assert code == 0, words
