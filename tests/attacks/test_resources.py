"""HD-R01 to R10, R13, R15, R17 to R19: a command uses up only its own share, and ends with everything it started."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from station import Client, Limits, Process, Sandbox, connect
from station.backends.docker.quota import FILES_PER_MB, image_bytes
from station.core.attacks import guaranteed
from station.core.capabilities import Level
from station.core.endings import EndingKind
from station.core.errors import InvalidInput, StationError
from tests.observer import Observer, engine_of, of_process, pids

from .conftest import Probe
from .targets import Target

BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
DAEMON = """
import os
reader, writer = os.pipe()  # which the daemon closes as it begins
if os.fork():
    os.close(writer)
    os.read(reader, 1)
    os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.execve('/bin/sleep', ['harmless-name', '60'], {})
"""

FILES = """
import os
os.mkdir('d')
made = 0
try:
    while made < 1_000_000:
        os.close(os.open(f'd/{made:07}', os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError: pass
print(made)
"""
SPIN = """
import os, time
for _ in range(2): os.fork()
end = time.time() + 2
while time.time() < end: pass
os._exit(0)
"""


def station_rss(home: Path) -> int:
    pid = int((home / "station.lock").read_text().split()[0])
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_hd_r01_a_fork_bomb_stays_in_its_box_and_is_ended(
    client: Client, confined: Sandbox, target: Target, observer: Observer
) -> None:
    """The control: without a limit of its own a process may fork far beyond the box's bound."""
    bound = confined.info().isolation.limits["pids"].value
    assert bound is not None
    assert resource.getrlimit(resource.RLIMIT_NPROC)[1] in (-1, resource.RLIM_INFINITY) or (
        resource.getrlimit(resource.RLIMIT_NPROC)[1] > bound + 64
    )
    with client.open("neighbour", **target.where) as neighbour:
        quiet = statistics.median(_timed(neighbour) for _ in range(10))
        bomb = confined.start(["python3", "-c", BOMB], timeout_seconds=4)
        if not guaranteed("R01", target.name):  # no limit within: the box may end, the neighbour goes on
            assert bomb.wait().ending.kind in (EndingKind.TIMED_OUT, EndingKind.LOST)
            assert _timed(neighbour) < max(20 * quiet, 2.0)
            neighbour.delete()
            return
        observer.until(lambda: len(observer.processes(confined)) > bound * 0.8, "the bomb did not go off")
        busy = [_timed(neighbour) for _ in range(5)]
        assert len(observer.processes(confined)) <= bound + 40
        assert confined.info().state == "running", "the station answers meanwhile"
        assert bomb.wait().ending.kind is EndingKind.TIMED_OUT
        report = confined.info().isolation.limits["cpus"]
        if report.level is Level.ENFORCED:
            assert statistics.median(busy) < max(20 * quiet, 2.0)
        neighbour.delete()


def _timed(sandbox: Sandbox) -> float:
    begun = time.monotonic()
    assert sandbox.exec("true").ok
    return time.monotonic() - begun


def test_hd_r02_too_much_memory_ends_the_command_not_the_sandbox(client: Client, target: Target) -> None:
    """Where the kernel holds the limit the ending is oom; elsewhere the report says that nothing does."""
    with client.open("hungry", **target.where, limits=Limits(memory_mb=64), best_effort=True) as sandbox:
        report = sandbox.info().isolation.limits["memory_mb"]
        result = sandbox.exec(["python3", "-c", "x = bytearray(256 * 2**20)\nprint(len(x))"], timeout_seconds=30)
        if report.level is Level.ENFORCED:
            assert result.ending.kind in (
                EndingKind.OOM,
                *(() if guaranteed("R02", target.name) else (EndingKind.LOST,)),
            )
            assert result.stdout == ""
        else:
            assert report.level in (Level.WATCHED, Level.NOT_ENFORCED)
        assert sandbox.exec("echo alive").stdout == "alive\n"
        sandbox.delete()


@pytest.mark.parametrize("where", ["/tmp", "/dev/shm", "/run"])
def test_hd_r03_a_memory_file_system_is_full_at_its_size(confined: Sandbox, where: str) -> None:
    host_before = shutil.disk_usage("/").free
    result = confined.exec(f"head -c 20G /dev/zero > {where}/fill; echo; du -sm {where} | cut -f1; rm -f {where}/fill")
    assert "No space left" in result.stderr or "Permission denied" in result.stderr or "Read-only" in result.stderr
    assert int(result.stdout.split()[-1]) <= 300
    assert shutil.disk_usage("/").free > host_before - 2**30


def test_hd_r03_r04_a_workspace_is_full_at_its_size(
    client: Client, target: Target, stations: Callable[[Target], Path], station_home: Path, ran: Callable[[str], None]
) -> None:
    """Where it has one of its own. The control: with the quota off the same bytes and files go beyond."""
    size = 32
    limits = Limits(workspace_mb=size)
    with client.open("small", **target.where, limits=limits, best_effort=True) as sandbox:
        report = sandbox.info().isolation.limits["workspace_mb"]
        held = report.level is Level.ENFORCED
        written, made = _fill(sandbox, size)
        assert held or report.by, "what does not hold is told with its reason"
        assert (written <= size * 2**20) == held
        assert (made <= size * FILES_PER_MB) == held
        images = station_home.glob(f"boxes/*/quota/{sandbox.id}-workspace.img")
        assert all(path.stat().st_blocks * 512 <= image_bytes(size) for path in images)
        sandbox.delete()
    if held and target.engine:
        off = replace(target, settings={**target.settings, "docker_workspace_quota": "off"})
        with connect(stations(off)) as open_client:
            with open_client.open("small", **off.where, limits=limits, best_effort=True) as sandbox:
                assert sandbox.info().isolation.limits["workspace_mb"].level is Level.NOT_ENFORCED
                written, made = _fill(sandbox, size)
                assert written == 2 * size * 2**20
                assert made > size * FILES_PER_MB
                sandbox.delete()
    ran(target.name)


def _fill(sandbox: Sandbox, size_mb: int) -> tuple[int, int]:
    """How many bytes and, when they are gone, how many files it could make of twice what it may have."""
    line = f"head -c {2 * size_mb}M /dev/zero > big; wc -c < big; : > big; rm big"
    written = sandbox.exec(line, timeout_seconds=60).stdout
    files = FILES.replace("1_000_000", str(2 * size_mb * FILES_PER_MB))
    return int(written), int(sandbox.exec(["python3", "-c", files], timeout_seconds=60).stdout)


def test_hd_r03_nothing_else_of_the_root_is_writable(confined: Sandbox) -> None:
    for where in ("/", "/dev", "/etc", "/usr", "/opt", "/var", "/home"):
        assert confined.exec(f"touch {where}/x").exit_code != 0, where


def test_hd_r05_endless_output_is_bounded_and_the_station_stays_small(anywhere: Sandbox, station_home: Path) -> None:
    before = station_rss(station_home)
    result = anywhere.exec("yes", timeout_seconds=5, output_limit_bytes=200 * 2**20)
    assert result.ending.kind in (EndingKind.OUTPUT_LIMIT, EndingKind.TIMED_OUT)
    assert result.stdout_omitted_bytes > 0
    assert result.stdout_bytes[:4] == b"y\ny\n"
    assert station_rss(station_home) < before + 64 * 2**20


def test_hd_r06_there_is_no_way_past_the_captured_output(
    confined: Sandbox, target: Target, observer: Observer, attack: Probe, control: Probe
) -> None:
    assert "succeeded" in control("console_flood")
    if target.own_kernel:  # there is a way, and nothing behind it
        (box,) = observer.boxes(confined.id)
        assert engine_of(observer).docker("inspect", "-f", "{{.HostConfig.LogConfig.Type}}", box) == "none"
    else:
        assert attack(confined, "console_flood") == "refused: no way past the captured output"


def test_hd_r07_reading_stdin_ends_at_once_or_at_the_timeout(anywhere: Sandbox) -> None:
    assert anywhere.exec("cat; echo end").stdout == "end\n"
    reader = anywhere.start("cat", stdin_open=True, timeout_seconds=1)
    assert reader.wait().ending.kind is EndingKind.TIMED_OUT


def test_hd_r08_r10_a_daemon_with_another_session_name_and_environment_is_ended(
    anywhere: Sandbox, observer: Observer
) -> None:
    """The control: killing the process group, as others do, leaves the same daemon running."""
    plain = subprocess.Popen([sys.executable, "-c", DAEMON], start_new_session=True)
    plain.wait()
    observer.until(lambda: bool(_named("harmless-name")), "the control's daemon did not start")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(plain.pid, 9)
    assert _named("harmless-name"), "the control's daemon did not outlive its group"
    for pid in _named("harmless-name"):
        os.kill(pid, 9)

    result = anywhere.exec(["python3", "-c", DAEMON + "\n"], timeout_seconds=20)
    assert result.exit_code == 0
    assert result.ended_children >= 1
    assert _named("harmless-name") == []


def _named(name: str) -> list[int]:
    return [pid for pid in pids() if of_process(pid, "cmdline").startswith(name.encode())]


def test_hd_r09_a_command_that_ignores_signals_is_dead_soon_after_its_timeout(anywhere: Sandbox) -> None:
    begun = time.monotonic()
    result = anywhere.exec("trap '' TERM INT HUP; while :; do sleep 0.1; done", timeout_seconds=1)
    assert result.ending.kind is EndingKind.TIMED_OUT
    assert time.monotonic() - begun < 1 + 2 + 2


def _until(process: Process, needle: bytes) -> bytes:
    """The output up to and with `needle`."""
    got = b""
    for chunk in process.output():
        got += chunk.data
        if needle in got:
            break
    return got


def test_hd_r13_spinning_on_all_cores_leaves_room_where_a_quota_holds(
    confined: Sandbox, target: Target, observer: Observer
) -> None:
    report = confined.info().isolation.limits["cpus"]
    begun = time.monotonic()
    confined.exec(["python3", "-c", SPIN], timeout_seconds=60)
    wall = time.monotonic() - begun
    usage = confined.exec(["python3", "-c", SPIN], timeout_seconds=60)
    if target.own_kernel:  # which counts in a way of its own
        (box,) = observer.boxes(confined.id)
        assert (
            engine_of(observer).docker("inspect", "-f", "{{.HostConfig.NanoCpus}}", box)
            == f"{report.value:.0f}000000000"
        )
    elif report.level is Level.ENFORCED:
        assert usage.usage is not None
        assert usage.usage.user_seconds + usage.usage.system_seconds <= (report.value or 1) * (wall + 1) + 1
    else:
        assert report.by


def test_hd_r15_a_child_that_holds_the_output_delays_nobody(anywhere: Sandbox) -> None:
    """The control: reading a pipe to its end, as others do, waits for the child."""
    with subprocess.Popen("sleep 60 & echo done $!", shell=True, stdout=subprocess.PIPE, text=True) as plain:
        assert plain.stdout is not None
        child = int(plain.stdout.readline().split()[1])
        assert plain.wait(5) == 0
        assert not select.select([plain.stdout], [], [], 0)[0], "no end of file although the command ended"
        os.kill(child, 9)

    begun = time.monotonic()
    result = anywhere.exec("sleep 20 & echo done")
    assert result.stdout == "done\n"
    assert result.ended_children == 1
    assert anywhere.exec("echo next").stdout == "next\n"
    assert time.monotonic() - begun < 5


def test_hd_r17_a_reader_that_leaves_changes_nothing_for_the_command(anywhere: Sandbox) -> None:
    process = anywhere.start("for i in 1 2 3; do echo $i; done; read x; exit 7", stdin_open=True)
    assert _until(process, b"3\n") == b"1\n2\n3\n"
    assert process.info().state == "running"
    process.write(b"go\n")
    assert process.wait().exit_code == 7


@pytest.mark.full
def test_hd_r19_a_deep_tree_is_listed_in_bounds_and_deleted(anywhere: Sandbox) -> None:
    deep = 10_000
    script = f"import os\nfor _ in range({deep}):\n    os.mkdir('d' * 3); os.chdir('d' * 3)"
    assert anywhere.exec(["python3", "-c", script], cwd="/workspace").ok
    assert len(anywhere.files.page(".", recursive=True, limit=1000).entries) <= 1000
    anywhere.files.remove("ddd", recursive=True)
    assert [entry.path for entry in anywhere.files.list(".")] == []
    long = "n" * 255
    anywhere.files.write(long, b"x")
    assert anywhere.files.read(long) == b"x"
    with pytest.raises(InvalidInput):
        anywhere.files.write(long + "n", b"x")


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_hd_r04_a_million_empty_files_are_listed_in_bounds_or_refused(anywhere: Sandbox) -> None:
    """Where the workspace has a bound of its own, fewer can be made."""
    made = anywhere.exec(["python3", "-c", FILES], timeout_seconds=1500)
    assert made.ok, made
    count = int(made.stdout)
    begun = time.monotonic()
    page = anywhere.files.page("d", limit=1000)
    assert time.monotonic() - begun < 2 * 4  # four times the bound: this machine may be busy
    assert len(page.entries) == min(1000, count)
    assert page.truncated == (count > 1000)
    anywhere.exec("rm -rf d", timeout_seconds=1500)


def test_hd_r18_commands_beyond_the_bound_are_refused_and_leave_nothing(anywhere: Sandbox) -> None:
    """The fixture looks for what is left; the control: the same commands one after another all run."""
    bound = 16

    def one(_: int) -> int:
        try:
            return 200 if anywhere.exec("read x", stdin=b"x\n", timeout_seconds=20).ok else 500
        except StationError as error:
            return error.status

    assert [one(number) for number in range(3)] == [200] * 3
    held = [anywhere.start("read x", stdin_open=True) for _ in range(bound)]
    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(one, range(200))) == {429}
    for process in held:
        process.write(b"x\n")
    assert all(process.wait().exit_code == 0 for process in held)
    assert one(0) == 200
