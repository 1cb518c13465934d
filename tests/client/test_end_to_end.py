"""The SDK on a real station, which it starts itself, and real boxes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import station
from station import errors
from station.client._home import find_home
from station.client._start import ensure_station, listens

from .conftest import ended


@pytest.fixture(autouse=True)
def _noted(real: str, ran: Callable[[str], None]) -> None:
    ran(real)


@pytest.fixture
def sandbox(real: str, request: pytest.FixtureRequest):
    with station.Sandbox.open(request.node.name[:200]) as sandbox:
        yield sandbox
        sandbox.delete()


def test_run_brings_back_output_artifacts_and_the_isolation_it_had(real: str):
    code = "import sys; open('out.txt','w').write(open('in.txt').read().upper()); print(sys.argv[1:], sys.stdin.read())"
    result = station.run(code, args=["a b"], stdin="input", files={"in.txt": "text"}, artifacts=["*.txt", "none*"])
    assert result.check().stdout == "['a b'] input\n"
    assert result.artifacts["out.txt"] == b"TEXT"
    assert result.artifacts_missing == ("none*",)
    assert result.isolation is not None
    assert (result.isolation.backend, result.isolation.network) == (real, "none")


def test_a_bad_end_of_a_run_is_a_result_and_check_raises_it(real: str):
    result = station.run("import sys; sys.exit('sorry')")
    assert (result.ok, result.exit_code, result.stderr) == (False, 1, "sorry\n")
    with pytest.raises(station.CommandFailed, match="exit code 1: sorry"):
        result.check()


def test_a_run_out_of_time_is_a_result_with_its_output(real: str):
    result = station.run("print('begun', flush=True)\nwhile True: pass", timeout_seconds=1)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 124, "begun\n")


def test_map_runs_many(real: str):
    results = station.map([f"print({n})" for n in range(12)], concurrency=4, progress=False)
    assert [r.check().stdout for r in results] == [f"{n}\n" for n in range(12)]


def test_a_sandbox_is_found_again_by_name(sandbox: station.Sandbox):
    sandbox.exec("echo kept > file").check()
    with station.Sandbox.open(sandbox.name) as again:
        assert not again.view.created
        assert again.exec(["cat", "file"]).stdout == "kept\n"
    assert sandbox.name in {view.name for view in station.Sandbox.list()}


def test_a_deleted_sandbox_is_not_found_and_deleting_again_is_no_error(real: str):
    with station.Sandbox.open("gone") as sandbox:
        sandbox.delete()
        sandbox.delete()
        with pytest.raises(errors.SandboxNotFound):
            sandbox.info()
    with pytest.raises(errors.SandboxNotFound):
        station.Sandbox.get("gone")


def test_on_output_gets_every_byte_of_a_long_output(sandbox: station.Sandbox):
    pieces: list[bytes] = []
    result = sandbox.exec("seq 1 400000", on_output=lambda chunk: pieces.append(chunk.data))
    assert b"".join(pieces) == "".join(f"{n}\n" for n in range(1, 400001)).encode()
    assert result.ok
    assert result.stdout_omitted_bytes > 0


def test_input_goes_to_a_started_process_until_its_end(sandbox: station.Sandbox):
    process = sandbox.start("cat", stdin_open=True)
    assert process.write(b"x\0" * 100_000) == 200_000
    process.close_stdin()
    assert process.wait(20).stdout_bytes == b"x\0" * 100_000


def test_a_process_is_found_again_by_id_and_cancelled(sandbox: station.Sandbox):
    process = sandbox.start("sleep 1000")
    with station.Sandbox.get(sandbox.name) as other:
        found = other.processes.get(process.id)
        with pytest.raises(TimeoutError):
            found.wait(0)
        found.cancel()
    assert process.wait(20).ending.kind == "cancelled"


NAMES = ["plain", "a b", "ü🎉", "a\nb", "q'\"\\", "100%41", "+&=#?", "\udcff\udcfe", "x" * 255, "deep/er/file"]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_a_file_of_any_name_comes_back(sandbox: station.Sandbox, name: str):
    written = sandbox.files.write(name, b"\x00\xff" * 10, mode=0o755)
    assert written.created
    assert written.entry.mode == "755"
    assert sandbox.files.read(name) == b"\x00\xff" * 10
    assert sandbox.files.read(name, offset=1, length=3) == b"\xff\x00\xff"
    assert f"/workspace/{name}" in [entry.path for entry in sandbox.files.list(recursive=True)]
    assert sandbox.files.remove(name) == 1
    assert not sandbox.files.exists(name)


def test_folders_go_both_ways(sandbox: station.Sandbox, tmp_path: Path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "run.sh").write_text("echo hi")
    (source / "sub" / "run.sh").chmod(0o755)
    (source / "link").symlink_to("sub/run.sh")
    sandbox.files.upload(source, "in")
    assert sandbox.exec("in/link").stdout == "hi\n"
    sandbox.files.download("in", tmp_path / "back")
    assert (tmp_path / "back" / "sub" / "run.sh").read_text() == "echo hi"
    assert os.access(tmp_path / "back" / "link", os.X_OK)


def test_mkdir_rename_copy_and_refusals(sandbox: station.Sandbox):
    files = sandbox.files
    files.mkdir("d/e")
    files.write("d/e/f", "x")
    files.copy("d", "c")
    files.rename("d/e/f", "g")
    assert files.read_text("c/e/f") == files.read_text("g") == "x"
    with pytest.raises(errors.AlreadyExists):
        files.write("g", "y", overwrite=False)
    with pytest.raises(errors.PathRefused):
        files.read("/etc/passwd")
    with pytest.raises(errors.FileNotFound):
        files.read("nothing")
    with pytest.raises(errors.NotARegularFile):
        files.read("d")


# httpcore2 leaves a socket whose connect was refused to the garbage collector, which warns.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_an_exec_outlives_a_killed_station_and_is_joined_not_repeated(sandbox: station.Sandbox):
    with station.connect() as client:
        pid = client.info().pid
    results: list[station.ExecResult] = []
    line = "echo once >> log; mkfifo go; echo ready > ready; cat go > /dev/null; cat log"
    caller = threading.Thread(target=lambda: results.append(sandbox.exec(line)))
    caller.start()
    wait_for = "until [ -e ready ]; do :; done"
    sandbox.exec(wait_for, timeout_seconds=20).check()
    os.kill(pid, signal.SIGKILL)
    ended(find_home())
    sandbox.exec("echo > go", timeout_seconds=20).check()
    caller.join()
    assert results[0].check().stdout == "once\n"
    with station.connect() as client:
        assert client.info().pid != pid


def test_of_many_that_start_a_station_one_does(real: str):
    home = find_home()
    with station.connect() as client:
        client.stop()
    ended(home)
    started: list[bool] = []
    threads = [threading.Thread(target=lambda: started.append(ensure_station(home))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == [False] * 7 + [True]
    assert listens(home)


async def test_the_async_half_on_a_real_station(real: str):
    async with await station.AsyncSandbox.open("async") as sandbox:
        process = await sandbox.start("echo a; echo b >&2")
        chunks = [chunk async for chunk in process.output()]
        assert {chunk.stream: chunk.data for chunk in chunks} == {"stdout": b"a\n", "stderr": b"b\n"}
        await sandbox.files.write("f", "text")
        assert await sandbox.files.read_text("f") == "text"
        await sandbox.delete()


def test_a_station_that_cannot_start_says_why(tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "station.yaml").write_text("sandbox: {bakend: host}\n")
    with pytest.raises(errors.StationUnreachable, match="bakend"):
        station.run("1", home=home)


def test_by_its_tool_id_a_sandbox_is_one_life_of_its_name(real: str):
    with station.connect() as client:
        first = client.open("lives", timeout_seconds=77, temporary=True)
        assert first.view.remove_at is not None
        same = client.get_by_id(first.view.tool_id)
        assert (same.id, same.name, same.view.timeout_seconds) == (first.id, "lives", 77)
        same.files.write("f", "kept")
        assert same.exec("cat f").check().stdout == "kept"
        process = same.start("sleep 1000")
        same.delete(keep_files=True)
        assert (same.info().state, process.wait(5).ending.kind) == ("suspended", "lost")
        assert client.get_by_id(first.id).files.read_text("f") == "kept"
        client.delete("lives", keep_files=True)
        client.delete("lives")
        client.delete("lives", keep_files=True)
        second = client.open("lives")
        assert (second.id, second.view.remove_at) == (first.id, None)
        assert second.view.tool_id != first.view.tool_id
        stale = (
            same.info,
            lambda: same.exec("true"),
            lambda: same.exec("true", on_output=lambda chunk: None),
            lambda: same.files.read("f"),
            same.processes.list,
            process.info,
            lambda: client.get_by_id(first.view.tool_id),
        )
        for call in stale:
            with pytest.raises(errors.SandboxNotFound):
                call()
        same.delete()
        assert second.exec("ls").check().stdout == ""
        client.get_by_id(second.view.tool_id).delete()
        with pytest.raises(errors.SandboxNotFound):
            second.info()


@pytest.mark.parametrize("wrong", ["", "..", "ses_", "../../station/stop", "a\nb", "ses_" + "I" * 26])
def test_what_can_be_no_id_is_not_found_and_nothing_is_sent(tmp_path: Path, wrong: str):
    with station.connect(tmp_path, start=False) as client, pytest.raises(errors.SandboxNotFound):
        client.get_by_id(wrong)


def test_a_command_with_an_id_of_ones_own_is_found_while_it_runs_and_joined_afterwards(sandbox: station.Sandbox):
    prc = sandbox.processes.new_id()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(sandbox.exec, "echo begun; read x < /dev/null; sleep 0.3; echo ended", process_id=prc)
        while prc not in [view.id for view in sandbox.processes.list()]:
            assert not running.done()
        found = sandbox.processes.get(prc)
        assert b"".join(chunk.data for chunk in found.output()) == b"begun\nended\n"
        result = running.result()
    again = sandbox.exec("echo begun; read x < /dev/null; sleep 0.3; echo ended", process_id=prc)
    assert (result.id, again.stdout) == (prc, result.stdout)
    with pytest.raises(errors.Conflict):
        sandbox.exec("echo other", process_id=prc)


def test_an_open_that_names_another_time_limit_is_a_conflict(sandbox: station.Sandbox):
    with pytest.raises(errors.Conflict, match="timeout_seconds 120, not 5"):
        station.Sandbox.open(sandbox.name, timeout_seconds=5)
    with station.Sandbox.open(sandbox.name, timeout_seconds=120) as same:
        assert same.id == sandbox.id


def on_this_machine(line: str) -> bool:
    """Whether a program of that command line runs, in whichever box."""
    wanted = line.replace(" ", "\0").encode() + b"\0"
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if each.read_bytes() == wanted:
                return True
    return False


@pytest.mark.full
async def test_fb_b50_two_hundred_calls_that_are_cancelled_at_any_moment_leave_nothing_running(real: str):
    async with station.aconnect() as client, await client.open("cancelled") as sandbox:
        line = f"sleep 303.{os.getpid()}"
        calls: list[asyncio.Future[object]] = []
        for number in range(200):
            work = client.run(line, runtime="bash") if number % 5 == 4 else sandbox.exec(line)
            calls.append(asyncio.ensure_future(work))
            await asyncio.sleep((number % 10) * 0.0005)
            # A cancel goes on a connection that is open already, the call before it often on one that is new.
            calls[-1].cancel()
        for ended in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(ended, (asyncio.CancelledError, errors.StationError)), ended
        async with asyncio.timeout(30):
            while any(view.state != "ended" for view in await sandbox.processes.list()):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            while on_this_machine(line):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert {view.status for view in await sandbox.processes.list()} == {"cancelled"}
        await sandbox.delete()


@pytest.mark.full
def test_a_program_that_is_killed_leaves_what_was_to_end_with_it_ten_seconds(sandbox: station.Sandbox):
    program = (
        "import sys, threading, station\n"
        "with station.Sandbox.get(sys.argv[1]) as sandbox:\n"
        "    for ends in (True, False):\n"
        "        call = lambda ends=ends: sandbox.exec('sleep 305', end_when_left=ends)\n"
        "        threading.Thread(target=call).start()\n"
        "    sandbox.exec('sleep 306', end_when_left=True, on_output=print)\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", program, sandbox.name])
    while len(sandbox.processes.list()) < 3:
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    begin = time.monotonic()
    while sum(view.state == "running" for view in sandbox.processes.list()) > 1:
        assert time.monotonic() - begin < 20
        time.sleep(0.1)
    assert time.monotonic() - begin > 9
    (left,) = [view for view in sandbox.processes.list() if view.state == "running"]
    assert left.command == ["sleep 305"]
    reasons = {view.ending.reason for view in sandbox.processes.list() if view.ending is not None}
    assert reasons == {"nobody had waited for it for 10 s, and it was to end then"}
    sandbox.processes.get(left.id).cancel()
