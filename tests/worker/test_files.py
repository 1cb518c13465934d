from __future__ import annotations

import asyncio
import hashlib
import io
import os
import tarfile
import venv
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from station.client._transfer import pack
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
from station.core.paths import decode_name
from station.core.wire import ExecRequest
from station.worker.files import Files
from station.worker.tarcheck import Caps

from .box import RealBox, Station, eventually
from .test_archive import ATTACKS, archive, chunks, file, folder, link

FILES = Files()


async def content(one: Station, path: str, **options: int) -> bytes:
    async with await FILES.read(one.live, path, **options) as read:
        data = b"".join([chunk async for chunk in read.chunks])
        assert len(data) == read.length
        return data


async def names(one: Station, path: str = ".", **options: object) -> list[str]:
    return [entry.path for entry in (await FILES.list(one.live, path, **options)).entries]  # type: ignore[arg-type]


async def test_a_write_makes_parents_and_is_read_back_exactly(one: Station) -> None:
    for data in (b"", b"\xff\x00", os.urandom(3_000_000)):
        written = await FILES.write(one.live, "a/b/c.bin", data, mode=0o4755)
        assert written.sha256 == hashlib.sha256(data).hexdigest()
        entry = written.entry
        assert (entry.path, entry.size, entry.mode) == ("/workspace/a/b/c.bin", len(data), "755")
        assert await content(one, "/workspace/a/b/c.bin") == data
    assert [(await FILES.write(one.live, "new", b"")).created for _ in range(2)] == [True, False]


async def test_a_part_is_read_by_offset_and_length(one: Station) -> None:
    await FILES.write(one.live, "f", b"0123456789")
    assert await content(one, "f", offset=3, length=4) == b"3456"
    assert await content(one, "f", offset=8, length=40) == b"89"
    assert await content(one, "f", offset=10) == b""
    assert await content(one, "f", offset=99) == b""
    with pytest.raises(InvalidInput):
        await FILES.read(one.live, "f", offset=-1)


async def test_three_spellings_name_one_file_and_what_leads_out_is_refused(one: Station) -> None:
    await FILES.write(one.live, "a.txt", b"x")
    for name in ("workspace/a.txt", "/workspace/a.txt", "/home/node/workspace/a.txt", "b/../a.txt"):
        assert (await FILES.stat(one.live, name)).path == "/workspace/a.txt"
    for name in ("../etc/passwd", "/etc/passwd", "/", "/workspace/../x"):
        with pytest.raises(PathRefused):
            await FILES.stat(one.live, name)


async def test_without_overwrite_what_is_there_stays(one: Station) -> None:
    await FILES.write(one.live, "f", b"old")
    with pytest.raises(AlreadyExists):
        await FILES.write(one.live, "f", b"new", overwrite=False)
    assert await content(one, "f") == b"old"


async def test_an_upload_that_breaks_changes_nothing(one: Station) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"new" * 100_000
        raise ConnectionResetError

    await FILES.write(one.live, "f", b"old")
    with pytest.raises(ConnectionResetError):
        await FILES.write(one.live, "f", broken())
    assert await content(one, "f") == b"old"
    assert await names(one) == ["/workspace/f"]


async def test_names_are_bytes(one: Station, box: RealBox) -> None:
    for name in ("new\nline", "\udcff\udcfe", "-rf", "$(x)", "'\"\\", "é😀", "per%cent", " "):
        await FILES.write(one.live, name, name.encode("utf-8", "surrogateescape"))
        assert await content(one, name) == os.fsencode(name)
    listed = await names(one)
    assert {decode_name(path) for path in listed} == {
        f"/workspace/{os.fsdecode(raw)}" for raw in os.listdir(os.fsencode(box.directory / "workspace"))
    }


