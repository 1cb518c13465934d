"""One station for each file, reached over both transports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.conftest import state_directory

from .peers import KINDS, Peer, Target


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Path, Target]]:
    """A station that listens on TCP too: its state directory, and how its tools are reached over HTTP."""
    command = [sys.executable, "-m", "station", "serve", "--listen", "127.0.0.1:0", "--json"]
    process = None
    try:
        with state_directory("") as home, (home / "serve.log").open("wb") as log:
            env = os.environ | {"STN_HOME": str(home)}
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log)
            assert process.stdout
            line = process.stdout.readline()
            assert line, (home / "serve.log").read_text(encoding="utf-8")
            found = json.loads(line)
            token = Path(found["token_file"]).read_text(encoding="ascii").strip()
            yield home, {"url": f"{found['url']}/mcp", "token": token}
        # Leaving the state directory ended it.
        process.wait(timeout=15)
    finally:
        if process is not None:
            with process:
                process.kill()


@pytest.fixture(scope="module")
def home(served: tuple[Path, Target]) -> Path:
    return served[0]


@pytest.fixture(scope="module")
def http(served: tuple[Path, Target]) -> Target:
    return served[1]


@pytest.fixture(scope="module")
def stdio(home: Path) -> Target:
    return {"command": sys.executable, "args": ["-m", "station", "mcp"], "env": {"STN_HOME": str(home)}}


class Fleet:
    """Clients by their name in `KINDS` and their transport. They take seconds to start: the next one does so while one
    is tested.
    """

    def __init__(self, names: list[str], targets: dict[str, Target]) -> None:
        self._names = names
        self._targets = targets
        self._started: dict[str, Peer] = {}

    def take(self, name: str) -> Peer:
        """It is the caller's then, to be left."""
        here = self._names.index(name)
        for other in self._names[here : here + 2]:
            if other not in self._started:
                kind, _, transport = other.rpartition("-")
                self._started[other] = Peer(KINDS[kind], self._targets[transport])
        return self._started.pop(name)

    def rest(self) -> list[Peer]:
        return list(self._started.values())


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest, http: Target, stdio: Target) -> Iterator[Fleet]:
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    names = dict.fromkeys(str(item.callspec.params["peer"]) for item in items if "peer" in item.fixturenames)
    fleet = Fleet(list(names), {"http": http, "stdio": stdio})
    yield fleet
    with ExitStack() as stack:
        for peer in fleet.rest():
            stack.enter_context(peer)


@pytest.fixture(scope="module")
def peer(request: pytest.FixtureRequest, fleet: Fleet, client_ran: Callable[[str], None]) -> Iterator[Peer]:
    with fleet.take(request.param) as peer:
        assert peer.do("info")["protocol"] == peer.kind.revision
        client_ran(request.param)
        yield peer


@pytest.fixture(scope="module")
def sandbox_id(peer: Peer, request: pytest.FixtureRequest) -> str:
    """A sandbox of this client's own."""
    found = peer.call("sandbox_open", session_key=request.node.name)
    return str(found["sandbox_id"])
