"""Boxes without a record, destroyed while the station runs: what a failed destroy or undo has left behind.

What is being made is never taken: control writes the record before the box exists, and the sweep reads it after it has
seen the box; the calls of control for a sandbox and the sweep take turns; the pool knows its boxes before they exist;
and whoever else makes a box (the trial of a probe) has `GRACE_SECONDS` for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from station.backends.base import Backend, Labels
from station.core.errors import StationError
from station.core.records import BoxRef, SandboxRecord
from station.store.registry import Damaged

from .boxes import LiveBoxes, destroy_by_ref
from .pool import Pool
from .reconcile import Action, BoxSeen, decide

log = logging.getLogger(__name__)

GetRecord: TypeAlias = Callable[[str], Awaitable[SandboxRecord | Damaged | None]]

EVERY_SECONDS = 300.0
GRACE_SECONDS = 60.0
"""Longer than making a box may take."""
SWEEP_SECONDS = 30.0
AT_ONCE = 4


class Orphans:
    """Sweeps now and then; what one sweep does not finish, the next one finds again."""

    def __init__(
        self,
        boxes: LiveBoxes,
        pool: Pool,
        get_record: GetRecord,
        *,
        station: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._boxes = boxes
        self._pool = pool
        self._get_record = get_record
        self._station = station
        self._clock = clock
        self._due = clock() + EVERY_SECONDS
        self._seen: dict[tuple[str, str], float] = {}
        """When an orphan was first seen, by backend and box id."""

    async def sweep_when_due(self) -> None:
        """To be called at any rate: sweeps every few minutes, and once more soon after orphans were seen first. Takes
        `SWEEP_SECONDS` at most; raises nothing that a box or a store can cause."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + EVERY_SECONDS
        try:
            async with asyncio.timeout(SWEEP_SECONDS):
                await self.sweep()
        except TimeoutError:
            log.warning("the sweep of boxes without a record took too long; the next one goes on")
        if self._seen:
            self._due = now + GRACE_SECONDS

    async def sweep(self) -> int:
        """Destroys what was seen without a record `GRACE_SECONDS` ago and still has none; returns how many. One that
        cannot be destroyed stops no other."""
        orphans = await self.found()
        now = self._clock()
        self._seen = {key: self._seen.get(key, now) for key in orphans}
        ripe = [orphans[key] for key, since in self._seen.items() if now - since >= GRACE_SECONDS]
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(labels: Labels, ref: BoxRef) -> bool:
            async with limit:
                return await self._destroy(labels, ref)

        done = await asyncio.gather(*(one(labels, ref) for labels, ref in ripe))
        return sum(done) + await self._pool.destroy_again()

    async def found(self) -> dict[tuple[str, str], tuple[Labels, BoxRef]]:
        """Boxes that have no record now, by backend and box id; they may be in the making."""
        found: dict[tuple[str, str], tuple[Labels, BoxRef]] = {}
        for name, backend in self._boxes.backends.items():
            found |= await _listed(name, backend)
        return {key: box for key, box in found.items() if await self._is_orphan(*box)}

    async def _is_orphan(self, labels: Labels, ref: BoxRef) -> bool:
        if labels.pool:
            return labels.station == self._station and not self._pool.owns(labels.box_id)
        return not self._boxes.is_used(labels) and await self._is_unwanted(labels, ref)

    async def _is_unwanted(self, labels: Labels, ref: BoxRef) -> bool:
        try:
            record = await self._get_record(labels.uid)
        except StationError as error:
            log.warning("whether box %s has a record cannot be told: %s", labels.box_id, error)
            return False
        return decide(record, BoxSeen(labels, ref), station=self._station) is Action.DESTROY_ORPHAN

    async def _destroy(self, labels: Labels, ref: BoxRef) -> bool:
        try:
            if labels.pool:
                await destroy_by_ref(self._boxes.backends[ref.backend], ref)
                gone = True
            else:
                gone = await self._boxes.destroy_if(labels, ref, lambda: self._is_unwanted(labels, ref))
        except (StationError, OSError) as error:
            log.warning("box %s has no record and could not be destroyed: %s", labels.box_id, error)
            return False
        if gone:
            self._seen.pop((ref.backend, labels.box_id), None)
            log.warning("box %s had no record and was destroyed", labels.box_id)
        return gone


async def _listed(name: str, backend: Backend) -> Mapping[tuple[str, str], tuple[Labels, BoxRef]]:
    try:
        return {(name, labels.box_id): (labels, ref) async for labels, ref in backend.boxes()}
    except (StationError, OSError) as error:
        log.warning("backend %s could not list its boxes: %s", name, error)
        return {}
