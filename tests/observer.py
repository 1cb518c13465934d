"""Looks at boxes from the host, as nobody inside can: the judge of the attack and leak tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from station import Sandbox
from tests.engine import Engine


class Observer:
    """Sees the processes, descriptors, mounts and files of one station's boxes."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def boxes(self, uid: str) -> list[str]:
        """Names of the boxes of the sandbox `uid`."""
        found = (path for path in (self.home / "boxes").glob("*/*") if path.name != "quota")  # the engine's disks
        return [path.name for path in found if uid in _labels(path)]

    def guests(self, uid: str = "") -> set[int]:
        """Pids of the processes whose command line names a box of the sandbox `uid`: guest and monitor."""
        boxes = {path.name for path in (self.home / "boxes").glob("*/*") if uid in _labels(path)}
        return {pid for pid in pids() if any(box in command_line(pid) for box in boxes)}

    def all_guests(self) -> set[int]:
        """Those of every box of this station."""
        return self.guests()

    def pool_boxes(self) -> set[str]:
        """Names of the boxes that belong to the station process."""
        return {path.name for path in (self.home / "boxes").glob("*/*") if '"pool": true' in _labels(path)}

    def processes(self, sandbox: Sandbox) -> set[int]:
        """Pids of all processes of a sandbox's box, the guest included."""
        return descendants(self.guests(sandbox.id))

    def files(self) -> set[str]:
        """Every path below the state directory that belongs to a box or a sandbox."""
        tops = (self.home / name for name in ("boxes", "sandboxes", "output"))
        # os.walk, as it passes over what is gone by the time it gets there.
        walk = (found for top in tops for found in os.walk(top))
        return {os.path.join(place, name) for place, folders, files in walk for name in (*folders, *files)}

    def mounts(self) -> int:
        """Mounts of this station in this process's own namespace; those of engines and other tests come and go."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return sum(str(self.home) in line for line in lines)

    def cgroups(self) -> set[str]:
        """Control groups of Station's boxes."""
        walk = os.walk("/sys/fs/cgroup")
        return {os.path.join(top, name) for top, names, _ in walk for name in names if self._ours(name)}

    def _ours(self, name: str) -> bool:
        return (self.home / "station_id").read_text().strip() in name

    @staticmethod
    def until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
        """Returns when `condition` holds; fails with `what` if it does not within the bound."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, what
            os.sched_yield()


def _labels(box: Path) -> str:
    try:
        return (box / "labels.json").read_text()
    except OSError:
        return ""


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def of_process(pid: int, name: str) -> bytes:
    """That file of a process in /proc; empty for a process that has ended, as any seen in a listing may have."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def command_line(pid: int) -> str:
    return of_process(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")


def owner(pid: int) -> int | None:
    """The uid that it has outside; `None` for one that has ended."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def descendants(roots: set[int]) -> set[int]:
    """`roots` and all processes below them, by one reading of /proc."""
    parents = {}
    for pid in pids():
        if stat := of_process(pid, "stat").decode(errors="replace"):
            parents[pid] = int(stat.rpartition(")")[2].split()[1])
    found = set(roots) & set(parents)
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


class EngineObserver(Observer):
    """The same for boxes of an engine, by their label."""

    def __init__(self, home: Path, engine: Engine, *, own_kernel: bool) -> None:
        super().__init__(home)
        self.engine = engine
        self._own_kernel = own_kernel

    def containers(self, uid: str = "") -> list[str]:
        """Ids of this station's containers, or of those of the sandbox `uid`."""
        labels = [f"label=station.station={(self.home / 'station_id').read_text().strip()}"]
        labels += [f"label=station.id={uid}"] if uid else []
        return self.engine.docker("ps", "-aq", *(word for label in labels for word in ("--filter", label))).split()

    def boxes(self, uid: str) -> list[str]:
        return self.containers(uid)

    def pool_boxes(self) -> set[str]:
        ours = f"label=station.station={(self.home / 'station_id').read_text().strip()}"
        return set(self.engine.docker("ps", "-aq", "--filter", ours, "--filter", "label=station.pool=true").split())

    def guests(self, uid: str = "") -> set[int]:
        found = self.containers(uid)
        if not found:
            return set()
        # Of one that is gone meanwhile it prints nothing, and fails.
        told = self.engine.docker("inspect", "-f", "{{.State.Pid}}", *found, check=False)
        return {int(pid) for pid in told.split()} - {0}

    def processes(self, sandbox: Sandbox) -> set[int]:
        """A kernel of its own shows its processes only within: those that one command sees, itself left out."""
        if not self._own_kernel:
            return descendants(self.guests(sandbox.id))
        seen = sandbox.exec("echo $$ /proc/[0-9]*").stdout.split()
        return {int(name.removeprefix("/proc/")) for name in seen[1:]} - {int(seen[0])} if seen else set()


def engine_of(observer: Observer) -> Engine:
    assert isinstance(observer, EngineObserver)
    return observer.engine
