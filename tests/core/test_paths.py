"""Paths and names (decisions A13, TC-12.1)."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from station.core.errors import InvalidInput, PathRefused
from station.core.paths import SandboxPath, decode_name, encode_name, resolve


@pytest.mark.parametrize(
    ("path", "absolute"),
    [
        ("a.txt", "/workspace/a.txt"),
        ("workspace/a.txt", "/workspace/a.txt"),
        ("/workspace/a.txt", "/workspace/a.txt"),
        ("/home/node/workspace/a.txt", "/workspace/a.txt"),
        ("/workspace", "/workspace"),
        ("workspace/", "/workspace"),
        ("workspace", "/workspace"),
        ("", "/workspace"),
        (".", "/workspace"),
        ("a/../b", "/workspace/b"),
        ("//workspace//a", "/workspace/a"),
        ("a/.", "/workspace/a"),
        ("/tmp/x", "/tmp/x"),
        ("/home/node/.npmrc", "/home/node/.npmrc"),
        ("a..b.csv", "/workspace/a..b.csv"),
        ("workspaces", "/workspace/workspaces"),
    ],
)
def test_a_path_names_the_place_that_the_table_of_the_tools_says(path: str, absolute: str) -> None:
    assert resolve(path).absolute == absolute


@pytest.mark.parametrize(
    "path", ["/a.txt", "/", "../etc/passwd", "/workspace/../x", "a/../../x", "/tmpx/y", "/home/nodes", "/workspacex"]
)
def test_a_path_outside_the_roots_is_refused(path: str) -> None:
    with pytest.raises(PathRefused, match="is outside /workspace, /home/node and /tmp"):
        resolve(path)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "d/" + "x" * 256])
def test_a_name_that_no_file_can_have_is_invalid_input(path: str) -> None:
    with pytest.raises(InvalidInput):
        resolve(path)


def test_percent_sequences_in_a_path_are_names_not_escapes() -> None:
    assert resolve("%2e%2e/x") == SandboxPath("/workspace", "%2e%2e/x")


@given(st.binary(min_size=1, max_size=64).filter(lambda raw: b"\0" not in raw))
def test_every_name_of_bytes_survives_the_wire(raw: bytes) -> None:
    name = os.fsdecode(raw)
    text = encode_name(name)
    assert os.fsencode(decode_name(text)) == raw
    assert text.isprintable() or all(not ("\x00" <= c < "\x20") for c in text)


@given(st.text(max_size=200))
def test_a_resolved_path_never_leaves_its_root(path: str) -> None:
    try:
        place = resolve(path)
    except InvalidInput:
        return
    assert ".." not in place.relative.split("/")
    assert not place.relative.startswith("/")
