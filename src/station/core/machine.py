"""What a machine and an engine tell of themselves, and what one such fact means. Nothing is read here:
`station.machine` and the backends do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CONTROLLERS = frozenset({"memory", "cpu", "pids"})
"""Of cgroups: those that the limits of a box need."""
OLDEST_API = (1, 41)
"""Of an engine, that Station speaks: Docker 20.10."""


@dataclass(frozen=True)
class Disk:
    """A file system that fills up. Shares are of 1, of what a user without privilege may take."""

    path: str
    free: float
    free_inodes: float | None = None
    """`None`: it makes inodes as it needs them."""


@dataclass(frozen=True)
class Machine:
    """One that told nothing has every fact unknown."""

    release: str = ""
    """Of the kernel."""
    architecture: str = ""
    python: str = ""
    user: int = -1
    """The uid of whoever looked."""
    sysctls: Mapping[str, int] = field(default_factory=dict)
    """By name with dots. Missing: this kernel has no such switch, or does not show it."""
    container: str | None = None
    """What we seem to run in: `docker`, `podman`, `lxc`, `kubernetes`, another; `None`: no sign of one."""
    chroot: bool = False
    cgroup_version: int | None = None
    """The version below which this process may make cgroups, else the one that is mounted; `None`: none is."""
    controllers: frozenset[str] = frozenset()
    """Of memory, cpu, pids: those that this process may give to boxes of its own."""
    swap: bool | None = None
    """Whether the machine swaps."""
    swap_accounted: bool | None = None
    seccomp: bool | None = None
    ksm: int | None = None
    """`/sys/kernel/mm/ksm/run`; `None`: this kernel merges no pages."""
    clock_synced: bool | None = None
    disk: Disk | None = None
    """Of the state directory."""

    @property
    def root(self) -> bool:
        return self.user == 0

    @property
    def wsl(self) -> int | None:
        """1 or 2; `None`: this is no WSL."""
        return wsl_of(self.release)


@dataclass(frozen=True)
class Engine:
    """An engine and the runtime in it that makes the boxes of one backend."""

    backend: str
    version: str
    api: tuple[int, int]
    """The newest that it speaks."""
    runtime: str
    """By its name there."""
    named: bool
    """Whether the operator has chosen it by name."""
    default_runtime: str
    program: str
    """`runc`, `runsc`, `crun`, …: the last part of the runtime's path."""
    runtime_version: str | None = None
    """`None`: the engine does not tell."""
    remapped: bool = False
    """Whether root in a box is no root of the machine: rootless, or user namespaces."""
    cgroup_version: int = 1
    controllers: frozenset[str] = frozenset()
    """Of memory, swap, cpu, pids."""
    seccomp: str | None = None
    """The name of its default profile; `None`: no seccomp."""
    live_restore: bool = False
    transport: Literal["unix", "tcp", "tls"] = "unix"
    address: str = ""
    socket_mode: int | None = None
    """Of a unix socket. `None`: it could not be looked at."""
    disk: Disk | None = None
    """Of its data; `None`: it may be another machine's."""


@dataclass(frozen=True)
class Switch:
    """A setting of the kernel that closes user namespaces at one value."""

    name: str
    closed: int
    binds_root: bool
    reason: str
    remedy: str


WSL_1 = ("WSL 1 has no Linux kernel, so no namespaces", "wsl --set-version DISTRIBUTION 2")
"""What is amiss there, and what helps."""
USER_NAMESPACES = (
    Switch(
        "user.max_user_namespaces",
        0,
        True,
        "user namespaces are off (user.max_user_namespaces is 0)",
        "sysctl -w user.max_user_namespaces=15000",
    ),
    Switch(
        "kernel.unprivileged_userns_clone",
        0,
        False,
        "user namespaces are off for users (kernel.unprivileged_userns_clone is 0)",
        "sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    Switch(
        "kernel.apparmor_restrict_unprivileged_userns",
        1,
        False,
        "Ubuntu's AppArmor rule keeps programs without a profile from user namespaces "
        "(kernel.apparmor_restrict_unprivileged_userns is 1)",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


def user_namespaces_closed(machine: Machine) -> Switch | None:
    """What keeps this user from making them; `None`: no switch does."""
    for switch in USER_NAMESPACES:
        if machine.sysctls.get(switch.name) == switch.closed and (switch.binds_root or not machine.root):
            return switch
    return None


def wsl_of(release: str) -> int | None:
    """By the kernel's release: `4.4.0-19041-Microsoft` is WSL 1, `5.15.90.1-microsoft-standard-WSL2` WSL 2."""
    if "microsoft" not in release.lower():
        return None
    return 2 if "wsl2" in release.lower() or "standard" in release.lower() else 1


def container_of(cgroup: str, environ: str, marks: frozenset[str]) -> str | None:
    """From /proc/1/cgroup and /proc/1/environ. `marks`: which of /.dockerenv, /run/.containerenv exist."""
    if "/run/.containerenv" in marks:
        return "podman"
    for name in ("kubepods", "docker", "lxc", "libpod", "containerd"):
        if f"/{name}" in cgroup or f"{name}-" in cgroup:
            return {"kubepods": "kubernetes", "libpod": "podman"}.get(name, name)
    if "/.dockerenv" in marks:
        return "docker"
    found = re.search(r"(?:^|\0)container=([\w.-]+)", environ)
    return found[1] if found else None


_RELEASED = 1_000_000
"""In the place of a release candidate's number, for a version that is none."""
_RUNC_FLOORS = {(1, 2): (8, _RELEASED), (1, 3): (3, _RELEASED), (1, 4): (0, 3)}


def runc_is_mended(version: str) -> bool | None:
    """Whether this runc is past the escapes of November 2025 (CVE-2025-31133 and two more): from 1.2.8, 1.3.3 and
    1.4.0-rc.3 on. `None`: that is no version. What a distribution has mended in an older one is not seen."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)(?:-rc\.?(\d+))?", version)
    if found is None:
        return None
    branch, patch = (int(found[1]), int(found[2])), (int(found[3]), int(found[4] or _RELEASED))
    if branch > max(_RUNC_FLOORS):
        return True
    return branch in _RUNC_FLOORS and patch >= _RUNC_FLOORS[branch]
