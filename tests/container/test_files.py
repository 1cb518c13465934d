"""Files through both adapters: groups 15, 22, 23, 28 and 29 of the requirements."""

from __future__ import annotations

import asyncio
import errno

import pytest

from station._adapter.adapter import Adapter
from station._adapter.errors import translate
from station.backends.docker import engine as engines
from station.container import FileEntry
from station.core import errors
from station.guest.endings import ExitKind, GuestExit, Reason
from station.guest.file_errors import check
from tests.chaos.test_kill import REFUSED_SOCKET

from .conftest import done, refused, write

pytestmark = [pytest.mark.filterwarnings(REFUSED_SOCKET), pytest.mark.timeout(180)]
NOT_FOUND, INVALID, CAPACITY, UNAVAILABLE = (
    ("not_found", 404),
    ("invalid_input", 400),
    ("capacity", 507),
    ("unavailable", 503),
)


@pytest.fixture(scope="module")
async def workspace(shared: Adapter) -> str:
    return (await shared.create()).id


async def test_ws_15_a_folder_is_listed_by_pages(shared: Adapter, workspace: str):
    await done(shared, workspace, "mkdir -p many/e; cd many; touch b a d; ln -s /etc/passwd c; mkfifo f; echo 123 > a")
    seen: list[FileEntry] = []
    offset = 0
    while True:
        page = await shared.list_files(workspace, "many", offset=offset, limit=4)
        seen += page.entries
        if page.next_offset is None:
            break
        assert page.next_offset == offset + 4
        offset = page.next_offset
    assert [(entry.name, entry.path, entry.type) for entry in seen] == [
        ("a", "many/a", "file"), ("b", "many/b", "file"), ("c", "many/c", "symlink"), ("d", "many/d", "file"),
        ("e", "many/e", "directory"), ("f", "many/f", "other"),
    ]  # fmt: skip
    assert seen[0].size == 4
    assert seen[0].modified_at > 1_600_000_000
    assert (await shared.list_files(workspace, "many", offset=6)).entries == ()
    assert (await shared.list_files(workspace, "many", limit=6)).next_offset is None
    assert (await shared.list_files(workspace, "many", offset=99)).next_offset is None
    for options in ({"limit": 0}, {"limit": 1001}, {"offset": -1}, {"limit": True}, {"offset": 1.0}):
        with refused(*INVALID):
            await shared.list_files(workspace, "many", **options)


async def test_ws_15_ranges_of_a_file(shared: Adapter, workspace: str):
    await write(shared, workspace, "ranged", bytes(range(200)))
    for offset, length in ((0, 10), (190, 10), (190, 100), (200, 5), (0, 65536)):
        piece = await shared.read_file(workspace, "ranged", offset=offset, length=length)
        expected = bytes(range(200))[offset : offset + length]
        assert (piece.data, piece.bytes, piece.total_bytes, piece.next_offset) == (
            expected, len(expected), 200, offset + len(expected)
        )  # fmt: skip
        assert piece.path == "ranged"
    for offset, length in ((201, 1), (-1, 1), (0, 0), (0, 65537), (1 << 70, 1)):
        with refused(*INVALID):
            await shared.read_file(workspace, "ranged", offset=offset, length=length)
    await write(shared, workspace, "empty", b"")
    assert (await shared.read_file(workspace, "empty")).bytes == 0


async def test_ws_15_what_is_written(shared: Adapter, workspace: str):
    entry = await shared.write_file(workspace, "new", base64="aGk=")
    assert (entry.name, entry.path, entry.type, entry.size) == ("new", "new", "file", 2)
    for text in ("aGk", "aGl=", "aG k=", "a-_=", "aGk=\n", "===="):
        with refused(*INVALID):
            await shared.write_file(workspace, "new", base64=text)
    assert (await shared.read_file(workspace, "new")).data == b"hi"
    with refused("invalid_input", 413):
        await write(shared, workspace, "large", b"x" * 65537)
    await write(shared, workspace, "large", b"x" * 65536)
    with refused(*NOT_FOUND):
        await write(shared, workspace, "no/such/file", b"", parents=False)
    await write(shared, workspace, "no/such/file", b"made")
    for path in (".", "/workspace", "/home/node", "/tmp", "large/below"):
        with refused(*INVALID):
            await write(shared, workspace, path, b"", parents=False)


async def test_ws_15_what_is_removed(shared: Adapter, workspace: str):
    await done(shared, workspace, "mkdir -p full empty2; touch full/file; ln -s full pointer; ln -s /nowhere dangling")
    with refused(*INVALID):
        await shared.remove_file(workspace, "full")
    await shared.remove_file(workspace, "pointer")
    await shared.remove_file(workspace, "dangling")
    assert (await shared.list_files(workspace, "full")).entries[0].name == "file"
    await shared.remove_file(workspace, "full", recursive=True)
    for path in ("full", "pointer", "never/was"):
        with refused(*NOT_FOUND):
            await shared.remove_file(workspace, path)
    for path in (".", "/workspace", "in/../", "/home/node/workspace", "/tmp"):
        with refused(*INVALID):
            await shared.remove_file(workspace, path, recursive=True)


