"""What an open has to do, decided from the record alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from station.core.capabilities import Capabilities
from station.core.errors import Conflict
from station.core.records import SandboxRecord
from station.core.spec import DEFAULT_LIMITS, NETWORK_NONE, Limits, Spec
from station.core.states import State
from station.core.wire import DEFAULT_TIMEOUT_SECONDS, OpenRequest, RunRequest

GIVEN = "given"
"""In the policy of a record: the operator's choices that its first box was made with, in words."""


@dataclass(frozen=True)
class Defaults:
    """What an open gets that names nothing."""

    backend: str
    limits: Limits = field(default_factory=Limits)
    """Only what the operator named."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Of commands whose sandbox names none either."""
    idle_timeout_seconds: float = 1800.0
    """How long a temporary one stays unused."""


class Step(StrEnum):
    CLAIM = "claim"
    """The name is free: the first box of a new sandbox."""
    REUSE = "reuse"
    NEXT_BOX = "next_box"
    """The sandbox has files and no box."""
    UNDO = "undo"
    """An earlier try stopped half-way; its leftovers go, then decide again."""
    FINISH_DELETE = "finish_delete"
    REFUSE = "refuse"


_STEPS = {
    State.CREATING: Step.UNDO,
    State.RUNNING: Step.REUSE,
    State.SAVED: Step.NEXT_BOX,
    State.DELETING: Step.FINISH_DELETE,
    State.TOMBSTONE: Step.CLAIM,
    State.FAILED: Step.REFUSE,
}


def next_step(record: SandboxRecord | None) -> Step:
    """What to do so that the sandbox runs. The caller holds the sandbox's lock, so a half-way state is a leftover.

    States that only later parts enter are refused: a station of this version cannot leave them.
    """
    return Step.CLAIM if record is None else _STEPS.get(record.state, Step.REFUSE)


def ever_ready(record: SandboxRecord) -> bool:
    """Whether a box of this sandbox was ever handed to somebody: then its files matter, and an undo keeps them."""
    return record.guest_version is not None


def undone(record: SandboxRecord) -> State:
    """Where a create that is taken back leads: the name is free again, or the files of before are there as before."""
    return State.SAVED if ever_ready(record) else State.TOMBSTONE


def as_run(spec: Spec) -> Spec:
    """For the fresh box of one run."""
    return replace(spec, ephemeral=True)


def with_image(spec: Spec, capabilities: Capabilities) -> Spec:
    """With the image that the backend makes it from: what boxes that stand ready are told apart by."""
    if spec.image is not None or not capabilities.images:
        return spec
    return replace(spec, image=capabilities.runtime_images.get(spec.runtime or "", capabilities.image))


def make_spec(
    request: OpenRequest | RunRequest, *, backend: str, defaults: Limits, network: str = NETWORK_NONE
) -> Spec:
    """The spec of a new sandbox. `limits` of it holds only what the caller or the operator named. `network`: of callers
    who name none."""
    return Spec(
        backend=request.backend or backend,
        image=request.image,
        runtime=request.runtime,
        network=request.network or network,
        limits=request.limits.over(defaults),
        best_effort=request.best_effort,
        mount=request.mount,
    )


def remove_at(record: SandboxRecord, *, last_use: float) -> float | None:
    """When a sandbox goes that is not used again; `None`: never by itself."""
    after = record.timers.remove_after_idle_seconds
    return None if after is None or record.state is State.TOMBSTONE else last_use + after


def is_over(record: SandboxRecord, *, in_use: bool, now: float) -> bool:
    """Whether it was left unused for so long that it is to go, in whatever state it is. `in_use`: somebody waits for
    an answer about it, or a command with a time limit runs in it. One without a limit keeps nothing: a server that
    nobody asks for any more would hold its sandbox for ever."""
    at = remove_at(record, last_use=record.last_active_at)
    return at is not None and not in_use and now >= at


def changed(record: SandboxRecord, now: Mapping[str, str]) -> str | None:
    """Which of the operator's choices is otherwise now than when the sandbox was made; `None`: none that is known."""
    for name, made in record.policy.get(GIVEN, {}).items():
        if now.get(name, made) != made:
            return f"it was made with the {name} {made!r}, and boxes are made with {now[name]!r} now"
    return None


def check_same(record: SandboxRecord, request: OpenRequest, *, timeout_seconds: float) -> None:
    """Raises Conflict that names the first field that the caller gave and the sandbox has otherwise.
    `timeout_seconds`: the station's, which holds where the record has none."""
    name, spec = record.name, record.spec
    asked: dict[str, Any] = {
        field: value
        for field in ("backend", "image", "runtime", "network", "mount")
        if (value := getattr(request, field)) is not None
    }
    pairs = [(field, value, getattr(spec, field)) for field, value in asked.items()]
    held = spec.limits.over(DEFAULT_LIMITS)
    pairs += [(f"limits.{field}", value, getattr(held, field)) for field, value in request.limits.named().items()]
    if request.timeout_seconds is not None:
        pairs.append(("timeout_seconds", request.timeout_seconds, record.timeout_seconds or timeout_seconds))
    for key, wanted, has in pairs:
        if wanted != has:
            raise Conflict(
                f"sandbox {name!r} exists with {key} {_shown(has)}, not {_shown(wanted)}; leave {key} out to use "
                "it as it is, choose another name, or delete it first",
                field=key,
                has=_shown(has),
                wanted=_shown(wanted),
            )


def _shown(value: object) -> str:
    source = getattr(value, "source", None)
    if source is not None:
        return f"{source}{':ro' if getattr(value, 'read_only', False) else ''}"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
