"""The file primitives (attack suite F01-F15, R04, R19)."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest_c import wire
from tests.guest_c.client import Client, Guest, Output
from tests.guest_c.conftest import running

NOT_REGULAR, PATH_REFUSED, BAD_DIGEST = 200, 201, 202


def code(output: Output) -> int:
    assert output.ending
    assert output.ending.kind == 1
    return output.ending.value


def fields(output: Output) -> list[bytes]:
    assert code(output) == 0, bytes(output.data[2])
    return bytes(output.data[1]).split(b"\0")[:-1]


def signed(data: bytes) -> bytes:
    return data + hashlib.sha256(data).digest()


def write(client: Client, guest: Guest, path: str | bytes, data: bytes, mode: str = "644", flags: str = "") -> Output:
    return client.applet("write", guest.root, path, mode, flags, stdin=signed(data))


@pytest.fixture
def workspace(guest: Guest) -> Path:
    """Of the guest. Everything in it belongs to user code or may be changed by it."""
    return guest.workspace


def leftovers(workspace: Path) -> list[Path]:
    return list(workspace.rglob(".stn-*"))


def test_write_and_read_are_byte_exact(client: Client, guest: Guest, workspace: Path) -> None:
    data = os.urandom(300_000)
    kind, entry = fields(write(client, guest, "a/b/file", data, "640", "pd"))
    assert kind == b"c"
    assert entry.startswith(b"f 640 300000 ")
    assert entry.endswith(b" 1 a/b/file")
    assert (workspace / "a/b/file").read_bytes() == data
    output = client.applet("read", guest.root, "a/b/file", "0", "-1")
    assert output.data[1] == data
    told, digest, _ = bytes(output.data[2]).split(b"\0")
    assert told == entry
    assert digest.decode() == hashlib.sha256(data).hexdigest()
    part = client.applet("read", guest.root, "a/b/file", "1000", "50")
    assert part.data[1] == data[1000:1050]
    assert client.applet("read", guest.root, "a/b/file", "999999", "-1").data[1] == b""
    assert fields(write(client, guest, "a/b/file", b""))[0] == b"r"
    assert leftovers(workspace) == []


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 32, signed(b"new")[:-1], b"more" + signed(b"new")])
def test_a_wrong_digest_leaves_the_old_content(client: Client, guest: Guest, workspace: Path, damage: bytes) -> None:
    write(client, guest, "file", b"old")
    output = client.applet("write", guest.root, "file", "644", "", stdin=damage)
    assert code(output) == BAD_DIGEST
    assert output.data[2].endswith(b"\n")
    assert (workspace / "file").read_bytes() == b"old"
    assert leftovers(workspace) == []


def test_a_write_that_is_cut_off_leaves_the_old_content(client: Client, guest: Guest, workspace: Path) -> None:
    write(client, guest, "file", b"old")
    ident = client.start(["write", guest.root, "file", "644", ""], applet=True, stdin=True)
    client.feed(ident, b"x" * 100_000, finish=False)
    client.send(wire.CANCEL, ident, bytes(4) + b"\1\0\0\0")
    ending = client.wait(ident).ending
    assert ending
    assert (ending.kind, ending.value, ending.reason) == (2, 9, 1)
    assert (workspace / "file").read_bytes() == b"old"
    assert leftovers(workspace) == []


def test_special_mode_bits_are_stripped(client: Client, guest: Guest, workspace: Path) -> None:
    write(client, guest, "file", b"", "6755")
    assert (workspace / "file").stat().st_mode & 0o7777 == 0o755
    assert code(client.applet("chmod", guest.root, "file", "7000")) == 0
    assert (workspace / "file").stat().st_mode & 0o7777 == 0
    assert code(client.applet("mkdir", guest.root, "dir", "7777", "")) == 0
    assert (workspace / "dir").stat().st_mode & 0o7777 == 0o777


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", "..", "", "a/.."])
@pytest.mark.parametrize("applet", ["stat", "read", "write", "mkdir", "remove", "chmod", "list", "pack", "unpack"])
def test_paths_that_could_leave_are_refused(shared: tuple[Client, str], applet: str, path: str) -> None:
    client, root = shared
    rest = {
        "stat": [""], "read": ["0", "-1"], "write": ["644", ""], "mkdir": ["755", ""], "remove": ["r"],
        "chmod": ["644"], "list": ["", "10", ""], "pack": ["-1"], "unpack": ["755", ""],
    }[applet]  # fmt: skip
    assert code(client.applet(applet, root, path, *rest, stdin=signed(b"e\0"))) == PATH_REFUSED


@pytest.fixture(scope="module")
def shared(binary: Path) -> Iterator[tuple[Client, str]]:
    """One guest for many small questions that change nothing."""
    with running(binary, "--containment", "subreaper", boxed=False) as guest, guest.connect() as client:
        yield client, guest.root


def test_links_are_followed_beneath_the_root_and_never_out_of_it(client: Client, guest: Guest, workspace: Path) -> None:
    secret = workspace.parent / "secret"
    secret.write_text("secret")
    (workspace / "dir").mkdir()
    (workspace / "dir" / "file").write_text("inside")
    (workspace / "dir").chmod(0o777)
    (workspace / "in").symlink_to("dir/file")
    (workspace / "out").symlink_to(secret)
    (workspace / "up").symlink_to("..")
    (workspace / "loop").symlink_to("loop")
    assert client.applet("read", guest.root, "in", "0", "-1").data[1] == b"inside"
    for path in ("out", "up/secret"):
        assert code(client.applet("read", guest.root, path, "0", "-1")) == PATH_REFUSED
    assert code(client.applet("chmod", guest.root, "out", "777")) == PATH_REFUSED
    assert code(client.applet("read", guest.root, "loop", "0", "-1")) == 40
    assert code(write(client, guest, "up/made", b"x")) == PATH_REFUSED
    assert fields(write(client, guest, "out", b"mine"))[0] == b"r"
    assert secret.read_text() == "secret"
    assert not (workspace / "out").is_symlink()
    assert fields(client.applet("stat", guest.root, "in", ""))[1:] == [b"dir/file"]
    assert fields(client.applet("stat", guest.root, "in", "f"))[0].startswith(b"f ")
    assert fields(client.applet("remove", guest.root, "up", "r")) == [b"1"]
    assert secret.exists()


def test_only_regular_files_are_read_or_replaced(client: Client, guest: Guest, workspace: Path) -> None:
    os.mkfifo(workspace / "fifo")
    os.chmod(workspace / "fifo", 0o666)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(workspace / "socket"))
    (workspace / "dir").mkdir()
    for name in ("fifo", "socket", "dir"):
        assert code(client.applet("read", guest.root, name, "0", "-1")) == NOT_REGULAR
        assert code(write(client, guest, name, b"x")) == NOT_REGULAR
    listener.close()


def test_exclusive_and_missing_parents_are_typed(client: Client, guest: Guest) -> None:
    assert code(write(client, guest, "no/file", b"")) == 2
    assert fields(write(client, guest, "new", b"", flags="x"))[0] == b"c"
    assert code(write(client, guest, "new", b"", flags="x")) == 17
    assert code(client.applet("mkdir", guest.root, "new", "755", "p")) == 17
    assert fields(client.applet("mkdir", guest.root, "d/e/f", "700", "p")) == [b"c"]
    assert fields(client.applet("mkdir", guest.root, "d/e/f", "700", "p")) == [b"r"]
    assert code(client.applet("mkdir", guest.root, "d", "700", "")) == 17
    assert code(client.applet("rename", guest.root, "new", guest.root, "d", "x")) == 17
    assert code(client.applet("rename", guest.root, "new", guest.root, "q/w", "p")) == 0
    assert code(client.applet("stat", guest.root, "new", "")) == 2
    free, total = map(int, fields(client.applet("space", guest.root))[0].split())
    assert 0 < free <= total


@pytest.mark.parametrize("name", [b"new\nline", b"\x1b[31m", b"\xff\xfe", b"-rf", b"$(x)", b"'", b"n" * 255, b" "])
def test_odd_names_survive_the_round_trip(client: Client, guest: Guest, name: bytes) -> None:
    assert fields(write(client, guest, name, b"data"))[1].endswith(b" " + name)
    assert [field.split(b" ", 5)[5] for field in fields(client.applet("list", guest.root, ".", "", "10", ""))] == [name]
    assert client.applet("read", guest.root, name, "0", "-1").data[1] == b"data"


def test_names_and_paths_that_are_too_long_are_typed(client: Client, guest: Guest) -> None:
    assert code(write(client, guest, "n" * 256, b"")) == 36
    assert code(client.applet("stat", guest.root, "n/" * 3000, "")) in (36, PATH_REFUSED)


def test_a_list_goes_on_after_any_path(client: Client, guest: Guest, workspace: Path) -> None:
    paths = ["a", "a-b", "a-b/c", "a/b", "a/b/c", "a/d", "b", "z/z"]
    for path in paths:
        (workspace / path).mkdir(parents=True, exist_ok=True)
    expected = sorted([*paths, "z"], key=lambda path: path.encode().split(b"/"))
    seen: list[str] = []
    while True:
        page = fields(client.applet("list", guest.root, ".", "r", "2", seen[-1] if seen else ""))
        seen += [field.decode().split(" ", 5)[5] for field in page if field != b"m"]
        if page[-1] != b"m":
            break
    assert seen == expected
    assert len(fields(client.applet("list", guest.root, ".", "", "10", ""))) == 4


FULL = bool(os.environ.get("STN_TEST_FULL"))
ENTRIES = 100_000 if FULL else 10_000
LEVELS = 10_000 if FULL else 3_000  # the path of the last one is longer than PATH_MAX in any case


def test_very_many_entries_are_listed_in_pages(client: Client, guest: Guest, workspace: Path) -> None:
    many = workspace / "many"
    many.mkdir()
    for n in range(ENTRIES):
        os.close(os.open(many / f"{n:06d}", os.O_CREAT | os.O_WRONLY))
    page = fields(client.applet("list", guest.root, "many", "", "1000", "004999"))
    assert len(page) == 1001
    assert page[0].endswith(b" 005000")
    assert page[-1] == b"m"
    many.chmod(0o777)
    assert fields(client.applet("remove", guest.root, "many", "r")) == [b"%d" % (ENTRIES + 1)]


DEEP = f"import os\nos.chdir(os.environ['ROOT'])\nfor n in range({LEVELS}):\n  os.mkdir('d'); os.chdir('d')\n"


def test_a_tree_deeper_than_any_path_is_listed_in_part_and_removed(client: Client, guest: Guest) -> None:
    client.run(["/usr/bin/python3", "-c", DEEP], env=(f"ROOT={guest.root}",))
    assert len(fields(client.applet("list", guest.root, ".", "r", "-1", ""))) == 512
    assert code(client.applet("remove", guest.root, "d", "")) == 39
    assert fields(client.applet("remove", guest.root, "d", "r")) == [b"%d" % LEVELS]
    assert fields(client.applet("remove", guest.root, "d", "r")) == [b"0"]
    assert fields(client.applet("remove", guest.root, "d/e", "r")) == [b"0"]


CLOSED = """
import os
os.chdir(os.environ['ROOT'])
for n in range(300):
  os.mkdir('d'); os.chdir('d')