async def test_ws_15_paths_are_judged_where_they_end(shared: Adapter, workspace: str):
    """Inverted: absolute ones, `..` and links are taken where they stay inside."""
    await write(shared, workspace, "paths/file", b"one")
    await done(shared, workspace, "ln -s file paths/in; ln -s /etc/passwd paths/out; ln -s .. paths/up; ln -s /etc etc")
    same = ("paths/file", "/workspace/paths/file", "workspace/paths/file", "paths/../paths/file", "paths/in",
            "/home/node/workspace/paths/file", "paths/up/paths/file")  # fmt: skip
    for path in same:
        assert (await shared.read_file(workspace, path)).data == b"one", path
    for path in (
        "/etc/passwd",
        "../../etc/passwd",
        "paths/out",
        "etc/passwd",
        "/proc/self/environ",
        "a\0b",
        "x" * 5000,
    ):
        with refused(*INVALID):
            await shared.read_file(workspace, path)
    with refused(*INVALID):
        await write(shared, workspace, "etc/mine", b"")
    await write(shared, workspace, "/home/node/.config/tool", b"kept")
    assert (await shared.list_files(workspace, "/home/node/.config")).entries[0].path == "/home/node/.config/tool"


async def test_ws_28_codes_and_what_is_no_regular_file(shared: Adapter, workspace: str):
    await done(shared, workspace, "mkdir -p folder; mkfifo pipe; ln -sfn folder to-folder")
    with refused(*NOT_FOUND):
        await shared.read_file(workspace, "missing")
    with refused(*NOT_FOUND):
        await shared.list_files(workspace, "missing")
    for path in ("folder", "pipe", "to-folder"):
        with refused(*INVALID):
            async with asyncio.timeout(20):  # a pipe without a writer must not hold it up
                await shared.read_file(workspace, path)
    for path in ("pipe", "pipe/below"):
        with refused(*INVALID):
            await shared.list_files(workspace, path)


async def test_ws_29_programs_of_the_workspace_change_no_file_call_and_no_cancel(shared: Adapter, workspace: str):
    names = "node setsid sh bash cat stat kill python3 ls rm mv"
    trap = "mkdir -p node_modules/.bin; cd node_modules/.bin; for name in " + names + "; do "
    trap += r"printf '#!/bin/sh\necho evil >> $HOME/workspace/evil\n' > $name; /bin/chmod +x $name; done"
    assert (await done(shared, workspace, trap)).status == "completed"
    run = await shared.exec(workspace, "trap '' TERM; echo up; while :; do /bin/sleep 300.29; done")
    async with asyncio.timeout(20):
        while not (await shared.command(workspace, run.id)).stdout:
            pass
    await write(shared, workspace, "plain", b"1")
    assert (await shared.read_file(workspace, "plain")).data == b"1"
    await shared.list_files(workspace)
    await shared.remove_file(workspace, "plain")
    assert (await shared.cancel(workspace, run.id)).status == "cancelled"
    with refused(*NOT_FOUND):
        await shared.read_file(workspace, "evil")
    # The control: they would have been found.
    await done(shared, workspace, "cat plain")
    assert (await shared.read_file(workspace, "evil")).data == b"evil\n"
    await shared.remove_file(workspace, "node_modules", recursive=True)


@pytest.mark.parametrize(
    ("names", "answer"),
    [
        ("ENOENT", NOT_FOUND),
        ("ENOTDIR EISDIR ELOOP EINVAL EACCES EPERM ENOTEMPTY ENAMETOOLONG", INVALID),
        ("ENOSPC EDQUOT EFBIG EMFILE ENFILE", CAPACITY),
        ("EIO ENOMEM ENODEV ESTALE", UNAVAILABLE),
    ],
)
def test_ws_22_each_errno_has_its_code(names: str, answer: tuple[str, int]):
    for name in names.split():
        ended = GuestExit(ExitKind.EXITED, getattr(errno, name), Reason.NONE, 0, 0, 0, 0, 0, 0, 0)
        with pytest.raises(errors.StationError) as caught:
            check(ended, "read", "/workspace/a", b"system text")
        told = translate(caught.value, of_file=True)
        assert (told.code, told.status) == answer, name
        assert "system text" not in told.message


@pytest.mark.parametrize(
    ("status", "said", "code", "kind"),
    [
        (500, "OCI runtime create failed: secret-1", "unavailable", "engine_error"),
        (404, "No such container: secret-1", "unavailable", "not_found"),
        (409, "Conflict. The name secret-1 is already in use", "unavailable", "resource_conflict"),
        (403, "denied for secret-1", "unavailable", "permission_denied"),
        (500, "write /var/lib/docker/secret-1: no space left on device", "capacity", "resource_exhausted"),
    ],
)
def test_ws_23_of_an_engines_failure_its_class_alone_is_told(status: int, said: str, code: str, kind: str):
    told = translate(engines.translate(status, said, "start a container"))
    assert told.code == code
    assert kind in told.message
    assert "secret-1" not in told.message


def test_ws_23_so_too_where_the_engine_is_away():
    told = translate(engines.away("unix:///secret-1", "connection refused"))
    assert (told.code, told.status, told.retryable) == ("unavailable", 503, True)
    assert "secret-1" not in told.message
