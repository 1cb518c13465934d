"""The operations on API keys and deployments."""

from __future__ import annotations

from station.core.access import (
    DeploymentRequest,
    DeploymentView,
    KeyMade,
    KeyRequest,
    KeyView,
    TokenMade,
    TokenRequest,
)
from station.core.errors import AlreadyExists, Busy, Conflict, NotFound, StorageFull
from station.core.wire import API

from . import parameters as p
from . import routes_access as access
from .operation import Again, Errors, Link, Many, Operation

_DEPLOYMENT = f"{API}/deployments/{{name}}"
_KNOWN: Errors = (Conflict, NotFound, StorageFull)

ACCESS: tuple[Operation, ...] = (
    Operation(
        id="create_key",
        method="POST",
        path=f"{API}/keys",
        handler=access.create_key,
        summary="Make an API key of the operator. Only this answer has it.",
        body=KeyRequest,
        answers={201: KeyMade},
        again=Again.NOTHING,
        errors=(StorageFull,),
        links=(Link("key", "$response.body#/id", ("revoke_key",)),),
    ),
    Operation(
        id="list_keys",
        method="GET",
        path=f"{API}/keys",
        handler=access.list_keys,
        summary="The API keys, oldest first, without their secrets.",
        answers={200: Many("keys", KeyView)},
    ),
    Operation(
        id="revoke_key",
        method="DELETE",
        path=f"{API}/keys/{{key}}",
        handler=access.revoke_key,
        summary="Take an API key away: its next request is answered with 401.",
        answers={204: None},
        errors=_KNOWN,
    ),
    Operation(
        id="create_deployment",
        method="POST",
        path=f"{API}/deployments",
        handler=access.create_deployment,
        summary="Make a deployment, which owns sandboxes by name.",
        body=DeploymentRequest,
        answers={201: DeploymentView},
        errors=(AlreadyExists, StorageFull),
        links=(Link("name", "$response.body#/name", ("mint_token", "rotate_tokens", "delete_deployment")),),
    ),
    Operation(
        id="list_deployments",
        method="GET",
        path=f"{API}/deployments",
        handler=access.list_deployments,
        summary="The deployments, by name.",
        answers={200: Many("deployments", DeploymentView)},
    ),
    Operation(
        id="mint_token",
        method="POST",
        path=f"{_DEPLOYMENT}/token",
        handler=access.mint_token,
        summary="Make an identity token of a deployment. Only this answer has it.",
        body=TokenRequest,
        answers={201: TokenMade},
        again=Again.NOTHING,
        errors=_KNOWN,
    ),
    Operation(
        id="rotate_tokens",
        method="POST",
        path=f"{_DEPLOYMENT}/rotate",
        handler=access.rotate_tokens,
        summary="Make every identity token of a deployment worthless that was made until now.",
        answers={200: DeploymentView},
        errors=_KNOWN,
    ),
    Operation(
        id="delete_deployment",
        method="DELETE",
        path=_DEPLOYMENT,
        handler=access.delete_deployment,
        summary="Delete a deployment; 409 where it has sandboxes or files, unless `force` takes them along.",
        query=(p.FORCE,),
        answers={204: None},
        errors=(*_KNOWN, Busy),
    ),
)
