"""Whether a backend may run code of others: a pure function of what it can do and of the host audit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .audit import Check
from .capabilities import ASSERTED, Capabilities, Grade, GuestUid, Level

MINIMUM = Grade.CONTAINER
"""Where the operator names none."""
CLOSED_NETWORKS = ("none", "enforced", ASSERTED)
"""What a box may have: nothing, the door, or a network that the operator vouches for."""


@dataclass(frozen=True)
class Missing:
    """A layer without which code of others is not run."""

    layer: str
    """The id of a check, or `backend`, `grade`, `network`, `guest_uid`, `filter`, `memory_mb`, `pids`."""
    why: str
    remedy: str | None = None
    """The one command or setting that would help; `None`: nothing is known to."""


def missing_layers(capabilities: Capabilities, checks: Iterable[Check], *, minimum: Grade = MINIMUM) -> list[Missing]:
    """What keeps code of others from that backend; empty: it may be run. Checks of other backends are passed over."""
    name = capabilities.backend
    if not capabilities.available:
        return [Missing("backend", capabilities.reason or "it does not work here", capabilities.remedy)]
    found = [*_grade(capabilities, minimum), *_network(capabilities), *_within(capabilities), *_limits(capabilities)]
    mine = [check for check in checks if check.missing and check.backend in (None, name)]
    return [*found, *(Missing(check.id, f"{check.title}: {check.found}", check.remedy) for check in mine)]


def sentence(backend: str, missing: Sequence[Missing]) -> str:
    """Why a call is refused, with every layer and what helps."""
    layers = "; ".join(f"{one.why}{f' (what helps: {one.remedy})' if one.remedy else ''}" for one in missing)
    where = f"this station serves others (sandbox.serves_others), and the backend {backend} may not run their code"
    return f"{where}: {layers}"


def _grade(capabilities: Capabilities, minimum: Grade) -> list[Missing]:
    if capabilities.grade.at_least(minimum):
        return []
    why = f"its isolation is {capabilities.grade}, and sandbox.minimum_isolation is {minimum}"
    return [Missing("grade", why, _STRONGER.get(minimum, "a backend with a virtual machine"))]


_STRONGER = {
    Grade.PROCESS: "sandbox.backend: bubblewrap",
    Grade.CONTAINER: "sandbox.backend: docker",
    Grade.USER_KERNEL: "sandbox.backend: docker, with sandbox.docker_runtime: runsc (gVisor)",
}


def _network(capabilities: Capabilities) -> list[Missing]:
    if capabilities.network in CLOSED_NETWORKS:
        return []
    why = f"its boxes have a network that nobody bounds ({capabilities.network})"
    return [Missing("network", why, "network none; of the backend docker: sandbox.docker_network: none")]


def _within(capabilities: Capabilities) -> list[Missing]:
    found = []
    if capabilities.guest_uid is not GuestUid.SEPARATE:
        help_ = "apt install uidmap, and a range in /etc/subuid and /etc/subgid"
        found.append(Missing("guest_uid", "guest and code share a user in its boxes", help_))
    if not capabilities.seccomp and not _own_kernel(capabilities):
        found.append(Missing("filter", "no system call of code is known to be filtered in its boxes"))
    return found


def _limits(capabilities: Capabilities) -> list[Missing]:
    """Processes of a kernel of its own take memory of the box and nothing else."""
    wanted = ("memory_mb",) if _own_kernel(capabilities) else ("memory_mb", "pids")
    found = []
    for name in wanted:
        report = capabilities.limits.get(name)
        if report is None or report.level is not Level.ENFORCED:
            why = f"the limit {name} does not hold: {report.by if report else 'nothing enforces it'}"
            found.append(Missing(name, why, report.remedy if report else None))
    return found


def _own_kernel(capabilities: Capabilities) -> bool:
    return capabilities.grade.at_least(Grade.USER_KERNEL)
