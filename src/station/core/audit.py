"""The host audit: facts of a machine and of an engine become checks, each with the one thing that would help. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .capabilities import Capabilities, Grade, Level
from .machine import (
    CONTROLLERS,
    OLDEST_API,
    WSL_1,
    Disk,
    Engine,
    Machine,
    runc_is_mended,
    user_namespaces_closed,
)

ROOM = 0.1
"""The share of a disk, and of its inodes, that must be free."""
ENOUGH_INSTANCES = 1024


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It holds, and could be better."""
    RED = "red"
    """It is missing."""
    UNKNOWN = "unknown"
    """It could not be found out."""


@dataclass(frozen=True)
class Check:
    """One line of the audit."""

    id: str
    title: str
    status: Status
    found: str
    remedy: str | None = None
    """The one command or setting that would help; `None`: nothing would, or nothing is amiss."""
    required: bool = False
    """Whether code of others is refused unless it is `ok` or `warning`."""
    backend: str | None = None
    """Whose boxes it is about; `None`: those of every backend."""

    @property
    def missing(self) -> bool:
        """What could not be found out is no layer to build on."""
        return self.required and self.status in (Status.RED, Status.UNKNOWN)


def machine_checks(machine: Machine) -> list[Check]:
    """All of them, on every machine, in this order."""
    return [
        _kernel(machine),
        _surroundings(machine),
        _user_namespaces(machine),
        _seccomp(machine),
        _cgroups(machine),
        _swap(machine),
        disk_check("disk", "room for the state directory", machine.disk),
        _protected(machine),
        *(_switch(machine, rule) for rule in _SWITCHES),
        _inotify(machine),
        _ksm(machine),
        _clock(machine),
        _user(machine),
    ]


def _kernel(machine: Machine) -> Check:
    found = f"Linux {machine.release} on {machine.architecture}, Python {machine.python}"
    if machine.wsl == 1:
        return Check("kernel", "kernel", Status.RED, *WSL_1)
    if machine.wsl == 2:
        return Check("kernel", "kernel", Status.OK, f"{found} (WSL 2: the kernel is Microsoft's)")
    return Check("kernel", "kernel", Status.OK if machine.release else Status.UNKNOWN, found)


def _surroundings(machine: Machine) -> Check:
    title = "what the station runs in"
    if machine.container is not None:
        found = f"a container ({machine.container}), whose own rules and limits bind the boxes too"
        return Check("surroundings", title, Status.WARNING, found)
    if machine.chroot:
        found = "a chroot, where the kernel allows no user namespaces"
        return Check("surroundings", title, Status.WARNING, found, "a container or systemd-nspawn in its place")
    return Check("surroundings", title, Status.OK, "the machine itself")


def _user_namespaces(machine: Machine) -> Check:
    title = "user namespaces"
    closed = user_namespaces_closed(machine)
    if closed is not None:
        return Check("user_namespaces", title, Status.RED, closed.reason, f"sudo {closed.remedy}")
    found = "no switch of the kernel closes them" + (", and a station of root needs none" if machine.root else "")
    return Check("user_namespaces", title, Status.OK, found)


def _seccomp(machine: Machine) -> Check:
    title = "filter of system calls (seccomp)"
    if machine.seccomp:
        return Check("seccomp", title, Status.OK, "the kernel has it", required=True)
    status = Status.UNKNOWN if machine.seccomp is None else Status.RED
    found = "it cannot be seen" if machine.seccomp is None else "this kernel has none"
    return Check("seccomp", title, status, found, "a kernel with CONFIG_SECCOMP_FILTER", required=True)


def _cgroups(machine: Machine) -> Check:
    """For boxes that the station makes itself; an engine has its own."""
    title = "cgroups of the station"
    help_ = "delegate a cgroup with memory, cpu and pids to it (systemd: Delegate=yes), or run it as root"
    if machine.cgroup_version is None:
        return Check("cgroups", title, Status.WARNING, "no cgroup file system is mounted", help_)
    version = f"version {machine.cgroup_version}"
    lacking = sorted(CONTROLLERS - machine.controllers)
    if not lacking:
        return Check("cgroups", title, Status.OK, f"{version}, with memory, cpu and pids")
    found = f"{version}; the station may not give its boxes {', '.join(lacking)}"
    return Check("cgroups", title, Status.WARNING, found, help_)


