"""Cgroups of boxes, version 1 or 2, where this process may make them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from station.backends._processes import kill_quietly
from station.machine import Parent, candidates

_CPU_PERIOD = 100_000
_PROBE_FILE = {"memory": ("memory.limit_in_bytes", "memory.max"), "cpu": ("cpu.cfs_quota_us", "cpu.max"),
               "pids": ("pids.max", "pids.max")}  # fmt: skip
REMOVAL_SECONDS = 5.0


@dataclass(frozen=True)
class CgroupLimits:
    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None


class BoxCgroup:
    """The cgroups of one box; found again by its paths."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = tuple(paths)

    @property
    def procs(self) -> list[str]:
        return [str(path / "cgroup.procs") for path in self.paths]

    def pids(self) -> set[int]:
        found: set[int] = set()
        for path in self.paths:
            with suppress(OSError):
                found.update(int(word) for word in (path / "cgroup.procs").read_text(encoding="ascii").split())
        return found

    def kill(self) -> None:
        for pid in self.pids():
            kill_quietly(pid)

    def oom_kills(self) -> int | None:
        """`None`: no memory cgroup, or a kernel that does not count."""
        for path in self.paths:
            for name in ("memory.events", "memory.oom_control"):
                with suppress(OSError):
                    for line in (path / name).read_text(encoding="ascii").splitlines():
                        if line.startswith("oom_kill "):
                            return int(line.split()[1])
        return None

    def memory_bytes(self) -> int | None:
        for path in self.paths:
            for name in ("memory.current", "memory.usage_in_bytes"):
                with suppress(OSError):
                    return int((path / name).read_text(encoding="ascii"))
        return None

    async def remove(self) -> None:
        """Ends what is in them and removes them. Raises TimeoutError if they do not become empty."""
        async with asyncio.timeout(REMOVAL_SECONDS):
            while not self._try_remove():
                self.kill()
                await asyncio.sleep(0.002)

    def _try_remove(self) -> bool:
        for path in self.paths:
            try:
                path.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        for parent in {path.parent for path in self.paths}:
            with suppress(OSError):  # other boxes are in it
                parent.rmdir()
        return True


class Cgroups:
    """Makes cgroups for boxes below `parents`, one directory of this station in each."""

    def __init__(self, parents: Iterable[Parent], station_id: str) -> None:
        self.parents = tuple(parents)
        self._name = f"station-{station_id}"

    @classmethod
    def probe(cls, station_id: str) -> Cgroups:
        """With those of our own cgroups that can really have children with limits. Whether a box may join, a trial box
        has to show."""
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
        usable: list[Parent] = []
        for parent in candidates(mountinfo, own):
            have = {name for used in usable for name in used.controllers}
            got = _try_parent(parent, station_id, parent.controllers - have)
            if got:
                usable.append(Parent(parent.version, parent.path, got))
        return cls(usable, station_id)

    def has(self, controller: str) -> int | None:
        """The version that has it, or `None`."""
        return next((p.version for p in self.parents if controller in p.controllers), None)

    def of(self, box_id: str) -> BoxCgroup:
        """Those that `create` makes, made or not: written down first, so that none is ever forgotten."""
        return BoxCgroup(dict.fromkeys(parent.path / self._name / box_id for parent in self.parents))

    def create(self, box_id: str, limits: CgroupLimits) -> None:
        """Raises OSError; the caller removes what `of` names then."""
        for parent in self.parents:
            path = parent.path / self._name / box_id
            _make(parent, path)
            _write_limits(parent, path, limits)


def _try_parent(parent: Parent, station_id: str, wanted: frozenset[str]) -> frozenset[str]:
    if not wanted or not os.access(parent.path, os.W_OK):
        return frozenset()
    trial = parent.path / f"station-{station_id}" / "probe"
    try:
        _make(Parent(parent.version, parent.path, wanted), trial)
    except OSError:
        with suppress(OSError):
            trial.parent.rmdir()
        return frozenset()
    # A directory in a tmpfs can be made too, and has none of these.
    got = frozenset(name for name in wanted if os.access(trial / _PROBE_FILE[name][parent.version - 1], os.W_OK))
    BoxCgroup([trial])._try_remove()
    return got


def _make(parent: Parent, path: Path) -> None:
    for _ in range(3):  # the station's directory goes when its last box does, maybe just now
        path.parent.mkdir(mode=0o755, exist_ok=True)
        if parent.version == 2:
            _enable(parent.path, parent.controllers)
            _enable(path.parent, parent.controllers)
        try:
            path.mkdir(mode=0o755, exist_ok=True)
        except FileNotFoundError:
            continue
        return
    raise FileNotFoundError(f"{path.parent} is removed again and again")


def _enable(path: Path, controllers: Iterable[str]) -> None:
    control = path / "cgroup.subtree_control"
    there = control.read_text(encoding="ascii").split()
    for name in controllers:
        if name not in there:
            with suppress(OSError):  # that one is then missing below, which the probe sees
                control.write_text(f"+{name}", encoding="ascii")


def _write_limits(parent: Parent, path: Path, limits: CgroupLimits) -> None:
    def write(name: str, value: object, *, needed: bool = True) -> None:
        if needed or (path / name).exists():
            (path / name).write_text(str(value), encoding="ascii")

    first = parent.version == 1
    if "memory" in parent.controllers and limits.memory_bytes is not None:
        write("memory.limit_in_bytes" if first else "memory.max", limits.memory_bytes)
        if first:
            write("memory.memsw.limit_in_bytes", limits.memory_bytes, needed=False)
            write("memory.swappiness", 0, needed=False)
        else:
            write("memory.swap.max", 0, needed=False)
    if "cpu" in parent.controllers and limits.cpus is not None:
        quota = max(1000, round(limits.cpus * _CPU_PERIOD))
        if first:
            write("cpu.cfs_period_us", _CPU_PERIOD)
            write("cpu.cfs_quota_us", quota)
        else:
            write("cpu.max", f"{quota} {_CPU_PERIOD}")
    if "pids" in parent.controllers and limits.pids is not None:
        write("pids.max", limits.pids)
