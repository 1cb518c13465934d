"""Files inside a box by the guest's primitives, on every backend."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from station.core.errors import (
    AlreadyExists,
    Conflict,
    FileNotFound,
    InvalidInput,
    NotARegularFile,
    PathRefused,
    StationError,
    TooLarge,
)
from station.core.paths import SandboxPath, resolve
from station.guest.packs import END, Entry, PackReader

from .conftest import BOUND_SECONDS, Collector, Place
from .words import pattern

NAMES = [
    "plain", "blank and  more", "ünïcödé", "漢字🎉", 'quote"s\'', "back\\slash", "new\nline", "tab\t", "-dash", "*?[x]",
    "$HOME `id`", "%41", "\udcff\udcfe", ".hidden", "x" * 255,
]  # fmt: skip


async def names(place: Place, path: str = ".", *, recursive: bool = False) -> list[str]:
    return [entry.path for entry in (await place.files.list(resolve(path), recursive=recursive)).entries]


@pytest.mark.parametrize("path", ["a.txt", "workspace/a.txt", "/workspace/a.txt", "/home/node/workspace/a.txt"])
async def test_tc_1_spellings_of_a_path_are_one_file(place: Place, path: str) -> None:
    await place.write(path, b"x")
    assert await place.read("/workspace/a.txt") == b"x"
    assert (await place.run(("cat", f"{place.box.layout.workspace}/a.txt"))).stdout == b"x"


@pytest.mark.parametrize("path", ["/tmp/x", "/home/node/x"])
async def test_tc_1_home_and_tmp_mean_themselves(place: Place, path: str) -> None:
    await place.write(path, b"x")
    assert await place.read(path) == b"x"
    root = place.box.layout.tmp if path.startswith("/tmp") else place.box.layout.home
    assert (await place.run(("cat", f"{root}/x"))).stdout == b"x"


@pytest.mark.parametrize("path", ["/a.txt", "/", "../etc/passwd", "/workspace/../x", "/etc/passwd"])
def test_tc_1_places_outside_are_refused(path: str) -> None:
    with pytest.raises(PathRefused):
        resolve(path)


@pytest.mark.parametrize("relative", ["../x", "a/../../x", "/etc/passwd", ".."])
async def test_the_guest_itself_refuses_what_leads_up(place: Place, relative: str) -> None:
    """Though no checked path says so: the guest does not trust the host's check."""
    with pytest.raises(PathRefused):
        await place.files.stat(SandboxPath("/workspace", relative))


async def test_tc_1_a_link_to_outside_is_refused(place: Place) -> None:
    await place.run(place.word("link", "out", "/etc"))
    await place.run(place.word("link", "up", "../../.."))
    for path in ("out/passwd", "up/etc/passwd", "out"):
        with pytest.raises(PathRefused):
            await place.read(path)
        with pytest.raises(PathRefused):
            await place.write(path + "/new", b"x")
    assert (await place.files.stat(resolve("out"), follow=False)).target == "/etc"


async def test_a_link_inside_is_followed_and_a_loop_is_refused(place: Place) -> None:
    await place.write("real/file", b"x", parents=True)
    await place.run(place.word("link", "inside", "real"))
    await place.run(place.word("link", "loop", "loop"))
    assert await place.read("inside/file") == b"x"
    with pytest.raises(PathRefused):
        await place.read("loop")


async def test_tc_3_fb_b53_parents_are_made_and_the_bytes_come_back(place: Place) -> None:
    written = await place.files.write(resolve("a/b/c.txt"), b"\xff\0", parents=True)
    assert (written.created, written.entry.size, written.entry.mode) == (True, 2, 0o644)
    assert written.sha256 == hashlib.sha256(b"\xff\0").hexdigest()
    assert await place.read("a/b/c.txt") == b"\xff\0"
    assert not (await place.files.write(resolve("a/b/c.txt"), b"new", parents=True)).created
    with pytest.raises(FileNotFound, match="nowhere"):
        await place.write("nowhere/c.txt", b"x")


