"""API keys and deployments of a station, for its operator."""

from __future__ import annotations

from station.client._build import Call, url
from station.core.access import (
    DeploymentRequest,
    DeploymentView,
    KeyMade,
    KeyRequest,
    KeyView,
    TokenMade,
    TokenRequest,
    check_access_name,
)
from station.core.codec import from_plain

from .connection import AsyncConnection

_DELETE_SECONDS = 600.0


class AsyncKeys:
    """The API keys of one station. Who shows one over TCP may do all that its operator may."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(self, name: str, *, ttl: str | None = None) -> KeyMade:
        """A new key, which is told here and never again. `ttl`: as `7d`; `None`: it does not expire."""
        answer = await self._connection.request(Call("POST", url("keys"), KeyRequest(check_access_name(name), ttl)))
        return from_plain(KeyMade, answer)

    async def list(self) -> list[KeyView]:
        """All of them, oldest first."""
        answer = await self._connection.request(Call("GET", url("keys"), replay=True))
        return [from_plain(KeyView, item) for item in answer["keys"]]

    async def revoke(self, key_id: str) -> None:
        """Its next request is answered with 401. Raises NotFound."""
        await self._connection.request(Call("DELETE", url("keys", check_access_name(key_id))))


class AsyncDeployments:
    """The deployments of one station: each has sandboxes and files of its own, and sees no others."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(self, name: str) -> DeploymentView:
        """Raises AlreadyExists, and Refused where the station serves nobody but its operator."""
        request = DeploymentRequest(check_access_name(name))
        return from_plain(DeploymentView, await self._connection.request(Call("POST", url("deployments"), request)))

    async def list(self) -> list[DeploymentView]:
        """All of them, by name."""
        answer = await self._connection.request(Call("GET", url("deployments"), replay=True))
        return [from_plain(DeploymentView, item) for item in answer["deployments"]]

    async def token(self, name: str, *, ttl: str | None = None) -> TokenMade:
        """An identity token: who shows it is that deployment. `ttl`: as `7d`; `None`: until its tokens are rotated.

        Raises NotFound, and Refused where the station answers on no address.
        """
        call = Call("POST", url("deployments", check_access_name(name), "token"), TokenRequest(ttl))
        return from_plain(TokenMade, await self._connection.request(call))

    async def rotate(self, name: str) -> DeploymentView:
        """Every identity token that it has until now is worthless from now on. Raises NotFound."""
        call = Call("POST", url("deployments", check_access_name(name), "rotate"), content=b"")
        return from_plain(DeploymentView, await self._connection.request(call))

    async def delete(self, name: str, *, force: bool = False) -> None:
        """For good. Raises NotFound, and Conflict where it has sandboxes or files, unless `force` takes them along."""
        path = url("deployments", check_access_name(name), force=force or None)
        await self._connection.request(Call("DELETE", path, read_seconds=_DELETE_SECONDS))
