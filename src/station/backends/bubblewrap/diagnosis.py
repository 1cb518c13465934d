"""Why bubblewrap does not work here, and the one command that helps: a pure function of facts, for `stn doctor`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from station.core.machine import WSL_1, Machine, user_namespaces_closed


@dataclass(frozen=True)
class Facts:
    bwrap: str | None
    """Its path; `None`: neither the system nor the wheel has one."""
    bwrap_version: tuple[int, ...] = ()
    guest: str | None = None
    """The guest's binary, `None` where there is none for this machine."""
    machine: Machine = field(default_factory=Machine)

    @property
    def release(self) -> tuple[int, int]:
        """Of the kernel."""
        numbers = re.match(r"(\d+)\.(\d+)", self.machine.release)
        return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


@dataclass(frozen=True)
class Verdict:
    reason: str
    remedy: str | None = None


def before_trial(facts: Facts) -> Verdict | None:
    """What makes a trial pointless; `None`: try it."""
    if facts.guest is None:
        return Verdict(
            "Station's guest has no binary for this machine", "pip install --force-reinstall station-sandbox"
        )
    if facts.bwrap is None:
        return Verdict("bubblewrap (bwrap) is not installed", "apt install bubblewrap")
    if facts.machine.wsl == 1:
        return Verdict(*WSL_1)
    return None


def after_failure(facts: Facts, trial: str) -> Verdict:
    """`trial`: what the launcher or bwrap said when a trial box did not start."""
    machine = facts.machine
    if (closed := user_namespaces_closed(machine)) is not None:
        return Verdict(closed.reason, closed.remedy)
    if machine.container is not None:
        return _in_container(machine.container, trial)
    if machine.chroot and not machine.root:
        return Verdict(
            f"we run in a chroot, where the kernel allows no user namespaces: {trial}",
            "a container or systemd-nspawn in its place",
        )
    hint = f" (WSL {machine.wsl})" if machine.wsl else ""
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


def notes(facts: Facts) -> tuple[str, ...]:
    """Sentences for doctor that are no failure; what concerns the machine is in its audit."""
    found = []
    if facts.machine.wsl == 2:
        found.append("WSL 2: Windows' own files below /mnt are slow")
    if facts.bwrap_version:
        found.append(f"bwrap {'.'.join(map(str, facts.bwrap_version))} at {facts.bwrap}")
    return tuple(found)