async def test_tc_3_a_mode_is_kept_and_makes_a_program(place: Place) -> None:
    await place.write("run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert (await place.run(("./run.sh",))).stdout == b"ran\n"
    await place.write("special", b"", mode=0o7755)
    assert (await place.files.stat(resolve("special"))).mode == 0o755
    await place.files.chmod(resolve("run.sh"), 0o600)
    assert (await place.run(("./run.sh",))).code == 126


async def test_fb_b58_a_command_may_change_an_uploaded_file(place: Place) -> None:
    await place.write("note", b"some ")
    assert (await place.run(place.word("append", "note"))).code == 0
    assert await place.read("note") == b"some more"


async def test_tc_4_a_read_of_a_part_is_the_exact_bytes(place: Place) -> None:
    await place.write("file", pattern(200_000))
    stream = await place.files.read(resolve("file"), offset=100_001, length=70_000)
    assert stream.entry.size == 200_000
    assert b"".join([piece async for piece in stream]) == pattern(200_000)[100_001:170_001]
    assert await place.read("file", offset=199_999, length=50) == b"\n"
    assert await place.read("file", offset=200_000) == b""
    assert await place.read("file", length=0) == b""


async def test_tc_5_remove(place: Place) -> None:
    await place.write("d/e/f", b"x", parents=True)
    await place.write("plain", b"x")
    with pytest.raises(Conflict):
        await place.files.remove(resolve("d"))
    assert await place.files.remove(resolve("d"), recursive=True) == 3
    assert await place.files.remove(resolve("plain")) == 1
    assert await place.files.remove(resolve("plain")) == 0
    assert await place.files.remove(resolve("d/e/f")) == 0
    assert await names(place) == []


async def test_remove_takes_a_link_and_not_what_it_names(place: Place) -> None:
    await place.write("real/file", b"x", parents=True)
    await place.run(place.word("link", "link", "real"))
    assert await place.files.remove(resolve("link"), recursive=True) == 1
    assert await place.read("real/file") == b"x"


async def test_fb_b55_any_name_is_kept(place: Place) -> None:
    for name in NAMES:
        await place.write(name, os.fsencode(name))
    assert await names(place) == sorted(NAMES, key=os.fsencode)
    for name in NAMES:
        assert await place.read(name) == os.fsencode(name)


async def test_names_that_are_too_long_are_refused_clearly(place: Place) -> None:
    with pytest.raises(InvalidInput):
        resolve("x" * 256)
    with pytest.raises(InvalidInput):
        resolve("x/" * 2500)
    with pytest.raises(InvalidInput):
        resolve("a\0b")
    with pytest.raises(InvalidInput):
        await place.files.write(SandboxPath("/workspace", "x" * 256), b"")


async def test_fb_b61_contents_with_quotes_and_backslashes_are_not_touched(place: Place) -> None:
    raw = b"""it's "x" \\n $HOME `id` $(id) <<EOF\nEOF\n\r\n\\"""
    await place.write("quoted", raw)
    assert await place.read("quoted") == raw
    assert (await place.run(("cat", "quoted"))).stdout == raw


async def test_fb_b62_a_huge_sparse_file_is_read_within_bounds(place: Place) -> None:
    size = 2 << 30
    await place.run(place.word("sparse", "hole", str(size)))
    assert (await place.files.stat(resolve("hole"))).size == size
    async with asyncio.timeout(BOUND_SECONDS):
        assert await place.read("hole", offset=size - 10, length=1 << 20) == bytes(10)
        stream = await place.files.read(resolve("hole"))
        async with stream:
            async for piece in stream:
                assert len(piece) <= 1 << 20
                break


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1_000_000])
async def test_fb_b64_b56_every_size_comes_back(place: Place, size: int) -> None:
    written = await place.files.write(resolve("file"), pattern(size))
    assert written.entry.size == (await place.files.stat(resolve("file"))).size == size
    assert await place.read("file") == pattern(size)


async def test_fb_b65_a_large_directory_is_listed_whole_and_by_pages(place: Place) -> None:
    await place.run(place.word("crowd", "many", "900"))
    expected = [f"{number:05d}" for number in range(900)]
    found: list[str] = []
    while True:
        listing = await place.files.list(resolve("many"), limit=400, after=found[-1] if found else "")
        found += [entry.path for entry in listing.entries]
        assert len(listing.entries) <= 400
        if not listing.more:
            break
    assert found == expected


async def test_a_listing_is_sorted_by_components_and_tells_types(place: Place) -> None:
    for path in ("a-b", "a/x", "a.c", "b/c/d"):
        await place.write(path, b"1", parents=True)
    await place.run(place.word("link", "l", "a/x"))
    assert await names(place) == ["a", "a-b", "a.c", "b", "l"]
    assert await names(place, recursive=True) == ["a", "a/x", "a-b", "a.c", "b", "b/c", "b/c/d", "l"]
    kinds = {entry.path: (entry.kind, entry.target) for entry in (await place.files.list(resolve("."))).entries}
    assert kinds == {"a": ("d", None), "a-b": ("f", None), "a.c": ("f", None), "b": ("d", None), "l": ("l", "a/x")}
    later = (await place.files.list(resolve("."), recursive=True, after="a/x")).entries
    assert [entry.path for entry in later] == ["a-b", "a.c", "b", "b/c", "b/c/d", "l"]


async def test_listing_what_is_no_directory_or_not_there(place: Place) -> None:
    await place.write("file", b"")
    with pytest.raises(Conflict):
        await place.files.list(resolve("file"))
    with pytest.raises(FileNotFound):
        await place.files.list(resolve("nothing"))