def _swap(machine: Machine) -> Check:
    title = "swap"
    if machine.swap is False:
        return Check("swap", title, Status.OK, "there is none")
    if machine.swap is None:
        return Check("swap", title, Status.UNKNOWN, "it cannot be seen")
    if machine.swap_accounted:
        return Check("swap", title, Status.OK, "on, and the kernel accounts it")
    found = "on, and not seen to be accounted: memory may be swapped out beyond a limit"
    return Check("swap", title, Status.WARNING, found, "swapoff -a, or swapaccount=1 on the kernel's command line")


def disk_check(id_: str, title: str, disk: Disk | None, backend: str | None = None) -> Check:
    if disk is None:
        return Check(id_, title, Status.UNKNOWN, "it cannot be looked at from here", backend=backend)
    inodes = "" if disk.free_inodes is None else f", {disk.free_inodes:.0%} of the inodes"
    found = f"{disk.free:.0%} free{inodes} ({disk.path})"
    if min(disk.free, 1.0 if disk.free_inodes is None else disk.free_inodes) >= ROOM:
        return Check(id_, title, Status.OK, found, backend=backend)
    return Check(id_, title, Status.RED, found, f"free a tenth of it: {disk.path}", backend=backend)


_PROTECTED = ("fs.protected_symlinks", "fs.protected_hardlinks", "fs.protected_fifos", "fs.protected_regular")


def _protected(machine: Machine) -> Check:
    title = "links and files of others in shared directories"
    values = {name: machine.sysctls.get(name) for name in _PROTECTED}
    off = [name for name, value in values.items() if value == 0]
    if off:
        remedy = "sysctl -w " + " ".join(f"{name}=1" for name in off)
        return Check("protected_files", title, Status.RED, f"not guarded: {', '.join(off)} 0", remedy)
    if None in values.values():
        unseen = ", ".join(name for name, value in values.items() if value is None)
        return Check("protected_files", title, Status.UNKNOWN, f"this kernel does not show {unseen}")
    return Check("protected_files", title, Status.OK, "guarded (fs.protected_*)")


@dataclass(frozen=True)
class _Rule:
    """A switch of the kernel that is right from a value on."""

    id: str
    title: str
    name: str
    at_least: int
    good: str
    bad: str
    absent: str
    at_most: int = 1_000_000


_SWITCHES = (
    _Rule(
        "tiocsti",
        "keys typed into another's terminal (TIOCSTI)",
        "dev.tty.legacy_tiocsti",
        0,
        "refused by the kernel",
        "the kernel allows it; boxes have no terminal of yours, and the guest's filter refuses it",
        "this kernel cannot refuse it; boxes have no terminal of yours, and the guest's filter refuses it",
        at_most=0,
    ),
    _Rule(
        "io_uring",
        "io_uring",
        "kernel.io_uring_disabled",
        2,
        "off for everybody",
        "on in the kernel; the guest's filter refuses it to code",
        "this kernel cannot switch it off; the guest's filter refuses it to code",
    ),
    _Rule(
        "ptrace",
        "looking into other processes (ptrace)",
        "kernel.yama.ptrace_scope",
        1,
        "children only, or less",
        "any process of the same user; the guest's filter refuses it to code",
        "this kernel has no Yama, so any process of the same user; the guest's filter refuses it to code",
    ),
)


def _switch(machine: Machine, rule: _Rule) -> Check:
    value = machine.sysctls.get(rule.name)
    if value is None:
        return Check(rule.id, rule.title, Status.WARNING, rule.absent)
    if rule.at_least <= value <= rule.at_most:
        return Check(rule.id, rule.title, Status.OK, f"{rule.good} ({rule.name} {value})")
    remedy = f"sysctl -w {rule.name}={rule.at_least}"
    return Check(rule.id, rule.title, Status.WARNING, f"{rule.bad} ({rule.name} {value})", remedy)


def _inotify(machine: Machine) -> Check:
    title, name = "inotify instances", "fs.inotify.max_user_instances"
    value = machine.sysctls.get(name)
    if value is None:
        return Check("inotify", title, Status.UNKNOWN, "the bound cannot be seen")
    found = (
        f"{value} for each user; boxes that are one user to the kernel, as all of an engine are, share them: "
        "one box can take all"
    )
    if value >= ENOUGH_INSTANCES:
        return Check("inotify", title, Status.OK, found)
    return Check("inotify", title, Status.WARNING, found, f"sysctl -w {name}=8192")


