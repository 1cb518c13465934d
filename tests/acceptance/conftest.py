"""One station for each file, spoken to as users do: by the SDK and by the command `stn`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from station import Client, Sandbox, connect

Stn = Callable[..., "subprocess.CompletedProcess[bytes]"]


@contextmanager
def state_directory(settings: str = "sandbox:\n  allow_host: true\n") -> Iterator[Path]:
    """An empty one with these settings; its sandboxes and its station are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="stn-acc-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        (home / "station.yaml").write_text(settings, encoding="utf-8")
        yield home
        # Where the settings let no station start there is nothing to end.
        if (home / "boxes").exists():
            with connect(home) as client:
                for view in client.list():
                    client.delete(view.name)
                for deployment in client.deployments.list():
                    client.deployments.delete(deployment.name, force=True)
                client.stop()


def stn_of(home: Path, *, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Stn:
    """Runs `stn` with these words for the station of `home`."""

    def run(*words: str | bytes, **options: object) -> subprocess.CompletedProcess[bytes]:
        command = [*prefix, sys.executable, "-m", "station", *words]
        environment = os.environ | {"STN_HOME": str(home)} | dict(env or {})
        return subprocess.run(command, capture_output=True, timeout=50, env=environment, **options)  # type: ignore[call-overload, no-any-return]

    return run


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with state_directory() as home:
        yield home


@pytest.fixture
def stn(home: Path) -> Stn:
    return stn_of(home)


@pytest.fixture(params=["bubblewrap", "host"])
def anywhere(request: pytest.FixtureRequest, client: Client, ran: Callable[[str], None]) -> Iterator[Sandbox]:
    """A sandbox of each backend."""
    ran(request.param)
    with client.open(f"acc-{uuid.uuid4()}", backend=request.param) as sandbox:
        yield sandbox
        sandbox.delete()


@pytest.fixture
def confined(client: Client, ran: Callable[[str], None]) -> Iterator[Sandbox]:
    """A sandbox of a confining backend."""
    ran("bubblewrap")
    with client.open(f"acc-{uuid.uuid4()}", backend="bubblewrap") as sandbox:
        yield sandbox
        sandbox.delete()
