"""A whole station process with the strongest backend that works here, on TCP beside its socket."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from station import connect


@dataclass(frozen=True)
class Offered:
    """A station of its own on TCP, with a sandbox in it."""

    url: str
    token: str
    home: Path
    sandbox: str
    log: Path


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory, ran: Callable[[str], None]) -> Iterator[Offered]:
    folder = tmp_path_factory.mktemp("offered")
    home, log = folder / "home", folder / "log"
    command = [sys.executable, "-m", "station", "serve", "--home", str(home), "--listen", "127.0.0.1:0", "--json"]
    with log.open("wb") as words:
        station = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=words, cwd=folder)
    try:
        assert station.stdout is not None
        url = json.loads(station.stdout.readline())["url"]
        with connect(home) as client:
            backend = client.info().default_backend
            if backend is None:
                pytest.skip("no backend that isolates works here")
            sandbox = client.open("fuzzed")
            sandbox.exec("mkdir -p a && echo b > a/b")
            yield Offered(url, (home / "operator.token").read_text().strip(), home, sandbox.id, log)
            assert sandbox.exec("echo still here").stdout == "still here\n"
            ran(backend)
            for view in client.list():
                client.delete(view.name)
    finally:
        station.terminate()
        station.communicate(timeout=30)
