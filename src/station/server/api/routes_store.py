"""The file store: `/files` by key, `/uploads` in pieces, and the two ways between it and a sandbox."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from station.core.errors import InvalidInput, Refused, SandboxNotFound
from station.core.ids import is_tool_id, is_uid, new_id
from station.core.paths import decode_name
from station.core.records import Owner
from station.core.stored import (
    OCTETS,
    RUNS,
    SESSIONS,
    FileListing,
    PublishRequest,
    StageRequest,
    StoredFile,
    UploadRequest,
    check_content_type,
    check_key,
    check_prefix,
    content_type_of,
    expires_at,
    file_name,
    is_own,
    parse_ttl,
)
from station.core.wire import DIGEST_BYTES
from station.server.access.guard import caller
from station.server.requests import body, read_json
from station.server.station import Station
from station.store.files import Facts, StoredContent
from station.worker.staging import not_found

from . import answers
from . import parameters as p
from .multipart import Form
from .operation import Call
from .routes_sandboxes import live_box


def owner_of(request: Request) -> Owner:
    """Whose files a caller reaches."""
    return caller(request).owner


async def upload_form(station: Station, request: Request) -> Response:
    """A form with the fields key and ttl, and a file after them."""
    form = await Form(request).open()
    if unknown := sorted(set(form.fields) - {"key", "ttl"}):
        raise InvalidInput(f"the form has the fields key, ttl and file, not {unknown[0]!r}", field=unknown[0])
    key, ttl = form.fields.get("key") or None, form.fields.get("ttl") or None
    key, facts = _facts(station, key, ttl=ttl, filename=form.filename, content_type=form.content_type)
    await _check_place(station, owner_of(request), key)
    stored = await station.store.put(owner_of(request), key, form.content(), facts)
    return answers.facts(
        201,
        file_key=stored.key,
        size_bytes=stored.size,
        content_type=stored.content_type,
        checksum=stored.checksum,
    )


async def write(station: Station, request: Call) -> Response:
    """The body is the content; with `digest=append` its SHA-256 stands behind it."""
    query = request.query
    key, facts = _facts(
        station,
        request.path_params["key"],
        ttl=query[p.TTL],
        filename=query[p.FILENAME],
        content_type=query[p.CONTENT_TYPE],
    )
    await _check_place(station, owner_of(request), key)
    content = _unsealed(body(request)) if query[p.DIGEST] else body(request)
    return answers.one(await station.store.put(owner_of(request), key, content, facts), 201)


async def list_(station: Station, request: Call) -> Response:
    query = request.query
    prefix, after, limit = check_prefix(query[p.PREFIX] or ""), query[p.AFTER_KEY] or "", query[p.PAGE]
    after = check_key(after) if after else ""
    page = await station.store.list(owner_of(request), prefix, station.now(), after=after, limit=limit)
    return answers.one(FileListing(list(page.files), len(page.files), page.next))


async def read(station: Station, request: Call) -> Response:
    """GET and HEAD alike; with `info=true` what is known of it instead of its content."""
    key = check_key(request.path_params["key"])
    if request.query[p.INFO]:
        known = await station.store.get(owner_of(request), key, station.now())
        if known is None:
            raise not_found(key)
        return answers.one(known)
    offset = request.query[p.OFFSET]
    content = await station.store.open(owner_of(request), key, station.now(), offset=offset)
    if content is None:
        raise not_found(key)
    headers = _headers(content.file, offset)
    if request.method == "HEAD":
        await content.aclose()
        return Response(headers=headers, media_type=content.file.content_type)
    return StreamingResponse(_content(content), headers=headers, media_type=content.file.content_type)


async def delete(station: Station, request: Request) -> Response:
    key = check_key(request.path_params["key"])
    if not await station.store.delete(owner_of(request), key):
        raise not_found(key)
    return answers.facts(deleted=key)


async def begin_upload(station: Station, request: Request) -> Response:
    wanted = await read_json(request, UploadRequest)
    key, facts = _facts(station, wanted.key, ttl=wanted.ttl, filename=wanted.filename, content_type=wanted.content_type)
    await _check_place(station, owner_of(request), key)
    facts = replace(facts, size=wanted.size, checksum=wanted.checksum)
    return answers.one(await station.uploads.begin(owner_of(request), key, facts), 201)


async def get_upload(station: Station, request: Request) -> Response:
    return answers.one(await station.uploads.get(owner_of(request), request.path_params["upload"]))


async def append(station: Station, request: Call) -> Response:
    """One piece, its SHA-256 behind it."""
    offset = request.query[p.OFFSET]
    upload = request.path_params["upload"]
    return answers.one(await station.uploads.append(owner_of(request), upload, offset, body(request)))


async def finish_upload(station: Station, request: Request) -> Response:
    return answers.one(await station.uploads.finish(owner_of(request), request.path_params["upload"]), 201)


async def abort_upload(station: Station, request: Request) -> Response:
    await station.uploads.abort(owner_of(request), request.path_params["upload"])
    return answers.nothing()


async def stage(station: Station, request: Request) -> Response:
    """From the store into the sandbox."""
    wanted = await read_json(request, StageRequest)
    key = check_key(wanted.key)
    live = await live_box(station, request)
    record = await station.sandboxes.get(live.uid)
    if wanted.own and not is_own(key, record.uid, record.tool_id):
        raise not_found(key)
    staged = await station.staging.stage(
        live,
        owner_of(request),
        key,
        decode_name(wanted.destination),
        mode=wanted.mode_bits(),
        overwrite=wanted.overwrite,
    )
    return answers.one(staged, 201 if staged.created else 200)


async def publish(station: Station, request: Request) -> Response:
    """From the sandbox into the store."""
    wanted = await read_json(request, PublishRequest)
    key = check_key(wanted.key or new_id("f", station.now()))
    live = await live_box(station, request)
    record = await station.sandboxes.get(live.uid)
    if wanted.own and (key.startswith(RUNS) or not is_own(key, record.uid, record.tool_id)):
        raise Refused(f"a sandbox publishes below files/ or sessions/{record.tool_id}/, not as {key}", key=key)
    await _check_place(station, owner_of(request), key)
    stored = await station.staging.publish(
        live,
        owner_of(request),
        decode_name(wanted.source),
        key,
        ttl_seconds=None if wanted.ttl is None else parse_ttl(wanted.ttl),
        content_type=wanted.content_type,
        sandbox_id=record.tool_id or record.uid,
        only_own=wanted.own,
    )
    return answers.one(stored, 201)


def _facts(
    station: Station, key: str | None, *, ttl: str | None, filename: str | None, content_type: str | None
) -> tuple[str, Facts]:
    """The key, a new one where none is named, and what is said of its file."""
    now = station.now()
    key = check_key(key if key is not None else new_id("f", now))
    if content_type in (None, OCTETS):
        content_type = content_type_of(filename or key)
    metadata = {"original_filename": name} if (name := file_name(filename or "")) else {}
    until = expires_at(key, now, None if ttl is None else parse_ttl(ttl))
    return key, Facts(check_content_type(content_type), until, metadata)


async def _check_place(station: Station, owner: Owner, key: str) -> None:
    """Raises SandboxNotFound for a place of no sandbox of `owner`: nothing would ever remove what lies there."""
    if key.startswith(SESSIONS):
        name = key.split("/")[1]
        if not (is_uid(name) or is_tool_id(name)):
            raise SandboxNotFound("below sessions/ stands the id of a sandbox, as an open answers it", key=key)
        await station.sandboxes.get(station.sandboxes.ids.uid_of(name, owner))


def _headers(file: StoredFile, offset: int) -> dict[str, str]:
    name = file.metadata.get("original_filename") or posixpath.basename(file.key)
    plain = "".join(c if c.isascii() and c not in '"\\%' else "_" for c in name)
    return {
        "content-length": str(file.size - offset),
        "x-checksum": file.checksum,
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
        "x-content-type-options": "nosniff",
    }


async def _content(content: StoredContent) -> AsyncIterator[bytes]:
    async with aclosing(content):
        async for chunk in content:
            yield chunk


async def _unsealed(source: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Without the SHA-256 at its end. Raises InvalidInput, before the last bytes are given, where it is another's."""
    digest, held = hashlib.sha256(), b""
    async for chunk in source:
        held += chunk
        if len(held) > DIGEST_BYTES:
            ready, held = held[:-DIGEST_BYTES], held[-DIGEST_BYTES:]
            digest.update(ready)
            yield ready
    if digest.digest() != held:
        raise InvalidInput("the content does not have the SHA-256 that follows it; nothing was stored", field="body")
