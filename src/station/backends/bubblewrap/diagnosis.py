"""Why bubblewrap does not work here, and the one command that helps: a pure function of facts, for `stn doctor`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MachineFacts:
    bwrap: str | None
    """Its path; `None`: neither the system nor the wheel has one."""
    bwrap_version: tuple[int, ...] = ()
    guest: str | None = None
    """The guest's binary, `None` where there is none for this machine."""
    unprivileged_userns_clone: int | None = None
    """kernel.unprivileged_userns_clone; `None`: this kernel has no such switch."""
    max_user_namespaces: int | None = None
    apparmor_restricts: int | None = None
    """kernel.apparmor_restrict_unprivileged_userns."""
    root: bool = False
    container: str | None = None
    """What we seem to run in: `docker`, `podman`, `lxc`, `kubernetes`, another; `None`: no sign of one."""
    wsl: int | None = None
    """1 or 2."""
    release: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Verdict:
    reason: str
    remedy: str | None = None


def before_trial(facts: MachineFacts) -> Verdict | None:
    """What makes a trial pointless; `None`: try it."""
    if facts.guest is None:
        return Verdict(
            "Station's guest has no binary for this machine", "pip install --force-reinstall station-sandbox"
        )
    if facts.bwrap is None:
        return Verdict("bubblewrap (bwrap) is not installed", "apt install bubblewrap")
    if facts.wsl == 1:
        return Verdict("WSL 1 has no Linux kernel, so no namespaces", "wsl --set-version DISTRIBUTION 2")
    return None


def after_failure(facts: MachineFacts, trial: str) -> Verdict:
    """`trial`: what the launcher or bwrap said when a trial box did not start."""
    if facts.max_user_namespaces == 0:
        return Verdict(
            "user namespaces are off (user.max_user_namespaces is 0)", "sysctl -w user.max_user_namespaces=15000"
        )
    if facts.unprivileged_userns_clone == 0 and not facts.root:
        return Verdict(
            "user namespaces are off for users (kernel.unprivileged_userns_clone is 0)",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        )
    if facts.apparmor_restricts and not facts.root:
        return Verdict(
            "Ubuntu's AppArmor rule keeps programs without a profile from user namespaces "
            "(kernel.apparmor_restrict_unprivileged_userns is 1)",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        )
    if facts.container is not None:
        return _in_container(facts.container, trial)
    hint = f" (WSL {facts.wsl})" if facts.wsl else ""
    return Verdict(f"a trial box did not start{hint}: {trial or 'no word why'}")


def _in_container(container: str, trial: str) -> Verdict:
    flags = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
    if re.search(r"proc", trial, re.IGNORECASE) and re.search(r"mount|permitted|denied", trial, re.IGNORECASE):
        return Verdict(
            f"we run in a container ({container}) that masks parts of /proc, so that no box may have its own: {trial}",
            f"start the container with {flags}",
        )
    return Verdict(
        f"we run in a container ({container}) whose seccomp profile or capabilities forbid namespaces: {trial}",
        f"start the container with {flags}",
    )


def notes(facts: MachineFacts) -> tuple[str, ...]:
    """Sentences for doctor that are no failure."""
    found = []
    if facts.wsl == 2:
        found.append("WSL 2: the kernel is Microsoft's, and Windows' own files below /mnt are slow")
    if facts.container is not None:
        found.append(f"the station runs in a container ({facts.container}); its limits bind the boxes too")
    if facts.bwrap_version:
        found.append(f"bwrap {'.'.join(map(str, facts.bwrap_version))} at {facts.bwrap}")
    return tuple(found)


def look(bwrap: str | None, version: tuple[int, ...], guest: str | None) -> MachineFacts:
    release = os.uname().release
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return MachineFacts(
        bwrap,
        version,
        guest,
        unprivileged_userns_clone=_sysctl("kernel/unprivileged_userns_clone"),
        max_user_namespaces=_sysctl("user/max_user_namespaces"),
        apparmor_restricts=_sysctl("kernel/apparmor_restrict_unprivileged_userns"),
        root=os.geteuid() == 0,
        container=container_of(_text("/proc/1/cgroup"), _text("/proc/1/environ"), frozenset(_marks())),
        wsl=wsl_of(release),
        release=(int(numbers[1]), int(numbers[2])) if numbers else (0, 0),
    )


def wsl_of(release: str) -> int | None:
    """By the kernel's release: `4.4.0-19041-Microsoft` is WSL 1, `5.15.90.1-microsoft-standard-WSL2` WSL 2."""
    if "microsoft" not in release.lower():
        return None
    return 2 if "wsl2" in release.lower() or "standard" in release.lower() else 1


def container_of(cgroup: str, environ: str, marks: frozenset[str]) -> str | None:
    """`marks`: which of /.dockerenv, /run/.containerenv exist."""
    if "/run/.containerenv" in marks:
        return "podman"
    for name in ("kubepods", "docker", "lxc", "libpod", "containerd"):
        if f"/{name}" in cgroup or f"{name}-" in cgroup:
            return {"kubepods": "kubernetes", "libpod": "podman"}.get(name, name)
    if "/.dockerenv" in marks:
        return "docker"
    found = re.search(r"(?:^|\0)container=([\w.-]+)", environ)
    return found[1] if found else None


def _marks() -> list[str]:
    return [name for name in ("/.dockerenv", "/run/.containerenv") if Path(name).exists()]


def _sysctl(name: str) -> int | None:
    try:
        return int(_text(f"/proc/sys/{name}"))
    except ValueError:
        return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
