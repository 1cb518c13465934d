"""An answer has room in a message: what has none is cut earlier, says so, and is read on without a hole."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from station.client.results import Chunk, ExecResult, RunResult
from station.core.endings import Ending
from station.core.wire import Content, ProcessView, StreamView
from station.mcp.answers import RunLimits
from station.mcp.call import Reply, fitted
from station.mcp.inputs import ExecInput, RunInput
from station.mcp.replies import Taken, exec_reply, output_reply, run_reply

ROOM = 50_000
ENDED = ProcessView("prc_1", "uid", ["x"], False, "/workspace", "ended", 0.0, ending=Ending.exited(0), exit_code=0)


def stream(data: bytes) -> StreamView:
    return StreamView(Content.of(data), len(data))


def executed(stdout: bytes, stderr: bytes = b"") -> ExecResult:
    return ExecResult(Ending.exited(0), stream(stdout), stream(stderr), id="prc_1")


def test_what_has_room_is_shown_whole() -> None:
    result = executed(b"short\n", b"too\n")
    reply = fitted(lambda most: exec_reply(ExecInput("x"), "ses_1", "none", result, most), 200_000, ROOM)
    assert (reply.value.stdout, reply.value.stderr, reply.value.truncated) == ("short\n", "too\n", False)
    assert reply.value.stdout_next is None


@pytest.mark.parametrize("unit", [b"x", b'"', "é".encode(), "😀".encode(), b"\x1b", b"\xff", b"`"])
def test_whatever_is_written_the_answer_has_room_and_goes_on_at_the_right_byte(unit: bytes) -> None:
    data = unit * (200_000 // len(unit))
    result = executed(data, data)
    reply = fitted(lambda most: exec_reply(ExecInput("x"), "ses_1", "none", result, most), 200_000, ROOM)
    assert ROOM // 4 < reply.json_bytes() <= ROOM, "as much as has room, and no more"
    assert reply.value.truncated
    assert 0 < reply.value.stdout_next < len(data)
    assert reply.value.stdout_next % len(unit) == 0, "no character is cut in two"


@given(st.binary(max_size=3000), st.binary(max_size=300), st.integers(1, 500), st.sampled_from(["utf-8", "base64"]))
def test_output_is_read_on_without_a_hole(out: bytes, err: bytes, most: int, encoding: str) -> None:
    """The control of the offsets: exact bytes, put together from answers of any size."""
    found = {"stdout": b"", "stderr": b""}
    for _ in range(10_000):
        taken = {"stdout": Taken(len(found["stdout"])), "stderr": Taken(len(found["stderr"]))}
        whole = {"stdout": out, "stderr": err}
        full = False
        for name, data in whole.items():
            at = len(found[name])
            piece = taken[name].with_(Chunk(name, at, data[at:]), most)  # type: ignore[arg-type]
            assert piece is not None
            taken[name] = piece
            full |= len(piece.data) >= most
        reply = output_reply("ses_1", ENDED, taken, encoding, most, all_there=not full)  # type: ignore[arg-type]
        ends = {"stdout": reply.value.stdout_next, "stderr": reply.value.stderr_next}
        if encoding == "base64":
            texts = {"stdout": reply.value.stdout, "stderr": reply.value.stderr}
            found = {name: found[name] + base64.b64decode(texts[name]) for name in found}
            assert {name: len(data) for name, data in found.items()} == ends
        else:
            found = {name: whole[name][: ends[name]] for name in found}
        if not reply.value.more:
            break
    assert found == {"stdout": out, "stderr": err}


def test_a_hole_stands_at_the_beginning_of_an_answer_or_not_in_it() -> None:
    gap = Chunk("stdout", 100, b"", missing_bytes=90)
    behind = Taken(10).with_(gap, 50)
    assert behind == Taken(10, lost=90)
    assert behind.shown(50, "utf-8", last=True) == ("", 100)
    assert Taken(0, b"0123456789").with_(gap, 50) is None


def test_artifacts_without_room_are_named_and_the_small_ones_stay() -> None:
    picture = b"\x89PNG\r\n\x1a\n" + b"p" * 6000
    artifacts = {"a.bin": b"\0" * ROOM, "b.txt": b"text\n", "c.png": picture}
    result = RunResult(Ending.exited(0), stream(b'"' * 100_000), stream(b""), artifacts=artifacts)
    limits = RunLimits(120.0, 200_000)
    reply: Reply = fitted(lambda most: run_reply(RunInput("x"), result, limits, most, ROOM), 200_000, ROOM)
    assert reply.json_bytes() <= ROOM
    kept = {item.path: item.content_base64 is not None for item in reply.value.artifacts}
    assert kept == {"a.bin": False, "b.txt": True, "c.png": True}, "a large one takes no room from the others"
    assert [image.mime_type for image in reply.images] == ["image/png"]
    assert "a.bin, 50000 bytes: too large" in reply.text
