"""Sandboxes: open, look, delete; and runs."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response

from station.core.errors import SandboxNotFound
from station.core.wire import OpenRequest, RunRequest

from . import answers
from .requests import LARGE_BODY, Query, read_json, while_connected
from .station import Station
from .views import damaged_view, sandbox_view

_UID = re.compile(r"[a-z2-7]{52}")


def sandbox_id(request: Request) -> str:
    """The `{sid}` of the path. Raises SandboxNotFound for what cannot be one: it will name a directory."""
    uid: str = request.path_params["sid"]
    if not _UID.fullmatch(uid):
        raise SandboxNotFound("a sandbox is addressed by its id, as an open answers it", uid=uid[:80])
    return uid


async def open_(station: Station, request: Request) -> Response:
    Query(request)
    station.check_enabled()
    record, created = await station.sandboxes.open(await read_json(request, OpenRequest))
    return answers.one(await sandbox_view(station, record, created=created), 201 if created else 200)


async def list_(station: Station, request: Request) -> Response:
    Query(request)
    records, damaged = await station.records()
    views = [await sandbox_view(station, record) for record in records]
    return answers.many("sandboxes", views + [damaged_view(item) for item in damaged])


async def get(station: Station, request: Request) -> Response:
    Query(request)
    return answers.one(await sandbox_view(station, await station.sandboxes.get(sandbox_id(request))))


async def delete(station: Station, request: Request) -> Response:
    """Also where there is none: repeating is no error."""
    Query(request)
    await station.sandboxes.delete(sandbox_id(request))
    return answers.nothing()


async def cancel_run(station: Station, request: Request) -> Response:
    """Also where there is none: it may just have ended."""
    Query(request)
    station.runs.cancel(request.path_params["rid"])
    return answers.nothing()


async def run(station: Station, request: Request) -> Response:
    Query(request)
    station.check_enabled()
    wanted = await read_json(request, RunRequest, LARGE_BODY)
    return answers.one(await while_connected(request, station.runs.run(wanted)))
