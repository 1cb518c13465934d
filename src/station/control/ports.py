"""What control needs of the worker."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from station.core.records import BoxRef, SandboxRecord
from station.core.spec import Spec

Made: TypeAlias = tuple[BoxRef, str]
"""A box whose guest has answered, and the guest's version."""


UNKNOWN_BACKEND = ""
"""Of a record that stands for a damaged one: its box and files may be with any backend."""


class Boxes(Protocol):
    """Boxes of this machine. Every call is made under the lock of its sandbox: one at a time for each uid."""

    async def check(self, spec: Spec) -> None:
        """Raises CannotEnforce, InvalidInput, Refused or BackendUnavailable before anything is written."""

    async def default_network(self, backend: str) -> str:
        """For the spec of a box whose caller names no network: `none`, or the operator's. Raises as `check` does for a
        backend that there is not."""

    async def given(self, spec: Spec) -> dict[str, str]:
        """The operator's choices that a box of that spec would be made with now, in words."""

    def is_live(self, record: SandboxRecord) -> bool:
        """Whether the box of that very generation is here and its guest can be spoken to."""

    async def create(self, record: SandboxRecord) -> Made:
        """A box of `record.generation` that a command can run in. On failure it raises StationError and nothing is
        left."""

    async def adopt(self, record: SandboxRecord) -> Made:
        """The box of `record.generation` that lives from before. Raises BoxLost if there is none or it does not
        answer."""

    async def destroy(self, record: SandboxRecord) -> None:
        """No box of that sandbox, of any generation, is left when this returns. Idempotent; raises StationError if
        not."""

    async def lose(self, record: SandboxRecord, reason: str) -> None:
        """The box is gone by itself: its processes end `lost(reason)`, what it left on this machine is cleared. Raises
        StationError where something of it may still run: a second box beside it must not be made."""

    async def remove_files(self, record: SandboxRecord) -> None:
        """The persistent files, process history and kept output of the sandbox are gone. Idempotent."""