def _ksm(machine: Machine) -> Check:
    title = "memory pages shared between processes (KSM)"
    if machine.ksm != 1:
        return Check("ksm", title, Status.OK, "none are merged")
    found = "equal pages are merged, so that one box can tell what another has in memory"
    return Check("ksm", title, Status.WARNING, found, "echo 2 > /sys/kernel/mm/ksm/run")


def _clock(machine: Machine) -> Check:
    title = "clock"
    if machine.clock_synced is None:
        return Check("clock", title, Status.UNKNOWN, "the kernel does not tell whether it is synchronised")
    if machine.clock_synced:
        return Check("clock", title, Status.OK, "synchronised")
    found = "not synchronised: times in records and logs may be wrong"
    return Check("clock", title, Status.WARNING, found, "apt install systemd-timesyncd")


def _user(machine: Machine) -> Check:
    title = "user of the station"
    if not machine.root:
        return Check("user", title, Status.OK, f"user {machine.user}")
    found = "root, which only cgroups that nobody has delegated need; no box runs as root"
    return Check("user", title, Status.WARNING, found, "run it as a user with a delegated cgroup")


def unexamined(backend: str, why: str) -> Check:
    """In the place of the checks of an engine that could not be asked: of none of its layers anything is known."""
    return Check(f"{backend}.engine", "engine", Status.UNKNOWN, why, required=True, backend=backend)


def engine_checks(engine: Engine, capabilities: Capabilities) -> list[Check]:
    """`capabilities`: of the backend whose engine it is."""
    return [
        _api(engine),
        _runtime(engine, capabilities),
        _default_runtime(engine),
        _controllers(engine),
        _engine_seccomp(engine),
        _quota(engine, capabilities),
        disk_check(f"{engine.backend}.disk", "room for the engine's data", engine.disk, engine.backend),
        _live_restore(engine),
        _socket(engine),
    ]


def _of(engine: Engine, id_: str, title: str, status: Status, words: tuple[str, str | None]) -> Check:
    """A check of an engine's; required ones are made so by `_needed`."""
    return Check(f"{engine.backend}.{id_}", title, status, words[0], words[1], backend=engine.backend)


def _needed(engine: Engine, id_: str, title: str, status: Status, words: tuple[str, str | None]) -> Check:
    return Check(f"{engine.backend}.{id_}", title, status, words[0], words[1], required=True, backend=engine.backend)


def _api(engine: Engine) -> Check:
    found = f"engine {engine.version}, API {engine.api[0]}.{engine.api[1]}"
    if engine.api >= OLDEST_API:
        return _needed(engine, "api", "API of the engine", Status.OK, (found, None))
    return _needed(engine, "api", "API of the engine", Status.RED, (found, "Docker 20.10 (API 1.41) or later"))


def _runtime(engine: Engine, capabilities: Capabilities) -> Check:
    """The holes of runc let code out of the box, unless root in it is nobody outside, or a kernel stands between."""
    title = f"runtime {engine.runtime} of the engine"
    version = engine.runtime_version or "of a version that the engine does not tell"
    name = f"{engine.program} {version}"
    if capabilities.available and capabilities.grade.at_least(Grade.USER_KERNEL):
        return _needed(engine, "runtime", title, Status.OK, (f"{name}: boxes have a kernel of their own", None))
    mended = runc_is_mended(engine.runtime_version or "") if engine.program == "runc" else None
    if mended:
        return _needed(engine, "runtime", title, Status.OK, (name, None))
    if engine.remapped:
        return _needed(engine, "runtime", title, Status.OK, (f"{name}; root of a box is no root outside", None))
    others = "sandbox.docker_runtime: runsc (gVisor), or userns-remap in the engine's daemon.json"
    if engine.program != "runc":
        found = f"{name}: Station knows of no version from which on it is sound"
        return _needed(engine, "runtime", title, Status.UNKNOWN, (found, others))
    remedy = f"runc 1.2.8, 1.3.3 or later; or {others}"
    if mended is None:
        return _needed(engine, "runtime", title, Status.UNKNOWN, (name, remedy))
    found = (
        f"{name} is older than 1.2.8 and 1.3.3, which close ways out (CVE-2025-31133); "
        "whether a distribution has mended it cannot be seen"
    )
    return _needed(engine, "runtime", title, Status.RED, (found, remedy))


