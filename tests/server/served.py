"""A whole station process with the fake backend."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

SERVE = """
import sys
from pathlib import Path
from station.backends.fake import FakeBackend
from station.server.serve import Options, run
from station.server import serve
if "often" in sys.argv:
    serve.HOUSEKEEPING_SECONDS = 0.02
if "face" in sys.argv:
    from tests.server.stub_face import stub
fd = int(sys.argv[2])
sys.exit(run(Path(sys.argv[1]), Options(
    background="background" in sys.argv, ready_fd=fd if fd > 0 else None, json="json" in sys.argv,
    faces={"/stub": lambda: stub} if "face" in sys.argv else {},
    make_backends=lambda home, identity, settings: {"fake": FakeBackend(home, station_id=identity)},
)))
"""
ENV = {**os.environ, "STN_SANDBOX_BACKEND": "fake", "STN_SANDBOX_POOL_SIZE": "1"}


class Served:
    def __init__(self, home: Path, *words: str, **env: str) -> None:
        self.home = home
        reader, writer = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(home), str(writer), *words],
            pass_fds=[writer],
            env={**ENV, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(writer)
        self.ready = os.read(reader, 1) == b"\n"
        os.close(reader)
        self.printed = ""

    def client(self) -> httpx2.AsyncClient:
        transport = httpx2.AsyncHTTPTransport(uds=str(self.home / "station.sock"))
        return httpx2.AsyncClient(transport=transport, base_url="http://station", timeout=10)

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / "listening.json").read_text())
        return found

    @property
    def token(self) -> str:
        return (self.home / "operator.token").read_text().strip()

    def tcp(self, **headers: str) -> httpx2.AsyncClient:
        if "authorization" not in headers:
            headers["authorization"] = f"Bearer {self.token}"
        return httpx2.AsyncClient(base_url=self.told["url"], headers=headers, timeout=10, trust_env=False)

    def connect(self) -> socket.socket:
        host, _, port = self.told["url"].removeprefix("http://").rpartition(":")
        return socket.create_connection((host, int(port)), timeout=10)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        self.printed, words = self.process.communicate(timeout=20)
        return self.process.returncode, words

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*words: str, home: Path | None = None, **env: str) -> Served:
        started.append(Served(home or tmp_path / "home", *words, **env))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One that listens on TCP, with a stub face, for a whole module."""
    served = Served(tmp_path_factory.mktemp("listening") / "home", "face", STN_LISTEN="127.0.0.1:0")
    assert served.ready
    yield served
    code, words = served.end()
    assert code == 0, words
    assert served.token not in words + served.printed
