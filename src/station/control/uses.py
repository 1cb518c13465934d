"""Who uses which sandbox now, and when each was last used, as far as that is not written down yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Uses:
    """In memory alone. The owner of the records writes down what is `noted`, and forgets it then."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last: dict[str, float] = {}
        self._under_way: dict[str, int] = {}

    def begin(self, uid: str) -> None:
        """A use that lasts until `end`."""
        self._under_way[uid] = self._under_way.get(uid, 0) + 1
        self.touch(uid)

    def end(self, uid: str) -> None:
        self.touch(uid)
        if (others := self._under_way.pop(uid) - 1) > 0:
            self._under_way[uid] = others

    def touch(self, uid: str) -> None:
        """It is used at this moment."""
        self._last[uid] = self._now()

    def under_way(self, uid: str) -> bool:
        return uid in self._under_way

    def last(self, uid: str) -> float:
        """0 where nothing is noted: then its record tells."""
        return self._last.get(uid, 0.0)

    def noted(self) -> Sequence[str]:
        return list(self._last)

    def forget(self, uid: str, at: float | None = None) -> None:
        """Its record has the use at `at`: one after that is still to be written. `None`: it is deleted."""
        if at is None or self._last.get(uid) == at:
            self._last.pop(uid, None)
