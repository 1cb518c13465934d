"""Whole station processes on a real socket."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from station.core.errors import Busy, Refused
from station.server.home import Lock, bind, prepare
from station.server.logs import escape, set_up

from .conftest import until
from .served import ENV, Served


def test_a_station_serves_a_private_socket_and_ends_cleanly(serve: Callable[..., Served]) -> None:
    served = serve()
    assert served.ready
    assert stat.S_IMODE((served.home / "station.sock").stat().st_mode) == 0o600
    assert stat.S_IMODE(served.home.stat().st_mode) == 0o700
    assert (served.home / "station.lock").read_text().strip() == str(served.process.pid)
    code, words = served.end()
    assert code == 0, words
    assert "reconciled" in words
    assert not (served.home / "station.sock").exists()


def test_a_second_serve_ends_within_a_second_and_names_the_first(serve: Callable[..., Served]) -> None:
    first = serve()
    begun = time.monotonic()
    second = serve()
    code, words = second.wait()
    assert not second.ready
    assert code != 0
    assert str(first.process.pid) in words
    assert time.monotonic() - begun < 5, "most of it is Python's own start on a busy machine"
    begun = time.monotonic()
    with pytest.raises(Busy, match=str(first.process.pid)):
        Lock(first.home)
    assert time.monotonic() - begun < 1
    assert first.process.poll() is None


def test_after_kill_9_the_next_station_starts_at_once(serve: Callable[..., Served]) -> None:
    first = serve()
    first.end(signal.SIGKILL)
    assert (first.home / "station.sock").exists()
    assert serve().ready


def test_hd_d16_a_station_that_was_halted_is_not_replaced_and_one_that_was_killed_is_at_once(
    serve: Callable[..., Served],
) -> None:
    first = serve()
    first.process.send_signal(signal.SIGSTOP)
    try:
        second = serve()
        code, words = second.wait()
        assert (second.ready, code) == (False, 125)
        assert f"process {first.process.pid}" in words
    finally:
        first.process.send_signal(signal.SIGCONT)
    # A stale pid in the lock is nobody's claim: the kernel lets go of the lock with the process.
    first.end(signal.SIGKILL)
    assert (first.home / "station.lock").read_text().strip() == str(first.process.pid)
    Lock(first.home).release()
    assert serve().ready


async def test_a_stop_is_answered_and_then_happens(serve: Callable[..., Served]) -> None:
    served = serve()
    async with served.client() as client:
        assert (await client.post("/api/v1/station/stop")).status_code == 202
    assert served.wait()[0] == 0


async def test_a_client_that_hangs_up_frees_its_handler_and_ends_no_command(serve: Callable[..., Served]) -> None:
    served = serve()
    async with served.client() as client:
        uid = (await client.post("/api/v1/sandboxes", json={"name": "a"})).json()["id"]
        path = f"/api/v1/sandboxes/{uid}"
        waiting = asyncio.create_task(client.post(f"{path}/exec", json={"argv": ["sleep", "1000"]}))

        async def runs() -> bool:
            return bool((await client.get(path)).json()["processes"] == 1)

        await until(runs)
        waiting.cancel()
        await asyncio.wait([waiting])
        view = (await client.get(path)).json()
        assert view["processes"] == 1
        one = (await client.get(f"{path}/processes")).json()["processes"][0]
        assert one["state"] == "running"
        # A handler that waits for an end that never comes would hold up this stop.
        begun = time.monotonic()
        assert (await client.post("/api/v1/station/stop")).status_code == 202
    assert served.wait()[0] == 0
    assert time.monotonic() - begun < 5


async def test_an_upload_that_breaks_off_changes_nothing(serve: Callable[..., Served]) -> None:
    served = serve()
    async with served.client() as client:
        uid = (await client.post("/api/v1/sandboxes", json={"name": "a"})).json()["id"]
        files = f"/api/v1/sandboxes/{uid}/files"
        await client.put(f"{files}?path=x", content=b"old")
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(served.home / "station.sock"))
            raw.sendall(f"PUT {files}?path=x HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nnew".encode())
        assert (await client.get(f"{files}?path=x")).content == b"old"
    assert served.end()[0] == 0


def test_a_bad_setting_is_told_and_nothing_starts(serve: Callable[..., Served]) -> None:
    served = serve(STN_SANDBOX_BACKEN="x")
    code, words = served.wait()
    assert (served.ready, code) == (False, 125)
    assert "did you mean 'STN_SANDBOX_BACKEND'" in words


def test_in_the_background_the_log_is_a_file(serve: Callable[..., Served]) -> None:
    served = serve("background")
    assert served.end() == (0, "")
    assert "reconciled" in (served.home / "station.log").read_text()


def test_a_background_station_that_nobody_needs_ends_by_itself(serve: Callable[..., Served]) -> None:
    served = serve("background", "often", STN_IDLE_MINUTES="0.0001")
    assert served.wait() == (0, "")
    assert "nobody needs this station" in (served.home / "station.log").read_text()


async def test_a_live_box_keeps_a_background_station(serve: Callable[..., Served]) -> None:
    served = serve("background", "often", STN_IDLE_MINUTES="0.005")
    async with served.client() as client:
        uid = (await client.post("/api/v1/sandboxes", json={"name": "a"})).json()["id"]
    with pytest.raises(subprocess.TimeoutExpired):
        served.process.wait(1)
    async with served.client() as client:
        assert (await client.delete(f"/api/v1/sandboxes/{uid}")).status_code == 204
    assert served.wait()[0] == 0


def test_a_home_with_a_long_path_serves(serve: Callable[..., Served], tmp_path: Path) -> None:
    home = tmp_path / ("h" * 120)
    assert serve(home=home).ready
    assert (home / "station.sock").is_socket()


def test_an_open_home_is_made_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    prepare(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


@pytest.mark.root
def test_another_users_home_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(Refused, match="12345"):
        prepare(tmp_path)


def test_the_lock_is_inherited_by_no_child(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        lock.release()
        again = Lock(tmp_path)
        assert (tmp_path / "station.lock").read_text().strip() == str(os.getpid())
        again.release()
    finally:
        child.kill()
        child.wait()


async def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    bind(tmp_path).close()
    sock = bind(tmp_path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "station.sock"))
        assert client.getpeername() == sock.getsockname()
    sock.close()


def test_a_log_line_cannot_be_forged_and_the_file_is_bounded(tmp_path: Path) -> None:
    import logging

    handler = set_up(tmp_path, background=True, megabytes=1)
    try:
        logger = logging.getLogger("test.forged")
        logger.warning("a\n2026-01-01 error: \x1b[2Jforged")
        for _ in range(5000):
            logger.warning("x" * 1000)
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    logs = sorted(tmp_path.glob("station.log*"))
    assert len(logs) == 3
    assert all(log.stat().st_size <= 1 << 20 for log in logs)
    assert escape("a\n\x1b\x85") == "a\\n\\x1b\\x85"


BROKEN_STORE = """
import sys
from pathlib import Path
from station.core.errors import Unavailable
from station.backends.fake import FakeBackend
from station.server import serve
from station.server.station import Station

async def away(self):
    print("asked", flush=True)
    raise Unavailable("the store is away")

serve.HOUSEKEEPING_SECONDS = 0.02
Station.housekeeping = Station.delete_all = away
sys.exit(serve.run(Path(sys.argv[1]), serve.Options(
    make_backends=lambda home, identity, settings: {"fake": FakeBackend(home, station_id=identity)}
)))
"""


def test_a_store_that_is_away_ends_no_housekeeping_and_keeps_no_station_whose_directory_is_gone(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    command = [sys.executable, "-c", BROKEN_STORE, str(home)]
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == [b"asked\n"] * 3
        shutil.rmtree(home, ignore_errors=True)
        _, words = process.communicate(timeout=30)
    assert process.returncode == 0, words.decode()
    assert b"the state directory is gone" in words
