"""Files, as raw bodies both ways. Names are bytes: they come in the query, percent-coded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from station.core.codec import to_plain
from station.core.wire import DIGEST_BYTES
from station.worker.files import FileRead

from . import answers
from .requests import Query, body
from .routes_sandboxes import live_box
from .station import Station

OCTETS = "application/octet-stream"


async def read(station: Station, request: Request) -> Response:
    query = Query(request, "path", "offset", "length", "digest")
    path, offset, length = query.need("path"), query.whole("offset", 0) or 0, query.whole("length")
    digest = query.digest()
    live = await live_box(station, request)
    found = await station.files.read(live, path, offset=offset, length=length)
    return StreamingResponse(
        _content(found, sealed=digest),
        headers={
            "content-length": str(found.length + (DIGEST_BYTES if digest else 0)),
            "x-total-size": str(found.entry.size),
            "x-station-entry": json.dumps(to_plain(found.entry)),
        },
        media_type=OCTETS,
    )


async def write(station: Station, request: Request) -> Response:
    query = Query(request, "path", "mode", "overwrite", "parents", "digest")
    path, overwrite, parents = query.need("path"), query.flag("overwrite", True), query.flag("parents", True)
    mode = query.mode()
    # The digest of the sender goes on to the guest, which checks it (docs/decisions/0002).
    sealed = query.digest()
    mode = 0o644 if mode is None else mode
    live = await live_box(station, request)
    done = await station.files.write(
        live, path, body(request), mode=mode, overwrite=overwrite, parents=parents, sealed=sealed
    )
    return answers.one(done, 201 if done.created else 200)


async def remove(station: Station, request: Request) -> Response:
    query = Query(request, "path", "recursive")
    path, recursive = query.need("path"), query.flag("recursive")
    live = await live_box(station, request)
    return answers.facts(removed=await station.files.remove(live, path, recursive=recursive))


async def stat(station: Station, request: Request) -> Response:
    query = Query(request, "path", "follow")
    path, follow = query.need("path"), query.flag("follow", True)
    live = await live_box(station, request)
    return answers.one(await station.files.stat(live, path, follow=follow))


async def list_(station: Station, request: Request) -> Response:
    query = Query(request, "path", "recursive", "limit", "after")
    path, recursive = query.text("path") or ".", query.flag("recursive")
    limit, after = query.whole("limit", 1000) or 0, query.text("after")
    live = await live_box(station, request)
    return answers.one(await station.files.list(live, path, recursive=recursive, limit=limit, after=after))


async def mkdir(station: Station, request: Request) -> Response:
    query = Query(request, "path", "mode", "parents")
    path, parents, mode = query.need("path"), query.flag("parents", True), query.mode()
    live = await live_box(station, request)
    made = await station.files.mkdir(live, path, mode=0o755 if mode is None else mode, parents=parents)
    return answers.facts(created=made)


async def rename(station: Station, request: Request) -> Response:
    query = Query(request, "path", "to", "overwrite")
    path, to, overwrite = query.need("path"), query.need("to"), query.flag("overwrite", True)
    live = await live_box(station, request)
    await station.files.rename(live, path, to, overwrite=overwrite)
    return answers.nothing()


async def copy(station: Station, request: Request) -> Response:
    query = Query(request, "path", "to", "overwrite")
    path, to, overwrite = query.need("path"), query.need("to"), query.flag("overwrite", True)
    live = await live_box(station, request)
    await station.files.copy(live, path, to, overwrite=overwrite)
    return answers.nothing()


async def read_archive(station: Station, request: Request) -> Response:
    path = Query(request, "path").text("path") or "."
    live = await live_box(station, request)
    chunks = station.files.archive(live, path)
    # The first piece comes before the answer begins, so that a missing path is a 404 and no broken archive.
    first = await anext(chunks, b"")
    return StreamingResponse(_after(first, chunks), media_type="application/x-tar")


async def write_archive(station: Station, request: Request) -> Response:
    path = Query(request, "path").text("path") or "."
    live = await live_box(station, request)
    return answers.facts(entries=await station.files.extract(live, path, body(request)))


async def _content(found: FileRead, *, sealed: bool) -> AsyncIterator[bytes]:
    async with found:
        async for chunk in found.chunks.sealed() if sealed else found.chunks:
            yield chunk


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
