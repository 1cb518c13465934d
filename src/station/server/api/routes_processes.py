"""Commands. A client that hangs up frees its handler and ends nothing: the process runs on, and its record says so. One
with `end_when_left` goes on for as long as a client needs to come back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from station.core.wire import ExecRequest, OutputEvent, SignalRequest
from station.server.requests import LARGE_BODY, body, read_json, while_connected
from station.server.station import Station
from station.validate import to_json

from . import answers
from . import parameters as p
from .idempotency import named
from .operation import Call
from .routes_sandboxes import in_use, live_box

NDJSON = "application/x-ndjson"


async def exec_(station: Station, request: Request) -> Response:
    """The hot path."""
    wanted = named(await read_json(request, ExecRequest, LARGE_BODY), request)
    live = await live_box(station, request)
    await station.admit(live)
    return answers.one(await while_connected(request, station.processes.exec(live, wanted)))


async def start(station: Station, request: Request) -> Response:
    wanted = named(await read_json(request, ExecRequest, LARGE_BODY), request)
    live = await live_box(station, request)
    await station.admit(live)
    record = await station.processes.start(live, wanted, default_timeout=None)
    return answers.one(await station.processes.get(live.uid, record.id), 201)


async def list_(station: Station, request: Request) -> Response:
    record = await station.sandboxes.get(await in_use(station, request))
    return answers.many("processes", list(station.processes.list(record.uid)))


async def get(station: Station, request: Call) -> Response:
    seconds, output = request.query[p.WAIT], request.query[p.OUTPUT]
    uid = await in_use(station, request)
    looking = station.processes.get(uid, _process_id(request), wait_seconds=seconds, output=output)
    return answers.one(await while_connected(request, looking) if seconds else await looking)


async def signal(station: Station, request: Request) -> Response:
    wanted = await read_json(request, SignalRequest)
    await station.processes.signal(await in_use(station, request), _process_id(request), wanted)
    return answers.nothing()


async def stdin(station: Station, request: Call) -> Response:
    eof = request.query[p.EOF]
    uid = await in_use(station, request)
    taken = await station.processes.write_stdin(uid, _process_id(request), body(request), eof=eof)
    return answers.facts(taken=taken)


async def output(station: Station, request: Call) -> Response:
    query = request.query
    uid, process_id = await in_use(station, request), _process_id(request)
    # Looked up first: once an answer has begun, there is no status left to tell an error by.
    await station.processes.get(uid, process_id)
    events = station.processes.output(
        uid,
        process_id,
        after_stdout=query[p.AFTER_STDOUT],
        after_stderr=query[p.AFTER_STDERR],
        follow_on=query[p.FOLLOW],
    )
    if request.method == "HEAD":
        return Response(media_type=NDJSON)
    return StreamingResponse(_lines(events), media_type=NDJSON)


async def _lines(events: AsyncGenerator[OutputEvent, None]) -> AsyncIterator[bytes]:
    async with aclosing(events):  # whoever hangs up holds the process up no more
        async for event in events:
            yield to_json(event) + b"\n"


def _process_id(request: Request) -> str:
    value: str = request.path_params["pid"]
    return value
