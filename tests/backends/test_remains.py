"""What is left of a box that ends badly is told as an error of Station's."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from station.backends import _box, _cgroups
from station.backends._box import Remains
from station.backends._boxdir import BoxDirectory
from station.backends._cgroups import BoxCgroup
from station.backends._processes import PidWatch
from station.backends.base import Labels
from station.core.errors import InternalError

MARKER = f"remains{os.getpid()}"


async def no_files() -> None: ...


class Stuck(Remains):
    """Whose processes do not end in time."""

    async def _end_processes(self, watch: PidWatch | None) -> None:
        await asyncio.Event().wait()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BoxDirectory:
    monkeypatch.setattr(_box, "END_SECONDS", 0.01)
    monkeypatch.setattr(_cgroups, "REMOVAL_SECONDS", 0.01)
    return BoxDirectory.create(tmp_path / "boxes", Labels("b1", "u", 1, 1, "st", 1, 1), {})


def cgroup(path: Path, *, stays: bool) -> BoxCgroup:
    """A directory that cannot be removed stands for a cgroup that does not become empty."""
    path.mkdir()
    if stays:
        (path / "cgroup.procs").write_text("")
    return BoxCgroup([path])


@pytest.mark.parametrize("kind", [Remains, Stuck])
async def test_a_cgroup_that_stays_is_an_error_of_station(
    directory: BoxDirectory, tmp_path: Path, kind: type[Remains]
) -> None:
    remains = kind(directory, MARKER, cgroup(tmp_path / "g", stays=True), remove_files=no_files, polite=False)
    with pytest.raises(InternalError, match="cgroup of box b1 stays"):
        await remains.end(None)
    assert directory.exists(), "the next one must find it"


async def test_processes_that_are_gone_just_as_the_time_is_up_are_no_error(
    directory: BoxDirectory, tmp_path: Path
) -> None:
    remains = Stuck(directory, MARKER, cgroup(tmp_path / "g", stays=False), remove_files=no_files, polite=False)
    await remains.end(None)
    assert not directory.exists()
    assert not (tmp_path / "g").exists()


async def test_processes_that_do_not_end_are_named(directory: BoxDirectory, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", "--box", MARKER, stdin=asyncio.subprocess.PIPE
    )
    remains = Stuck(directory, MARKER, cgroup(tmp_path / "g", stays=False), remove_files=no_files, polite=False)
    try:
        with pytest.raises(InternalError, match="does not end") as caught:
            await remains.end(None)
    finally:
        process.kill()
        await process.wait()
    assert caught.value.detail["pids"] == [process.pid]
    assert directory.exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"box_id": "b1"}', "\udcff"])
def test_a_box_whose_labels_cannot_be_read_hides_no_other(directory: BoxDirectory, damage: str) -> None:
    BoxDirectory.create(directory.boxes, Labels("b2", "u", 2, 1, "st", 1, 1), {})
    (directory.path / "labels.json").write_bytes(os.fsencode(damage))
    assert [found.box_id for found, _ in BoxDirectory.all(directory.boxes)] == ["b2"]
    assert directory.exists()
