"""What broke in other systems and concerns more than one part of ours; the lines that one part answers for are tested
beside it (`grep fb_b`)."""

from __future__ import annotations

import io
import os
import re
import signal
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from station import Client, Sandbox
from station.core.capabilities import Level
from station.core.endings import EndingKind
from station.core.errors import StationError
from tests.chaos.conftest import pid_of
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.observer import Observer

MIB = 1024 * 1024
ARCHIVE_MIB = 2048 if os.environ.get("STN_TEST_FULL") else 256


@pytest.mark.filterwarnings(REFUSED_SOCKET)
def test_fb_b25_b26_a_timeout_is_kept_while_no_station_runs(confined: Sandbox, home: Path, observer: Observer) -> None:
    """The guest ends the tree; the station, which is killed, learns of it from the guest."""
    idle = observer.processes(confined)
    process = confined.start("setsid sleep 1000 & sleep 1000", timeout_seconds=2)
    # The control: as long as its time is not up, a tree outlives its station.
    os.kill(pid_of(home), signal.SIGKILL)
    assert observer.processes(confined) > idle
    observer.until(lambda: observer.processes(confined) == idle, "the tree goes on after its time", seconds=20)
    ended = process.wait(20)
    assert ended.timed_out


def test_fb_b31_memory_and_time_are_told_apart(client: Client) -> None:
    hungry = "held = []\nwhile True: held.append(b'x' * (1 << 20))"
    late = client.run("while True: pass", timeout_seconds=1)
    assert late.ending.kind is EndingKind.TIMED_OUT
    assert late.isolation is not None
    memory = late.isolation.limits["memory_mb"]
    ended = client.run(hungry, limits={"memory_mb": 64}, best_effort=True, timeout_seconds=30)
    if memory.level is Level.ENFORCED:
        assert ended.ending.kind is EndingKind.OOM
    else:
        assert ended.ending.kind is not EndingKind.TIMED_OUT


def test_fb_b47_a_background_job_takes_no_line_of_the_script(anywhere: Sandbox) -> None:
    script = "cat > stolen &\necho second\nwait\necho third\n"
    assert anywhere.exec(script).stdout == "second\nthird\n"
    assert anywhere.files.read("stolen") == b""
    # The control: a shell that reads its script from its input does lose it to such a job.
    lost = anywhere.exec("bash", stdin="cat > stolen\necho second\n")
    assert (lost.stdout, anywhere.files.read("stolen")) == ("", b"echo second\n")


def test_fb_b47_deletes_that_race_with_starts_leave_nothing(client: Client, observer: Observer) -> None:
    for _ in range(10):
        sandbox = client.open("races")
        starter = threading.Thread(target=_start_until_deleted, args=(sandbox,))
        starter.start()
        sandbox.exec("echo up").check()
        client.delete("races")
        starter.join(20)
        assert not starter.is_alive()
        observer.until(lambda: not observer.guests(sandbox.id), "a box outlives its sandbox")  # noqa: B023


def _start_until_deleted(sandbox: Sandbox) -> None:
    try:
        while True:
            sandbox.start("sleep 1000")
    except StationError:
        pass  # deleted, or sixteen run


def _archive(size: int) -> Iterator[bytes]:
    """A tar of one file of pseudo-random bytes, piece by piece."""
    info = tarfile.TarInfo("large")
    info.size, info.mode = size, 0o644
    yield info.tobuf()
    piece = os.urandom(MIB)
    for _ in range(size // MIB):
        yield piece
    yield b"\0" * 1024


@pytest.mark.timeout(600)  # a gigabyte in the full tier
def test_fb_b68_an_archive_of_any_size_goes_through_bounded_memory(confined: Sandbox, home: Path) -> None:
    confined.files.write_tar("warm", io.BytesIO(b"".join(_archive(MIB))))
    before = _most_memory(home)
    size = ARCHIVE_MIB * MIB
    assert confined.files.write_tar("big", _archive(size)) == 1
    came = sum(len(piece) for piece in confined.files.read_tar("big"))
    assert came > size
    assert confined.files.stat("big/large").size == size
    assert _most_memory(home) - before < 64 * MIB
    confined.files.remove("big", recursive=True)


def _most_memory(home: Path) -> int:
    """Of the station's process, in bytes, so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid_of(home)}/status").read_text())
    assert found
    return int(found[1]) * 1024
