"""The ASGI app: the operations over one station."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from station import spans
from station.core.errors import MethodNotAllowed, NotFound, StationError
from station.server.errors import GONE, HANDLERS
from station.server.net.faces import Faces
from station.server.requests import Gone
from station.server.station import Station
from station.server.traffic import UNKNOWN_ROUTE

from . import idempotency, trace
from . import routes_sandboxes as sandboxes
from .idempotency import Once
from .operation import Call, Operation
from .operations import OPERATIONS


class _Path:
    """All operations of one path."""

    def __init__(self, station: Station, once: Once, path: str, operations: Iterable[Operation]) -> None:
        self._station = station
        self._once = once
        self._path = path
        self._answered = station.traffic.answered
        self._operations = {operation.method: operation for operation in operations}
        if "GET" in self._operations:
            # The server sends no body then.
            self._operations["HEAD"] = self._operations["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"] if scope["method"] in self._operations else "OTHER"
        status = 500
        try:
            if spans.is_on():
                with spans.serving(f"{method} {self._path}", spans.CURRENT.get()):
                    response = await self._response(scope, receive, send)
            else:
                response = await self._response(scope, receive, send)
            status = response.status_code
        except StationError as error:
            status = error.status
            raise
        except Gone:
            status = GONE
            raise
        finally:
            self._answered[method, self._path, status] += 1
        await response(scope, receive, send)

    async def _response(self, scope: Scope, receive: Receive, send: Send) -> Response:
        operation = self._operations.get(scope["method"])
        if operation is None:
            if not self._operations:
                raise NotFound("there is no such path")
            allowed = sorted(self._operations)
            raise MethodNotAllowed(f"this path takes {', '.join(allowed)}, not {scope['method']}", allowed=allowed)
        call = Call(operation, scope, receive, send)
        if idempotency.KEY in scope and operation.method == "POST":

            async def work(again: Receive) -> Response:
                return await operation.handler(self._station, Call(operation, scope, again, send))

            return await self._once.answer(call, work)
        return await operation.handler(self._station, call)


def build_app(station: Station, faces: Faces | None = None) -> ASGIApp:
    """The API over a station that was started, and the faces at their paths. Whoever serves it ends both afterwards."""
    paths: dict[str, list[Operation]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, []).append(operation)
    once = Once(station.answers, now=station.now)
    routes = [Route(path, _Path(station, once, path, operations)) for path, operations in paths.items()]
    routes.append(Route("/{path:path}", _Path(station, once, UNKNOWN_ROUTE, ())))
    app = Starlette(routes=routes, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False
    app.state.operations = OPERATIONS

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        with station.activity:
            send = trace.taken_over(scope, send)
            face = faces.find(scope["path"]) if faces is not None else None
            try:
                await (face or app)(scope, receive, send)
            finally:
                if (uid := scope.get(sandboxes.USED)) is not None:
                    station.sandboxes.uses.end(uid)

    return counted
