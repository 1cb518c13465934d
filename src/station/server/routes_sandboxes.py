"""Sandboxes: open, look, delete; and runs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from station.core.errors import InvalidInput, SandboxNotFound
from station.core.ids import is_tool_id, is_uid
from station.core.wire import OpenRequest, RunRequest
from station.worker.live import LiveBox

from . import answers
from .requests import LARGE_BODY, Query, read_json, while_connected
from .station import Station
from .views import damaged_view, sandbox_view

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
    being destroyed. Raises SandboxNotFound where it is gone then, and for a tool id of none."""
    uid = begin_use(station, request, station.uid(sandbox_id(request)))
    if station.sandboxes.is_going(uid):
        await station.sandboxes.settled(uid)
    return uid


async def live_box(station: Station, request: Request) -> LiveBox:
    """The box of the sandbox of the path, ready for a command, and in use until the request ends."""
    sid = sandbox_id(request)
    begin_use(station, request, station.uid(sid))
    return await station.live(sid)


def begin_use(station: Station, request: Request, uid: str) -> str:
    """Ended by the application with the request, whose answer may still be on its way when the handler has returned."""
    station.sandboxes.uses.begin(uid)
    request.scope[USED] = uid
    return uid


async def open_(station: Station, request: Request) -> Response:
    Query(request)
    station.check_enabled()
    wanted = await read_json(request, OpenRequest)
    await while_connected(request, station.fetch(wanted))
    record, created = await station.sandboxes.open(wanted)
    return answers.one(await sandbox_view(station, record, created=created), 201 if created else 200)


async def check(station: Station, request: Request) -> Response:
    Query(request)
    station.check_enabled()
    wanted = await read_json(request, OpenRequest)
    return answers.one(await while_connected(request, station.would_be(wanted)))


async def list_(station: Station, request: Request) -> Response:
    Query(request)
    records, damaged = await station.records()
    views = [await sandbox_view(station, record) for record in records]
    return answers.many("sandboxes", views + [damaged_view(item) for item in damaged])


async def get(station: Station, request: Request) -> Response:
    Query(request)
    uid = station.uid(sandbox_id(request))
    return answers.one(await sandbox_view(station, await station.sandboxes.get(uid)))


async def delete(station: Station, request: Request) -> Response:
    """Also where there is none: repeating is no error."""
    query = Query(request, "keep_files", "unless_busy")
    keep_files, unless_busy = query.flag("keep_files"), query.flag("unless_busy")
    if keep_files and unless_busy:
        raise InvalidInput("give keep_files or unless_busy, not both", field="unless_busy")
    sid = sandbox_id(request)
    try:
        uid = station.uid(sid)
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
    Query(request)
    station.runs.cancel(request.path_params["rid"])
    return answers.nothing()


async def run(station: Station, request: Request) -> Response:
    Query(request)
    station.check_enabled()
    wanted = await read_json(request, RunRequest, LARGE_BODY)
    return answers.one(await while_connected(request, station.runs.run(wanted)))
