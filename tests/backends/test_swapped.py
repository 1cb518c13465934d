"""A directory that becomes a link in the very moment in which it is entered to be emptied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from station.backends import _trees


@pytest.mark.parametrize("swaps", [False, True])
def test_a_directory_that_becomes_a_link_meanwhile_is_not_emptied_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool
) -> None:
    """The control: the same tree that nobody touches is removed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    (tree / "dir" / "deeper").mkdir(parents=True)
    (tree / "dir" / "deeper" / "file").touch()
    enter = _trees._enter

    def swapped(parent: int, name: str) -> int:
        if swaps and name == "dir":
            (tree / "dir").rename(tmp_path / "away")
            (tree / "dir").symlink_to(outside)
        return enter(parent, name)

    monkeypatch.setattr(_trees, "_enter", swapped)
    if swaps:
        with pytest.raises(OSError, match=r"dir|moved"):
            _trees.remove_below(tmp_path, "tree")
    else:
        _trees.remove_below(tmp_path, "tree")
        assert not tree.exists()
    assert os.listdir(outside) == ["kept"]


@pytest.mark.parametrize("swaps", [False, True])
def test_a_closed_directory_that_becomes_a_link_meanwhile_opens_nothing_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool
) -> None:
    """Its mode is changed after it could not be opened, and in between it may be swapped."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    tree = tmp_path / "tree"
    (tree / "dir").mkdir(parents=True)
    (tree / "dir" / "file").touch()
    really, closed = os.open, ["dir"]

    def opened(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if name in closed:
            closed.remove(name)
            if swaps:
                (tree / "dir").rename(tmp_path / "away")
                (tree / "dir").symlink_to(outside)
            raise PermissionError(13, "Permission denied", name)
        return really(name, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", opened)
    if swaps:
        with pytest.raises(OSError, match="dir"):
            _trees.remove_below(tmp_path, "tree")
    else:
        _trees.remove_below(tmp_path, "tree")
        assert not tree.exists()
    assert not closed
    assert outside.stat().st_mode & 0o777 == 0o500
