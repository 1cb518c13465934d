"""Output by offset, files with digests, many snippets."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

import station
from station import errors
from station.client._transfer import Tail, unpack

from .stub import Stub


def data(stream: str, offset: int, text: str | bytes) -> dict[str, Any]:
    import base64

    raw = text if isinstance(text, bytes) else text.encode()
    content = {"data": base64.b64encode(raw).decode(), "encoding": "base64"}
    return {"event": "data", "stream": stream, "offset": offset, "content": content}


END = {"event": "end"}
HANGUP = {"hangup": True}


def output(stub: Stub, *connections: list[dict[str, Any]]) -> list[station.Chunk]:
    stub.events = list(connections)
    with station.Sandbox.open("a") as sandbox:
        return list(sandbox.start("x").output())


def test_output_goes_on_from_its_offsets_after_a_broken_connection(stub: Stub):
    first = [data("stdout", 0, "abc"), data("stderr", 0, "E"), HANGUP]
    chunks = output(stub, first, [data("stdout", 3, "def"), END])
    assert "".join(c.text for c in chunks if c.stream == "stdout") == "abcdef"
    assert stub.queries[1] == "follow=true&after_stdout=3&after_stderr=1"


def test_output_that_ends_without_the_end_of_the_process_is_asked_for_again(stub: Stub):
    chunks = output(stub, [data("stdout", 0, "a")], [data("stdout", 1, "b"), END])
    assert [c.data for c in chunks] == [b"a", b"b"]


def test_fb_b16_output_that_never_ends_properly_is_no_success(stub: Stub):
    with pytest.raises(errors.StationUnreachable, match="without saying"):
        output(stub, *[[] for _ in range(10)])


def test_bytes_that_come_twice_are_given_once(stub: Stub):
    chunks = output(stub, [data("stdout", 0, "abcd"), data("stdout", 2, "cdef"), END])
    assert b"".join(c.data for c in chunks) == b"abcdef"
    assert [c.offset for c in chunks] == [0, 4]


def test_a_gap_says_how_much_is_missing(stub: Stub):
    gap = {"event": "gap", "stream": "stdout", "offset": 3, "to": 10}
    chunks = output(stub, [data("stdout", 0, "abc"), gap, data("stdout", 10, "x"), END])
    assert [(c.offset, c.data, c.missing_bytes) for c in chunks] == [(0, b"abc", 0), (10, b"", 7), (10, b"x", 0)]


def test_a_character_cut_between_chunks_is_whole_in_the_text(stub: Stub):
    raw = "aé".encode()
    chunks = output(stub, [data("stdout", 0, raw[:2]), {"event": "keepalive"}, data("stdout", 2, raw[2:]), END])
    assert "".join(c.text for c in chunks) == "aé"


NAMES = ["a b", "ü.txt", "🎉", "a\nb", "q'\"\\", "a%41b", "+&=#?;", "\udcff\udcfe", "x" * 255]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_and_content_come_back_byte_for_byte(stub: Stub, name: str):
    from urllib.parse import parse_qsl

    content = b"\x00\xff\x89PNG\r\n"
    with station.Sandbox.open("a") as sandbox:
        sandbox.files.write("plain", content)
        stub.files["plain"] = content
        assert sandbox.files.read("plain") == content
        written = sandbox.files.write(name, b"")
    assert written.entry.size == 0
    sent = dict(parse_qsl(stub.queries[-1], errors="surrogateescape"))
    assert sent["path"] == name


def test_a_file_that_was_altered_on_its_way_is_not_returned(stub: Stub):
    stub.files["f"], stub.damage = b"abc" * 1000, True
    with station.Sandbox.open("a") as sandbox, pytest.raises(errors.InternalError, match="altered"):
        sandbox.files.read("f")


def test_a_download_that_fails_leaves_nothing(stub: Stub, tmp_path: Path):
    from station.client._transfer import Local

    target = tmp_path / "out"
    target.write_bytes(b"old")
    part = Local(target).open()
    part.write(b"half")
    part.discard()
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == ["out"]
    assert target.read_bytes() == b"old"


def test_a_stream_and_a_file_are_written_with_progress(stub: Stub):
    seen: list[int] = []
    with station.Sandbox.open("a") as sandbox:
        sandbox.files.write("f", io.BytesIO(b"x" * 1_000_000), progress=lambda done, total: seen.append(done))
        sandbox.files.write("g", iter([b"a", b"b"]))
        with pytest.raises(errors.InvalidInput, match="binary"):
            sandbox.files.write("h", io.StringIO("text"))  # type: ignore[arg-type]
    assert len(stub.files["f"]) == seen[-1] == 1_000_000
    assert stub.files["g"] == b"ab"


def member(name: str, **more: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in more.items():
        setattr(info, key, value)
    return info


@pytest.mark.parametrize(
    "members",
    [
        [member("../out")],
        [member("/abs")],
        [member("a/../../out")],
        [member("fifo", type=tarfile.FIFOTYPE)],
        [member("hard", type=tarfile.LNKTYPE, linkname="../../etc/passwd")],
    ],
    ids=["parent", "absolute", "inner parent", "fifo", "hard link"],
)
def test_an_archive_that_leads_out_is_refused(tmp_path: Path, members: list[tarfile.TarInfo]):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for item in members:
            archive.addfile(item)
    buffer.seek(0)
    with pytest.raises(errors.PathRefused):
        unpack(buffer, tmp_path / "in")
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_through_a_link_of_the_archive(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(member("d", type=tarfile.SYMTYPE, linkname=str(tmp_path / "outside")))
        archive.addfile(member("d/f"))
    buffer.seek(0)
    # The file comes first, links last: there is a folder in the link's place by then.
    with pytest.raises((errors.PathRefused, FileExistsError)):
        unpack(buffer, tmp_path / "in")
    assert list((tmp_path / "outside").iterdir()) == []


def test_map_keeps_the_order_and_one_failure_does_not_lose_the_others(stub: Stub):
    results = station.map(["1", "refused", "crash", {"code": "4", "args": ["x"]}], concurrency=2)
    assert [r.stdout for r in results] == ["1", "", "", "4"]
    assert [type(r.error) for r in results] == [type(None), errors.InvalidInput, errors.InternalError, type(None)]
    assert (results[1].ok, results[1].exit_code) == (False, None)
    with pytest.raises(errors.InvalidInput, match="this cannot run"):
        results[1].check()


def test_map_runs_as_many_at_once_as_asked_and_no_more(stub: Stub):
    stub.barrier = asyncio.Barrier(8)
    results = station.map(["wait for all"] * 16, concurrency=8)
    assert all(r.ok for r in results)
    assert stub.most_together == 8


def test_imap_takes_from_an_endless_source(stub: Stub):
    import itertools

    source = (str(n) for n in itertools.count())
    results = station.imap(source, concurrency=2)
    got = [next(results) for _ in range(5)]
    results.close()  # type: ignore[attr-defined]
    assert all(result.stdout == str(index) for index, result in got)
    assert int(next(source)) < 12


@pytest.mark.parametrize("concurrency", [0, -1])
def test_map_refuses_a_concurrency_below_one_and_a_single_string(concurrency: int):
    with pytest.raises(errors.InvalidInput, match="at least 1"):
        station.map(["1"], concurrency=concurrency)
    with pytest.raises(errors.InvalidInput, match="list of strings"):
        station.map("print()")


async def test_amap_keeps_the_order(stub: Stub):
    assert [r.stdout for r in await station.amap(map(str, range(20)), concurrency=5)] == [str(n) for n in range(20)]


def test_check_raises_for_a_bad_end_with_the_last_line_of_stderr():
    from station.core.wire import Content, StreamView

    empty, err = StreamView(Content(""), 0), StreamView(Content("a\nboom\n"), 7)
    result = station.ExecResult(station.Ending.exited(3), empty, err)
    with pytest.raises(station.CommandFailed, match="exit code 3: boom") as raised:
        result.check()
    assert raised.value.result is result


def test_a_cut_is_marked_in_the_text_and_counted():
    from station.core.wire import Content, StreamView

    view = StreamView(Content("head"), 100, 92, Content("tail"))
    result = station.ExecResult(station.Ending.exited(0), view, view)
    assert result.stdout == "head\n... [92 bytes omitted] ...\ntail"
    assert (result.stdout_bytes, result.stdout_omitted_bytes) == (b"headtail", 92)


@pytest.mark.parametrize(
    "options", [{"runtime": "cobol"}, {"limits": {"memory": 1}}, {"args": "one string"}, {"env": {"A=B": "x"}}]
)
def test_bad_options_are_refused_before_anything_is_sent(stub: Stub, options: dict[str, Any]):
    with pytest.raises(errors.InvalidInput):
        station.run("x", **options)
    assert stub.ids == []


@pytest.mark.parametrize("seconds", [0, -1, 0.5, 3601])
def test_a_time_out_of_bounds_is_refused_and_zero_is_not_the_default(stub: Stub, seconds: float):
    with station.Sandbox.open("a") as sandbox:
        for call in (sandbox.exec, sandbox.start):
            with pytest.raises(errors.InvalidInput, match="timeout_seconds"):
                call("true", timeout_seconds=seconds)
    with pytest.raises(errors.InvalidInput, match="timeout_seconds"):
        station.run("x", timeout_seconds=seconds)
    assert stub.ids == []


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 1000])
@pytest.mark.parametrize("piece", [1, 31, 32, 33, 64, 2000])
def test_the_tail_takes_the_digest_off_however_it_is_cut(size: int, piece: int):
    data = bytes(size)
    sealed = data + hashlib.sha256(data).digest()
    tail = Tail("x")
    parts = [tail.feed(sealed[at : at + piece]) for at in range(0, len(sealed), piece)]
    assert b"".join(parts) + tail.finish() == data


@pytest.mark.parametrize("cut", [1, 32, 40])
def test_the_tail_refuses_what_was_cut(cut: int):
    tail = Tail("x")
    tail.feed((bytes(100) + hashlib.sha256(bytes(100)).digest())[:-cut])
    with pytest.raises(errors.InternalError):
        tail.finish()
