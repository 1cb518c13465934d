"""The binary under test and the two ways in which it is started."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.guest_c.client import Client, Guest

ROOT = Path(__file__).resolve().parents[2]
ARCH = platform.machine()
MakeGuest = Callable[..., Guest]


def build(out: Path, *, sanitize: bool = False) -> Path:
    spec = importlib.util.spec_from_file_location("guest_build", ROOT / "guest" / "build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (path,) = module.build(out, [ARCH], sanitize=sanitize)
    assert isinstance(path, Path)
    return path


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one in the package if it is newer than the sources; else it is compiled."""
    packaged = ROOT / "src" / "station" / "guest" / "bin" / f"stn-guest-{ARCH}"
    sources = (ROOT / "guest" / "src").iterdir()
    if packaged.exists() and packaged.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return packaged
    return build(tmp_path_factory.mktemp("guest"))


@contextmanager
def running(binary: Path, *options: str, boxed: bool) -> Iterator[Guest]:
    """A guest in a directory that its user can reach: pytest's own are closed to all others."""
    directory = Path(tempfile.mkdtemp(prefix="stn-guest-"))
    directory.chmod(0o755)
    copy = directory / "stn-guest"
    shutil.copy(binary, copy)
    try:
        guest = Guest(copy, directory, boxed=boxed, options=options)
        try:
            yield guest
        finally:
            guest.stop()
    finally:
        # A test that failed may leave a tree too deep for shutil.
        subprocess.run(["rm", "-rf", directory], check=True)


@pytest.fixture
def make_guest(binary: Path) -> Iterator[MakeGuest]:
    with ExitStack() as stack:

        def make(*options: str, boxed: bool = True) -> Guest:
            if boxed and not shutil.which("bwrap"):
                pytest.skip("needs bwrap")
            return stack.enter_context(running(binary, *options, boxed=boxed))

        yield make


@pytest.fixture(params=["pidns", "subreaper"])
def guest(request: pytest.FixtureRequest, make_guest: MakeGuest) -> Guest:
    """Both kinds of containment: boxed in bubblewrap with PID namespaces, and on this machine without."""
    kind: str = request.param
    return make_guest("--containment", kind, "--nproc", "80", boxed=kind == "pidns")


@pytest.fixture
def client(guest: Guest) -> Iterator[Client]:
    with guest.connect() as client:
        yield client


@pytest.fixture
def boxed(make_guest: MakeGuest) -> Iterator[Client]:
    with make_guest().connect() as client:
        yield client
