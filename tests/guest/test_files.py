"""File primitives, through the real guest."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from station.core.errors import (
    AlreadyExists,
    BoxLost,
    Conflict,
    FileNotFound,
    InvalidInput,
    NotARegularFile,
    PathRefused,
    StationError,
    TooLarge,
)
from station.core.paths import SandboxPath, resolve
from station.guest.applets import Command, Source, answer_of
from station.guest.files import GuestFiles, root_in
from station.guest.packs import END, Entry, read_pack
from station.guest.session import GuestSession

from .peer import pieces, real_guest


@dataclass(frozen=True)
class Places:
    workspace: str
    home: str
    tmp: str


@pytest.fixture
def places(work: Path) -> Places:
    for name in ("workspace", "home", "tmp"):
        (work / name).mkdir()
    return Places(str(work / "workspace"), str(work / "home"), str(work / "tmp"))


@pytest.fixture
def root(places: Places) -> Path:
    return Path(places.workspace)


@pytest.fixture
def files(session: GuestSession, places: Places) -> GuestFiles:
    return GuestFiles(session, places)


def at(name: str) -> SandboxPath:
    return resolve(name)


async def content(files: GuestFiles, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
    async with await files.read(at(name), offset=offset, length=length) as stream:
        return b"".join([data async for data in stream])


def test_roots_are_where_the_layout_has_them(places: Places) -> None:
    assert root_in(places, resolve("/home/node/x")) == places.home
    assert root_in(places, resolve("a/b")) == places.workspace
    assert root_in(places, resolve("/tmp")) == places.tmp


async def test_a_file_is_written_and_read_back_whole(files: GuestFiles, root: Path) -> None:
    data = random.Random(3).randbytes(3_000_000)
    written = await files.write(at("a.bin"), pieces(data[:1_000_000], b"", data[1_000_000:]), mode=0o640)
    assert (written.created, written.sha256) == (True, hashlib.sha256(data).hexdigest())
    assert (written.entry.kind, written.entry.size, written.entry.mode) == ("f", 3_000_000, 0o640)
    assert (root / "a.bin").read_bytes() == data
    assert await content(files, "a.bin") == data
    again = await files.write(at("a.bin"), b"short", durable=True)
    assert (again.created, again.entry.size) == (False, 5)
    assert await content(files, "a.bin") == b"short"


async def test_an_empty_file_is_a_file(files: GuestFiles, root: Path) -> None:
    await files.write(at("empty"), b"")
    assert (root / "empty").stat().st_size == 0
    assert await content(files, "empty") == b""


async def test_a_part_of_a_file_is_read_exactly(files: GuestFiles, root: Path) -> None:
    (root / "a").write_bytes(b"0123456789")
    assert await content(files, "a", offset=3, length=4) == b"3456"
    assert await content(files, "a", offset=8, length=100) == b"89"
    assert await content(files, "a", offset=50) == b""
    async with await files.read(at("a")) as stream:
        assert (stream.entry.size, stream.entry.kind) == (10, "f")


async def test_a_write_into_a_missing_folder_needs_parents(files: GuestFiles, root: Path) -> None:
    with pytest.raises(FileNotFound, match="/workspace/x/y/z does not exist"):
        await files.write(at("x/y/z"), b"1")
    await files.write(at("x/y/z"), b"1", parents=True)
    assert (root / "x/y/z").read_bytes() == b"1"


async def test_an_exclusive_write_keeps_what_is_there(files: GuestFiles, root: Path) -> None:
    (root / "a").write_bytes(b"old")
    with pytest.raises(AlreadyExists):
        await files.write(at("a"), b"new", exclusive=True)
    assert (root / "a").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("size", "piece"),
    [*product([0, 1, 31, 32, 33], [1, 31, 32, 4096]), *product([300_000], [4096, 1 << 20])],
)
async def test_a_digest_is_passed_on_both_ways(files: GuestFiles, root: Path, size: int, piece: int) -> None:
    data = random.Random(size).randbytes(size)
    sealed = data + hashlib.sha256(data).digest()
    cut = [sealed[start : start + piece] for start in range(0, len(sealed), piece)]
    written = await files.write(at("a"), pieces(*cut), sealed=True)
    assert (root / "a").read_bytes() == data
    assert written.sha256 == hashlib.sha256(data).hexdigest()
    async with await files.read(at("a")) as stream:
        assert b"".join([part async for part in stream.sealed()]) == sealed


async def test_what_is_shorter_than_a_digest_is_not_written(files: GuestFiles, root: Path) -> None:
    with pytest.raises(InvalidInput, match="digest differs"):
        await files.write(at("a"), b"x" * 31, sealed=True)
    assert os.listdir(root) == []


async def test_a_write_whose_digest_differs_changes_nothing(session: GuestSession, places: Places, root: Path) -> None:
    (root / "a").write_bytes(b"old")
    wrong = Source(b"new" + hashlib.sha256(b"something else").digest(), sealed=True)
    command = Command("write", (places.workspace, "a", "644", ""), "/workspace/a", 10, "/workspace")
    with pytest.raises(InvalidInput, match="digest differs") as caught:
        await answer_of(session, command, wrong)
    assert caught.value.detail["reason"] == "digest"
    assert (root / "a").read_bytes() == b"old"
    assert os.listdir(root) == ["a"]


async def test_a_source_that_breaks_off_changes_nothing_and_its_error_goes_on(
    session: GuestSession, files: GuestFiles, root: Path
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield bytes(500_000)
        raise ConnectionResetError("the client went away")

    (root / "a").write_bytes(b"old")
    with pytest.raises(ConnectionResetError, match="went away"):
        await files.write(at("a"), broken())
    await files.stat(at("a"))
    assert (root / "a").read_bytes() == b"old"
    assert os.listdir(root) == ["a"]


async def test_a_cancelled_write_changes_nothing(files: GuestFiles, root: Path) -> None:
    fed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield bytes(100_000)
        fed.set()
        await asyncio.Event().wait()

    writing = asyncio.ensure_future(files.write(at("a"), endless()))
    await fed.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    with pytest.raises(FileNotFound):
        await files.stat(at("a"))


async def test_a_write_onto_a_folder_tells_so_although_its_source_is_large(files: GuestFiles, root: Path) -> None:
    (root / "d").mkdir()
    with pytest.raises(NotARegularFile):
        await files.write(at("d"), pieces(*[bytes(1_000_000)] * 5))


async def test_a_file_that_shrinks_while_it_is_read_is_never_taken_for_whole(files: GuestFiles, root: Path) -> None:
    (root / "a").write_bytes(bytes(20_000_000))
    async with await files.read(at("a")) as stream:
        reading = aiter(stream)
        await anext(reading)
        os.truncate(root / "a", 3_000_000)
        with pytest.raises(Conflict, match="became shorter") as caught:
            _ = [data async for data in reading]
    assert caught.value.retryable


async def test_a_read_that_is_left_is_killed_and_forgotten(
    session: GuestSession, files: GuestFiles, root: Path
) -> None:
    (root / "a").write_bytes(bytes(20_000_000))
    async with await files.read(at("a")) as stream:
        reading = aiter(stream)
        assert len(await anext(reading)) > 0
    assert session._processes  # it is being ended
    await files.stat(at("a"))
    while session._processes:
        await session.ping()


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
async def test_only_regular_files_are_read_at_once_and_without_blocking(
    files: GuestFiles, root: Path, kind: str
) -> None:
    if kind == "fifo":
        os.mkfifo(root / "a")
    elif kind == "folder":
        (root / "a").mkdir()
    else:
        (root / "a").symlink_to("/etc/passwd")
    with pytest.raises((NotARegularFile, PathRefused)) as caught:
        await files.read(at("a"))
    assert str(root) not in caught.value.message


@pytest.mark.parametrize("name", ["a/x", "a"])
async def test_a_link_that_leads_out_is_refused_and_a_write_replaces_it(
    files: GuestFiles, root: Path, work: Path, name: str
) -> None:
    outside = work / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"secret")
    (root / "a").symlink_to(outside if name == "a/x" else outside / "x")
    with pytest.raises(PathRefused):
        await content(files, name)
    if name == "a":
        await files.write(at("a"), b"mine")
        assert not (root / "a").is_symlink()
    assert (outside / "x").read_bytes() == b"secret"


@pytest.mark.parametrize("raw", [b"caf\xe9", b"\xff\xfe", b"a\nb\x1b[2J", b"-rf", b"$(x) '\"", b"\xf0\x9f\x92\xa9"])
async def test_names_are_bytes_on_the_whole_way(files: GuestFiles, root: Path, raw: bytes) -> None:
    name = raw.decode("utf-8", "surrogateescape")
    await files.write(at(name), b"content")
    assert os.listdir(os.fsencode(root)) == [raw]
    listing = await files.list(at("."))
    assert [entry.path.encode("utf-8", "surrogateescape").rpartition(b"/")[2] for entry in listing.entries] == [raw]
    assert await content(files, name) == b"content"
    assert await files.remove(at(name)) == 1


async def test_stat_tells_kinds_modes_and_targets(files: GuestFiles, root: Path) -> None:
    (root / "d").mkdir(mode=0o750)
    (root / "f").write_bytes(b"123")
    (root / "l").symlink_to("f")
    assert (await files.stat(at("d"))).kind == "d"
    assert (await files.stat(at("l"))).size == 3
    link = await files.stat(at("l"), follow=False)
    assert (link.kind, link.target) == ("l", "f")
    assert (await files.stat(at("."))).kind == "d"
    with pytest.raises(FileNotFound, match="/workspace/none does not exist"):
        await files.stat(at("none"))


async def test_a_long_listing_comes_in_pages_without_loss(files: GuestFiles, root: Path) -> None:
    names = sorted(f"file-{number:04d}" for number in range(250))
    for name in names:
        (root / name).write_bytes(b"")
    seen: list[str] = []
    after, more = "", True
    while more:
        listing = await files.list(at("."), limit=100, after=after)
        seen += [entry.path for entry in listing.entries]
        after, more = listing.entries[-1].path, listing.more
    assert seen == names


async def test_a_recursive_listing_is_sorted_by_components(files: GuestFiles, root: Path) -> None:
    for name in ("a/x", "a-b", "a/y/z", "b"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    listing = await files.list(at("."), recursive=True)
    assert [entry.path for entry in listing.entries] == ["a", "a/x", "a/y", "a/y/z", "a-b", "b"]


async def test_folders_are_made_moved_and_removed(files: GuestFiles, root: Path) -> None:
    assert await files.mkdir(at("d/e"), parents=True)
    assert not await files.mkdir(at("d/e"), parents=True)
    with pytest.raises(AlreadyExists):
        await files.mkdir(at("d"))
    (root / "d/e/f").write_bytes(b"1")
    await files.rename(at("d"), at("n/d"), parents=True)
    assert (root / "n/d/e/f").read_bytes() == b"1"
    with pytest.raises(Conflict, match="not empty"):
        await files.remove(at("n"))
    assert await files.remove(at("n"), recursive=True) == 4
    assert await files.remove(at("n"), recursive=True) == 0
    assert os.listdir(root) == []


async def test_an_exclusive_rename_keeps_what_is_there(files: GuestFiles, root: Path) -> None:
    (root / "a").write_bytes(b"a")
    (root / "b").write_bytes(b"b")
    with pytest.raises(AlreadyExists):
        await files.rename(at("a"), at("b"), exclusive=True)
    await files.rename(at("a"), resolve("/tmp/c"))
    assert sorted(os.listdir(root)) == ["b"]


async def test_modes_lose_their_special_bits(files: GuestFiles, root: Path) -> None:
    (root / "a").write_bytes(b"")
    await files.chmod(at("a"), 0o4755)
    assert (root / "a").stat().st_mode & 0o7777 == 0o755


async def test_space_is_told(files: GuestFiles) -> None:
    space = await files.space(at("."))
    assert 0 < space.free <= space.total


async def test_a_tree_is_packed_and_unpacked_equal(files: GuestFiles, root: Path) -> None:
    data = random.Random(5).randbytes(400_000)
    (root / "t/sub").mkdir(parents=True)
    (root / "t/sub/data").write_bytes(data)
    (root / "t/link").symlink_to("sub/data")
    events = [event async for event in read_pack(files.pack(at("t"), 1 << 20))]
    assert [event.path for event in events if isinstance(event, Entry)] == ["link", "sub", "sub/data"]
    packed = b"".join([piece async for piece in files.pack(at("t"), 1 << 20)])
    assert packed.endswith(END)
    assert await files.unpack(at("copy"), pieces(packed[:1000], packed[1000:]), parents=True) == 3
    assert (root / "copy/sub/data").read_bytes() == data
    assert os.readlink(root / "copy/link") == "sub/data"
    with pytest.raises(TooLarge):
        _ = [piece async for piece in files.pack(at("t"), 1000)]


@pytest.mark.parametrize(
    "entries",
    [
        Entry("f", 0o644, 0, 0, 1, "../out").encode(),
        Entry("f", 0o644, 0, 0, 1, "/etc/x").encode(),
        Entry("l", 0o777, 0, 0, 1, "l", "../../out").encode(),
        Entry("o", 0o644, 0, 0, 1, "dev").encode(),
        Entry("f", 0o644, 5, 0, 1, "cut").encode() + b"abc",
    ],
)
async def test_a_refused_archive_changes_nothing(files: GuestFiles, root: Path, entries: bytes) -> None:
    good = Entry("f", 0o644, 2, 0, 1, "good").encode() + b"ok"
    with pytest.raises(StationError) as caught:
        await files.unpack(at("."), good + entries + END)
    assert type(caught.value) in (InvalidInput, PathRefused)
    assert os.listdir(root) == []


async def test_a_dead_guest_is_a_lost_box(tmp_path: Path) -> None:
    with real_guest(tmp_path) as guest:
        session = await GuestSession.connect(guest.open, patience_seconds=0.1)
        files = GuestFiles(session, Places(str(tmp_path), str(tmp_path), str(tmp_path)))
        (tmp_path / "a").write_bytes(bytes(20_000_000))
        async with await files.read(at("a")) as stream:
            guest.kill()
            with pytest.raises(BoxLost):
                _ = [data async for data in stream]
        with pytest.raises(BoxLost):
            await files.write(at("b"), b"x")
        await session.aclose()