async def test_a_list_is_sorted_and_goes_on_at_its_cursor(one: Station) -> None:
    for number in range(25):
        await FILES.write(one.live, f"d/{number:02}", b"")
    await FILES.write(one.live, "d/05x/inner", b"")
    seen: list[str] = []
    after: str | None = None
    while True:
        page = await FILES.list(one.live, "d", recursive=True, limit=7, after=after)
        seen += [entry.path for entry in page.entries]
        after = page.next
        assert page.truncated == (after is not None)
        if after is None:
            break
    assert len(seen) == len(set(seen)) == 27
    assert "/workspace/d/05x/inner" in seen
    assert "/workspace/d/05x/inner" not in await names(one, "d")
    for limit in (0, 10_001):
        with pytest.raises(InvalidInput):
            await FILES.list(one.live, "d", limit=limit)
    with pytest.raises(FileNotFound):
        await FILES.list(one.live, "missing")


async def test_removing(one: Station) -> None:
    await FILES.write(one.live, "d/f", b"")
    for root, word in ((".", "workspace root"), ("/tmp", "/tmp"), ("/home/node", "home")):
        with pytest.raises(InvalidInput, match=word):
            await FILES.remove(one.live, root, recursive=True)
    with pytest.raises(Conflict, match="recursive=true"):
        await FILES.remove(one.live, "d")
    assert await FILES.remove(one.live, "d", recursive=True) == 2
    assert await FILES.remove(one.live, "d") == 0


async def test_a_directory_is_made_once_and_renamed(one: Station) -> None:
    assert await FILES.mkdir(one.live, "a/b")
    assert not await FILES.mkdir(one.live, "a/b")
    with pytest.raises(AlreadyExists):
        await FILES.mkdir(one.live, "a/b", parents=False)
    await FILES.write(one.live, "a/b/f", b"x")
    await FILES.rename(one.live, "a", "z/y")
    assert await content(one, "z/y/b/f") == b"x"
    await FILES.write(one.live, "g", b"g")
    with pytest.raises(AlreadyExists):
        await FILES.rename(one.live, "g", "z/y/b/f", overwrite=False)
    await FILES.rename(one.live, "g", "/tmp/g")
    assert await content(one, "/tmp/g") == b"g"
    assert await names(one) == ["/workspace/z"]


async def test_a_file_and_a_tree_are_copied(one: Station) -> None:
    await FILES.write(one.live, "d/sub/tool", b"tool" * 50_000, mode=0o755)
    await one.processes.exec(one.live, _shell("ln -s sub/tool d/link; mkdir d/empty"))
    await FILES.copy(one.live, "d", "/tmp/copy")
    assert await content(one, "/tmp/copy/link") == b"tool" * 50_000
    assert (await FILES.stat(one.live, "/tmp/copy/link", follow=False)).target == "sub/tool"
    assert (await FILES.stat(one.live, "/tmp/copy/sub/tool")).mode == "755"
    assert (await FILES.stat(one.live, "/tmp/copy/empty")).type == "dir"
    await FILES.copy(one.live, "d/sub/tool", "other/tool")
    assert (await FILES.stat(one.live, "other/tool")).mode == "755"
    with pytest.raises(InvalidInput, match="itself"):
        await FILES.copy(one.live, "d", "d/inside")
    with pytest.raises(AlreadyExists):
        await FILES.copy(one.live, "d", "other", overwrite=False)


async def test_what_is_no_regular_file_is_refused_at_once(one: Station, box: RealBox) -> None:
    os.mkfifo(box.directory / "workspace" / "pipe")
    (box.directory / "workspace" / "out").symlink_to("/etc/passwd")
    (box.directory / "workspace" / "loop").symlink_to("loop")
    with pytest.raises(NotARegularFile):
        await FILES.read(one.live, "pipe")
    with pytest.raises(NotARegularFile):
        await FILES.read(one.live, ".")
    for name in ("out", "loop"):
        with pytest.raises(StationError) as caught:
            await FILES.read(one.live, name)
        assert str(box.directory) not in caught.value.message
    assert (await FILES.stat(one.live, "pipe")).type == "other"


