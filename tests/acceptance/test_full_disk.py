"""A full disk: a clear refusal, nothing half-recorded, and all works again once there is room, without a restart."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from station import Client, connect, errors
from tests.chaos.test_kill import REFUSED_SOCKET

pytestmark = [pytest.mark.root, pytest.mark.filterwarnings(REFUSED_SOCKET)]
FULL = (errors.StorageFull,)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A state directory on a file system of 24 MiB."""
    with tempfile.TemporaryDirectory(prefix="stn-full-") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", directory], check=True)
        home = Path(directory, "home")
        try:
            yield home
            (home.parent / "ballast").unlink(missing_ok=True)
            with connect(home) as client:
                for view in client.list():
                    client.delete(view.name)
                client.stop()
        finally:
            subprocess.run(["umount", "-l", directory], check=True)


def fill(home: Path, leave: int = 0) -> Path:
    """Takes all room of the file system of `home`; the file to delete again."""
    ballast = home.parent / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass
        if leave:
            file.truncate(max(0, file.tell() - leave))
    return ballast


def names(client: Client) -> list[str]:
    return [view.name for view in client.list()]


def test_a_full_state_directory_refuses_an_open_and_records_nothing(small: Path) -> None:
    with connect(small) as client:
        client.open("before").close()
        ballast = fill(small)
        with pytest.raises(FULL) as caught:
            client.open("new")
        assert caught.value.status == 507
        assert names(client) == ["before"]
        with pytest.raises(errors.SandboxNotFound):
            client.get("new")
        ballast.unlink()
        with client.open("new") as sandbox:
            assert sandbox.view.created
            assert sandbox.exec("echo works").stdout == "works\n"


def test_commands_on_a_full_disk_are_refused_or_run_and_never_lie(small: Path) -> None:
    """What cannot be written down is not started; room again, and the next command of the same station runs."""
    with connect(small) as client, client.open("box") as sandbox:
        sandbox.files.write("kept", b"before")
        ballast = fill(small)
        ran = 0
        for turn in range(300):
            try:
                ran += sandbox.exec(f"echo {turn}").stdout == f"{turn}\n"
            except FULL:
                break
        else:
            pytest.fail("no command was refused although there is no room")
        listed = sandbox.processes.list()
        assert all(view.state == "ended" and view.exit_code == 0 for view in listed), "half-recorded"
        with pytest.raises(FULL):
            sandbox.exec("cat", stdin="x" * 100_000)
        assert sandbox.files.read("kept") == b"before"
        ballast.unlink()
        assert sandbox.exec("cat", stdin="x" * 100_000).stdout == "x" * 100_000
        assert all(view.state == "ended" for view in sandbox.processes.list())


def test_input_for_which_there_is_no_room_is_refused_before_anything_runs(small: Path) -> None:
    with connect(small) as client, client.open("box") as sandbox:
        ballast = fill(small, leave=512 * 1024)
        with pytest.raises(FULL):
            sandbox.exec("cat > got; echo ran > ran", stdin=os.urandom(2 << 20))
        with pytest.raises(FULL):
            sandbox.start("cat > got; echo ran > ran", stdin=os.urandom(2 << 20))
        assert sandbox.processes.list() == []
        ballast.unlink()
        assert not sandbox.files.exists("ran")
        assert sandbox.exec("wc -c", stdin=b"\0" * (2 << 20)).stdout.strip() == str(2 << 20)


def test_output_for_which_there_is_no_room_is_a_gap_that_is_told(small: Path) -> None:
    with connect(small) as client, client.open("box") as sandbox:
        ballast = fill(small, leave=2 << 20)
        result = sandbox.exec("head -c 6M /dev/zero | tr '\\0' 'a'; echo end >&2")
        assert result.exit_code == 0
        assert result.stdout_view.total_bytes == 6 << 20
        assert len(result.stdout_bytes) + result.stdout_omitted_bytes == 6 << 20
        assert 0 < result.stdout_omitted_bytes
        ballast.unlink()
        assert sandbox.exec("head -c 1M /dev/zero").stdout_omitted_bytes == 0


def test_fb_b67_a_full_workspace_keeps_the_old_file_and_works_again(small: Path) -> None:
    with connect(small) as client, client.open("box") as sandbox:
        sandbox.files.write("f", b"old")
        ballast = fill(small)
        with pytest.raises(FULL):
            sandbox.files.write("f", b"new" * 100_000)
        assert sandbox.files.read("f") == b"old"
        assert [entry.path for entry in sandbox.files.list()] == ["/workspace/f"]
        ballast.unlink()
        sandbox.files.write("f", b"new" * 100_000)
        assert sandbox.files.stat("f").size == 300_000


def test_fb_b67_a_command_that_fills_the_disk_sees_it_and_the_station_goes_on(small: Path) -> None:
    with connect(small) as client, client.open("box") as sandbox:
        filled = sandbox.exec("head -c 100M /dev/zero > fill; echo code $?")
        assert "No space left" in filled.stderr
        with pytest.raises(FULL):
            client.open("second")
        assert names(client) == ["box"]
        sandbox.files.remove("fill")
        assert sandbox.exec("echo works").stdout == "works\n"
        client.open("second").close()
        assert names(client) == ["box", "second"]


def test_a_delete_works_on_a_full_disk(small: Path) -> None:
    """It is how room is made."""
    with connect(small) as client, client.open("box") as sandbox:
        sandbox.files.write("fill", b"\0" * (4 << 20))
        ballast = fill(small)
        try:
            sandbox.delete()
        except FULL:
            ballast.unlink()
            sandbox.delete()
        assert names(client) == []
        assert client.open("box").exec("ls").stdout == ""


def test_a_station_that_finds_no_room_says_so_and_starts_when_there_is_some(small: Path) -> None:
    with connect(small) as client, client.open("box") as sandbox:
        sandbox.files.write("kept", b"x")
        client.stop()
        ballast = fill(small)
        with pytest.raises(errors.StationUnreachable, match="full") as caught:
            client.info()
        assert "Traceback" not in caught.value.message
        assert caught.value.message.count("\n") < 5
        ballast.unlink()
        assert sandbox.files.read("kept") == b"x"
        assert sandbox.exec("echo works").stdout == "works\n"


def test_a_first_station_that_finds_no_room_says_so(small: Path) -> None:
    small.mkdir()
    ballast = fill(small)
    with connect(small) as client:
        with pytest.raises(errors.StationUnreachable, match=r"full|No space left"):
            client.info()
        ballast.unlink()
        assert client.run("print(1)").check().stdout == "1\n"


def test_a_run_needs_no_room_or_says_so(small: Path) -> None:
    with connect(small) as client:
        client.run("print(1)").check()
        ballast = fill(small)
        try:
            assert client.run("print(2)").stdout == "2\n"
        except FULL:
            pass
        ballast.unlink()
        assert client.run("print(3)").check().stdout == "3\n"
