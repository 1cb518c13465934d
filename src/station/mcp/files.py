"""`sandbox_fs_write sandbox_fs_read sandbox_fs_list sandbox_fs_delete`."""

from __future__ import annotations

import base64
from contextlib import suppress

from station.client._async.sandbox import AsyncSandbox
from station.core.display import escape
from station.core.errors import FileNotFound, NotARegularFile, TooLarge
from station.core.paths import WORKSPACE
from station.core.wire import FileEntry, FileList, FileWritten

from . import texts
from .answers import DeleteAnswer, Entry, ListAnswer, ReadAnswer, WriteAnswer
from .call import Call, Image, Reply, fitted, image_type, less
from .caller import id_of
from .inputs import MAX_WRITE_BYTES, DeleteInput, ListInput, ReadInput, WriteInput


async def write(call: Call, wanted: WriteInput) -> Reply:
    content = wanted.to_bytes()
    if len(content) > MAX_WRITE_BYTES:
        raise TooLarge(
            f"{len(content)} bytes are more than the {MAX_WRITE_BYTES} of one call; write it in parts with a command, "
            "or let the user copy it in with `stn cp`",
            field="content",
        )

    async def work(sandbox: AsyncSandbox) -> tuple[AsyncSandbox, FileWritten]:
        return sandbox, await sandbox.files.write(
            wanted.path or ".", content, mode=wanted.mode, overwrite=wanted.overwrite
        )

    sandbox, written = await call.caller.within(wanted.sandbox_id, work)
    answer = WriteAnswer(True, wanted.path, len(content), written.created, id_of(sandbox))
    return Reply(
        answer, f"{'made' if written.created else 'replaced'} {texts.named(wanted.path)}, {len(content)} bytes"
    )


async def read(call: Call, wanted: ReadInput) -> Reply:
    async def work(sandbox: AsyncSandbox) -> tuple[AsyncSandbox, FileEntry, bytes]:
        entry = await sandbox.files.stat(wanted.path or ".")
        if entry.type != "file":
            raise NotARegularFile(
                f"{texts.named(wanted.path)} is a {_KINDS[entry.type]}; sandbox_fs_list shows what a folder holds",
                path=wanted.path,
            )
        data = await sandbox.files.read(wanted.path, offset=wanted.offset, length=wanted.max_bytes)
        return sandbox, entry, data

    sandbox, entry, data = await call.caller.within(wanted.sandbox_id, work)
    # The file may have grown since it was looked at.
    total = max(entry.size, wanted.offset + len(data))
    return fitted(
        lambda most: _read_reply(wanted, id_of(sandbox), data[:most], total), wanted.max_bytes, call.caller.answer_bytes
    )


async def list_(call: Call, wanted: ListInput) -> Reply:
    limit, room = wanted.limit, call.caller.answer_bytes
    while True:
        reply = await _page(call, wanted, limit)
        size = reply.json_bytes()
        if size <= room or limit == 1:
            return reply
        # Not `fitted`: only the station knows where a shorter page ends.
        limit = max(1, less(limit, size, room))


async def _page(call: Call, wanted: ListInput, limit: int) -> Reply:
    async def work(sandbox: AsyncSandbox) -> tuple[AsyncSandbox, FileList]:
        path = wanted.path or "."
        return sandbox, await sandbox.files.page(path, recursive=wanted.recursive, limit=limit, after=wanted.cursor)

    sandbox, page = await call.caller.within(wanted.sandbox_id, work)
    entries = [Entry(_relative(found.path), found.type, found.size, found.mode, found.mtime) for found in page.entries]
    answer = ListAnswer(entries, page.truncated, id_of(sandbox), page.next)
    rows = [f"{item.type:7} {item.mode:>4} {item.size:>10} {escape(item.path)}" for item in entries]
    text = texts.lines(
        texts.data(texts.named(wanted.path), "\n".join(rows)),
        "there are more: give next_cursor as cursor" if page.truncated else None,
    )
    return Reply(answer, text)


async def delete(call: Call, wanted: DeleteInput) -> Reply:
    async def work(sandbox: AsyncSandbox) -> tuple[AsyncSandbox, int]:
        removed = 0
        with suppress(FileNotFound):
            removed = await sandbox.files.remove(wanted.path or ".", recursive=wanted.recursive)
        return sandbox, removed

    sandbox, removed = await call.caller.within(wanted.sandbox_id, work)
    answer = DeleteAnswer(True, wanted.path, id_of(sandbox), removed)
    return Reply(answer, f"deleted {texts.named(wanted.path)}" if removed else "there was nothing of that name")


_KINDS = {"dir": "folder", "symlink": "link", "other": "pipe, socket or device"}


def _decoded(data: bytes, more: bool) -> str | None:
    """As text, cut at the last whole character where the file goes on; `None`: it is none."""
    # One that is longer than what may be read at once can only be shown as bytes.
    whole = (texts.whole_characters(data) or data) if more else data
    try:
        return whole.decode()
    except UnicodeDecodeError:
        return None


def _read_reply(wanted: ReadInput, sandbox_id: str, data: bytes, total: int) -> Reply:
    text = None if wanted.encoding == "base64" else _decoded(data, wanted.offset + len(data) < total)
    data = data if text is None else text.encode()
    end = wanted.offset + len(data)
    coded = base64.b64encode(data).decode() if text is None else None
    answer = ReadAnswer(
        path=wanted.path,
        encoding="base64" if text is None else "utf-8",
        truncated=end < total,
        size_bytes=len(data),
        total_size_bytes=total,
        sandbox_id=sandbox_id,
        contents=text,
        content=text,
        contents_b64=coded,
        next_offset=end if end < total else None,
    )
    of_all = f" of {total}" if answer.truncated else ""
    title = f"{texts.named(wanted.path)}, {len(data)}{of_all} bytes"
    on = f"it goes on: offset={end}" if answer.truncated else None
    if coded is None:
        return Reply(answer, texts.lines(texts.data(title, text or ""), on))
    if len(data) == total and (kind := image_type(data)):
        return Reply(answer, title, (Image(kind, coded),))
    return Reply(answer, texts.lines(texts.fenced(f"{title}, base64:", coded), on))


def _relative(path: str) -> str:
    """As the tools write it."""
    return texts.name(path.removeprefix(f"{WORKSPACE}/"))
