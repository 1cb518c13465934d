"""The ASGI app: one table of routes over one station."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from station.core.wire import API

from . import routes_files as files
from . import routes_processes as processes
from . import routes_sandboxes as sandboxes
from . import routes_station as stations
from . import routes_store as store
from .errors import HANDLERS
from .faces import Faces
from .guard import HEALTH
from .station import Station

Handler: TypeAlias = Callable[[Station, Request], Awaitable[Response]]

_ONE = "/sandboxes/{sid}"
_PROCESS = f"{_ONE}/processes/{{pid}}"

# The hot path stands first: the first route that fits is taken.
ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", f"{_ONE}/exec", processes.exec_),
    ("GET", "/station", stations.info),
    ("POST", "/station/stop", stations.stop),
    ("GET", "/doctor", stations.doctor),
    ("POST", "/runs", sandboxes.run),
    ("DELETE", "/runs/{rid}", sandboxes.cancel_run),
    ("POST", "/sandboxes", sandboxes.open_),
    ("POST", "/sandboxes/check", sandboxes.check),
    ("GET", "/sandboxes", sandboxes.list_),
    ("GET", _ONE, sandboxes.get),
    ("DELETE", _ONE, sandboxes.delete),
    ("POST", f"{_ONE}/processes", processes.start),
    ("GET", f"{_ONE}/processes", processes.list_),
    ("GET", _PROCESS, processes.get),
    ("POST", f"{_PROCESS}/signal", processes.signal),
    ("POST", f"{_PROCESS}/stdin", processes.stdin),
    ("GET", f"{_PROCESS}/output", processes.output),
    ("GET", f"{_ONE}/files", files.read),
    ("PUT", f"{_ONE}/files", files.write),
    ("DELETE", f"{_ONE}/files", files.remove),
    ("GET", f"{_ONE}/files/stat", files.stat),
    ("GET", f"{_ONE}/files/list", files.list_),
    ("POST", f"{_ONE}/files/mkdir", files.mkdir),
    ("POST", f"{_ONE}/files/rename", files.rename),
    ("POST", f"{_ONE}/files/copy", files.copy),
    ("GET", f"{_ONE}/files/archive", files.read_archive),
    ("PUT", f"{_ONE}/files/archive", files.write_archive),
    ("POST", f"{_ONE}/stage", store.stage),
    ("POST", f"{_ONE}/publish", store.publish),
    ("POST", "/files", store.upload_form),
    ("GET", "/files", store.list_),
    ("GET", "/files/{key:path}", store.read),
    ("PUT", "/files/{key:path}", store.write),
    ("DELETE", "/files/{key:path}", store.delete),
    ("POST", "/uploads", store.begin_upload),
    ("GET", "/uploads/{upload}", store.get_upload),
    ("PUT", "/uploads/{upload}", store.append),
    ("POST", "/uploads/{upload}/finish", store.finish_upload),
    ("DELETE", "/uploads/{upload}", store.abort_upload),
]


def build_app(station: Station, faces: Faces | None = None) -> ASGIApp:
    """The API over a station that was started, and the faces at their paths. Whoever serves it ends both afterwards."""
    table = [
        Route(API + path, partial(handler, station), methods=[method], name=handler.__name__)
        for method, path, handler in ROUTES
    ]
    health = Route(HEALTH, partial(stations.health, station), methods=["GET"], name="health")
    app = Starlette(routes=[*table, health], exception_handlers=HANDLERS)

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        with station.activity:
            face = faces.find(scope["path"]) if faces is not None else None
            try:
                await (face or app)(scope, receive, send)
            finally:
                if (uid := scope.get(sandboxes.USED)) is not None:
                    station.sandboxes.uses.end(uid)

    return counted
