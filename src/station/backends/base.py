"""The isolation port: all that Station asks of a way to isolate code. It fits on one screen on purpose.

Processes, files, time-outs and output are written once, in `worker`, over the guest; see docs/guest-protocol.md.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from station.backends._processes import handle_of
from station.core.capabilities import Capabilities
from station.core.machine import Engine
from station.core.paths import HOME, TMP, WORKSPACE
from station.core.records import BoxRef
from station.core.spec import Spec
from station.core.wire import PullView


@dataclass(frozen=True)
class Labels:
    """Set at a box's birth, so that a crash leaves no box without an owner."""

    box_id: str
    uid: str
    """The sandbox's wire uid; of a pool box, its box_id."""
    generation: int
    fence: int
    station: str
    """The id of the station that made it, kept in its state directory."""
    owner_pid: int
    owner_start: int
    """Start time of that pid in clock ticks since boot: a pid alone may be another's by now."""
    pool: bool = False
    """A pool or run box: belongs to the station process, destroyed when that is gone."""

    @classmethod
    def ours(cls, box_id: str, *, uid: str, generation: int, fence: int, station: str, pool: bool = False) -> Labels:
        """With this process as the owner."""
        me = handle_of(os.getpid())
        return cls(box_id, uid, generation, fence, station, os.getpid(), me.start if me else 0, pool)


@dataclass(frozen=True)
class Layout:
    """Where the places of docs/layout.md are, in the box's own view. Elsewhere than written there on `host` alone."""

    workspace: str = WORKSPACE
    home: str = HOME
    tmp: str = TMP
    env: tuple[tuple[str, str], ...] = ()
    """The environment that every process starts from, HOME and PATH included."""
    shell: str = "/bin/sh"
    """bash where present, else sh."""


class ByteStream(Protocol):
    """Both directions of one connection to a guest."""

    async def receive(self) -> bytes:
        """Some bytes; empty at the end. Raises OSError when the connection broke."""

    async def send(self, data: bytes) -> None:
        """Returns when the bytes are handed over or buffered within bounds. Raises OSError when it broke."""

    async def aclose(self) -> None:
        """Ends the connection, not the box; repeating is no error."""


class Box(Protocol):
    """One incarnation of a sandbox."""

    ref: BoxRef
    """Goes into the record, comes back in another process."""
    layout: Layout
    capabilities: Capabilities
    """As they hold for this very box."""
    patience_seconds: float
    """How long a broken stream is worth trying again before the box counts as lost, not counting the time in which it
    cannot be asked for."""

    async def connect(self) -> ByteStream:
        """A stream to the guest; again after a lost one. Raises BoxLost if the box is gone or does not answer. After a
        lost stream OSError where it may come back within its patience, and HostAway, which is one, where nobody can
        tell; Unavailable instead of both before there was one."""

    async def ended(self) -> str:
        """Waits until the box is gone by itself, and says why; a destroyed box ends too."""

    async def destroy(self) -> None:
        """The box, every process and every ephemeral file of it are gone when this returns. Idempotent; raises
        StationError if it could not. Persistent home and workspace stay."""


class Backend(Protocol):
    """One way of isolating code on this machine. Starts no process and touches no file inside a box."""

    name: str

    async def probe(self) -> Capabilities:
        """What holds here; never raises for what is merely missing. Cached by the caller."""

    def check(self, spec: Spec) -> None:
        """Raises CannotEnforce, InvalidInput or BackendUnavailable for what this backend cannot give.

        Called after probe, before anything is written.
        """

    async def create(self, spec: Spec, labels: Labels) -> Box:
        """A running box whose guest listens. On failure nothing is left. A box of the same `box_id` must not exist."""

    async def adopt(self, ref: BoxRef) -> Box:
        """The live box of a record, after a restart. Raises BoxLost if it is gone; what is left of it, or half made,
        is removed first."""

    def boxes(self) -> AsyncIterator[tuple[Labels, BoxRef]]:
        """Ours by label, in every state, also half-made ones: for recovery."""

    async def remove_files(self, uid: str) -> None:
        """Deletes the persistent home and workspace of a sandbox that has no box. Idempotent."""

    async def aclose(self) -> None:
        """Lets go of all boxes without ending one: descriptors and tasks of this process. Idempotent."""


@runtime_checkable
class Measurable(Protocol):
    """Optional power `measurable`."""

    async def oom_kills(self) -> int | None:
        """How often the kernel has ended a process of this box for memory; `None`: not known here."""

    async def memory_bytes(self) -> int:
        """What the box uses now, as well as it can be told."""


@runtime_checkable
class Fetching(Protocol):
    """Optional power: a box may need something that is not on this machine yet, and takes minutes to come."""

    async def fetch(self, spec: Spec) -> None:
        """Returns when a box of this spec, which `check` has passed, need not wait for that. Many may wait; cancelled,
        it goes on for the others alone. Raises why it cannot be had."""

    def fetches(self) -> Sequence[PullView]:
        """What is on its way now."""


@runtime_checkable
class Keeping(Protocol):
    """Optional power: what sandboxes keep can be listed, also where no record tells of it."""

    async def kept(self) -> Sequence[str]:
        """Uids whose home or workspace is here. Raises Unavailable where it cannot be asked."""


@runtime_checkable
class Examinable(Protocol):
    """Optional power: boxes are made by an engine, which the host audit looks at."""

    async def examine(self) -> Engine | None:
        """As it is now; `None`: there is no engine. Raises StationError where it cannot be asked."""
