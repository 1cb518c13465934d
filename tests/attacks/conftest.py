"""One station for the attacks, a fresh sandbox for each, and the unhardened target on which each must succeed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from station import Client, Sandbox, connect
from tests.observer import Observer

PROBES = Path(__file__).with_name("probes.py")
Probe = Callable[..., str]


@pytest.fixture(scope="module")
def station_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stn-attacks-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        (home / "station.yaml").write_text("sandbox:\n  allow_host: true\n", encoding="utf-8")
        yield home
        with connect(home) as client:
            client.stop()


@pytest.fixture
def client(station_home: Path) -> Iterator[Client]:
    with connect(station_home) as made:
        yield made


@pytest.fixture
def observer(station_home: Path) -> Observer:
    return Observer(station_home)


@pytest.fixture
def confined(client: Client, observer: Observer, ran: Callable[[str], None]) -> Iterator[Sandbox]:
    """A sandbox of a confining backend; afterwards it still answers, and nothing runs in it that did not before."""
    ran("bubblewrap")
    yield from _checked(client, "bubblewrap", observer)


@pytest.fixture(params=["bubblewrap", "host"])
def anywhere(
    request: pytest.FixtureRequest, client: Client, observer: Observer, ran: Callable[[str], None]
) -> Iterator[Sandbox]:
    """A sandbox of each backend."""
    ran(request.param)
    yield from _checked(client, request.param, observer)


def _checked(client: Client, backend: str, observer: Observer) -> Iterator[Sandbox]:
    with client.open(f"attack-{uuid.uuid4()}", backend=backend) as sandbox:
        idle = observer.processes(sandbox)
        yield sandbox
        assert sandbox.exec("echo ok").stdout == "ok\n"
        observer.until(lambda: observer.processes(sandbox) <= idle, "a process of the attack is left")
        sandbox.delete()


@pytest.fixture
def attack() -> Probe:
    """Runs a probe in a sandbox; answers its one line."""

    def run(sandbox: Sandbox, name: str, *args: str) -> str:
        sandbox.files.write("probes.py", PROBES.read_bytes())
        return sandbox.exec(["python3", "probes.py", name, *args], timeout_seconds=30).stdout.strip()

    return run


@pytest.fixture
def control(tmp_path: Path) -> Probe:
    """Runs a probe on an unhardened target: a plain process in a PID namespace where root can make one, and in a user
    namespace of its own where `mounts` is asked for. Answers its one line."""

    def run(name: str, *args: str, mounts: bool = False) -> str:
        prefix = ["unshare", "--pid", "--fork", "--mount-proc"]
        if mounts or os.geteuid() != 0:
            prefix += ["--user", "--map-root-user", "--mount"]
        done = subprocess.run(
            [*prefix, sys.executable, PROBES, name, *args], cwd=tmp_path, capture_output=True, text=True, timeout=30
        )
        return done.stdout.strip()[-2000:]

    return run
