"""A station that strikes itself at a named step, and the clean one that the SDK starts after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from station import Client, connect


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stn-chaos-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)
        with connect(directory) as client:
            client.stop()


def pid_of(home: Path) -> int:
    return int((home / "station.lock").read_text().split()[0])


@pytest.fixture
def strike(home: Path, client: Client) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Replaces the running station by one that kills itself at a step; later ones, which the SDK starts, are clean."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(step: str) -> subprocess.Popen[bytes]:
        client.stop()
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "station", "serve", "--ready-fd", str(writer), "--home", str(home)]
        environment = os.environ | {"STN_FAIL": f"{step}:kill9"}
        process = subprocess.Popen(command, pass_fds=[writer], env=environment, stderr=subprocess.DEVNULL)
        os.close(writer)
        started.append(process)
        with open(reader, "rb") as ready:
            assert ready.read(1), "the station with the failpoint did not start"
        return process

    yield begin
    for process in started:
        assert process.wait(10) == -signal.SIGKILL, "the failpoint was never met"
