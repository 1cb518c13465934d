"""What a backend can truly do on this machine, and the sentence where it cannot."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

UNRESTRICTED = "unrestricted"
ASSERTED = "asserted by operator"
"""Words for what a box can reach, beside `none`: see `Capabilities.network`."""


class Grade(StrEnum):
    """Isolation grade, weakest first; never lowered silently."""

    NONE = "none"
    PROCESS = "process"
    CONTAINER = "container"
    USER_KERNEL = "user-kernel"
    VM = "vm"

    def at_least(self, other: Grade) -> bool:
        order = list(Grade)
        return order.index(self) >= order.index(other)


class Level(StrEnum):
    ENFORCED = "enforced"
    WATCHED = "watched"
    """Looked at now and then and acted upon; a guard against accidents, no limit."""
    NOT_ENFORCED = "not_enforced"


@dataclass(frozen=True)
class LimitReport:
    """Whether one limit holds here, by what, or why not."""

    level: Level
    by: str
    """What enforces it (`RLIMIT_NPROC`, `cgroup v1 memory`), or why nothing does."""
    remedy: str | None = None
    """The one command or setting that would help; `None` where nothing would or nothing is amiss."""
    value: float | None = None
    """The bound in the unit of the limit's name; `None`: unbounded or not told."""


class GuestUid(StrEnum):
    SEPARATE = "separate"
    SHARED = "shared"


@dataclass(frozen=True)
class Capabilities:
    """The answer of a backend's probe."""

    backend: str
    available: bool
    grade: Grade
    reason: str | None = None
    """Why it is not available; `None` where it is."""
    remedy: str | None = None
    """The one command that would make it available, or `None`."""
    passing: bool = False
    """Whether it may be available soon, without anybody's help: an engine that restarts."""
    unkept: bool = False
    """Whether a setting of the operator's is the reason, which cannot be kept here: who asks is told CannotEnforce."""
    limits: dict[str, LimitReport] = field(default_factory=dict)
    """By limit: memory_mb, cpus, pids, open_files, workspace_mb, tmp_mb, shm_mb, max_file_size_bytes."""
    network: str = "none"
    """What a box can reach whose caller names none. `none`: nothing but loopback within; `unrestricted`: whatever the
    host or an engine's bridge reaches; `asserted by operator`: what, by the operator's word and by nothing that Station
    has looked at, something else holds. Of a box: what that box can reach."""
    operator_network: bool = False
    """Whether that is a choice of the operator's; then `none` by name gives nothing."""
    given: dict[str, str] = field(default_factory=dict)
    """The operator's choices that every box is made with, in words: `network` of callers who name none, `seccomp`. A
    record keeps those of its first box, so that a change can be told."""
    guest_uid: GuestUid = GuestUid.SHARED
    containment: str = "unknown"
    """`pidns` or `subreaper`: how a command's descendants are ended with it."""
    seccomp: bool | None = None
    """Whether the guest filters the system calls of user code; `None`: nobody has told."""
    images: bool = False
    """Whether an explicit image may be asked for; else programs come from the host's /usr."""
    image: str | None = None
    """With images: what a box is made from whose caller names none; of a box, what it was made from."""
    runtime_images: dict[str, str] = field(default_factory=dict)
    """By runtime: the image of those whose caller names none, where it is another than `image`."""
    mounts: bool = False
    """Whether a folder of the user may be mounted."""
    powers: tuple[str, ...] = ()
    """Optional protocols that its boxes have: `measurable`, later `freezable`, `savable`."""
    notes: tuple[str, ...] = ()
    """Sentences for `stn doctor`."""


@dataclass(frozen=True)
class Isolation:
    """What one answer says about where the code ran: told, not promised."""

    backend: str
    grade: Grade
    network: str
    guest_uid: GuestUid
    containment: str
    image: str
    """`host:/usr` without images."""
    limits: dict[str, LimitReport] = field(default_factory=dict)
