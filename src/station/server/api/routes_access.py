"""API keys and deployments: the operator's to make and to take away."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from station.core.access import Deployment, DeploymentRequest, DeploymentView, KeyRequest, TokenRequest
from station.core.errors import Conflict
from station.core.stored import PREFIXES
from station.server.requests import read_json
from station.server.station import Station

from . import answers
from . import parameters as p
from .operation import Call


async def create_key(station: Station, request: Request) -> Response:
    """The one answer that has the key."""
    return answers.one(await station.access.keys.create(await read_json(request, KeyRequest)), 201)


async def list_keys(station: Station, _request: Request) -> Response:
    return answers.many("keys", station.access.keys.list())


async def revoke_key(station: Station, request: Request) -> Response:
    await station.access.keys.revoke(request.path_params["key"])
    return answers.nothing()


async def create_deployment(station: Station, request: Request) -> Response:
    wanted = await read_json(request, DeploymentRequest)
    return answers.one(_view(station, await station.access.deployments.create(wanted.name)), 201)


async def list_deployments(station: Station, _request: Request) -> Response:
    return answers.many("deployments", [_view(station, one) for one in station.access.deployments.list()])


async def mint_token(station: Station, request: Request) -> Response:
    """The one answer that has the token."""
    wanted = await read_json(request, TokenRequest)
    return answers.one(await station.access.deployments.token(request.path_params["name"], wanted.ttl), 201)


async def rotate_tokens(station: Station, request: Request) -> Response:
    rotated = await station.access.deployments.rotate(request.path_params["name"])
    return answers.one(_view(station, rotated))


async def delete_deployment(station: Station, request: Call) -> Response:
    """Its tokens first, and what it has asked for before: what goes is not added to meanwhile. Where it stops half-way,
    a repeat goes on."""
    deployments, name = station.access.deployments, request.path_params["name"]
    if not request.query[p.FORCE]:
        await _check_empty(station, deployments.get(name))
    owner = (await deployments.close(name)).owner
    station.runs.cancel_all(owner.deployment)
    for uid in await station.sandboxes.of(owner):
        await station.sandboxes.delete(uid)
    await station.access.visits.end(owner.deployment)
    # What such a request has begun, and does not end with it.
    station.runs.cancel_all(owner.deployment)
    await station.uploads.abort_all(owner)
    for prefix in PREFIXES:
        await station.store.delete_below(owner, prefix)
    await deployments.forget(name)
    return answers.nothing()


async def _check_empty(station: Station, deployment: Deployment) -> None:
    """Raises Conflict where somebody would lose something."""
    sandboxes = len(await station.sandboxes.of(deployment.owner))
    files = (await station.store.list(deployment.owner, "", station.now(), limit=1)).files
    if sandboxes or files:
        raise Conflict(
            f"deployment {deployment.name} has {sandboxes} sandboxes and {'some' if files else 'no'} stored files, "
            "which would go with it: force: true deletes it with them",
            sandboxes=sandboxes,
        )


def _view(station: Station, deployment: Deployment) -> DeploymentView:
    return DeploymentView(
        deployment.id,
        deployment.name,
        deployment.created_at,
        deployment.generation,
        station.sandboxes.ids.taken(deployment.owner),
        deployment.going,
    )
