"""Files, as raw bodies both ways. Names are bytes: they come in the query, percent-coded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from station.core.codec import to_plain
from station.core.wire import DIGEST_BYTES
from station.server.requests import body
from station.server.station import Station
from station.worker.files import FileRead, closing

from . import answers
from . import parameters as p
from .operation import Call
from .routes_sandboxes import live_box

OCTETS, TAR = "application/octet-stream", "application/x-tar"


async def read(station: Station, request: Call) -> Response:
    query = request.query
    path, offset, length, digest = query[p.PATH], query[p.OFFSET], query[p.LENGTH], query[p.DIGEST]
    live = await live_box(station, request)
    found = await station.files.read(live, path, offset=offset, length=length)
    headers = {
        "content-length": str(found.length + (DIGEST_BYTES if digest else 0)),
        "x-total-size": str(found.entry.size),
        "x-station-entry": json.dumps(to_plain(found.entry)),
    }
    if request.method == "HEAD":
        await found.chunks.aclose()
        return Response(headers=headers, media_type=OCTETS)
    return StreamingResponse(_content(found, sealed=digest), headers=headers, media_type=OCTETS)


async def write(station: Station, request: Call) -> Response:
    query = request.query
    path, overwrite, parents, mode = query[p.PATH], query[p.OVERWRITE], query[p.PARENTS], query[p.FILE_MODE]
    # The digest of the sender goes on to the guest, which checks it (docs/decisions/0002).
    sealed = query[p.DIGEST]
    live = await live_box(station, request)
    done = await station.files.write(
        live, path, body(request), mode=mode, overwrite=overwrite, parents=parents, sealed=sealed
    )
    return answers.one(done, 201 if done.created else 200)


async def remove(station: Station, request: Call) -> Response:
    path, recursive = request.query[p.PATH], request.query[p.RECURSIVE]
    live = await live_box(station, request)
    return answers.facts(removed=await station.files.remove(live, path, recursive=recursive))


async def stat(station: Station, request: Call) -> Response:
    path, follow = request.query[p.PATH], request.query[p.FOLLOW_LINKS]
    live = await live_box(station, request)
    return answers.one(await station.files.stat(live, path, follow=follow))


async def list_(station: Station, request: Call) -> Response:
    query = request.query
    path, recursive, limit = query[p.FOLDER] or ".", query[p.RECURSIVE], query[p.LIST_LIMIT]
    after = query[p.AFTER_NAME]
    live = await live_box(station, request)
    return answers.one(await station.files.list(live, path, recursive=recursive, limit=limit, after=after))


async def mkdir(station: Station, request: Call) -> Response:
    path, mode, parents = request.query[p.PATH], request.query[p.FOLDER_MODE], request.query[p.PARENTS]
    live = await live_box(station, request)
    made = await station.files.mkdir(live, path, mode=mode, parents=parents)
    return answers.facts(created=made)


async def rename(station: Station, request: Call) -> Response:
    path, to, overwrite = request.query[p.PATH], request.query[p.TO], request.query[p.OVERWRITE]
    live = await live_box(station, request)
    await station.files.rename(live, path, to, overwrite=overwrite)
    return answers.nothing()


async def copy(station: Station, request: Call) -> Response:
    path, to, overwrite = request.query[p.PATH], request.query[p.TO], request.query[p.OVERWRITE]
    live = await live_box(station, request)
    await station.files.copy(live, path, to, overwrite=overwrite)
    return answers.nothing()


async def read_archive(station: Station, request: Call) -> Response:
    path = request.query[p.FOLDER] or "."
    live = await live_box(station, request)
    chunks = station.files.archive(live, path)
    # The first piece comes before the answer begins, so that a missing path is a 404 and no broken archive.
    first = await anext(chunks, b"")
    if request.method == "HEAD":
        async with closing(chunks):
            return Response(media_type=TAR)
    return StreamingResponse(_after(first, chunks), media_type=TAR)


async def write_archive(station: Station, request: Call) -> Response:
    path = request.query[p.FOLDER] or "."
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
