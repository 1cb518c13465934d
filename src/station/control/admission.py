"""How many sandboxes a station, and each owner, may have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from station.core.errors import LimitReached
from station.core.records import Owner
from station.core.states import State
from station.store.registry import Registry


class Admission:
    """The bounds on names that are taken. Looking and claiming are one step: of many who come at once, none is one too
    many."""

    def __init__(
        self,
        registry: Registry,
        most: int | None,
        *,
        most_of: Callable[[Owner], int | None],
        taken: Callable[[Owner], int],
    ) -> None:
        """`most`: of all owners together; `most_of`: of one; `None` is no bound. `taken`: how many an owner has."""
        self._registry = registry
        self._most = most
        self._most_of = most_of
        self._taken = taken
        self.turn = asyncio.Lock()
        """Held where names are counted and claimed."""

    @asynccontextmanager
    async def place(self, owner: Owner) -> AsyncIterator[None]:
        """Within it a new name of `owner` may be claimed. Raises LimitReached; a damaged record holds its place too."""
        if self._most is None and self._most_of(owner) is None:
            yield
            return
        async with self.turn:
            self._check_own(owner)
            await self._check_all(owner)
            yield

    def _check_own(self, owner: Owner) -> None:
        most = self._most_of(owner)
        if most is not None and (taken := self._taken(owner)) >= most:
            raise LimitReached(
                f"this deployment has {taken} sandboxes, and access.max_sandboxes is {most}; delete one first",
                setting="access.max_sandboxes",
                limit=most,
                current=taken,
            )

    async def _check_all(self, owner: Owner) -> None:
        if self._most is None:
            return
        found = await self._registry.list()
        taken = sum(record.state is not State.TOMBSTONE for record in found.records) + len(found.damaged)
        if taken >= self._most:
            if owner != Owner():  # how many others have is not theirs to know
                raise LimitReached(
                    "this station has as many sandboxes as sandbox.max_sandboxes lets it have; ask again later",
                    setting="sandbox.max_sandboxes",
                )
            raise LimitReached(
                f"there are {taken} sandboxes, and sandbox.max_sandboxes is {self._most}; delete one, or raise it",
                setting="sandbox.max_sandboxes",
                limit=self._most,
                current=taken,
            )
