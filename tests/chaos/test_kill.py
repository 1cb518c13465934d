"""`kill -9` of the station at each step of create, exec and delete: nothing lost, doubled or left (HD-D02, D25)."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen

import pytest

from station import Client
from station.core.errors import SandboxFailed, SandboxNotFound
from tests.observer import Observer

from .conftest import ON_DOCKER, cycles, pid_of

# httpcore2 leaves the socket of a refused connect to the collector (its sync backend has no `except` around connect).
REFUSED_SOCKET = "ignore:Exception ignored in. <socket.socket.*proto=0>:pytest.PytestUnraisableExceptionWarning"
pytestmark = [pytest.mark.filterwarnings(REFUSED_SOCKET), pytest.mark.timeout(300)]

Strike = Callable[[str], Popen[bytes]]


@cycles("after_claim", "after_intent", "after_start", "after_ready", on_docker="after_intent after_start")
def test_hd_d02_a_station_killed_while_creating_gives_one_working_sandbox(
    client: Client, strike: Strike, observer: Observer, step: str, turn: int
) -> None:
    name = f"create-{uuid.uuid4()}"
    strike(f"create.{step}")
    with client.open(name) as sandbox:
        assert sandbox.exec("echo made").stdout == "made\n"
        assert [view.name for view in client.list()].count(name) == 1
        assert len(observer.boxes(sandbox.id)) == 1
        sandbox.delete()
        observer.until(lambda: not observer.guests(sandbox.id), "a box of the name is left")


@cycles("after_accept", "after_start", "after_end", on_docker="after_accept after_start")
def test_hd_d02_a_station_killed_during_exec_runs_the_command_once_and_keeps_its_output(
    client: Client, strike: Strike, step: str, turn: int
) -> None:
    with client.open(f"exec-{uuid.uuid4()}") as sandbox:
        watched = sandbox.start("echo before; read line; echo $line", stdin_open=True)
        strike(f"exec.{step}")
        result = sandbox.exec("echo once >> ran; echo out; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
        assert sandbox.files.read("ran") == b"once\n"
        watched.write(b"after\n")
        assert watched.wait().stdout == "before\nafter\n", "a command that ran through it all went on, its output kept"
        assert [view.state for view in sandbox.processes.list()] == ["ended"] * 2
        sandbox.delete()


@cycles("after_mark", "after_destroy", "after_files", on_docker="after_destroy")
def test_hd_d25_a_station_killed_while_deleting_leaves_nothing_and_frees_the_name(
    client: Client, home: Path, strike: Strike, observer: Observer, step: str, turn: int
) -> None:
    name = f"delete-{uuid.uuid4()}"
    with client.open(name) as sandbox:
        sandbox.files.write("kept", b"x")
        generation = sandbox.info().generation
        strike(f"delete.{step}")
        sandbox.delete()
        with pytest.raises(SandboxNotFound):
            client.get(name)
        observer.until(lambda: not observer.guests(sandbox.id), "the box is left")
        assert not (home / "sandboxes" / sandbox.id).exists()
    with client.open(name) as again:
        assert again.info().generation > generation
        assert [entry.path for entry in again.files.list(".")] == []
        again.delete()


def test_a_station_killed_in_the_middle_of_output_loses_none_of_it(client: Client, home: Path) -> None:
    """Ten deaths at arbitrary moments under one command; its lines come out whole and in order."""
    with client.open("stream") as sandbox:
        count = 200_000
        process = sandbox.start(["python3", "-c", f"for i in range({count}): print(i)"], timeout_seconds=120)
        got = b""
        for turn in range(10):
            for chunk in process.output(after_stdout=len(got)):
                got += chunk.data
                if len(got) > (turn + 1) * 50_000:
                    break
            os.kill(pid_of(home), signal.SIGKILL)
        for chunk in process.output(after_stdout=len(got)):
            got += chunk.data
        assert got == b"".join(b"%d\n" % i for i in range(count))
        assert process.wait().exit_code == 0
        sandbox.delete()


def test_a_run_whose_station_is_killed_is_answered_by_the_next_one(client: Client, home: Path) -> None:
    """A run's box goes with its station, and with it all that the first try did; the repeat is a fresh run."""
    with ThreadPoolExecutor(1) as pool, client.open("signal") as sandbox:
        running = pool.submit(client.run, "import time\ntime.sleep(1.5)\nprint('ran')")
        sandbox.exec("true")
        os.kill(pid_of(home), signal.SIGKILL)
        assert running.result(30).stdout == "ran\n"
        sandbox.delete()


@pytest.mark.parametrize("backend", [None, ON_DOCKER], indirect=True)
def test_hd_d02_the_boxes_of_a_dead_stations_pool_are_swept(client: Client, home: Path, observer: Observer) -> None:
    client.run("print(1)").check()
    observer.until(lambda: bool(observer.pool_boxes()), "no pool box was made")
    before = observer.pool_boxes()
    os.kill(pid_of(home), signal.SIGKILL)
    client.run("print(2)").check()
    observer.until(lambda: not (before & observer.pool_boxes()), "a pool box of the dead station is left")


def test_a_second_serve_exits_and_names_the_first(client: Client, home: Path) -> None:
    client.info()
    second = subprocess.run(
        [sys.executable, "-m", "station", "serve", "--home", str(home)], capture_output=True, text=True, timeout=10
    )
    assert second.returncode != 0
    assert str(pid_of(home)) in second.stderr


def test_a_damaged_record_is_quarantined_and_the_rest_serve(client: Client, home: Path) -> None:
    with client.open("healthy") as healthy, client.open("damaged") as damaged:
        client.stop()
        with contextlib.closing(sqlite3.connect(home / "registry.db")) as database, database:
            database.execute("update sandboxes set document = '{broken' where uid = ?", (damaged.id,))
        assert healthy.exec("echo fine").stdout == "fine\n"
        with pytest.raises(SandboxFailed, match="damaged"):
            damaged.exec("true")
        assert {view.name for view in client.list() if view.state == "running"} >= {"healthy"}
        healthy.delete()
        damaged.delete()
