"""States of a sandbox, and which may follow which."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from .errors import InternalError


class State(StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    SAVING = "saving"
    SAVED = "saved"
    """No box; the files are kept, and the next use makes a new box of the next generation."""
    DELETING = "deleting"
    TOMBSTONE = "tombstone"
    FAILED = "failed"


_NEXT: dict[State, frozenset[State]] = {
    State.CREATING: frozenset({State.RUNNING, State.SAVED, State.FAILED, State.DELETING, State.TOMBSTONE}),
    State.RUNNING: frozenset({State.SUSPENDING, State.SAVING, State.SAVED, State.DELETING, State.FAILED}),
    State.SUSPENDING: frozenset({State.SUSPENDED, State.SAVED, State.DELETING, State.FAILED}),
    State.SUSPENDED: frozenset({State.RESUMING, State.SAVING, State.SAVED, State.DELETING, State.FAILED}),
    State.RESUMING: frozenset({State.RUNNING, State.SAVED, State.DELETING, State.FAILED}),
    State.SAVING: frozenset({State.SAVED, State.DELETING, State.FAILED}),
    State.SAVED: frozenset({State.CREATING, State.DELETING, State.FAILED}),
    State.DELETING: frozenset({State.TOMBSTONE, State.FAILED}),
    State.TOMBSTONE: frozenset({State.CREATING}),
    State.FAILED: frozenset({State.DELETING, State.CREATING}),
}

PublicState = Literal["creating", "running", "suspended", "failed"]

_PUBLIC: dict[State, PublicState] = {
    State.CREATING: "creating",
    State.RESUMING: "creating",
    State.RUNNING: "running",
    State.FAILED: "failed",
}


def check_transition(old: State, new: State) -> None:
    """Raises InternalError unless `new` may follow `old`; staying is always allowed."""
    if new is not old and new not in _NEXT[old]:
        raise InternalError(f"a sandbox cannot go from {old} to {new}", old=old.value, new=new.value)


def public(state: State) -> PublicState:
    """The word of the API: creating, running, suspended or failed."""
    return _PUBLIC.get(state, "suspended")
