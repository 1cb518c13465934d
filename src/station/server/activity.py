"""Whether anybody needs this station."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType


class Activity(AbstractContextManager[None]):
    """`with activity:` around each request."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.requests = 0
        """Under way."""
        self.last = now()

    def __enter__(self) -> None:
        self.requests += 1

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.requests -= 1
        self.last = self._now()

    def is_idle(self, *, live_boxes: int, minutes: float) -> bool:
        """No request now, none for `minutes`, and no live box. 0 minutes: never."""
        return bool(minutes > 0 and not self.requests and not live_boxes and self._now() - self.last >= minutes * 60)
