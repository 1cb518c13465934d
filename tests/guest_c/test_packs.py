"""`pack` and `unpack`: trees as streams (attack suite F11, F12)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.guest_c.client import Client, Guest, Output
from tests.guest_c.test_applets import code, fields, leftovers, signed

BAD_DIGEST, BAD_ARCHIVE = 202, 203
END = b"e\0"


def directory(path: str, mode: str = "755") -> bytes:
    return f"d {mode} 0 0 2 {path}\0".encode()


def file(path: str, data: bytes = b"data", mode: str = "644") -> bytes:
    return f"f {mode} {len(data)} 1000000000 1 {path}\0".encode() + data


def link(path: str, target: str) -> bytes:
    return f"l 777 0 0 1 {path}\0{target}\0".encode()


def unpack(client: Client, guest: Guest, data: bytes, path: str = "tree", flags: str = "") -> Output:
    return client.applet("unpack", guest.root, path, "755", flags, stdin=data)


def snapshot(root: Path) -> dict[str, object]:
    return {
        str(path.relative_to(root)): os.readlink(path)
        if path.is_symlink()
        else None
        if path.is_dir()
        else path.read_bytes()
        for path in root.rglob("*")
    }


GOOD = directory("a") + file("a/one", b"1" * 100_000, "755") + link("a/up", "../b/two") + directory("b") + file("b/two")


def test_a_tree_comes_back_as_it_was(client: Client, guest: Guest) -> None:
    assert fields(unpack(client, guest, signed(GOOD + END), flags="d")) == [b"5"]
    tree = guest.workspace / "tree"
    assert snapshot(tree) == {"a": None, "a/one": b"1" * 100_000, "a/up": "../b/two", "b": None, "b/two": b"data"}
    assert (tree / "a/one").stat().st_mtime == 1
    assert (tree / "a/one").stat().st_mode & 0o7777 == 0o755
    packed = client.applet("pack", guest.root, "tree", "-1")
    assert code(packed) == 0
    again = bytes(packed.data[1])
    assert again.endswith(END)
    assert fields(unpack(client, guest, signed(again), "other/place", "p")) == [b"5"]
    assert snapshot(guest.workspace / "other/place") == snapshot(tree)
    assert leftovers(guest.workspace) == []


def test_an_existing_tree_is_merged_and_links_are_replaced(client: Client, guest: Guest) -> None:
    tree = guest.workspace / "tree"
    outside = guest.workspace.parent / "outside"
    outside.write_text("outside")
    unpack(client, guest, signed(directory("a") + file("a/kept") + END))
    client.shell(f"ln -s {outside} a/one", cwd=f"{guest.root}/tree")
    assert fields(unpack(client, guest, signed(GOOD + END))) == [b"5"]
    assert set(snapshot(tree)) == {"a", "a/kept", "a/one", "a/up", "b", "b/two"}
    assert outside.read_text() == "outside"
    assert fields(unpack(client, guest, signed(file("top") + END), ".")) == [b"1"]
    assert leftovers(guest.workspace) == []


@pytest.mark.parametrize(
    "members",
    [
        file("/etc/x"), file("../x"), file("a/../../x"), file(""), file("."), file("n" * 256), file("n/" * 2500 + "x"),
        file("d/" * 600 + "x"), file("x") + file("x"), directory("x") + file("x"), file("x") + directory("x"),
        link("l", "/etc") + file("l/x"), link("l", ".."), link("a/l", "../.."), link("l", "a/../.."), link("l", ""),
        link("l", "a") + file("l/x"), directory("a") + link("l", "a") + file("l/x"), file("x") + file("x/y"),
        b"o 644 0 0 1 fifo\0", b"h 644 0 0 1 x\0", b"f 644 x 0 1 x\0", b"f 888 1 0 1 x\0", b"f 644 -1 0 1 x\0",
        b"f 644 99999999999999999999999 0 1 x\0", b"f644 1 0 1 x\0", b"\0", b"f 644 10 0 1 x\0short",
        b"f " + b"1" * 9000,
    ],
)  # fmt: skip
def test_a_refused_archive_changes_nothing(client: Client, guest: Guest, members: bytes) -> None:
    unpack(client, guest, signed(file("kept") + END))
    before = snapshot(guest.workspace)
    assert code(unpack(client, guest, signed(GOOD + members + END))) == BAD_ARCHIVE
    assert code(unpack(client, guest, signed(GOOD + members + END), "new")) == BAD_ARCHIVE
    assert snapshot(guest.workspace) == before


def test_a_wrong_digest_or_a_conflict_changes_nothing(client: Client, guest: Guest) -> None:
    unpack(client, guest, signed(file("kept") + directory("dir") + END))
    before = snapshot(guest.workspace)
    assert code(unpack(client, guest, GOOD + END + bytes(32))) == BAD_DIGEST
    assert code(unpack(client, guest, GOOD + END)) == BAD_DIGEST
    assert code(unpack(client, guest, signed(GOOD + END) + b"x")) == BAD_ARCHIVE
    assert code(unpack(client, guest, signed(file("a") + directory("kept") + END))) == 20
    assert code(unpack(client, guest, signed(file("a") + file("dir") + END))) == 21
    assert snapshot(guest.workspace) == before


def test_modes_of_members_are_plain(client: Client, guest: Guest) -> None:
    unpack(client, guest, signed(directory("d", "7000") + file("d/f", b"", "6755") + END))
    assert (guest.workspace / "tree/d").stat().st_mode & 0o7777 == 0o700
    assert client.shell("stat -c %a d/f", cwd=f"{guest.root}/tree").data[1] == b"755\n"


def test_a_pack_has_a_limit_and_skips_no_name(client: Client, guest: Guest) -> None:
    client.shell("mkfifo fifo; truncate -s 10G sparse; echo x > file", cwd=guest.root)
    assert code(client.applet("pack", guest.root, ".", "1000000")) == 27
    client.shell("rm sparse", cwd=guest.root)
    output = client.applet("pack", guest.root, ".", "1000000")
    assert code(output) == 0
    assert b"o 644 0 " in output.data[1]
    assert output.data[1].endswith(b" file\0x\n" + END)


def test_mutated_archives_end_cleanly(client: Client, guest: Guest) -> None:
    """The real thing under random damage: only typed endings, nothing left behind, nothing outside."""
    random.seed(1)
    base = GOOD[:200] + GOOD[-200:]
    base = directory("a") + file("a/one", b"11") + link("a/up", "../b") + directory("b") + file("b/two")
    for n in range(2000 if os.environ.get("STN_TEST_FULL") else 60):
        data = bytearray(base)
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(data))
            data[at : at + random.randint(0, 3)] = random.choice([b"", b"/", b"..", b"\0", b" ", b"9", b"l", b"d"])
        output = unpack(client, guest, signed(bytes(data) + END), f"t{n}")
        ending = code(output)
        assert ending in (0, BAD_ARCHIVE, 36, 22), (output.data[2], data)
    assert leftovers(guest.workspace) == []
    assert {path.name for path in guest.workspace.parent.iterdir()} <= {"stn-guest", "workspace", "box.sock"}