async def test_reading_a_directory_or_nothing_is_a_clear_error(place: Place) -> None:
    await place.files.mkdir(resolve("d"))
    with pytest.raises(NotARegularFile):
        await place.read("d")
    with pytest.raises(FileNotFound, match="/workspace/nothing"):
        await place.read("nothing")
    with pytest.raises((NotARegularFile, Conflict)):
        await place.write("d", b"x")


async def test_an_exclusive_write_replaces_nothing(place: Place) -> None:
    await place.write("once", b"1", exclusive=True)
    with pytest.raises(AlreadyExists):
        await place.write("once", b"2", exclusive=True)
    assert await place.read("once") == b"1"


async def test_a_write_that_breaks_off_changes_nothing(place: Place) -> None:
    await place.write("file", b"before")

    async def half() -> AsyncIterator[bytes]:
        yield b"half of it"
        raise ConnectionAbortedError("the client left")

    with pytest.raises(ConnectionAbortedError):
        await place.files.write(resolve("file"), half())
    assert await place.read("file") == b"before"
    assert await names(place) == ["file"]


async def test_a_write_replaces_a_link_and_never_follows_it(place: Place) -> None:
    await place.write("real", b"real")
    await place.run(place.word("link", "link", "real"))
    await place.write("link", b"new")
    assert (await place.read("real"), await place.read("link")) == (b"real", b"new")


async def test_who_reads_an_old_file_keeps_it_while_it_is_replaced(place: Place) -> None:
    old = pattern(3_000_000)
    await place.write("file", old)
    stream = await place.files.read(resolve("file"))
    await place.write("file", b"new")
    assert b"".join([piece async for piece in stream]) == old
    assert await place.read("file") == b"new"


async def test_mkdir(place: Place) -> None:
    assert await place.files.mkdir(resolve("a/b"), parents=True, mode=0o700)
    assert (await place.files.stat(resolve("a/b"))).mode == 0o700
    assert not await place.files.mkdir(resolve("a/b"), parents=True)
    with pytest.raises(AlreadyExists):
        await place.files.mkdir(resolve("a/b"))
    with pytest.raises(FileNotFound):
        await place.files.mkdir(resolve("x/y"))


async def test_rename(place: Place) -> None:
    await place.write("one", b"1")
    await place.write("two", b"2")
    with pytest.raises(AlreadyExists):
        await place.files.rename(resolve("one"), resolve("two"), exclusive=True)
    await place.files.rename(resolve("one"), resolve("two"))
    await place.files.rename(resolve("two"), resolve("deep/er/two"), parents=True)
    assert await place.read("deep/er/two") == b"1"
    assert await names(place) == ["deep"]
    with pytest.raises(FileNotFound):
        await place.files.rename(resolve("one"), resolve("three"))
    with pytest.raises(InvalidInput):
        await place.files.rename(resolve("deep"), resolve("deep/er/inside"))


async def test_a_tree_travels_as_a_pack_and_comes_back(place: Place) -> None:
    await place.write("src/a", pattern(100_000), parents=True)
    await place.write("src/run", b"#!/bin/sh\n", mode=0o755)
    await place.files.mkdir(resolve("src/empty"))
    await place.write("src/z\nz", b"")
    await place.run(place.word("link", "src/link", "a"))
    packed = [piece async for piece in place.files.pack(resolve("src"), 1 << 20)]

    async def again() -> AsyncIterator[bytes]:
        for piece in packed:
            yield piece

    assert await place.files.unpack(resolve("copy/here"), again(), parents=True) == 5
    told = {entry.path: (entry.kind, entry.mode) for entry in (await place.files.list(resolve("copy/here"))).entries}
    assert told == {
        "a": ("f", 0o644), "empty": ("d", 0o755), "link": ("l", 0o777), "run": ("f", 0o755), "z\nz": ("f", 0o644),
    }  # fmt: skip
    assert await place.read("copy/here/link") == pattern(100_000)
    with pytest.raises(TooLarge):
        [piece async for piece in place.files.pack(resolve("src"), 1000)]
    with pytest.raises(TooLarge):
        [piece async for piece in place.files.pack(resolve("src"), 0)]


