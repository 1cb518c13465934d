from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from station.worker.headtail import HeadTail
from station.worker.spool import MEMORY_BYTES, PINNED, ROLLING, ProcessSpool, StreamSpool

SEGMENT = 64


def everything(spool: StreamSpool, start: int = 0) -> tuple[bytes, list[tuple[int, int]]]:
    data, holes = b"", []
    for piece in spool.pieces(start, spool.total):
        if piece.data is None:
            holes.append((piece.offset, piece.end))
        else:
            data += piece.data
    return data, holes


def pattern(start: int, end: int) -> bytes:
    return bytes(offset % 251 for offset in range(start, end))


def test_output_that_was_appended_is_read_back_by_another_station(tmp_path: Path) -> None:
    spool = StreamSpool(tmp_path / "uid" / "a.out")
    spool.append(0, b"hello ")
    spool.append(6, b"world\n")
    again = StreamSpool.load(tmp_path / "uid" / "a.out")
    assert again.total == 12
    assert everything(again) == (b"hello world\n", [])
    spool.close()


def test_nothing_is_made_on_disk_before_the_first_byte(tmp_path: Path) -> None:
    spool = StreamSpool(tmp_path / "uid" / "a.out")
    assert spool.view().to_bytes() == b""
    spool.remove()
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_come_again_after_a_reconnection_are_kept_once(tmp_path: Path) -> None:
    spool = StreamSpool(tmp_path / "a.out")
    spool.append(0, b"abcdef")
    spool.append(2, b"cdefgh")
    spool.append(0, b"abc")
    assert spool.view().to_bytes() == b"abcdefgh"
    spool.close()


@given(st.lists(st.integers(1, 150), max_size=30), st.integers(0, 100), st.integers(0, 100), st.integers(0, 30))
def test_head_and_tail_have_exact_offsets(sizes: list[int], head: int, tail: int, restart: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory) / "a.out"
        spool = StreamSpool(base, segment_bytes=SEGMENT)
        total = 0
        for number, size in enumerate(sizes):
            if number == restart:
                spool.close()
                spool = StreamSpool.load(base, segment_bytes=SEGMENT)
                assert spool.total == total
            spool.append(total, pattern(total, total + size))
            total += size
        spool.close()
        for each in (spool, StreamSpool.load(base, segment_bytes=SEGMENT)):
            each._kept = head, tail
            view = each.view()
            assert view.total_bytes == total
            if view.tail is None:
                assert view.omitted_bytes == 0
                assert view.head.to_bytes() == pattern(0, total)
                continue
            start, end = view.head.to_bytes(), view.tail.to_bytes()
            assert start == pattern(0, len(start))
            assert end == pattern(total - len(end), total)
            assert len(start) + len(end) + view.omitted_bytes == total
            assert len(start) == min(head, total)
            assert each.totals().omitted_bytes == view.omitted_bytes


@given(st.lists(st.integers(1, 200), max_size=40))
def test_beyond_the_bound_the_middle_goes_and_readers_are_told_where(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory) / "a.out"
        spool = StreamSpool(base, segment_bytes=SEGMENT)
        for size in sizes:
            spool.append(spool.total, pattern(spool.total, spool.total + size))
        total = spool.total
        kept = sum(file.stat().st_size for file in Path(directory).iterdir())
        assert kept <= (PINNED + ROLLING) * SEGMENT
        offset = 0
        while (piece := spool.read(offset)) is not None:
            if piece.data is None and piece.end <= MEMORY_BYTES:
                assert piece.offset == PINNED * SEGMENT
                assert piece.end > total - ROLLING * SEGMENT
            elif piece.data is not None:
                assert piece.data == pattern(offset, piece.end)
            offset = piece.end
        assert offset == total
        spool.remove()
        assert list(Path(directory).iterdir()) == []


def test_a_gap_is_told_to_every_reader_also_after_a_restart(tmp_path: Path) -> None:
    base = tmp_path / "a.out"
    spool = StreamSpool(base, segment_bytes=SEGMENT)
    spool.append(0, b"before")
    spool.gap(6, 300)
    spool.append(300, b"after")
    for each in (spool, StreamSpool.load(base, segment_bytes=SEGMENT)):
        assert everything(each) == (b"beforeafter", [(6, 300)])
        view = each.view()
        assert (view.head.to_bytes(), view.total_bytes, view.omitted_bytes) == (b"before", 305, 294)
        assert view.tail is not None
        assert view.tail.to_bytes() == b"after"
    spool.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_makes_a_gap_and_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = StreamSpool(tmp_path / "a.out")
    spool.append(0, b"kept ")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        spool.append(5, b"lost")
    spool.append(9, b"kept again")
    assert everything(StreamSpool.load(tmp_path / "a.out")) == (b"kept kept again", [(5, 9)])
    spool.close()


def test_given_input_waits_until_it_is_dropped(tmp_path: Path) -> None:
    spool = ProcessSpool(tmp_path / "uid", "prc_1")
    assert spool.stdin() is None
    spool.keep_stdin(b"input")
    assert ProcessSpool(tmp_path / "uid", "prc_1", loaded=True).stdin() == b"input"
    spool.drop_stdin()
    assert spool.stdin() is None


@given(st.lists(st.integers(0, 60), max_size=30), st.integers(1, 50), st.integers(1, 50))
def test_the_memory_of_a_run_has_exact_offsets_too(sizes: list[int], head: int, tail: int) -> None:
    kept = HeadTail(head, tail)
    total = 0
    for size in sizes:
        kept.append(pattern(total, total + size))
        total += size
    view = kept.view()
    assert view.total_bytes == total
    if view.tail is None:
        assert view.head.to_bytes() == pattern(0, total)
        assert total <= head + tail
    else:
        assert view.head.to_bytes() == pattern(0, head)
        assert view.tail.to_bytes() == pattern(total - tail, total)
        assert view.omitted_bytes == total - head - tail


@pytest.mark.parametrize(
    ("size", "kept", "expected"), [(9, 10, (9, 0, 0)), (11, 10, (5, 1, 5)), (11, 5, (2, 6, 3)), (11, 11, (11, 0, 0))]
)
def test_as_much_is_shown_as_is_told(tmp_path: Path, size: int, kept: int, expected: tuple[int, int, int]):
    spool = StreamSpool(tmp_path / "a.out", kept_bytes=kept)
    spool.append(0, pattern(0, size))
    spool.close()
    for each in (spool, StreamSpool.load(tmp_path / "a.out", kept_bytes=kept)):
        view = each.view()
        tail = view.tail.to_bytes() if view.tail else b""
        assert (len(view.head.to_bytes()), view.omitted_bytes, len(tail)) == expected
        assert view.to_bytes() == pattern(0, expected[0]) + pattern(size - expected[2], size)
        assert each.totals().omitted_bytes == expected[1]
