"""How often each principal may ask: token buckets, by an injected clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from station.core.errors import LimitReached
from station.core.principals import Kind, Principal

_FORGET_AT = 4096


@dataclass
class _Bucket:
    left: float
    at: float


class Rate:
    """A bucket of `burst` for each principal, filled at `per_second`. Who comes by the unix socket owns the machine,
    and is not held up."""

    def __init__(self, setting: str, per_second: float | None, burst: int, clock: Callable[[], float]) -> None:
        """`setting`: its name, for the sentence. `per_second`: `None` is no bound."""
        self._setting = setting
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def take(self, principal: Principal) -> None:
        """Raises LimitReached, which tells when to come again."""
        if self._per_second is None or principal.kind is Kind.LOCAL:
            return
        now = self._clock()
        bucket = self._buckets.get(principal.tag)
        if bucket is None:
            self._forget_full(now)
            bucket = self._buckets[principal.tag] = _Bucket(self._burst, now)
        bucket.left = self._filled(bucket, now)
        bucket.at = now
        if bucket.left < 1:
            raise LimitReached(
                f"{self._setting} is {self._per_second:g}, and at most {self._burst} at once; that much was asked for",
                setting=self._setting,
                limit=self._per_second,
                current=self._burst,
                retry_after_seconds=math.ceil((1 - bucket.left) / self._per_second),
            )
        bucket.left -= 1

    def _filled(self, bucket: _Bucket, now: float) -> float:
        assert self._per_second is not None
        return min(self._burst, bucket.left + (now - bucket.at) * self._per_second)

    def _forget_full(self, now: float) -> None:
        """A full bucket says nothing that a new one does not."""
        if len(self._buckets) >= _FORGET_AT:
            self._buckets = {tag: it for tag, it in self._buckets.items() if self._filled(it, now) < self._burst}