async def test_only_a_directory_is_a_tree(place: Place) -> None:
    await place.write("a.txt", b"x")
    with pytest.raises(Conflict):
        [piece async for piece in place.files.pack(resolve("a.txt"), -1)]


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(Entry("f", 0o644, 1, 0, 1, "../x").encode() + b"1" + END, id="leads up"),
        pytest.param(Entry("f", 0o644, 1, 0, 1, "/x").encode() + b"1" + END, id="absolute"),
        pytest.param(
            Entry("l", 0o777, 0, 0, 1, "d", "/tmp").encode() + Entry("f", 0o644, 1, 0, 1, "d/x").encode() + b"1" + END,
            id="through an absolute link",
        ),
        pytest.param(Entry("l", 0o777, 0, 0, 1, "l", "../..").encode() + END, id="link up"),
        pytest.param(Entry("l", 0o777, 0, 0, 1, "l", "a/../b").encode() + END, id="link up behind a name"),
        pytest.param(Entry("f", 0o644, 5, 0, 1, "x").encode() + b"1", id="cut short"),
        pytest.param(b"nonsense\0", id="no pack"),
        pytest.param(
            Entry("l", 0o777, 0, 0, 1, "d", "e").encode() + Entry("f", 0o644, 1, 0, 1, "d/x").encode() + b"1" + END,
            id="through a link",
        ),
    ],
)
async def test_an_archive_that_is_refused_changes_nothing(place: Place, pack: bytes) -> None:
    await place.write("there/old", b"old", parents=True)
    good = Entry("f", 0o644, 3, 0, 1, "good").encode() + b"new"
    with pytest.raises(InvalidInput):
        await place.files.unpack(resolve("there"), good + pack)
    assert await names(place, recursive=True) == ["there", "there/old"]


async def test_an_absolute_link_of_an_archive_is_a_name_that_no_primitive_follows(place: Place) -> None:
    """As /usr/bin/python3 in a venv. The control: a program that is careless writes through it."""
    outside = place.box.layout.tmp
    await place.write("/tmp/secret", b"secret")
    link = Entry("l", 0o777, 0, 0, 1, "out", outside).encode()
    assert await place.files.unpack(resolve("there"), link + END) == 1
    assert (await place.files.stat(resolve("there/out"), follow=False)).target == outside
    careless = place.word("link", f"{place.box.layout.workspace}/there/out/control", "x")
    assert (await place.run(careless)).code == 0
    assert await names(place, "/tmp") == ["control", "secret"]
    through = [Entry("d", 0o755, 0, 0, 1, "out").encode(), b""]
    for folder in through:  # a second archive, which finds the link
        evil = folder + Entry("f", 0o644, 1, 0, 1, "out/evil").encode() + b"1" + END
        with pytest.raises(StationError):
            await place.files.unpack(resolve("there"), evil)
    for attempt in (place.read("there/out/secret"), place.write("there/out/evil", b"x")):
        with pytest.raises(PathRefused):
            await attempt
    assert await place.files.remove(resolve("there"), recursive=True) == 2
    assert await names(place, "/tmp") == ["control", "secret"]
    await place.files.remove(resolve("/tmp/control"))
    await place.files.remove(resolve("/tmp/secret"))


async def test_an_archive_merges_into_what_is_there(place: Place) -> None:
    await place.write("there/sub/old", b"old", parents=True)
    await place.write("there/replaced", b"old")
    pack = b"".join(
        [
            Entry("d", 0o755, 0, 0, 1, "sub").encode(),
            Entry("f", 0o644, 3, 0, 1, "sub/new").encode() + b"new",
            Entry("f", 0o644, 3, 0, 1, "replaced").encode() + b"new",
            END,
        ]
    )
    assert await place.files.unpack(resolve("there"), pack) == 3
    assert await names(place, "there", recursive=True) == ["replaced", "sub", "sub/new", "sub/old"]
    assert await place.read("there/replaced") == b"new"


async def test_an_empty_directory_packs_to_its_end(place: Place) -> None:
    await place.files.mkdir(resolve("d"))
    reader = PackReader()
    assert [event async for piece in place.files.pack(resolve("d"), 1) for event in reader.feed(piece)] == []
    reader.finish()


async def test_space_is_told(place: Place) -> None:
    space = await place.files.space(resolve("."))
    assert 0 < space.free <= space.total


async def test_a_fifo_never_blocks_and_is_refused(place: Place) -> None:
    await place.run(place.word("fifo", "fifo"))
    with pytest.raises(NotARegularFile):
        await place.read("fifo")
    with pytest.raises(NotARegularFile):
        await place.write("fifo", b"x")
    assert (await place.files.stat(resolve("fifo"))).kind == "o"


async def test_file_primitives_work_beside_a_flood_of_output(place: Place) -> None:
    loud = place.start(place.word("babble"), sink=Collector())
    async with asyncio.timeout(BOUND_SECONDS):
        await loud.pid()
        await place.write("file", pattern(500_000))
        assert await place.read("file") == pattern(500_000)
        loud.cancel(0)
        await loud.exit()


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.binary(max_size=5000), offset=st.integers(0, 6000), length=st.integers(0, 6000))
async def test_any_range_of_any_bytes_is_exact(place: Place, data: bytes, offset: int, length: int) -> None:
    await place.write("file", data)
    assert await place.read("file", offset=offset, length=length) == data[offset : offset + length]
