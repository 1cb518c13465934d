"""`stn backup restore df prune` on a real station with real boxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from station import Client, connect, errors
from station.core.ids import uid_of
from tests.chaos.test_kill import REFUSED_SOCKET

from .conftest import Stn, state_directory

pytestmark = pytest.mark.filterwarnings(REFUSED_SOCKET)
SETTINGS = "sandbox: {backend: bubblewrap, pool_size: 0}\n"


@pytest.fixture(scope="module")
def home(ran: Callable[[str], None]) -> Iterator[Path]:
    ran("bubblewrap")
    with state_directory(SETTINGS) as home:
        yield home


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Path]:
    """Where a backup is restored to; its sandboxes and station are gone afterwards."""
    place = tmp_path / "restored"
    yield place
    if (place / "registry.db").exists():
        with connect(place) as client:
            for view in client.list():
                client.delete(view.name)
            client.stop()


def told(done: subprocess.CompletedProcess[bytes]) -> Any:
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_a_sandbox_comes_back_with_its_files_from_a_running_station(
    stn: Stn, client: Client, restored: Path, tmp_path: Path
) -> None:
    with client.open("kept") as sandbox:
        sandbox.files.write("d/note", b"before")
        sandbox.exec("echo remembered; mkdir -p ~/.cache; echo x > ~/.cache/y; chmod 0 d/note; chmod 700 d").check()
        running = sandbox.start("sleep 1000")
        client.files.write("report", b"stored" * 1000)
        report = told(stn("backup", str(tmp_path / "b.tgz"), "--with-workspaces", "--with-secrets", "--json"))
        assert (report["sandboxes"], report["stored_files"], report["without_files"]) == (1, 1, [])
        assert (tmp_path / "b.tgz").stat().st_mode & 0o777 == 0o600
        assert sandbox.processes.get(running.id).view.state == "running", "a backup disturbs nobody"
        sandbox.exec("echo after > d/later").check()
        again = stn("backup", str(tmp_path / "b.tgz"))
        assert (again.returncode, b"exists already" in again.stderr) == (125, True)

        done = stn("restore", str(tmp_path / "b.tgz"), "--home", str(restored))
        assert done.returncode == 0, done.stderr
        sandbox.delete()
    with connect(restored) as other:
        (view,) = other.list()
        assert (view.name, view.state) == ("kept", "suspended")
        assert "restored from a backup" in (view.reason or "")
        assert other.files.read("report") == b"stored" * 1000
        with other.open("kept") as sandbox:
            shown = sandbox.exec("chmod 600 d/note; cat d/note ~/.cache/y; ls d").stdout
            assert shown == "beforex\nnote\n"
            history = {process.command[0]: process for process in sandbox.processes.list()}
            assert history["sleep 1000"].state == "ended"
            assert history["sleep 1000"].ending is not None
            assert history["sleep 1000"].ending.kind == "lost"
            first = next(process for command, process in history.items() if command.startswith("echo remembered"))
            assert sandbox.processes.get(first.id).wait().stdout == "remembered\n"


@pytest.mark.full
def test_a_backup_goes_through_a_pipe_and_a_station_that_ended_has_one_too(home: Path, restored: Path) -> None:
    with connect(home) as client:
        client.open("piped").close()
        client.stop()
    stn = [sys.executable, "-m", "station", "--home"]
    with subprocess.Popen([*stn, home, "backup", "-"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as making:
        done = subprocess.run([*stn, restored, "restore", "-", "--json"], stdin=making.stdout, capture_output=True)
    assert making.returncode == 0
    assert told(done)["sandboxes"] == 1
    assert not (restored / "station.yaml").exists(), "settings may hold secrets"
    with connect(restored) as other, connect(home) as client:
        assert [view.name for view in other.list()] == ["piped"]
        client.delete("piped")


@pytest.mark.full
def test_a_backup_on_a_full_disk_leaves_nothing(stn: Stn, client: Client, tmp_path: Path) -> None:
    client.info()
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "station", "--home", client.home, "backup", "-"], stdout=full, capture_output=False
        )
    assert done.returncode == 125
    missing = stn("backup", str(tmp_path / "none" / "b.tgz"))
    assert missing.returncode == 125
    assert not (tmp_path / "none").exists()


def test_df_tells_what_takes_room(stn: Stn, client: Client) -> None:
    with client.open("large") as sandbox:
        sandbox.files.write("f", os.urandom(3 << 20))
        sandbox.exec("head -c 2M /dev/urandom | base64").check()
        client.files.write("x", os.urandom(1 << 20))
        found = told(stn("df", "--json"))
        parts = {part["what"]: part for part in found["parts"]}
        assert parts["sandboxes"]["bytes"] >= 3 << 20
        assert parts["output"]["bytes"] >= 2 << 20
        assert parts["files"]["bytes"] >= 1 << 20
        assert {"records", "logs", "boxes"} <= set(parts)
        assert sum(part["bytes"] for part in found["parts"]) == found["total_bytes"]
        room = next(room for room in found["sandboxes"] if room["name"] == "large")
        assert room["files_bytes"] >= 3 << 20
        assert room["output_bytes"] >= 2 << 20
        lines = stn("df").stdout.decode()
        assert "large" in lines
        assert "free on its disk" in lines
        sandbox.delete()
    parts = {part["what"]: part for part in told(stn("df", "--json"))["parts"]}
    assert "sandboxes" not in parts


def test_prune_removes_what_nobody_can_ask_for_and_nothing_else(stn: Stn, client: Client, home: Path) -> None:
    with client.open("kept") as sandbox:
        sandbox.files.write("f", b"mine")
        sandbox.exec("echo mine").check()
        lost = uid_of("local", "nobody has a record of it")
        for name in ("sandboxes", "output"):
            (home / name / lost / "workspace").mkdir(parents=True)
            (home / name / lost / "workspace" / "f").write_bytes(bytes(1 << 20))
        (home / "station.log.1").write_bytes(bytes(1 << 20))
        for name, age in ((".stn-old", 7200), (".stn-new", 0)):
            (home / name).mkdir()
            os.utime(home / name, (time.time() - age,) * 2)
        before = sorted(str(path) for path in home.glob("[s.o]*/*"))

        would = told(stn("prune", "--dry-run", "--json"))
        assert would["dry_run"]
        asked = stn("prune", input=b"n\n")
        assert (asked.returncode, b"[y/N]" in asked.stderr) == (1, True)
        assert sorted(str(path) for path in home.glob("[s.o]*/*")) == before
        assert (home / "station.log.1").exists()

        freed = told(stn("prune", "--yes", "--json"))
        assert not freed["dry_run"]
        wanted = {"files without a sandbox", "output without a sandbox", "old logs", "temporary files"}
        for told_of in (would, freed):
            assert {part["what"] for part in told_of["parts"]} == wanted
            assert told_of["bytes"] >= 3 << 20
        left = [home / "sandboxes" / lost, home / "output" / lost, home / "station.log.1", home / ".stn-old"]
        assert [path for path in left if path.exists()] == []
        assert (home / ".stn-new").exists()
        assert sandbox.files.read("f") == b"mine"
        assert [process.command for process in sandbox.processes.list()] == [["echo mine"]]
        assert stn("prune").stdout == b"Nothing to remove\n"
        (home / ".stn-new").rmdir()
        sandbox.delete()


@pytest.mark.full
def test_files_of_a_damaged_record_are_not_pruned(stn: Stn, client: Client, home: Path) -> None:
    """Whoever mends it wants them."""
    import sqlite3

    with client.open("mended") as sandbox:
        sandbox.files.write("f", b"mine")
        uid = sandbox.id
    with sqlite3.connect(home / "registry.db") as db:
        document = db.execute("SELECT document FROM sandboxes WHERE uid = ?", (uid,)).fetchone()[0]
        db.execute("UPDATE sandboxes SET document = 'x' WHERE uid = ?", (uid,))
    stn("prune", "--yes").check_returncode()
    assert list((home / "sandboxes" / uid).glob("workspace/f"))
    with sqlite3.connect(home / "registry.db") as db:
        db.execute("UPDATE sandboxes SET document = ? WHERE uid = ?", (document, uid))
    db.close()
    with pytest.raises(errors.SandboxNotFound):
        client.get("other")
    client.delete("mended")
