"""What the API says of a sandbox."""

from __future__ import annotations

from station.control.decisions import changed, remove_at
from station.core.capabilities import Grade, GuestUid, Isolation
from station.core.paths import WORKSPACE
from station.core.records import Owner, SandboxRecord
from station.core.states import PublicState, State, public
from station.core.wire import SandboxView
from station.server.station import Station
from station.store.registry import Damaged

_UNKNOWN = "unknown"


async def sandbox_view(station: Station, record: SandboxRecord, *, created: bool = False) -> SandboxView:
    isolation = await station.boxes.isolation(record) or _isolation_unknown(record.spec.backend)
    return SandboxView(
        id=record.uid,
        name=record.name,
        state=_state(record),
        generation=record.generation,
        workdir=WORKSPACE,
        isolation=isolation,
        created_at=record.created_at,
        last_active_at=record.last_active_at,
        created=created,
        reason=record.reason,
        mount=record.spec.mount,
        processes=len(station.processes.running(record.uid)),
        tool_id=record.tool_id,
        timeout_seconds=record.timeout_seconds or station.settings.sandbox.timeout_seconds,
        remove_at=remove_at(record, last_use=station.last_use(record)),
        changed=changed(record, await station.boxes.given(record.spec)),
        deployment=station.access.deployments.name_of(record.owner),
    )


def _state(record: SandboxRecord) -> PublicState:
    # Only a deletion that failed has a reason; that is no sandbox that a use would wake.
    return "failed" if record.state is State.DELETING and record.reason else public(record.state)


def damaged_view(station: Station, damaged: Damaged) -> SandboxView:
    """A quarantined one is shown, so that somebody can do something about it."""
    return SandboxView(
        id=damaged.uid,
        name=damaged.name or "",
        state="failed",
        generation=damaged.generation or 0,
        workdir=WORKSPACE,
        isolation=_isolation_unknown(_UNKNOWN),
        created_at=0.0,
        last_active_at=0.0,
        reason=f"quarantined: its record is damaged ({damaged.reason})",
        deployment=station.access.deployments.name_of(damaged.owner or Owner()),
    )


def _isolation_unknown(backend: str) -> Isolation:
    return Isolation(
        backend=backend,
        grade=Grade.NONE,
        network=_UNKNOWN,
        guest_uid=GuestUid.SHARED,
        containment=_UNKNOWN,
        image=_UNKNOWN,
    )
