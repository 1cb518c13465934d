"""A Docker Engine for the tests: the one of DOCKER_HOST, or one of our own where root can start it.

An engine of our own keeps its images between runs, in a slot below `.images` (STN_TEST_CACHE names another folder);
runs at the same time take different slots. What a run that was killed has left in a slot is removed by the next.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READY_SECONDS = 30.0
END_SECONDS = 20.0
SMALLEST = "station-test/static"
# ptrace, as kvm may hang and systrap is not in every release; no network, as no box has one.
RUNTIMES = {
    "runsc": ["--platform=ptrace", "--network=none"],
    "crun": [],
}


GIVEN = "STN_TEST_ENGINE"
"""An engine that runs already, for processes that test side by side: what `Engine` holds, as JSON."""
_running: list[Engine] = []


class EngineError(Exception):
    """The engine does not do what the tests need of it; the text ends with its own words."""


@dataclass(frozen=True)
class Engine:
    """An engine that answers."""

    url: str
    runtimes: dict[str, str | None] = field(default_factory=dict)
    """By name: `None` where it has run a program here, else why it cannot."""

    def docker(self, *arguments: str, check: bool = True) -> str:
        """What the docker command prints."""
        done = subprocess.run(
            ["docker", *arguments], env={**os.environ, "DOCKER_HOST": self.url}, capture_output=True, text=True
        )
        if check and done.returncode != 0:
            raise EngineError(f"docker {' '.join(arguments)}: {done.stderr.strip()[-1000:]}")
        return done.stdout.strip()

    def works(self, runtime: str) -> bool:
        return runtime in self.runtimes and self.runtimes[runtime] is None


def unavailable() -> str | None:
    """Why no engine can be had here; `None` where one can."""
    if not shutil.which("docker"):
        return "needs the docker command (apt-get install docker.io)"
    if os.environ.get("DOCKER_HOST"):
        return None
    if os.geteuid() != 0:
        return "needs DOCKER_HOST, or to be root"
    return None if _dockerd() else "needs DOCKER_HOST, or dockerd (apt-get install docker.io)"


def expected_backends() -> list[str]:
    """Those that must run where an engine can be had: gVisor too where it is installed."""
    if unavailable():
        return []
    return ["docker", "gvisor"] if shutil.which("runsc") else ["docker"]


@contextmanager
def engine(images: Sequence[str] = ()) -> Iterator[Engine]:
    """An engine with the images of scripts/image, all of them or those named, and its runtimes tried.

    Within another call of this process, or below `python -m tests.engine COMMAND`, it is that one's.
    """
    if given := os.environ.get(GIVEN):
        yield Engine(**json.loads(given))
        return
    if _running:
        yield _running[-1]
        return
    with ExitStack() as stack:
        url = os.environ.get("DOCKER_HOST") or stack.enter_context(OwnEngine.in_a_slot()).url
        built = subprocess.run([ROOT / "scripts" / "image", *images], env={**os.environ, "DOCKER_HOST": url})
        if built.returncode != 0:
            raise EngineError("scripts/image has failed")
        found = json.loads(Engine(url).docker("info", "--format", "{{json .Runtimes}}"))
        _running.append(Engine(url, {name: _trial(Engine(url), name) for name in ("runc", *RUNTIMES) if name in found}))
        stack.callback(_running.clear)
        yield _running[-1]


def _trial(engine: Engine, runtime: str) -> str | None:
    try:
        engine.docker("run", "--rm", "--runtime", runtime, "--network", "none", SMALLEST)
    except EngineError as error:
        return str(error).splitlines()[0].partition("failed: ")[2] or str(error)
    return None


class OwnEngine:
    """A dockerd of ours: no bridge, no rule of any firewall, boxes outlive it."""

    live_restore = True
    """Read at each start; an engine without it stops its containers when it ends, or when it finds them again."""

    def __init__(self, data: Path, run: Path, *, hosts: Sequence[str] = (), options: Sequence[str] = ()) -> None:
        self.data, self.run = data, run
        self.url = f"unix://{run}/docker.sock"
        self._hosts, self._options = hosts, options
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def in_a_slot(cls, **more: Sequence[str]) -> Iterator[OwnEngine]:
        """Started on the first slot that nobody uses; at the end no container is left."""
        cache = Path(os.environ.get("STN_TEST_CACHE") or ROOT / ".images").absolute()
        name = hashlib.sha256(os.fsencode(cache)).hexdigest()[:8]
        number = 0
        while True:
            data = cache / f"engine-{number}"
            data.mkdir(parents=True, exist_ok=True)
            with open(data / "lock", "wb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    number += 1
                    continue
                # The same folder each time: what a killed run has left is found by its sockets there.
                own = cls(data, Path(f"/run/station-test-{name}-{number}"), **more)
                try:
                    own.start()
                    own.empty()
                    yield own
                finally:
                    own.end()
                return

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Returns when it answers."""
        self.run.mkdir(parents=True, exist_ok=True)
        path = {name: shutil.which(name) for name in RUNTIMES}
        runtimes = {n: {"path": path[n], "runtimeArgs": a} for n, a in RUNTIMES.items() if path[n]}
        (self.data / "daemon.json").write_text(json.dumps({"live-restore": self.live_restore, "runtimes": runtimes}))
        # setpriv: nobody is left behind by a run that is killed.
        command = [
            "setpriv",
            "--pdeathsig",
            "TERM",
            _dockerd() or "dockerd",
            "--config-file",
            f"{self.data}/daemon.json",
        ]
        command += [
            "--data-root",
            f"{self.data}/data",
            "--exec-root",
            f"{self.run}/exec",
            "--pidfile",
            f"{self.run}/pid",
        ]
        command += ["--bridge", "none", "--iptables=false", *self._options]
        for host in (self.url, *self._hosts):
            command += ["--host", host]
        (self.run / "pid").unlink(missing_ok=True)
        (self.run / "docker.sock").unlink(missing_ok=True)
        with open(self.data / "log", "wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + READY_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise EngineError(f"dockerd is not ready: {self.log()[-1000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        if not (self.run / "docker.sock").exists():
            return False
        environment = {**os.environ, "DOCKER_HOST": self.url}
        return subprocess.run(["docker", "version"], env=environment, capture_output=True).returncode == 0

    def log(self) -> str:
        return (self.data / "log").read_text(errors="replace")

    def empty(self) -> None:
        """No container and no volume."""
        client = Engine(self.url)
        if found := client.docker("ps", "-aq").split():
            client.docker("rm", "-f", "-v", *found)
        if found := client.docker("volume", "ls", "-q").split():
            client.docker("volume", "rm", "-f", *found)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends dockerd alone, as an update of it does; running containers go on."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def end(self) -> None:
        """Ends dockerd and every container; the images stay."""
        try:
            if self._process is not None and self._process.poll() is None:
                self.empty()
        finally:
            self.stop()
            # With live-restore dockerd leaves its folder mounted on itself.
            subprocess.run(["umount", "--recursive", self.data / "data"], capture_output=True)
            shutil.rmtree(self.run, ignore_errors=True)


def _dockerd() -> str | None:
    return shutil.which("dockerd") or shutil.which("dockerd", path="/usr/sbin:/sbin")


def main(command: list[str]) -> int:
    """With a command: runs it beside an engine, where one can be had. Without: prints the backends that must run."""
    if not command:
        print(",".join(expected_backends()))
        return 0
    if unavailable():
        return subprocess.run(command).returncode
    with engine() as found:
        return subprocess.run(command, env={**os.environ, GIVEN: json.dumps(asdict(found))}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