async def test_a_tree_goes_out_and_in_again_as_tar(one: Station, box: RealBox) -> None:
    await FILES.write(one.live, "d/sub/tool", b"tool" * 50_000, mode=0o755)
    await FILES.write(one.live, "d/\udcff", b"")
    await one.processes.exec(one.live, _shell("ln -s sub/tool d/link; mkdir d/empty; mkfifo d/pipe"))
    data = b"".join([chunk async for chunk in FILES.archive(one.live, "d")])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert {os.fsencode(name) for name in tar.getnames()} == {b"sub", b"sub/tool", b"\xff", b"link", b"empty"}
    assert await FILES.extract(one.live, "e", chunks(data)) == 5
    assert await content(one, "e/link") == b"tool" * 50_000
    assert (await FILES.stat(one.live, "e/sub/tool")).mode == "755"


async def test_an_archive_merges_into_what_is_there(one: Station) -> None:
    await FILES.write(one.live, "d/kept", b"kept")
    await FILES.write(one.live, "d/old", b"old")
    # Members whose directory comes late or never are let in too.
    data = archive(file("old", b"new"), file("x/y/z", b"z"), folder("x"), link("x/up", "../kept"))
    await FILES.extract(one.live, "d", chunks(data))
    contents = [await content(one, f"d/{name}") for name in ("kept", "old", "x/y/z", "x/up")]
    assert contents == [b"kept", b"new", b"z", b"kept"]


async def test_a_folder_with_a_venv_is_copied_in_and_its_python_runs(one: Station, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    await asyncio.to_thread(venv.create, folder / ".venv", symlinks=True)
    absolute = [link.name for link in (folder / ".venv/bin").glob("python*") if os.path.isabs(os.readlink(link))]
    assert absolute, "nothing here needs what is tested"
    with (tmp_path / "tar").open("w+b") as spool:
        pack(folder, spool)
        spool.seek(0)
        await FILES.extract(one.live, "in", chunks(spool.read()))
    result = await one.processes.exec(one.live, _shell("in/.venv/bin/python -c 'import sys; print(sys.prefix)'"))
    assert result.stdout is not None
    assert result.stdout.to_bytes().endswith(b"/in/.venv\n")
    await FILES.copy(one.live, "in", "again")
    for name in absolute:
        copied = await FILES.stat(one.live, f"again/.venv/bin/{name}", follow=False)
        assert copied.target == os.readlink(folder / ".venv/bin" / name)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_refused_archive_changes_nothing(one: Station, attack: str) -> None:
    await FILES.write(one.live, "d/kept", b"kept")
    with pytest.raises((InvalidInput, TooLarge)):
        await FILES.extract(one.live, "d", chunks(ATTACKS[attack]))
    assert await names(one, recursive=True) == ["/workspace/d", "/workspace/d/kept"]
    assert await content(one, "d/kept") == b"kept"


async def test_an_archive_of_too_much_changes_nothing(one: Station) -> None:
    files = Files(caps=Caps(members=3, total_bytes=1000))
    for data in (archive(*(file(str(n)) for n in range(4))), archive(file("a", bytes(900)), file("b", bytes(900)))):
        with pytest.raises(TooLarge):
            await files.extract(one.live, "d", chunks(data))
    assert await names(one, recursive=True) == []


def _shell(command: str) -> ExecRequest:
    return ExecRequest(command=command)


async def test_an_import_that_is_given_up_or_breaks_leaves_nothing(one: Station, box: RealBox) -> None:
    class LeftError(Exception):
        """As a web server says that its client has gone."""

    sent = asyncio.Event()

    async def part(*, stuck: bool) -> AsyncIterator[bytes]:
        yield archive(file("half", os.urandom(900_000)))[:600_000]
        sent.set()
        if stuck:
            await asyncio.Event().wait()
        raise LeftError

    with pytest.raises(LeftError):
        await FILES.extract(one.live, "d", part(stuck=False))
    sent.clear()
    waiting = asyncio.ensure_future(FILES.extract(one.live, "d", part(stuck=True)))
    await sent.wait()
    await eventually(lambda: list((box.directory / "workspace").rglob("half")))
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert list((box.directory / "workspace").iterdir()) == []