os.mkdir('empty'); open('file', 'w').close(); os.chmod('.', 0o555)
"""


def test_a_deep_tree_with_a_closed_directory_is_refused_with_its_reason(client: Client, guest: Guest) -> None:
    """Below the depth where directories are moved up first, the closed one cannot be, nor emptied where it is."""
    client.run(["/usr/bin/python3", "-c", CLOSED], env=(f"ROOT={guest.root}",))
    assert code(client.applet("remove", guest.root, "d", "r")) == 13
    client.shell(f"chmod -R u+w {guest.root}/d")
    assert int(fields(client.applet("remove", guest.root, "d", "r"))[0]) > 2
    assert fields(client.applet("list", guest.root, ".", "", "-1", "")) == []


def test_unknown_applets_and_arguments_are_refused(client: Client, guest: Guest) -> None:
    assert code(client.applet("format", guest.root)) == 38
    assert code(client.applet("stat", guest.root)) == 22
    assert code(client.applet("chmod", guest.root, ".", "9")) == 22
    assert code(client.applet("read", guest.root, ".", "-1", "0")) == 22
    assert code(client.applet("stat", "relative", ".", "")) == PATH_REFUSED


def test_an_applet_is_never_privileged_and_cannot_be_harmed(boxed: Client) -> None:
    ident = boxed.start(["write", "/tmp", "file", "644", ""], applet=True, stdin=True)
    boxed.expect(wire.STARTED, ident)
    boxed.shell("kill -9 -1")
    boxed.feed(ident, signed(b"x"))
    ending = boxed.wait(ident).ending
    assert ending
    assert (ending.kind, ending.value) == (1, 0)


SWAP = """
import ctypes, os
os.chdir(os.environ['ROOT'])
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, b'dir', -100, b'link', 2)
"""


def test_a_directory_that_is_swapped_with_a_link_never_leads_out(client: Client, guest: Guest, workspace: Path) -> None:
    outside = workspace.parent / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    (outside / "file").write_text("outside")
    (workspace / "dir").mkdir()
    (workspace / "dir").chmod(0o777)
    (workspace / "dir" / "file").write_text("inside")
    (workspace / "link").symlink_to(outside)
    swapper = client.start(["/usr/bin/python3", "-c", SWAP], env=(f"ROOT={guest.root}",), timeout_ms=60_000)
    client.expect(wire.STARTED, swapper)
    for n in range(int((os.environ.get("STN_TEST_FULL") and 2000) or 150)):
        assert client.applet("read", guest.root, "dir/file", "0", "-1").text()[0] in ("", "inside")
        write(client, guest, "dir/made", b"x")
        if n % 10 == 0:
            client.applet("remove", guest.root, "dir/made", "r")
    client.send(wire.CANCEL, swapper, bytes(4) + b"\1\0\0\0")
    client.wait(swapper)
    assert [path.name for path in outside.iterdir()] == ["file"]
