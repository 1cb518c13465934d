"""HD-T8, T9: nothing that is done inside makes the station stand still, or grow."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from station import Client, Limits, Sandbox
from station.core.endings import EndingKind
from station.core.errors import StationError

from .targets import Target

DEEP = """
import os
name = '\\x01' * 250
for _ in range(14):
    os.mkdir(name)
    os.chdir(name)
for i in range(10_000):
    open('\\x02' * 200 + str(i), 'w').close()
"""
SHARED_MEMORY = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
held = 0
for _ in range(int(sys.argv[1]) // 16):
    key = libc.shmget(0, 16 << 20, 0o1600)
    at = libc.shmat(key, None, 0) if key >= 0 else None
    if key < 0 or at == 2**64 - 1:
        break
    ctypes.memset(at, 1, 16 << 20)
    libc.shmdt(ctypes.c_void_p(at))
    held += 16
print(held)
"""


@contextmanager
def healthz(home: Path) -> Iterator[list[float]]:
    """Asks the station how it is, all the time; the answers' times."""
    taken: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.02):
            begun = time.monotonic()
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(home / "station.sock"))
                sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                while sock.recv(4096):
                    pass
            taken.append(time.monotonic() - begun)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield taken
    finally:
        stop.set()
        thread.join()


def test_hd_f07_a_page_of_the_longest_names_is_bounded_in_bytes(confined: Sandbox, station_home: Path) -> None:
    """The control: names of a usual length come ten thousand to a page, as asked for."""
    confined.exec(["python3", "-c", "import os\nfor i in range(12_000): open(f'/tmp/{i:05}', 'w').close()"])
    assert len(confined.files.page("/tmp", limit=10_000).entries) == 10_000
    assert confined.exec(["python3", "-c", DEEP], timeout_seconds=30).ok
    with healthz(station_home) as taken:
        page = confined.files.page(".", recursive=True, limit=10_000)
        assert page.truncated
        assert page.next is not None
        assert sum(len(entry.path) for entry in page.entries) < 2 << 20
        after = confined.files.page(".", recursive=True, limit=10_000, after=page.next)
        assert after.entries[0].path > page.entries[-1].path
    assert max(taken) < 1.5
    confined.files.remove("\x01" * 250, recursive=True)


def test_hd_r03_system_v_memory_is_bounded(client: Client, confined: Sandbox, target: Target) -> None:
    """It belongs to no process: neither a look at processes nor the end of a command takes it away. A kernel of the
    box's own takes it from the memory of the box, so that there the box is what ends."""
    shm = confined.info().isolation.limits["shm_mb"].value
    assert shm is not None
    if not target.own_kernel:
        held = int(confined.exec(["python3", "-c", SHARED_MEMORY, "256"]).stdout)
        assert 0 < held <= shm
        return
    memory, more = 192, 1024
    with client.open("shared", **target.where, limits=Limits(memory_mb=memory)) as sandbox:
        free = shutil.disk_usage("/").free
        result = sandbox.exec(["python3", "-c", SHARED_MEMORY, str(more)], timeout_seconds=50)
        assert result.ending.kind in (EndingKind.LOST, EndingKind.OOM) or 0 < int(result.stdout) <= memory
        assert shutil.disk_usage("/").free > free - 2**30
        assert _next(sandbox) == "still\n"
        sandbox.delete()


def _next(sandbox: Sandbox) -> str:
    """What the next command says: a box that is just ending is an error that a retry helps against."""
    end = time.monotonic() + 30
    while True:
        try:
            return sandbox.exec("echo still").stdout
        except StationError as error:
            if not error.retryable or time.monotonic() > end:
                raise


WATCHES = """
import ctypes
libc = ctypes.CDLL(None)
made = 0
while libc.inotify_init1(0) >= 0:
    made += 1
print(made, flush=True)
input()
"""


def test_hd_r12_one_box_does_not_take_all_file_watches_of_the_user(
    client: Client, confined: Sandbox, target: Target
) -> None:
    """The kernel counts them by user, and all boxes of a station may be one. The control: that is all there are."""
    whole = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    taker = confined.start(["python3", "-c", WATCHES], stdin_open=True)
    taken = int(next(iter(taker.output())).data)
    with client.open("watching", **target.where) as neighbour:
        left = int(neighbour.exec(["python3", "-c", WATCHES], stdin=b"\n").stdout)
        neighbour.delete()
    assert 0 < taken
    assert taken <= whole // 4 or target.own_kernel, "of the kernel that all share"
    assert left > 0
    taker.kill()
