"""Deployments: principals that own sandboxes by name, and the identity tokens that say who they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from station.core.access import MAX_DEPLOYMENTS, Deployment, TokenMade, check_access_name
from station.core.errors import AlreadyExists, LimitReached, NotFound, Refused
from station.core.identity import Claims, unauthenticated
from station.core.ids import new_id
from station.core.principals import Kind, Principal
from station.core.records import Owner
from station.core.stored import parse_ttl
from station.store.principals import Documents

from .kept import Kept
from .tokens import Ring

log = logging.getLogger(__name__)


class Deployments:
    """Those of one station."""

    def __init__(
        self, documents: Documents, ring: Ring, *, serves_others: bool, max_sandboxes: int, now: Callable[[], float]
    ) -> None:
        """`max_sandboxes`: of each."""
        self._kept = Kept(documents, "deployment", Deployment)
        self._ring = ring
        self._serves_others = serves_others
        self._max_sandboxes = max_sandboxes
        self._now = now
        self._by_id: dict[str, Deployment] = {}
        self.url: str | None = None
        """Where the station is reached: what its tokens name as their issuer. `None`: nowhere, so none holds."""

    async def load(self) -> None:
        await self._kept.load()
        self._by_id = {deployment.id: deployment for deployment in self._kept.all()}

    def principal(self, token: bytes) -> Principal:
        """Of whoever shows an identity token. Raises Unauthenticated, and Refused where the station serves nobody but
        its operator."""
        if self.url is None:
            raise unauthenticated()
        claims = self._ring.claims(token, issuer=self.url, now=self._now())
        deployment = self._by_id.get(claims.deployment)
        if deployment is None or deployment.going or claims.generation < deployment.generation:
            raise unauthenticated()
        return self._served(deployment)

    def acting(self, deployment_id: str) -> Principal:
        """For somebody who owns this machine and acts for a deployment. Raises NotFound and Refused."""
        deployment = self._by_id.get(deployment_id)
        if deployment is None or deployment.going:
            raise NotFound(f"there is no deployment {deployment_id[:80]!r}", deployment=deployment_id[:80])
        return self._served(deployment)

    def get(self, name: str) -> Deployment:
        """Raises NotFound."""
        deployment = self._kept.get(name)
        if deployment is None:
            raise NotFound(
                f"there is no deployment {name[:80]!r}; `stn deployment list` has them", deployment=name[:80]
            )
        return deployment

    def list(self) -> list[Deployment]:
        """By name."""
        return sorted(self._kept.all(), key=lambda deployment: deployment.name)

    def name_of(self, owner: Owner) -> str | None:
        """`None`: what is his is the operator's own. A deployment that is gone goes by its id."""
        if owner == Owner():
            return None
        deployment = self._by_id.get(owner.deployment)
        return owner.deployment if deployment is None else deployment.name

    def most_of(self, owner: Owner) -> int | None:
        """How many sandboxes an owner may have; `None`: the operator has no bound here."""
        if owner == Owner():
            return None
        deployment = self._by_id.get(owner.deployment)
        # Of one whose deletion has begun no call that was let in before may make another.
        return 0 if deployment is None or deployment.going else self._max_sandboxes

    async def create(self, name: str) -> Deployment:
        """Raises AlreadyExists, and Refused where the station serves nobody but its operator."""
        self._check_serves()
        if len(self._by_id) >= MAX_DEPLOYMENTS:
            raise LimitReached(
                f"there are {MAX_DEPLOYMENTS} deployments; delete some", limit=MAX_DEPLOYMENTS, current=MAX_DEPLOYMENTS
            )
        now = self._now()
        made = Deployment(new_id("dep", now), check_access_name(name), now)
        try:
            await self._kept.create(name, made)
        except AlreadyExists:
            raise AlreadyExists(f"there is a deployment {name} already", deployment=name) from None
        self._by_id[made.id] = made
        log.info("deployment %s (%s) was made", made.id, name)
        return made

    async def token(self, name: str, ttl: str | None) -> TokenMade:
        """An identity token of the present generation. Raises NotFound, and Refused where the station has no address
        that it could be used at."""
        deployment = self.get(name)
        self._check_serves()
        if self.url is None:
            raise Refused(
                "an identity token names the station's URL, and this one answers on the socket alone: set listen, or "
                "access.url where a proxy is in front"
            )
        now = self._now()
        expires_at = None if ttl is None else now + parse_ttl(ttl)
        claims = Claims(deployment.id, deployment.generation)
        # In a thread: the first one makes and writes down the key, and loads what signs.
        minted = await asyncio.to_thread(self._ring.mint, claims, issuer=self.url, now=now, expires_at=expires_at)
        log.info("an identity token of deployment %s (%s) was made", deployment.id, name)
        return TokenMade(minted, deployment.id, self.url, expires_at)

    async def rotate(self, name: str) -> Deployment:
        """Every token that was minted until now is good for nothing any more. Raises NotFound."""
        deployment = self.get(name)
        return await self._put(replace(deployment, generation=deployment.generation + 1))

    async def close(self, name: str) -> Deployment:
        """The beginning of its end: nothing asks or is made for it any more. Raises NotFound."""
        return await self._put(replace(self.get(name), going=True))

    async def forget(self, name: str) -> None:
        """What was its is gone. Repeating is no error."""
        deployment = self._kept.get(name)
        await self._kept.delete(name)
        if deployment is not None:
            self._by_id.pop(deployment.id, None)
            log.info("deployment %s (%s) was deleted", deployment.id, name)

    async def _put(self, deployment: Deployment) -> Deployment:
        await self._kept.put(deployment.name, deployment)
        self._by_id[deployment.id] = deployment
        log.info(
            "deployment %s (%s): token generation %d%s",
            deployment.id,
            deployment.name,
            deployment.generation,
            ", being deleted" if deployment.going else "",
        )
        return deployment

    def _served(self, deployment: Deployment) -> Principal:
        self._check_serves()
        return Principal(Kind.DEPLOYMENT, deployment.owner, name=deployment.name)

    def _check_serves(self) -> None:
        if not self._serves_others:
            raise Refused(
                "this station serves nobody but its operator: deployments need sandbox.serves_others: true in "
                "station.yaml, and a backend that may run their code (`stn doctor`)",
                setting="sandbox.serves_others",
            )
