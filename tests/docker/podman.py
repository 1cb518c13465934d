"""Podman's Docker API, started for a test on storage of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engine import ROOT, Engine

READY_SECONDS = 20.0
# Podman asks for limits that a root without CAP_SYS_RESOURCE, as some virtual machines have it, may not set.
_RUNTIME = """#!/usr/bin/python3
import json, os, resource, sys
words = sys.argv[1:]
bundle = next((words[at + 1] for at, word in enumerate(words) if word in ("--bundle", "-b")), None)
if bundle:
    path = os.path.join(bundle, "config.json")
    with open(path) as file:
        spec = json.load(file)
    for limit in spec["process"].get("rlimits", ()):
        most = resource.getrlimit(getattr(resource, limit["type"]))[1]
        if most != resource.RLIM_INFINITY:
            limit["hard"], limit["soft"] = min(limit["hard"], most), min(limit["soft"], most)
    with open(path, "w") as file:
        json.dump(spec, file)
os.execv({program!r}, [{program!r}, *words])
"""


def unavailable() -> str | None:
    """Why there can be none here; `None` where there can."""
    if not shutil.which("podman"):
        return "needs podman (apt-get install podman)"
    return None if os.geteuid() == 0 and _runc() else "needs root and runc, for podman"


def _runc() -> str | None:
    return shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@dataclass(frozen=True)
class Podman:
    place: Path

    @property
    def url(self) -> str:
        return f"unix://{self.place}/sock"

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "CONTAINERS_CONF": f"{self.place}/containers.conf", "DOCKER_HOST": self.url}

    def command(self, *words: str) -> list[str]:
        return ["podman", "--root", f"{self.place}/root", "--runroot", f"{self.place}/run", *words]

    def do(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(self.command(*words), env=self.environ, capture_output=True, text=True)
        if check and done.returncode != 0:
            raise RuntimeError(f"podman {' '.join(words)}: {done.stderr.strip()[-500:]}")
        return done.stdout.strip()


@contextmanager
def podman(place: Path, source: Engine, image: str) -> Iterator[Podman]:
    """With one image of `source`."""
    made = Podman(place)
    wrapper = place / "runc"
    wrapper.write_text(_RUNTIME.replace("{program!r}", repr(_runc())), encoding="utf-8")
    wrapper.chmod(0o755)
    settings = f'[engine]\nruntime = "runc"\nevents_logger = "file"\n[engine.runtimes]\nrunc = ["{wrapper}"]\n'
    limits = '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
    (place / "containers.conf").write_text(limits + settings, encoding="utf-8")
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *made.command("system", "service", "--time", "0", made.url)],
            env=made.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT,
        )  # fmt: skip
    try:
        source.docker("save", "-o", str(place / "image.tar"), image)
        made.do("load", "-i", str(place / "image.tar"))
        end = time.monotonic() + READY_SECONDS
        while not (place / "sock").exists():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"podman is not ready: {(place / 'log').read_text()[-500:]}")
            time.sleep(0.05)
        yield made
    finally:
        process.terminate()
        process.wait()
        made.do("rm", "--all", "--force", "--time", "0", check=False)
        made.do("system", "reset", "--force", check=False)
        subprocess.run(["umount", "--recursive", place / "root" / "overlay"], capture_output=True)
