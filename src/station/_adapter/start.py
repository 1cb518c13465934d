"""How an adapter comes to its station: whose root it is, with which settings, and what it can really do here."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress

from station.client._async.client import AsyncClient
from station.client._start import listens
from station.core import errors
from station.core.capabilities import Grade, Isolation
from station.core.errors import StationError

from .errors import Code, SandboxError, translated, unsupported
from .plan import Plan
from .root import check_tenant, prepare, write_settings

BOX_USER = "1000:1000"
_TRIES = 3


async def connect(plan: Plan) -> tuple[AsyncClient, Isolation]:
    """A client of the station of the root, which runs with the settings of the plan, and how workspaces are isolated.

    Raises SandboxError that names what is missing; a station that this has started is ended again then.
    """
    await asyncio.to_thread(prepare, plan.root, plan.tenant_id)
    _check_named(plan)
    digest = await asyncio.to_thread(write_settings, plan.root, plan.document())
    with translated():
        ran = await asyncio.to_thread(listens, plan.root)
    client, done = AsyncClient(plan.root), False
    try:
        with translated():
            await _settle(client, digest)
        await asyncio.to_thread(check_tenant, plan.root, plan.tenant_id)
        isolation = await verify(client, plan)
        done = True
    finally:
        if not done:
            await client.close()
            if not ran:
                await _end(plan)
    return client, isolation


async def verify(client: AsyncClient, plan: Plan) -> Isolation:
    """How a new workspace would be isolated. Raises SandboxError where that is not what the plan asks for."""
    with translated():
        try:
            told = await client.check(**plan.where)
        except errors.InvalidInput as error:
            if error.detail.get("field") == "image":
                raise unsupported(error.message) from error
            raise
    if plan.engine == "podman":
        await _check_podman(client)
    if plan.isolated and not told.grade.at_least(Grade.CONTAINER):
        raise unsupported(f"the engine isolates by {told.grade} here, which is less than {Grade.CONTAINER}")
    if plan.network is not None and told.network != plan.network:
        raise unsupported(
            f"workspaces would have the network {told.network!r} here, not {plan.network!r}: "
            "give the option `network` what the engine can give"
        )
    return told


async def _settle(client: AsyncClient, digest: str) -> None:
    """The station has read the settings whose SHA-256 is `digest`. One with others is ended, and started anew: what
    runs in its sandboxes goes on."""
    for _ in range(_TRIES):
        if (await client.info()).settings_sha256 == digest:
            return
        await client.stop()
    names = sorted(name for name, value in os.environ.items() if name.startswith("STN_") and value)
    raise unsupported(
        f"the station of {client.home} does not run with the options of this adapter: variables of the environment go "
        f"before them ({', '.join(names) or 'of another program'}), or another program starts it with others"
    )


async def _check_podman(client: AsyncClient) -> None:
    with translated():
        backends = (await client.doctor()).backends
    if not any("Podman" in note for found in backends if found.backend == "docker" for note in found.notes):
        raise unsupported(
            "the engine that answers is not Podman: let DOCKER_HOST name the socket of `podman system service`, or "
            'give engine="docker"'
        )


def _check_named(plan: Plan) -> None:
    if plan.user not in (None, BOX_USER):
        raise unsupported(f"code in a container is {BOX_USER}; another user ({plan.user}) cannot be had")
    if plan.executable is not None and shutil.which(plan.executable) is None:
        raise SandboxError(Code.UNAVAILABLE, f"the engine is missing: there is no program {plan.executable}")


async def _end(plan: Plan) -> None:
    async with AsyncClient(plan.root, start=False) as client:
        with suppress(StationError):  # there is none, or it ends by itself soon
            await client.stop()
