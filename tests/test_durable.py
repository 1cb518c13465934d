"""Small files of the state directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from station.durable import write_private


@pytest.mark.parametrize(("replace", "kept"), [(True, b"new"), (False, b"old")])
def test_a_file_is_replaced_or_stays_and_nothing_else_is_left(tmp_path: Path, replace: bool, kept: bytes) -> None:
    file = tmp_path / "file"
    write_private(file, b"old", replace=replace)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    write_private(file, b"new", replace=replace)
    assert file.read_bytes() == kept
    assert list(tmp_path.iterdir()) == [file]


def test_a_write_that_fails_leaves_the_old_file_and_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_private(file, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]
