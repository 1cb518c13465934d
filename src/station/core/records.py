"""What is written down. The record of a sandbox has its fields from the start, those too that only later versions fill;
a stored record suffices to adopt a live box."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .endings import Ending
from .spec import LifecycleClass, Spec
from .states import State


@dataclass(frozen=True)
class Owner:
    account: str = "local"
    deployment: str = "local"


@dataclass(frozen=True)
class BoxRef:
    """Enough to find a live box again from another process; opaque above the backend."""

    backend: str
    box_id: str
    """Derived from uid and generation by whoever creates it, so that a retry finds the first try."""
    data: dict[str, Any] = field(default_factory=dict)
    """The backend's own facts: pid, start time, directory."""


@dataclass(frozen=True)
class Timers:
    """Seconds; `None` is never."""

    idle_suspend_seconds: float | None = None
    remove_after_idle_seconds: float | None = None
    max_age_seconds: float | None = None


@dataclass(frozen=True)
class SandboxRecord:
    """All that Station knows of a sandbox. Every write of it is compare-and-set on `fence`."""

    uid: str
    name: str
    owner: Owner
    spec: Spec
    class_: LifecycleClass
    state: State
    generation: int
    """The nth box of this name; never restarts, a tombstone keeps it."""
    created_at: float
    updated_at: float
    last_active_at: float
    fence: int = 0
    """The registry's revision under which this was read; not stored inside the document."""
    worker: str | None = None
    box: BoxRef | None = None
    guest_version: str | None = None
    services: tuple[dict[str, Any], ...] = ()
    policy: dict[str, Any] = field(default_factory=dict)
    timers: Timers = field(default_factory=Timers)
    reason: str | None = None
    """Why it is failed or lost its box; `None` where all is well."""
    tool_id: str = ""
    """`ses_` and a ULID, new with each claim of the name: what the agent's tools call this life of it."""
    timeout_seconds: float | None = None
    """Of its commands that name none; `None`: the station's."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Fields of a later version, kept as they were read."""


class ProcessState(StrEnum):
    ACCEPTED = "accepted"
    """Written down, not yet known to have started."""
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class Usage:
    user_seconds: float = 0.0
    system_seconds: float = 0.0
    max_rss_kib: int = 0
    wall_seconds: float = 0.0


@dataclass(frozen=True)
class StreamTotals:
    """What is known of one output stream: `total_bytes` were written, the record holds all but `omitted_bytes`."""

    total_bytes: int = 0
    omitted_bytes: int = 0


@dataclass(frozen=True)
class ProcessRecord:
    """A started command, in its worker's journal."""

    id: str
    sandbox_uid: str
    generation: int
    guest_id: int
    """The id in the guest protocol, fixed before START is sent: a START is never executed twice."""
    command: tuple[str, ...]
    """argv, or `(shell line,)` with `shell` true."""
    shell: bool
    cwd: str
    state: ProcessState
    started_at: float
    ended_at: float | None = None
    pid: int | None = None
    ending: Ending | None = None
    usage: Usage | None = None
    ended_children: int = 0
    """Children that were still running when the command ended, and were ended."""
    timeout_seconds: float | None = None
    """When the guest ends it; `None`: never."""
    stdout: StreamTotals = field(default_factory=StreamTotals)
    stderr: StreamTotals = field(default_factory=StreamTotals)
    end_when_left: bool = False
    """Once nobody has waited for it for a while, it is cancelled; so too by a station that takes it over."""
