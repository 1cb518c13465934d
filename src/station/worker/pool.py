"""Boxes made ahead, so that a run need not wait for one. They belong to the station: it destroys them when it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from station.backends.base import Backend, Box, Labels
from station.core.errors import StationError, Unavailable
from station.core.ids import new_id
from station.core.spec import Limits, Spec
from station.guest.files import GuestFiles
from station.guest.session import GuestSession

from .live import LiveBox
from .meter import Meter
from .tasks import Tasks

logger = logging.getLogger(__name__)

SIZE = 2
MAX_SIZE = 8
REFILL_SECONDS = 0.02
CALM_SECONDS = 30.0
"""Without a claim for that long, a pool that has grown goes back to its size."""


@dataclass(frozen=True)
class Claim:
    """A box for one user, to be given back with `Pool.release`."""

    live: LiveBox
    warm: bool
    """Whether it stood ready."""


@dataclass
class _Shelf:
    """The boxes of one kind: equal but for their ids."""

    spec: Spec
    target: int
    ready: deque[LiveBox] = field(default_factory=deque)
    waiting: deque[asyncio.Future[LiveBox]] = field(default_factory=deque)
    making: int = 0
    calm: asyncio.TimerHandle | None = None
    refill: asyncio.TimerHandle | None = None

    @property
    def missing(self) -> int:
        return len(self.waiting) + self.target - len(self.ready) - self.making


class Pool:
    """Ephemeral boxes by kind. For one event loop; `aclose` destroys every box that it made, claimed ones too."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        *,
        station: str,
        size: int = SIZE,
        max_size: int = MAX_SIZE,
        at_once: int | None = None,
        calm_seconds: float = CALM_SECONDS,
        meter: Meter | None = None,
    ) -> None:
        """`size`: how many stand ready of each kind in use (0: none). `at_once`: how many are made at the same time."""
        self._backends = backends
        self._station = station
        self._size = size
        self._max_size = max(max_size, size)
        self._calm_seconds = calm_seconds
        self._meter = meter or Meter()
        self._making = asyncio.Semaphore(at_once or max(2, os.cpu_count() or 2))
        self._shelves: dict[tuple[str, str | None, str], _Shelf] = {}
        self._boxes: dict[str, LiveBox] = {}
        self._being_made: set[str] = set()
        self._left: set[str] = set()
        """Given back, and could not be destroyed."""
        self._tasks = Tasks()

    def __len__(self) -> int:
        """How many stand ready."""
        return sum(len(shelf.ready) for shelf in self._shelves.values())

    @property
    def boxes(self) -> Iterable[LiveBox]:
        """All that live: ready ones and claimed ones."""
        return list(self._boxes.values())

    async def claim(self, spec: Spec) -> Claim:
        """A fresh box of a spec that its backend has checked. Raises what making it does, Unavailable once closed."""
        if self._tasks.closed:
            raise Unavailable("the station is stopping")
        spec = replace(spec, runtime=None, ephemeral=True)
        shelf = self._shelf(spec)
        if shelf is None:
            return Claim(await self._make(spec), warm=False)
        self._keep_calm_later(shelf)
        if shelf.ready and (away := shelf.ready[0].session.away) is not None:
            raise away.error()
        while shelf.ready:
            live = shelf.ready.popleft()
            if live.session.closed_reason is None:
                self._fill_soon(shelf)
                return Claim(live, warm=True)
            self.release(live)
        shelf.target = min(shelf.target + 1, self._max_size) if self._size else 0
        return Claim(await self._next(shelf), warm=False)

    def release(self, live: LiveBox) -> None:
        """It is destroyed in the background."""
        if not self._tasks.closed:
            self._tasks.start(self._destroy(live), name=f"destroy {live.uid}")

    def owns(self, box_id: str) -> bool:
        """From before it exists until it is destroyed."""
        return box_id in self._being_made or box_id in self._boxes

    async def destroy_again(self) -> int:
        """Tries once more what `release` could not destroy; how many are gone now."""
        gone = 0
        for box_id in list(self._left):
            live = self._boxes.get(box_id)
            try:
                if live is not None:
                    await self._destroy(live)
                    gone += 1
            except StationError as error:
                logger.warning("pool box %s still cannot be destroyed: %s", box_id, error)
        return gone

    def prepare(self, spec: Spec) -> None:
        """Begins to make boxes of a kind before the first claim."""
        shelf = self._shelf(replace(spec, runtime=None, ephemeral=True))
        if shelf is not None:
            self._fill(shelf)

    async def aclose(self) -> None:
        """Every box is destroyed when this returns. Raises StationError if one could not be. Repeating is no error."""
        for shelf in self._shelves.values():
            for timer in (shelf.calm, shelf.refill):
                if timer is not None:
                    timer.cancel()
            while shelf.waiting:
                future = shelf.waiting.popleft()
                future.set_exception(Unavailable("the station is stopping"))
                future.exception()  # whoever waited may have gone
        await self._tasks.aclose()
        results = await asyncio.gather(*(self._destroy(live) for live in self._boxes.values()), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise errors[0]

    def _shelf(self, spec: Spec) -> _Shelf | None:
        """Where boxes of this spec stand; `None`: each is made for its user alone."""
        if spec.limits != Limits() or spec.mount is not None:
            return None
        key = (spec.backend, spec.image, spec.network)
        if key not in self._shelves:
            self._shelves[key] = _Shelf(replace(spec, best_effort=False), self._size)
        return self._shelves[key]

    def _fill_soon(self, shelf: _Shelf) -> None:
        """Not at once: making a box would take the processor from the program that the claimed one is to run."""
        if shelf.refill is None:
            shelf.refill = asyncio.get_running_loop().call_later(REFILL_SECONDS, self._fill, shelf)

    def _fill(self, shelf: _Shelf) -> None:
        if shelf.refill is not None:
            shelf.refill.cancel()
            shelf.refill = None
        for _ in range(shelf.missing):
            shelf.making += 1
            self._tasks.start(self._make_for(shelf), name="make a pool box")

    async def _next(self, shelf: _Shelf) -> LiveBox:
        """The next box that is ready, in the order of asking."""
        future: asyncio.Future[LiveBox] = asyncio.get_running_loop().create_future()
        shelf.waiting.append(future)
        self._fill(shelf)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                shelf.ready.appendleft(future.result())
            elif future in shelf.waiting:
                shelf.waiting.remove(future)
            raise

    async def _make_for(self, shelf: _Shelf) -> None:
        error: StationError | None = None
        live: LiveBox | None = None
        try:
            live = await self._make(shelf.spec)
        except StationError as caught:
            error = caught
        finally:
            shelf.making -= 1
        if shelf.waiting:
            future = shelf.waiting.popleft()
            if live is not None:
                future.set_result(live)
            else:
                assert error is not None
                future.set_exception(error)
            return
        if live is not None:
            if len(shelf.ready) < shelf.target:
                shelf.ready.append(live)
            else:  # its claim was cancelled, or the shelf has shrunk meanwhile
                self.release(live)
        else:  # nobody waits: the next claim tries again, and is told
            logger.warning("a pool box could not be made: %s", error)

    async def _make(self, spec: Spec) -> LiveBox:
        async with self._making:
            backend = self._backends[spec.backend]
            box_id = new_id("box", time.time())
            labels = Labels.ours(box_id, uid=box_id, generation=1, fence=0, station=self._station, pool=True)
            self._being_made.add(box_id)
            try:
                with self._meter.making_box(spec.backend):
                    box, session = await _made(backend, spec, labels)
                live = self._boxes[box_id] = LiveBox(box_id, 1, spec, box, session, GuestFiles(session, box.layout))
            finally:
                self._being_made.discard(box_id)
        return live

    async def _destroy(self, live: LiveBox) -> None:
        await live.session.aclose()
        try:
            await live.box.destroy()
        except StationError:
            self._left.add(live.uid)
            raise
        self._boxes.pop(live.uid, None)
        self._left.discard(live.uid)

    def _keep_calm_later(self, shelf: _Shelf) -> None:
        if shelf.calm is not None:
            shelf.calm.cancel()
        shelf.calm = asyncio.get_running_loop().call_later(self._calm_seconds, self._shrink, shelf)

    def _shrink(self, shelf: _Shelf) -> None:
        shelf.target = self._size
        while len(shelf.ready) > shelf.target:
            self.release(shelf.ready.popleft())


async def _made(backend: Backend, spec: Spec, labels: Labels) -> tuple[Box, GuestSession]:
    """A box whose guest answers, or none."""
    box = await backend.create(spec, labels)
    session: GuestSession | None = None
    try:
        session = await GuestSession.connect(box.connect, patience_seconds=box.patience_seconds)
    finally:
        if session is None:
            await box.destroy()
    return box, session
