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
from tests.observer import EngineObserver, Observer

FULL = bool(os.environ.get("STN_TEST_FULL"))
IMAGE = "python:3.11-slim"
ON_DOCKER = pytest.param("docker", marks=pytest.mark.docker)
IN_FULL_ON_DOCKER = pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.full])


def cycles(*steps: str, on_docker: str) -> pytest.MarkDecorator:
    """Of `backend`, `step` and `turn`: each step a few times; on docker, where a cycle takes longer, each five times in
    the full tier (50 with all steps), and in the fast one that of `on_docker` alone."""
    found: list[object] = [(None, step, turn) for turn in range(20 if FULL else 2) for step in steps]
    for turn in range(5 if FULL else 1):
        chosen = steps if FULL else on_docker.split()
        found += [pytest.param("docker", step, turn, marks=pytest.mark.docker) for step in chosen]
    return pytest.mark.parametrize(("backend", "step", "turn"), found, indirect=["backend"])


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> str | None:
    """`None`: the best without an engine."""
    found: str | None = getattr(request, "param", None)
    return found


@pytest.fixture(scope="module")
def home(request: pytest.FixtureRequest, backend: str | None) -> Iterator[Path]:
    with (
        tempfile.TemporaryDirectory(prefix="stn-chaos-", ignore_cleanup_errors=True) as directory,
        pytest.MonkeyPatch.context() as patch,
    ):
        if backend is not None:  # a station is started with this process's environment
            patch.setenv("DOCKER_HOST", request.getfixturevalue("engine").url)
            settings = f"sandbox:\n  backend: docker\n  docker_image: {IMAGE}\n  docker_runtime: runc\n"
            (Path(directory) / "station.yaml").write_text(settings, encoding="utf-8")
        yield Path(directory)
        with connect(directory) as client:
            for view in client.list():
                client.delete(view.name)
            client.stop()


@pytest.fixture
def observer(request: pytest.FixtureRequest, home: Path, backend: str | None) -> Observer:
    if backend is None:
        return Observer(home)
    return EngineObserver(home, request.getfixturevalue("engine"), own_kernel=False)


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
