"""Arguments as models write them become an input, or an error that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from station.core.errors import InvalidInput
from station.mcp.tools import TOOLS, input_schema, parse

NEEDED: dict[str, dict[str, Any]] = {
    "sandbox_stage_file": {"file_key": "files/a", "destination": "a"},
    "sandbox_publish_file": {"source": "a"},
    "sandbox_run": {"code": "1"},
    "sandbox_exec": {"command": "x"},
    "sandbox_start": {"command": "x"},
    "sandbox_output": {"process_id": "prc_x"},
    "sandbox_kill": {"process_id": "prc_x"},
    "sandbox_fs_write": {"path": "a", "content": ""},
    "sandbox_fs_read": {"path": "a"},
    "sandbox_fs_delete": {"path": "a"},
}
# Spelling, what is listed, a value, and another one.
SPELLINGS = [
    ("sandbox_run", "timeout", "timeout_seconds", 5, 6),
    ("sandbox_open", "name", "session_key", "a", "b"),
    ("sandbox_open", "timeout", "timeout_seconds", 5, 6),
    ("sandbox_exec", "cmd", "command", "ls", ["ls"]),
    ("sandbox_exec", "cmd", "command", ["ls", "-l"], "ls -l"),
    ("sandbox_exec", "workdir", "cwd", "src", "/tmp"),
    ("sandbox_exec", "timeout", "timeout_seconds", 5, 6),
    ("sandbox_start", "cmd", "command", ["ls"], ["pwd"]),
    ("sandbox_start", "workdir", "cwd", "src", "/tmp"),
    ("sandbox_start", "timeout", "timeout_seconds", 5, 6),
    ("sandbox_fs_write", "contents", "content", "a", "b"),
    ("sandbox_fs_write", "text", "content", "a", ""),
    ("sandbox_fs_write", "contents_b64", "content_b64", "YQ==", "Yg=="),
    ("sandbox_fs_write", "content_base64", "content_b64", "YQ==", "Yg=="),
]
FIELDS = [(name, field) for name, tool in TOOLS.items() for field in input_schema(tool)["properties"]]


def needed(name: str, without: str = "") -> dict[str, Any]:
    return {field: value for field, value in NEEDED.get(name, {}).items() if field != without}


def base(name: str, listed: str) -> dict[str, Any]:
    return {key: value for key, value in needed(name, listed).items() if not listed.startswith("content")} | (
        {"path": "a"} if name == "sandbox_fs_write" else {}
    )


@pytest.mark.parametrize(("name", "spelling", "listed", "value", "other"), SPELLINGS)
def test_every_spelling_means_the_field_that_is_listed(
    name: str, spelling: str, listed: str, value: Any, other: Any
) -> None:
    tool = TOOLS[name]
    by_list = parse(tool, {**base(name, listed), listed: value})
    assert getattr(by_list, listed) == value
    assert parse(tool, {**base(name, listed), spelling: value}) == by_list
    assert parse(tool, {**base(name, listed), spelling: value, listed: value}) == by_list
    with pytest.raises(InvalidInput, match="differ") as caught:
        parse(tool, {**base(name, listed), spelling: value, listed: other})
    assert caught.value.detail["field"] == listed
    assert spelling in caught.value.message


def test_every_spelling_that_is_taken_stands_in_the_table_above() -> None:
    taken = {(name, key) for name, tool in TOOLS.items() for key in tool.spellings}
    assert taken == {(name, spelling) for name, spelling, *_ in SPELLINGS}


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_null_means_absent(name: str, field: str) -> None:
    tool = TOOLS[name]
    if field in needed(name):
        if field in input_schema(tool).get("required", []):
            with pytest.raises(InvalidInput) as caught:
                parse(tool, {**needed(name), field: None})
            assert caught.value.detail["field"] == field
        return
    assert parse(tool, {**needed(name), field: None}) == parse(tool, needed(name))


def test_null_in_one_spelling_leaves_the_other() -> None:
    assert parse(TOOLS["sandbox_exec"], {"command": None, "cmd": "ls"}).command == "ls"
    assert parse(TOOLS["sandbox_exec"], {"cmd": "ls", "command": None}).command == "ls"


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("sandbox_exec", "comand", "command"),
        ("sandbox_run", "timeout_second", "timeout_seconds"),
        ("sandbox_fs_write", "overwrit", "overwrite"),
        ("sandbox_fs_list", "recursiv", "recursive"),
        ("sandbox_close", "delete_worksapce", "delete_workspace"),
    ],
)
def test_an_unknown_field_is_named_with_the_one_that_was_meant(name: str, wrong: str, right: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(TOOLS[name], {**needed(name, right), wrong: "x"})
    assert caught.value.detail["field"] == wrong
    assert repr(wrong) in caught.value.message
    assert right in caught.value.message


def test_true_is_no_number_and_a_number_no_text() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [({"path": "a", "max_bytes": True}, "max_bytes"), ({"path": 3}, "path")]
    for arguments, field in wrong:
        with pytest.raises(InvalidInput) as caught:
            parse(TOOLS["sandbox_fs_read"], arguments)
        assert caught.value.detail["field"] == field


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(InvalidInput):
        parse(TOOLS["sandbox_run"], {"code": "a\ud800b"})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1, 0, 1e308])
def test_a_time_limit_has_bounds(value: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(TOOLS["sandbox_exec"], {"command": "x", "timeout_seconds": value})
    assert caught.value.detail["field"] == "timeout_seconds"
