from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

import station
from station.client._home import find_home

from .stub import Stub, serving


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def stub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setenv("STN_HOME", str(home))
    stub = Stub()
    with serving(stub, home):
        yield stub


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A state directory with a real station, which the SDK starts and this ends; the name of its default backend."""
    patch = pytest.MonkeyPatch()
    patch.setenv("STN_HOME", str(tmp_path_factory.mktemp("real") / "home"))
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
