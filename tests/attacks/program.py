"""The static attack program: compiled once, run in a box or on the unhardened control, its one line read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from station import Process, Sandbox
from station.core.attacks import Line
from station.core.endings import EndingKind

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("programs")
NAME = "attack-program"
FLAGS = ("-static", "-Os", "-s", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror")


def compiled() -> Path:
    """The binary; compiled where the one in the cache is of other sources."""
    sources = sorted(SOURCE.iterdir())
    state = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources) + repr(FLAGS).encode()).hexdigest()
    place = Path(os.environ.get("STN_TEST_CACHE") or ROOT / ".images")
    if not os.access(place if place.exists() else place.parent, os.W_OK):
        place = Path(tempfile.mkdtemp(prefix="stn-attack-"))
    binary = place / f"attack-{platform.machine()}-{state[:16]}"
    if binary.exists():
        return binary
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=".build-") as scratch:
        made = Path(scratch) / "attack"
        command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{platform.machine()}-linux-musl", *FLAGS]
        command += [str(source) for source in sources if source.suffix == ".c"]
        subprocess.run([*command, "-o", str(made)], check=True)
        made.chmod(0o755)
        made.rename(binary)
    return binary


def put(sandbox: Sandbox, binary: Path) -> None:
    """As code in the box brings it: the file tools are not what is tested here."""
    assert sandbox.exec(f"[ -x {NAME} ] || {{ cat > {NAME} && chmod 755 {NAME}; }}", stdin=binary.read_bytes()).ok


def run(sandbox: Sandbox, binary: Path, case: str, *arguments: str) -> Line:
    put(sandbox, binary)
    result = sandbox.exec([f"./{NAME}", case, *arguments], timeout_seconds=30)
    assert result.stdout, f"the attack did not run: {result.ending} {result.stderr}"
    return Line.read(result.stdout)


def control_argv(binary: Path, case: str, *arguments: str) -> list[str]:
    """On a plain process of root, in namespaces to throw away; of a user's own where this is no root."""
    argv = ["unshare", "--pid", "--fork", "--mount-proc", "--mount", "--net", "--kill-child"]
    if os.geteuid() != 0:
        argv += ["--user", "--map-root-user"]
    # Not as PID 1: that one is a victim.
    return [*argv, "sh", "-c", '"$@"; exit $?', "sh", str(binary), case, *arguments]


def control(binary: Path, where: Path, case: str, *arguments: str) -> Line:
    done = subprocess.run(
        control_argv(binary, case, *arguments),
        cwd=where,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout, f"the control did not run: {done.stderr}"
    return Line.read(done.stdout)


@contextlib.contextmanager
def holding(sandbox: Sandbox, binary: Path, *arguments: str) -> Iterator[Line]:
    """The program at work in a sandbox: it has spoken, and stays until the end."""
    put(sandbox, binary)
    process = sandbox.start([f"./{NAME}", *arguments], stdin_open=True, timeout_seconds=50)
    yield Line.read(_line(process))
    process.close_stdin()
    assert process.wait().ending.kind is EndingKind.EXITED


def _line(process: Process) -> str:
    got = b""
    for chunk in process.output():
        got += chunk.data
        if got.endswith(b"\n"):
            break
    return got.decode()


@contextlib.contextmanager
def control_holding(binary: Path, *arguments: str) -> Iterator[Line]:
    with subprocess.Popen(
        [str(binary), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        yield Line.read(process.stdout.readline())
