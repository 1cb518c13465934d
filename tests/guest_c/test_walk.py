"""Paths on a kernel without openat2 (gVisor): links are followed beneath the root by our own hands, never out of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guest_c.client import Client, Guest
from tests.guest_c.conftest import MakeGuest
from tests.guest_c.test_applets import (
    PATH_REFUSED,
    code,
    fields,
    test_a_directory_that_is_swapped_with_a_link_never_leads_out,
    test_links_are_followed_beneath_the_root_and_never_out_of_it,
    write,
)

__all__ = [
    "test_a_directory_that_is_swapped_with_a_link_never_leads_out",
    "test_links_are_followed_beneath_the_root_and_never_out_of_it",
]
ELOOP, ENOENT, ENAMETOOLONG = 40, 2, 36


@pytest.fixture
def guest(make_guest: MakeGuest) -> Guest:
    return make_guest("--containment", "subreaper", "--no-openat2", boxed=False)


@pytest.fixture
def client(guest: Guest):
    with guest.connect() as made:
        yield made


@pytest.fixture
def workspace(guest: Guest) -> Path:
    return guest.workspace


def read(client: Client, guest: Guest, path: str) -> tuple[int, bytes]:
    output = client.applet("read", guest.root, path, "0", "-1")
    return code(output), bytes(output.data[1])


def test_links_lead_wherever_they_lead_within(client: Client, guest: Guest, workspace: Path) -> None:
    fields(write(client, guest, "a/b/file", b"here", flags="p"))
    for name, target in {
        "dir": "a/b", "file": "a/b/file", "a/up": "../a/b", "a/b/round": "../../dir/../b/./file", "twice": "dir",
        "dot": ".", "slashes": "a//b/", "deep": "dot/dot/dot/a/up/file",
    }.items():  # fmt: skip
        (workspace / name).symlink_to(target)
    for path in ("dir/file", "file", "a/up/file", "a/b/round", "twice/file", "dot/a/b/file", "slashes/file", "deep"):
        assert read(client, guest, path) == (0, b"here"), path
    # `b` of `b/..` is where the link leads to, not where it stands.
    fields(write(client, guest, "dir/new", b"new"))
    assert (workspace / "a/b/new").read_bytes() == b"new"


def test_links_lead_nowhere_else(client: Client, guest: Guest, workspace: Path) -> None:
    (workspace.parent / "secret").write_text("secret")
    for name, target in {
        "abs": "/etc/passwd", "up": "..", "file": "../secret", "far": "sub/../../secret", "proc": "/proc/self/root/etc",
    }.items():  # fmt: skip
        (workspace / name).symlink_to(target)
    (workspace / "sub").mkdir()
    (workspace / "sub/out").symlink_to("../../secret")
    for path in ("abs", "file", "up/secret", "far", "sub/out", "proc"):
        assert read(client, guest, path) == (PATH_REFUSED, b""), path
    assert code(write(client, guest, "up/new", b"x")) == PATH_REFUSED


def test_links_that_lead_round_end(client: Client, guest: Guest, workspace: Path) -> None:
    (workspace / "one").symlink_to("two")
    (workspace / "two").symlink_to("one")
    (workspace / "grow").symlink_to("grow/grow")
    for number in range(60):
        (workspace / f"l{number}").symlink_to(f"l{number + 1}")
    (workspace / "long").symlink_to("x" * 4000)
    assert read(client, guest, "one")[0] == ELOOP
    assert read(client, guest, "grow")[0] == ELOOP
    assert read(client, guest, "l0")[0] == ELOOP
    assert read(client, guest, "long")[0] == ENAMETOOLONG
    assert read(client, guest, "l60")[0] == ENOENT


def test_a_deep_path_has_an_end(client: Client, guest: Guest, workspace: Path) -> None:
    assert read(client, guest, "/".join(["d"] * 2000))[0] == ENOENT
    fields(client.applet("mkdir", guest.root, "/".join(["d"] * 200), "755", "p"))
    fields(write(client, guest, "/".join(["d"] * 200 + ["f"]), b"deep"))
    assert read(client, guest, "/".join(["d"] * 200 + ["f"])) == (0, b"deep")
