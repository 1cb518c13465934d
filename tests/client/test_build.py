"""What the SDK refuses before anything is sent, and how its answers show."""

from __future__ import annotations

from typing import Any

import pytest

from station.client._build import run_request, snippet, to_bytes
from station.client.results import ExecResult, RunResult
from station.core.endings import Ending
from station.core.errors import InvalidInput, TooLarge
from station.core.wire import Content, StreamView


@pytest.mark.parametrize(
    ("code", "options", "sentence"),
    [
        ("x", {"files": {"x": 5}}, "files: 'x' must be text or bytes, not int"),
        ("x", {"files": {"x": None}}, "files: 'x' must be text or bytes, not NoneType"),
        ("x", {"stdin": [1, 2]}, "stdin must be text or bytes, not list"),
        (b"print(1)", {}, "code must be text, not bytes"),
        (None, {}, "code must be text, not NoneType"),
    ],
)
def test_wrong_kinds_are_refused(code: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        run_request(code, options)


def test_text_and_every_kind_of_bytes_are_taken() -> None:
    assert [to_bytes(data) for data in ("é", b"a", bytearray(b"b"), memoryview(b"c"))] == [
        "é".encode(),
        b"a",
        b"b",
        b"c",
    ]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"code": "x", "timeout": 5}, "no setting 'timeout'; did you mean 'timeout_seconds'?"),
        ({"code": "x", "id": "prc_1"}, "no setting 'id'"),
        ({"runtime": "python"}, "needs its `code`"),
        (5, "not int"),
        (b"x", "not bytes"),
    ],
)
def test_a_snippet_that_cannot_be_is_refused(given: object, sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        snippet(given)
    assert sentence in caught.value.message


def test_a_result_shows_in_one_short_line() -> None:
    out, err = StreamView(Content("x" * 10_000), 10_000), StreamView(Content(""), 0)
    assert repr(ExecResult(Ending.signalled(9), out, err)) == "<ExecResult signalled(9) stdout=10000 B stderr=0 B>"
    result = RunResult(Ending.exited(0), out, err)
    assert repr(result) == "<RunResult exited(0) stdout=10000 B stderr=0 B python>"
    failed = RunResult.failed(TooLarge("no room"), "node")
    assert repr(failed) == "<RunResult lost stdout=0 B stderr=0 B node: TooLarge: no room>"
