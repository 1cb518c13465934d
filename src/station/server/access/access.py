"""Who may ask this station beside its own user, and how often."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from pathlib import Path

from station.core.identity import is_identity, unauthenticated
from station.core.principals import OPERATOR, Principal
from station.server.settings import Settings
from station.store.principals import Documents

from .deployments import Deployments
from .keys import PREFIX, Keys
from .limits import Rate
from .tokens import Ring
from .visits import Visits


class Access:
    """Made by `load`, ended by `aclose`; the documents are its maker's to close."""

    def __init__(
        self,
        documents: Documents,
        ring: Ring,
        settings: Settings,
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """Use `load`."""
        self._operator = b""
        """Empty: TCP is not answered."""
        bounds = settings.access
        self.visits = Visits()
        self.keys = Keys(documents, now)
        self.deployments = Deployments(
            documents,
            ring,
            serves_others=settings.sandbox.serves_others,
            max_sandboxes=bounds.max_sandboxes,
            now=now,
        )
        self.deployments.url = bounds.url
        self.opens = Rate("access.opens_per_second", bounds.opens_per_second, bounds.opens_burst, clock)
        per_second = bounds.requests_per_second
        self.requests = Rate("access.requests_per_second", per_second, max(1, round(2 * (per_second or 0))), clock)

    @classmethod
    async def load(
        cls,
        documents: Documents,
        settings: Settings,
        home: Path,
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> Access:
        """Raises Refused for a file of signing keys that others can read, and Unavailable."""
        access = cls(documents, await asyncio.to_thread(Ring, home), settings, now=now, clock=clock)
        await access.keys.load()
        await access.deployments.load()
        return access

    def open_tcp(self, url: str, operator: bytes) -> None:
        """TCP is answered at `url`, which what the operator has set goes before, and to whoever shows his token."""
        self.deployments.url = self.deployments.url or url
        self._operator = operator

    def principal(self, token: bytes) -> Principal:
        """Of whoever shows that token. Raises Unauthenticated, the same for whatever is wrong with it, and Refused for
        deployments where the station serves nobody but its operator."""
        if self._operator and hmac.compare_digest(token, self._operator):
            return OPERATOR
        if token.startswith(PREFIX):
            return self.keys.principal(token)
        if is_identity(token):
            return self.deployments.principal(token)
        raise unauthenticated()

    def acting(self, deployment_id: str) -> Principal:
        """For somebody on the unix socket. Raises NotFound, and Refused as `principal` does."""
        return self.deployments.acting(deployment_id)

    def take(self, principal: Principal) -> None:
        """One more request of his over TCP. Raises LimitReached."""
        self.requests.take(principal)

    async def aclose(self) -> None:
        await self.keys.flush(all_of_them=True)
