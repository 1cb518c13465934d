"""The registry port: the records of all sandboxes, written under compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from station.core.errors import SandboxFailed
from station.core.records import Owner, SandboxRecord


@dataclass(frozen=True)
class Damaged:
    """A row that is there and cannot be read. It is never repaired or dropped by itself: that sandbox is
    quarantined."""

    uid: str
    reason: str
    raw: bytes
    """As stored, for whoever repairs it."""
    fence: int
    """A `put` of a good record under it replaces the damaged one."""
    name: str | None = None
    """As far as it could be read; `None`: not."""
    generation: int | None = None
    owner: Owner | None = None

    def error(self) -> SandboxFailed:
        return SandboxFailed(
            f"the record of sandbox {self.name or self.uid} is damaged ({self.reason}); it is quarantined and its "
            "files are left alone. Deleting the sandbox frees the name",
            uid=self.uid,
            reason=self.reason,
        )


@dataclass(frozen=True)
class Listing:
    records: list[SandboxRecord] = field(default_factory=list)
    """Tombstones included."""
    damaged: list[Damaged] = field(default_factory=list)


class Registry(Protocol):
    """An answer means: written durably, it outlives kill -9 and power loss. Every method raises StorageFull without
    room and Unavailable where the store cannot be written or read. Nothing was changed then; or, where a store went
    away before it answered, what was asked for, now or later and once: who tries again reads first."""

    async def get(self, uid: str) -> SandboxRecord | Damaged | None:
        """The record with its fence; `None`: there never was one."""

    async def create(self, record: SandboxRecord) -> SandboxRecord:
        """The record with its first fence. Raises AlreadyExists if there is any row of that uid, tombstones and damaged
        ones included: those are replaced by `put` under their fence."""

    async def put(self, record: SandboxRecord) -> SandboxRecord:
        """The record with its new fence, larger than every one before. Raises Conflict unless `record.fence` is the
        fence of what is stored."""

    async def list(self) -> Listing:
        """All of them. A damaged row never hides another."""

    async def aclose(self) -> None:
        """Repeating is no error."""
