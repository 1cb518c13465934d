"""The station itself."""

from __future__ import annotations

import asyncio
import os

from starlette.requests import Request
from starlette.responses import Response

import station
from station.core.errors import Unavailable
from station.core.principals import Action, Principal, may
from station.core.wire import StationView
from station.server.access.guard import caller
from station.server.loading import is_changed
from station.server.station import Station

from . import answers
from .metrics import MEDIA, exposition


async def health(_station: Station, _request: Request) -> Response:
    return answers.facts(status="ok", version=station.__version__, pid=os.getpid())


async def ready(this: Station, request: Request) -> Response:
    """The operator alone is told why not."""
    if (reason := await this.readiness.fault()) is None:
        return answers.facts(status="ready")
    raise Unavailable(reason if may(caller(request), Action.OPERATE) else "the station is not ready")


async def metrics(this: Station, _request: Request) -> Response:
    return Response(await exposition(this), media_type=MEDIA)


async def info(this: Station, request: Request) -> Response:
    principal = caller(request)
    if principal.is_deployment:
        return answers.one(await _for_deployment(this, principal))
    records, damaged = await this.records()
    return answers.one(
        StationView(
            version=station.__version__,
            pid=os.getpid(),
            home=str(this.settings.home),
            started_at=this.started_at,
            default_backend=this.default_backend,
            sandboxes=len(records) + len(damaged),
            live_boxes=len(this.boxes),
            pool_boxes=len(this.pool),
            running_processes=len(this.processes.running()),
            timeout_seconds=this.settings.sandbox.timeout_seconds,
            max_stdout_bytes=this.settings.sandbox.max_stdout_bytes,
            settings_sha256=this.settings.digest,
            settings_changed=await asyncio.to_thread(is_changed, this.settings),
            pulls=tuple(this.boxes.fetches()),
        )
    )


async def _for_deployment(this: Station, principal: Principal) -> StationView:
    """What concerns it: nothing of this machine, of the operator, and of others."""
    records, damaged = await this.records(principal.owner)
    sandbox = this.settings.sandbox
    return StationView(
        version=station.__version__,
        pid=0,
        home="",
        started_at=this.started_at,
        default_backend=this.default_backend,
        sandboxes=len(records) + len(damaged),
        live_boxes=sum(this.boxes.is_live(record) for record in records),
        pool_boxes=0,
        running_processes=sum(len(this.processes.running(record.uid)) for record in records),
        timeout_seconds=sandbox.timeout_seconds,
        max_stdout_bytes=sandbox.max_stdout_bytes,
        deployment=principal.name,
    )


async def description(_this: Station, request: Request) -> Response:
    # Loaded for this alone.
    from .openapi import as_json

    return Response(await asyncio.to_thread(as_json, request.app.state.operations), media_type=answers.JSON)


async def stop(this: Station, _request: Request) -> Response:
    """Answered before it happens."""
    this.request_stop()
    return answers.facts(202, status="stopping", pid=os.getpid())


async def doctor(this: Station, _request: Request) -> Response:
    return answers.one(await this.doctor())
