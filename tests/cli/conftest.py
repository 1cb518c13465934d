from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import station
from station.client._home import find_home

Stn = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A state directory whose station the commands start; the name of its default backend."""
    patch = pytest.MonkeyPatch()
    patch.setenv("STN_HOME", str(tmp_path_factory.mktemp("cli") / "home"))
    try:
        with station.connect() as client:
            backend = client.info().default_backend
            assert backend is not None
            yield backend
            for view in client.list():
                client.delete(view.name)
            client.stop()
            ended(find_home())
    finally:
        patch.undo()


def ended(home: Path) -> None:
    """Returns once the station of `home` has let go of its lock."""
    with (home / "station.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.fixture
def stn() -> Stn:
    """Runs `stn` with these words."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "station", *words]
        return subprocess.run(command, capture_output=True, timeout=50, env=dict(os.environ), **options)  # type: ignore[call-overload, no-any-return]

    return run