def _default_runtime(engine: Engine) -> Check:
    title = "default runtime of the engine"
    if engine.named:
        found = f"{engine.default_runtime}; boxes get {engine.runtime}, which sandbox.docker_runtime names"
        return _of(engine, "default_runtime", title, Status.OK, (found, None))
    found = f"{engine.default_runtime}, which boxes get, as sandbox.docker_runtime is unset"
    if engine.program == "runc":
        return _of(engine, "default_runtime", title, Status.OK, (found, None))
    remedy = f"sandbox.docker_runtime: {engine.default_runtime}, so that no change of the engine changes it"
    return _of(engine, "default_runtime", title, Status.WARNING, (found, remedy))


def _controllers(engine: Engine) -> Check:
    title, version = "limits of the engine", f"cgroup v{engine.cgroup_version}"
    help_ = "cgroup v2 with systemd and delegation, or an engine of root's"
    lacking = sorted(CONTROLLERS - engine.controllers)
    if lacking:
        status = Status.WARNING if lacking == ["cpu"] else Status.RED
        return _needed(engine, "cgroups", title, status, (f"{version}; it cannot limit {', '.join(lacking)}", help_))
    if "swap" in engine.controllers:
        return _needed(engine, "cgroups", title, Status.OK, (f"{version}: memory, swap, cpu, pids", None))
    found = f"{version}: memory, cpu, pids; swap is not accounted, so memory may be swapped out beyond the limit"
    return _needed(engine, "cgroups", title, Status.WARNING, (found, "swapaccount=1 on the kernel's command line"))


def _engine_seccomp(engine: Engine) -> Check:
    title = "seccomp of the engine"
    if engine.seccomp is None:
        help_ = "a kernel with CONFIG_SECCOMP_FILTER and an engine built with seccomp"
        return _needed(engine, "seccomp", title, Status.RED, ("it reports none", help_))
    if engine.seccomp == "unconfined":
        found = "its default profile is unconfined; Station brings its own"
        return _needed(engine, "seccomp", title, Status.WARNING, (found, "take seccomp-profile out of its daemon.json"))
    return _needed(engine, "seccomp", title, Status.OK, (f"profile {engine.seccomp or 'of its own'}", None))


def _quota(engine: Engine, capabilities: Capabilities) -> Check:
    title = "quota of workspaces"
    report = capabilities.limits.get("workspace_mb")
    if report is None:
        return _of(engine, "quota", title, Status.UNKNOWN, ("it was not tried", None))
    status = Status.OK if report.level is Level.ENFORCED else Status.WARNING
    return _of(engine, "quota", title, status, (report.by, report.remedy))


def _live_restore(engine: Engine) -> Check:
    title = "boxes when the engine restarts"
    if engine.live_restore:
        return _of(engine, "live_restore", title, Status.OK, ("go on (live-restore)", None))
    help_ = '"live-restore": true in its daemon.json'
    return _of(engine, "live_restore", title, Status.WARNING, ("end with it", help_))


def _socket(engine: Engine) -> Check:
    """Who can speak to it is root of its machine."""
    title = "who can speak to the engine"
    local = "unset DOCKER_HOST, and use the engine's unix socket"
    if engine.transport == "tls":
        found = f"{engine.address}: TCP with TLS, whoever has a certificate"
        return _needed(engine, "socket", title, Status.WARNING, (found, local))
    if engine.transport == "tcp":
        found = f"{engine.address}: TCP without TLS, everybody who can reach it"
        return _needed(
            engine, "socket", title, Status.RED, (found, "DOCKER_TLS_VERIFY=1 with an engine that asks for it")
        )
    if engine.socket_mode is None:
        return _needed(engine, "socket", title, Status.UNKNOWN, ("its socket could not be looked at", None))
    if engine.socket_mode & 0o002:
        found = f"everybody on this machine: its socket has mode {engine.socket_mode:04o}"
        path = engine.address.removeprefix("unix://")
        return _needed(engine, "socket", title, Status.RED, (found, f"chmod o= {path}"))
    return _needed(engine, "socket", title, Status.OK, (f"its user and group (mode {engine.socket_mode:04o})", None))
