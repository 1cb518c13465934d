"""The disk of the state directory is full, out of inodes, or turns read-only: what was acknowledged is there, what
could not be kept was not acknowledged (HD-D13, HD-D14)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from station import Client, connect, errors
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.observer import Observer

from .conftest import stn_of
from .test_full_disk import fill, small

__all__ = ["small"]
pytestmark = [pytest.mark.root, pytest.mark.filterwarnings(REFUSED_SOCKET)]
CLOSED = (errors.Unavailable, errors.StorageFull)


def emptied(home: Path) -> None:
    with connect(home) as client:
        for view in client.list():
            client.delete(view.name)
        client.stop()


def test_hd_d13_a_full_disk_refuses_a_stored_file_and_keeps_the_old_one(small: Path) -> None:
    with connect(small) as client, client.open("box") as sandbox:
        client.files.write("kept", b"old")
        sandbox.exec("head -c 300K /dev/urandom > made").check()
        ballast = fill(small)
        stores: list[Callable[[], object]] = [
            lambda: client.files.write("kept", os.urandom(1 << 20)),
            lambda: client.files.write("new", os.urandom(1 << 20)),
            lambda: sandbox.files.publish("made", key="made"),
        ]
        for store in stores:
            with pytest.raises(errors.StorageFull) as caught:
                store()
            assert (caught.value.status, caught.value.retryable) == (507, True)
        assert client.files.read("kept") == b"old"
        assert [file.key for file in client.files.list()] == ["files/kept"]
        ballast.unlink()
        assert list((small / "files" / "incoming").iterdir()) == []
        client.files.write("new", data := os.urandom(1 << 20))
        assert client.files.read("new") == data
        assert sandbox.files.publish("made", key="made").size == 300 << 10


@pytest.mark.full
def test_hd_d13_a_full_disk_refuses_a_key_and_gives_no_secret(small: Path) -> None:
    with connect(small) as client:
        client.keys.create("before")
        ballast = fill(small)
        # Its database has a page or two to spare.
        made = acknowledged(200, lambda number: client.keys.create(f"key-{number}"))
        assert made == list(range(len(made)))
        with pytest.raises(errors.StorageFull):
            client.keys.create("full")
        ballast.unlink()
        assert len(client.keys.list()) == 1 + len(made)
        client.keys.create("after")


@contextmanager
def few_inodes() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stn-inodes-") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=400", "tmpfs", directory], check=True)
        try:
            yield Path(directory, "home")
        finally:
            subprocess.run(["umount", "-l", directory], check=True)


@pytest.mark.full
def test_hd_d14_without_inodes_nothing_is_made_and_all_works_again_with_some() -> None:
    with few_inodes() as home, connect(home) as client:
        client.open("before").close()
        taken = home.parent / "taken"
        taken.mkdir()
        with suppress(OSError):
            for number in range(1000):
                (taken / str(number)).touch()
        for make in (lambda: client.open("new"), lambda: client.files.write("new", b"x")):
            with pytest.raises(errors.StorageFull) as caught:
                make()
            assert caught.value.status == 507
        assert [view.name for view in client.list()] == ["before"]
        for path in taken.iterdir():
            path.unlink()
        client.open("new").close()
        client.files.write("new", b"x")
        emptied(home)


class Breakable:
    """A state directory on an ext4 file system that can be made to fail."""

    def __init__(self, place: Path) -> None:
        self._image, self._mounted = place / "image", place / "mounted"
        self._mounted.mkdir()
        with self._image.open("wb") as file:
            file.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", self._image], check=True)
        self.home = self._mounted / "home"
        self.mount()

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop,errors=remount-ro", self._image, self._mounted], check=True)

    def unmount(self) -> None:
        """What has just been killed may still be letting go of it."""
        command = ["umount", str(self._mounted)]
        Observer.until(lambda: subprocess.run(command, capture_output=True).returncode == 0, "it stays busy")
        listed = ["losetup", "-j", str(self._image)]
        Observer.until(lambda: not subprocess.run(listed, capture_output=True, check=True).stdout, "its device stays")

    def repair(self) -> None:
        assert subprocess.run(["e2fsck", "-fy", self._image], capture_output=True).returncode < 4

    def fail(self) -> None:
        """As after a bad sector: the kernel lets nothing be written any more."""
        found = subprocess.run(["findmnt", "-no", "SOURCE", self._mounted], capture_output=True, text=True, check=True)
        Path("/sys/fs/ext4", Path(found.stdout.strip()).name, "trigger_fs_error").write_text("a test", encoding="ascii")


@pytest.fixture
def breakable(tmp_path: Path) -> Iterator[Breakable]:
    try:
        made = Breakable(tmp_path)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system of our own can be made here: {error}")
    yield made
    subprocess.run(["umount", "-l", made._mounted], capture_output=True)


def acknowledged(attempts: int, make: Callable[[int], object]) -> list[int]:
    """Which of them were."""
    done = []
    for number in range(attempts):
        with suppress(*CLOSED):
            make(number)
            done.append(number)
    return done


def test_hd_d14_a_disk_that_turns_read_only_acknowledges_nothing_and_loses_nothing(breakable: Breakable) -> None:
    home = breakable.home
    with connect(home) as client:
        with client.open("kept") as sandbox:
            sandbox.files.write("f", b"mine")
            sandbox.exec("sync f").check()
        client.files.write("stored", b"mine")
        # The control: all of it is acknowledged while the disk is well.
        assert acknowledged(2, lambda number: client.open(f"well-{number}").close()) == [0, 1]

        breakable.fail()
        stored = acknowledged(3, lambda number: client.files.write(f"after-{number}", b"x"))
        opened = acknowledged(3, lambda number: client.open(f"after-{number}").close())
        ran = acknowledged(3, lambda number: client.get("kept").exec("echo x > /tmp/x").check())
        keys = acknowledged(3, lambda number: client.keys.create(f"after-{number}"))
        assert (stored, opened, ran, keys) == ([], [], [], [])
        assert client.files.read("stored") == b"mine", "what can be read is read"
        assert "kept" in [view.name for view in client.list()]
        _end(client)
    breakable.unmount()
    breakable.repair()
    breakable.mount()
    with connect(home) as client:
        assert sorted(view.name for view in client.list()) == ["kept", "well-0", "well-1"]
        assert [file.key for file in client.files.list()] == ["files/stored"]
        assert client.keys.list() == []
        # Not the history of its commands: what of it was not on the disk yet is lost with such a disk.
        with client.open("kept") as sandbox:
            assert sandbox.files.read("f") == b"mine"
    emptied(home)
    breakable.unmount()


def _end(client: Client) -> None:
    """Also the boxes, which would keep the file system busy."""
    client.stop()
    observer = Observer(Path(client.home))
    for pid in observer.guests():
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    Observer.until(lambda: not observer.guests(), "a box is left")


@pytest.mark.full
def test_hd_d14_a_station_on_a_read_only_disk_does_not_start_and_says_why(breakable: Breakable) -> None:
    with connect(breakable.home) as client:
        client.info()
        client.stop()
    breakable.fail()
    done = stn_of(breakable.home)("status")
    assert done.returncode == 1
    done = stn_of(breakable.home)("run", "-c", "print(1)")
    assert done.returncode == 125
    assert b"ead-only" in done.stderr
    assert b"Traceback" not in done.stderr
