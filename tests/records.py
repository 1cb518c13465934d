"""What tests of the worker and of control start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from station.core.records import Owner, SandboxRecord
from station.core.spec import LifecycleClass, Spec
from station.core.states import State
from station.worker.live import LiveBox

_RECORD = SandboxRecord(
    uid="u",
    name="a",
    owner=Owner(),
    spec=Spec("fake"),
    class_=LifecycleClass.KEPT,
    state=State.CREATING,
    generation=1,
    created_at=1.0,
    updated_at=1.0,
    last_active_at=1.0,
)


def sandbox_record(**facts: Any) -> SandboxRecord:
    """One of the backend `fake` that is being created, but for these facts."""
    return replace(_RECORD, **facts)


class NoProcesses:
    """For boxes in which nothing runs."""

    def wanted(self, uid: str, generation: int) -> Mapping[int, tuple[int, int]]:
        return {}

    async def recover(self, live: LiveBox) -> None: ...

    async def box_lost(self, uid: str, generation: int, reason: str) -> None: ...

    def forget_sandbox(self, uid: str) -> None: ...
