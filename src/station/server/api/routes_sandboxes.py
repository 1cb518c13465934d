"""Sandboxes: open, look, delete; and runs."""

from __future__ import annotations

from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from station.core.errors import InvalidInput, Refused, SandboxNotFound
from station.core.ids import is_tool_id, is_uid
from station.core.principals import Principal
from station.core.wire import OpenRequest, RunRequest
from station.server.access.guard import caller
from station.server.requests import LARGE_BODY, read_json, while_connected
from station.server.station import Station
from station.worker.live import LiveBox

from . import answers
from . import parameters as p
from .idempotency import named
from .operation import Call
from .views import damaged_view, sandbox_view

R = TypeVar("R", OpenRequest, RunRequest)

USED = "station.used"
"""Where the scope of a request says which sandbox it uses."""


def sandbox_id(request: Request) -> str:
    """The `{sid}` of the path: a uid or a tool id. Raises SandboxNotFound for what cannot be one: it will name a
    directory."""
    sid: str = request.path_params["sid"]
    if not (is_uid(sid) or is_tool_id(sid)):
        raise SandboxNotFound("a sandbox is addressed by its id, as an open answers it", uid=sid[:80])
    return sid


async def in_use(station: Station, request: Request) -> str:
    """The uid of the sandbox of the path, which counts as used until the request ends. Waits where its box is just
    being destroyed. Raises SandboxNotFound where it is gone then, is another's, and for a tool id of none."""
    uid = begin_use(station, request, station.uid(sandbox_id(request), caller(request)))
    if station.sandboxes.is_going(uid):
        await station.sandboxes.settled(uid)
    return uid


async def live_box(station: Station, request: Request) -> LiveBox:
    """The box of the sandbox of the path, ready for a command, and in use until the request ends."""
    sid, principal = sandbox_id(request), caller(request)
    begin_use(station, request, station.uid(sid, principal))
    return await station.live(sid, principal)


def begin_use(station: Station, request: Request, uid: str) -> str:
    """Ended by the application with the request, whose answer may still be on its way when the handler has returned."""
    station.sandboxes.uses.begin(uid)
    request.scope[USED] = uid
    return uid


async def open_(station: Station, request: Request) -> Response:
    principal = caller(request)
    station.check_code_mode()
    station.access.opens.take(principal)
    wanted = _allowed(principal, await read_json(request, OpenRequest))
    await while_connected(request, station.fetch(wanted, principal.owner))
    record, created = await station.sandboxes.open(wanted, principal.owner)
    return answers.one(await sandbox_view(station, record, created=created), 201 if created else 200)


async def check(station: Station, request: Request) -> Response:
    """It may fetch what a box would need, and so counts as an open."""
    principal = caller(request)
    station.check_code_mode()
    station.access.opens.take(principal)
    wanted = _allowed(principal, await read_json(request, OpenRequest))
    return answers.one(await while_connected(request, station.would_be(wanted)))


async def list_(station: Station, request: Call) -> Response:
    """The caller's own; with `all`, which is the operator's, those of deployments too."""
    principal, everybodys = caller(request), request.query[p.ALL]
    if everybodys and principal.is_deployment:
        raise Refused("`all` is the operator's: a deployment lists its own sandboxes", field="all")
    records, damaged = await station.records(None if everybodys else principal.owner)
    views = [await sandbox_view(station, record) for record in records]
    return answers.many("sandboxes", views + [damaged_view(station, item) for item in damaged])


async def get(station: Station, request: Request) -> Response:
    uid = station.uid(sandbox_id(request), caller(request))
    return answers.one(await sandbox_view(station, await station.sandboxes.get(uid)))


async def delete(station: Station, request: Call) -> Response:
    """Also where there is none: repeating is no error."""
    keep_files, unless_busy = request.query[p.KEEP_FILES], request.query[p.UNLESS_BUSY]
    if keep_files and unless_busy:
        raise InvalidInput("give keep_files or unless_busy, not both", field="unless_busy")
    sid = sandbox_id(request)
    try:
        uid = station.uid(sid, caller(request))
    except SandboxNotFound:
        return answers.nothing()
    tool_id = None if sid == uid else sid
    if keep_files:
        await station.sandboxes.save(uid, tool_id=tool_id)
    else:
        is_busy = (lambda uid: bool(station.processes.running(uid))) if unless_busy else None
        await station.sandboxes.delete(uid, tool_id=tool_id, is_busy=is_busy)
    return answers.nothing()


async def cancel_run(station: Station, request: Request) -> Response:
    """Also where there is none: it may just have ended, or be still to come, and is refused then."""
    station.runs.cancel(request.path_params["rid"], caller(request).owner.deployment)
    return answers.nothing()


async def run(station: Station, request: Request) -> Response:
    principal = caller(request)
    station.check_enabled()
    station.access.opens.take(principal)
    wanted = named(_allowed(principal, await read_json(request, RunRequest, LARGE_BODY)), request)
    return answers.one(await while_connected(request, station.runs.run(wanted, principal.owner.deployment)))


def _allowed(principal: Principal, wanted: R) -> R:
    """Raises InvalidInput for a folder of this machine, where the caller has none."""
    if wanted.mount is not None and principal.is_deployment:
        raise InvalidInput("a deployment has no folder on the station's machine: leave mount out", field="mount")
    return wanted
