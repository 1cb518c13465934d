"""A sandbox stays what it is from one command to the next, whatever becomes of its station and its box."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from station import Client, Sandbox, connect, errors
from station.core.endings import EndingKind
from tests.chaos.conftest import pid_of
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.observer import Observer, pids

from .conftest import Stn, state_directory

pytestmark = pytest.mark.filterwarnings(REFUSED_SOCKET)


def test_files_of_one_command_are_there_for_the_next_and_processes_are_not(anywhere: Sandbox) -> None:
    anywhere.exec("echo 1 > f; echo 2 > ~/g; export X=1; cd ..; exec -a left sleep 1000 &").check()
    anywhere.files.write("/tmp/h", "3\n")
    result = anywhere.exec("cat f ~/g; echo X=$X; pgrep -fx 'left 1000'; basename $PWD")
    assert result.stdout.splitlines() == ["1", "2", "X=", "workspace"]
    assert anywhere.files.read("/tmp/h") == b"3\n"


@pytest.mark.parametrize("how", ["stop", "kill -9"])
def test_a_sandbox_with_what_runs_in_it_outlives_its_station(
    anywhere: Sandbox, client: Client, home: Path, stn: Stn, how: str
) -> None:
    anywhere.exec("echo kept > f").check()
    before = anywhere.info().generation
    watched = anywhere.start("echo begun; read line; echo got $line; exit 6", stdin_open=True)
    next(iter(watched.output()))
    first = pid_of(home)
    if how == "stop":
        assert stn("stop").returncode == 0
    else:
        os.kill(first, signal.SIGKILL)
    assert stn("exec", anywhere.name, "--", "cat f").stdout == b"kept\n"
    assert pid_of(home) != first
    assert anywhere.info().generation == before, "the same box, adopted"
    watched.write(b"words\n")
    result = watched.wait(20)
    assert (result.exit_code, result.stdout) == (6, "begun\ngot words\n")


def test_after_its_box_was_killed_from_outside_the_next_command_works_and_what_ran_is_lost(
    anywhere: Sandbox, observer: Observer
) -> None:
    anywhere.exec("echo kept > f; echo home > ~/g").check()
    anywhere.files.write("/tmp/h", b"gone")
    before = anywhere.info().generation
    running = anywhere.start("echo begun; exec sleep 1000")
    next(iter(running.output()))
    within = observer.processes(anywhere)
    for pid in observer.guests(anywhere.id):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    lost = running.wait(20)
    assert lost.ending.kind is EndingKind.LOST
    assert lost.ending.reason
    assert (lost.exit_code, lost.ok, lost.stdout) == (None, False, "begun\n")
    assert running.view.status == "interrupted"
    observer.until(lambda: not within & set(pids()), "a process of the old box is left")
    assert anywhere.exec("cat f ~/g").stdout == "kept\nhome\n"
    assert not anywhere.files.exists("/tmp/h"), "/tmp does not outlive its box"
    assert anywhere.info().generation == before + 1
    assert anywhere.info().state == "running"


def test_rm_ends_all_of_it_and_repeating_is_no_error(stn: Stn, client: Client, home: Path, observer: Observer) -> None:
    with client.open("doomed", backend="bubblewrap") as sandbox:
        sandbox.files.write("f", b"x")
        running = sandbox.start("sleep 1000")
        for _ in range(3):
            done = stn("rm", "doomed", "never-there")
            assert done.returncode == 0
            assert b"there is no sandbox 'never-there'" in done.stderr
        with pytest.raises(errors.NotFound):
            running.info()
        with pytest.raises(errors.SandboxNotFound):
            sandbox.exec("true")
        observer.until(lambda: not observer.guests(sandbox.id), "the box is left")
        assert not list((home / "sandboxes").rglob(sandbox.id))
    with client.open("doomed", backend="bubblewrap") as again:
        assert (again.view.created, again.view.generation, again.files.list()) == (True, 2, [])
        assert again.processes.list() == []
        again.delete()


def test_fb_b71_of_20_racing_threads_one_makes_the_box(home: Path, observer: Observer) -> None:
    name = f"race-{uuid.uuid4()}"
    barrier = threading.Barrier(20)

    def race(_: int) -> tuple[str, bool, int]:
        with connect(home) as client:
            barrier.wait()
            with client.open(name, backend="bubblewrap") as sandbox:
                return sandbox.id, sandbox.view.created, sandbox.view.generation

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(race, range(20)))
    assert len({(uid, generation) for uid, _, generation in answers}) == 1
    assert [created for _, created, _ in answers].count(True) == 1
    assert len(observer.boxes(answers[0][0])) == 1
    with connect(home) as client:
        client.delete(name)


def test_fb_b71_of_20_racing_processes_that_find_no_station_one_makes_station_and_box() -> None:
    with state_directory("sandbox: {pool_size: 0}\n") as home:
        command = [sys.executable, "-m", "station", "open", "race", "--json"]
        environment = os.environ | {"STN_HOME": str(home)}
        racing = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(20)]
        views = [json.loads(each.communicate(timeout=60)[0]) for each in racing]
        assert [each.returncode for each in racing] == [0] * 20
        assert [view["created"] for view in views].count(True) == 1
        assert len({(view["id"], view["generation"]) for view in views}) == 1
        with connect(home) as client:
            assert len(Observer(home).boxes(views[0]["id"])) == 1
            assert client.info().live_boxes == 1


def test_hd_r18_the_17th_command_at_once_is_refused_and_the_rest_go_on(anywhere: Sandbox) -> None:
    running = [anywhere.start("read x; exit 3", stdin_open=True) for _ in range(16)]
    with pytest.raises(errors.LimitReached, match="16") as refused:
        anywhere.exec("touch ran")
    assert (refused.value.status, refused.value.retryable) == (429, True)
    assert anywhere.info().processes == 16
    for process in running:
        process.write(b"\n")
    assert [process.wait(20).exit_code for process in running] == [3] * 16
    assert not anywhere.files.exists("ran")
    assert anywhere.exec("echo free").stdout == "free\n"


def test_of_the_finished_commands_the_newest_hundred_are_kept(confined: Sandbox) -> None:
    first = confined.exec("echo first").id
    assert first is not None
    for _ in range(150):
        confined.exec(["true"])
    last = confined.exec("echo last")
    listed = [view.id for view in confined.processes.list()]
    assert len(listed) == 100
    assert listed[-1] == last.id
    assert first not in listed


def test_an_exec_with_the_same_id_joins_and_with_another_command_is_a_conflict(confined: Sandbox, home: Path) -> None:
    path = f"http://station/api/v1/sandboxes/{confined.id}/exec"
    same = {"command": "echo once >> log; cat log", "id": "prc_MINE"}

    def send(body: Mapping[str, object]) -> httpx2.Response:
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(home / "station.sock"))) as http:
            return http.post(path, json=body, timeout=20)

    with ThreadPoolExecutor(8) as pool:
        answers = [answer.json() for answer in pool.map(send, [same] * 8)]
    answers.append(send(same).json())
    assert {(a["id"], a["exit_code"], a["stdout"]["head"]["data"]) for a in answers} == {("prc_MINE", 0, "once\n")}
    for body in ({"command": "echo other"}, {"argv": [same["command"]]}, {**same, "cwd": "/tmp"}):
        other = send({**body, "id": "prc_MINE"})
        assert (other.status_code, other.json()["detail"]["field"]) == (409, "id")
    assert confined.exec("cat log").stdout == "once\n"


@pytest.mark.full
def test_a_station_in_the_background_that_nobody_needs_ends_and_one_with_a_box_stays() -> None:
    with state_directory("idle_minutes: 0.001\n") as home, connect(home) as client:
        client.open("stays").close()
        pid = client.info().pid
        watch = os.pidfd_open(pid)
        try:
            # Housekeeping looks every 15 s.
            assert not select.select([watch], [], [], 17)[0], "a station with a live box has ended"
            client.delete("stays")
            assert select.select([watch], [], [], 35)[0], "a station that nobody needs goes on"
        finally:
            os.close(watch)
        assert client.run("print(1)").stdout == "1\n", "and the next command starts the next one"


def test_an_open_that_names_what_differs_is_a_conflict_and_changes_nothing(client: Client, stn: Stn) -> None:
    with client.open("spec", backend="bubblewrap", limits={"open_files": 256}) as sandbox:
        for where in ({"backend": "host"}, {"limits": {"open_files": 512}}, {"network": "public"}, {"mount": "/tmp"}):
            with pytest.raises(errors.Conflict) as conflict:
                client.open("spec", **where)
            assert conflict.value.detail["field"].startswith(next(iter(where)))
        with client.open("spec", limits={"open_files": 256}) as same:
            assert (same.id, same.view.created) == (sandbox.id, False)
        assert stn("open", "spec", "--pids", "99").returncode == 125
        sandbox.delete()


def test_a_damaged_record_is_shown_and_deleted_while_the_rest_serve(client: Client, home: Path, stn: Stn) -> None:
    with client.open("healthy") as healthy, client.open("damaged") as damaged:
        client.stop()
        with contextlib.closing(sqlite3.connect(home / "registry.db")) as database, database:
            database.execute("update sandboxes set document = x'00ff' where uid = ?", (damaged.id,))
        assert healthy.exec("echo fine").stdout == "fine\n"
        done = stn("exec", "damaged", "--", "true")
        assert done.returncode == 125
        assert b"damaged" in done.stderr
        views = {view["id"]: view for view in json.loads(stn("ls", "--json").stdout)["sandboxes"]}
        assert views[damaged.id]["state"] == "failed"
        assert "damaged" in views[damaged.id]["reason"]
        assert stn("rm", "damaged").returncode == 0
        with client.open("damaged") as again:
            assert again.view.created
            again.delete()
        healthy.delete()


def test_a_station_whose_directory_was_removed_ends_with_its_boxes() -> None:
    """Else both would run on for ever, and nobody could reach them any more."""
    with state_directory("sandbox:\n  cleanup_interval_minutes: 0.02\n") as home:
        observer = Observer(home)
        with connect(home) as client:
            client.open("left").start(["sleep", "1000"])
        station, guests = pid_of(home), observer.all_guests()
        assert guests
        shutil.rmtree(home)
        observer.until(lambda: not {station, *guests} & set(pids()), "the station and its boxes are gone", seconds=20)
        assert not home.exists()
        home.mkdir()  # for whoever cleans up
