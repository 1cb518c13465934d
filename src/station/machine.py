"""Looks at the machine: files of /proc and /sys, the state directory's disk, the kernel's clock. Nothing is changed.

Below every role and face, so that a station and a command line that finds none say the same.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from station.core.machine import CONTROLLERS, USER_NAMESPACES, Disk, Machine, container_of

_SYSCTLS = (
    *(switch.name for switch in USER_NAMESPACES),
    "fs.protected_symlinks",
    "fs.protected_hardlinks",
    "fs.protected_fifos",
    "fs.protected_regular",
    "fs.inotify.max_user_instances",
    "dev.tty.legacy_tiocsti",
    "kernel.io_uring_disabled",
    "kernel.yama.ptrace_scope",
)
_TIMEX_BYTES = 256
_TIME_ERROR = 5


def look(
    state: Path | None = None,
    *,
    root: Path = Path("/"),
    clock: Callable[[], bool | None] | None = None,
    space: Callable[[Path], Disk | None] | None = None,
) -> Machine:
    """What this machine tells now; what it does not tell is unknown, and nothing is raised.

    `state`: the state directory, or where it would be. `root`: where proc, sys and run are. `clock`, `space`: instead
    of `clock_synced` and `disk_of`.
    """
    proc = root / "proc"
    cgroups = _cgroups(root)
    accounted = [path for path in cgroups.places if _accounts_swap(path)]
    return Machine(
        release=_text(proc / "sys/kernel/osrelease").strip(),
        architecture=platform.machine(),
        python=platform.python_version(),
        user=os.geteuid(),
        sysctls={name: value for name in _SYSCTLS if (value := _sysctl(proc, name)) is not None},
        container=container_of(_text(proc / "1/cgroup"), _text(proc / "1/environ"), _marks(root)),
        chroot=_in_chroot(root),
        cgroup_version=cgroups.version,
        controllers=cgroups.controllers,
        swap=_swaps(proc),
        swap_accounted=bool(accounted) if cgroups.places else None,
        seccomp=_has_seccomp(proc),
        ksm=_number(root / "sys/kernel/mm/ksm/run"),
        clock_synced=(clock or clock_synced)(),
        disk=(space or disk_of)(state) if state is not None else None,
    )


def disk_of(path: Path) -> Disk | None:
    """Of the file system where the path is, or will be; `None`: it cannot be looked at."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    inodes = found.f_favail / found.f_files if found.f_files else None
    return Disk(str(path), found.f_bavail / found.f_blocks if found.f_blocks else 0.0, inodes)


def clock_synced() -> bool | None:
    """As the kernel knows it, whichever program keeps the time; `None`: it may not be asked here."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # zeros: nothing is changed
    try:
        state: int = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


# ── cgroups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Parent:
    """A directory below which boxes may get cgroups with these controllers."""

    version: int
    path: Path
    controllers: frozenset[str]


def candidates(mountinfo: str, self_cgroup: str) -> list[Parent]:
    """Where this process's own cgroups are, from /proc/self/mountinfo and /proc/self/cgroup. Pure; nothing is tried.

    By the type of what is mounted: on version 1 a directory can be made in the tmpfs around it as well. Below version 2
    a cgroup with processes cannot have children with limits (the root can), so its parent stands too.
    """
    own = {}
    for line in self_cgroup.splitlines():
        _, names, path = line.split(":", 2)
        own[names] = path
    found: list[Parent] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(" ", 2)
        root, mount = fields[3], Path(_unescape(fields[4]))
        if kind == "cgroup2" and "" in own:
            here = _below(mount, root, own[""])
            found += [Parent(2, p, CONTROLLERS) for p in dict.fromkeys((here, here.parent)) if p.is_relative_to(mount)]
        elif kind == "cgroup":
            controllers = CONTROLLERS & set(options.split(","))
            joined = next((n for n in own if controllers and controllers <= set(n.split(","))), None)
            if joined is not None:
                found.append(Parent(1, _below(mount, root, own[joined]), controllers))
    return found


def _below(mount: Path, root: str, path: str) -> Path:
    inside = path.removeprefix(root) if root != "/" else path
    return mount / inside.lstrip("/") if not inside.startswith("/..") else mount


def _unescape(text: str) -> str:
    return text.replace("\\040", " ").replace("\\134", "\\")


@dataclass(frozen=True)
class _Found:
    version: int | None
    controllers: frozenset[str]
    places: tuple[Path, ...]


def _cgroups(root: Path) -> _Found:
    """The version below which most can be given, else the one that has most; 2 before 1."""
    mountinfo, own = _text(root / "proc/self/mountinfo"), _text(root / "proc/self/cgroup")
    try:
        found = candidates(mountinfo, own)
        parents = [Parent(p.version, root / p.path.relative_to("/"), p.controllers) for p in found]
    except (ValueError, IndexError):
        return _Found(None, frozenset(), ())
    offered: dict[int, frozenset[str]] = {}
    usable: dict[int, frozenset[str]] = {}
    for parent in parents:
        got = parent.controllers & _offered(parent)
        offered[parent.version] = offered.get(parent.version, frozenset()) | got
        if os.access(parent.path, os.W_OK):
            usable[parent.version] = usable.get(parent.version, frozenset()) | got
    # Hybrid: both are mounted, and one has all controllers.
    version = max(offered, key=lambda one: (len(usable.get(one, ())), len(offered[one]), one), default=0)
    return _Found(version or None, usable.get(version, frozenset()), tuple(parent.path for parent in parents))


def _offered(parent: Parent) -> frozenset[str]:
    """Of version 2, where a hybrid machine keeps none of them."""
    if parent.version == 1:
        return parent.controllers
    return frozenset(_text(parent.path / "cgroup.controllers").split())


def _accounts_swap(place: Path) -> bool:
    return any((place / name).exists() for name in ("memory.swap.max", "memory.memsw.limit_in_bytes"))


# ── single files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_chroot(root: Path) -> bool:
    """Whether the root directory is neither the first process's nor a mount point."""
    try:
        if os.path.samefile(root / "proc/1/root", root):
            return False
    except OSError:
        pass  # root's alone to know; the mounts tell all
    mounts = _text(root / "proc/self/mountinfo").splitlines()
    return bool(mounts) and not any(line.split(" ")[4:5] == ["/"] for line in mounts)


def _marks(root: Path) -> frozenset[str]:
    return frozenset(name for name in ("/.dockerenv", "/run/.containerenv") if (root / name[1:]).exists())


def _swaps(proc: Path) -> bool | None:
    lines = _text(proc / "swaps").splitlines()
    return len(lines) > 1 if lines else None


def _has_seccomp(proc: Path) -> bool | None:
    status = _text(proc / "self/status")
    return "\nSeccomp:" in status if status else None


def _sysctl(proc: Path, name: str) -> int | None:
    return _number(proc / "sys" / name.replace(".", "/"))


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
