from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from station.core.errors import InternalError
from station.guest.packs import END, Entry, PackReader, parse_entries, parse_entry, read_pack

from .peer import pieces

names = (
    st.binary(min_size=1, max_size=40)
    .filter(lambda raw: b"\0" not in raw)
    .map(lambda raw: raw.decode("utf-8", "surrogateescape"))
)
modes, times, counts = st.integers(0, 0o777), st.integers(-(10**18), 10**18), st.integers(1, 2**32 - 1)
files = st.binary(max_size=200).flatmap(
    lambda data: st.tuples(
        st.builds(Entry, st.just("f"), modes, st.just(len(data)), times, counts, names), st.just(data)
    )
)
others = st.tuples(
    st.one_of(
        st.builds(Entry, st.sampled_from(["d", "o"]), modes, st.integers(0, 2**40), times, counts, names),
        st.builds(Entry, st.just("l"), modes, st.integers(0, 99), times, counts, names, names),
    ),
    st.just(b""),
)
trees = st.lists(st.one_of(files, others), max_size=8)


def joined(events: list[Entry | bytes]) -> list[tuple[Entry, bytes]]:
    found: list[tuple[Entry, bytes]] = []
    for event in events:
        if isinstance(event, Entry):
            found.append((event, b""))
        else:
            found[-1] = (found[-1][0], found[-1][1] + event)
    return found


@given(trees, st.lists(st.integers(0, 2000), max_size=10))
def test_a_pack_comes_back_as_it_was_however_it_is_chunked(tree: list[tuple[Entry, bytes]], cuts: list[int]) -> None:
    raw = b"".join(entry.encode() + data for entry, data in tree) + END
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    reader = PackReader()
    events = [event for a, b in itertools.pairwise(edges) for event in reader.feed(raw[a:b])]
    reader.finish()
    assert joined(events) == tree


@given(trees, st.integers(0, 2000))
def test_a_pack_that_is_cut_is_never_taken_for_a_whole_one(tree: list[tuple[Entry, bytes]], cut: int) -> None:
    raw = b"".join(entry.encode() + data for entry, data in tree) + END
    reader = PackReader()
    reader.feed(raw[: cut % len(raw)])
    with pytest.raises(InternalError):
        reader.finish()


@given(st.binary(max_size=300))
def test_damaged_packs_raise_one_error(raw: bytes) -> None:
    reader = PackReader()
    try:
        reader.feed(raw)
        reader.finish()
    except InternalError:
        assert not (raw == END)


def test_an_endless_entry_is_not_collected() -> None:
    with pytest.raises(InternalError, match="too long"):
        PackReader().feed(b"f 644 1 1 1 " + b"x" * 40_000)


def test_an_entry_has_the_text_of_the_protocol() -> None:
    raw = b"l 777 3 -5 1 a b\xff\0c\0"
    entry = Entry("l", 0o777, 3, -5, 1, "a b\udcff", "c")
    assert entry.encode() == raw
    assert parse_entries(raw + b"m\0") == ([entry], True)
    assert parse_entries(raw) == ([entry], False)
    assert parse_entries(b"") == ([], False)


def test_an_entry_on_the_wire_is_percent_coded() -> None:
    wire = parse_entry(b"f 644 12 1500000000 1 x\xff").to_wire("/workspace/x\udcff")
    assert (wire.path, wire.type, wire.mode, wire.size, wire.mtime) == ("/workspace/x%FF", "file", "644", 12, 1.5)


@pytest.mark.parametrize(
    "raw", [b"f 644 1 1 1 a", b"m\0m\0", b"l 777 1 1 1 a\0", b"x 1 1 1 1 a\0", b"\0", b"f 8 1 1 1 a\0"]
)
def test_a_damaged_list_is_an_error(raw: bytes) -> None:
    with pytest.raises(InternalError):
        parse_entries(raw)


async def test_a_pack_is_read_from_a_stream() -> None:
    entry = Entry("f", 0o644, 5, 0, 1, "a")
    assert [event async for event in read_pack(pieces(entry.encode() + b"he", b"llo" + END))] == [entry, b"he", b"llo"]
    with pytest.raises(InternalError, match="before its end"):
        _ = [event async for event in read_pack(pieces(entry.encode() + b"hello"))]
