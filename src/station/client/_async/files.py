"""Files of a sandbox. Relative paths are below /workspace; names that are no UTF-8 are `str` with surrogate escapes."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import AsyncIterable, AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from station.client._build import Call, Data, check_digest, entry, octal, to_bytes, url
from station.client._io_async import to_thread
from station.client._transfer import PIECE, Local, Progress, Tail, pack, unpack
from station.core.codec import from_plain
from station.core.errors import FileNotFound, InvalidInput, NotARegularFile
from station.core.paths import encode_name
from station.core.stored import PublishRequest, Staged, StageRequest, StoredFile
from station.core.wire import FileEntry, FileList, FileWritten

from .connection import AsyncConnection

_LONG = 3600.0
Query = dict[str, str | int | bool | None]
PathLike = str | os.PathLike[str]


class AsyncFiles:
    """`sandbox.files`. Every transfer carries a SHA-256 that both ends check; a write appears whole or not at all.

    All raise FileNotFound for a missing file, PathRefused outside /workspace, /home/node and /tmp (links included),
    StorageFull where there is no room.
    """

    def __init__(self, connection: AsyncConnection, sandbox_id: str) -> None:
        self._connection = connection
        self._path = ("sandboxes", sandbox_id, "files")

    async def read(self, path: PathLike, *, offset: int = 0, length: int | None = None) -> bytes:
        """The content, or a range of it, in memory. Raises NotARegularFile for anything but a file."""
        pieces = [piece async for piece in self.chunks(path, offset=offset, length=length)]
        return b"".join(pieces)

    async def read_text(self, path: PathLike, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The content as text. Raises UnicodeDecodeError where it is none, unless `errors` says otherwise."""
        return (await self.read(path)).decode(encoding, errors)

    async def chunks(self, path: PathLike, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """The content piece by piece, in bounded memory. When the last piece comes the digest was right, else it
        raises."""
        name = os.fspath(path)
        query: Query = {"path": name, "offset": offset or None, "length": length, "digest": "append"}
        tail = Tail(name)
        async with self._connection.stream(Call("GET", url(*self._path, **query), replay=True)) as response:
            async for data in response.aiter_raw():
                if content := tail.feed(data):
                    yield content
        if content := tail.finish():
            yield content

    async def write(
        self,
        path: PathLike,
        data: Data | BinaryIO | AsyncIterable[bytes],
        *,
        mode: int | str | None = None,
        overwrite: bool = True,
        parents: bool = True,
        progress: Progress | None = None,
    ) -> FileWritten:
        """Replaces the file in one step; until then readers see the old one.

        `data`: bytes, text (as UTF-8), a binary file or an iterable of bytes. `mode`: `0o755` or `"755"`, else 644 for
        a new file. Raises AlreadyExists without `overwrite`, FileNotFound without `parents`.
        """
        name = os.fspath(path)
        query: Query = {
            "path": name,
            "mode": octal(mode),
            "overwrite": overwrite,
            "parents": parents,
            "digest": "append",
        }
        digest = sha256()
        body: Any
        if isinstance(data, (str, bytes, bytearray, memoryview)):
            whole = to_bytes(data)
            digest.update(whole)
            body = whole + digest.digest()
        else:
            body = with_digest(data, digest, progress)
        call = Call("PUT", url(*self._path, **query), content=body, replay=isinstance(body, bytes) and overwrite)
        answer = await self._connection.request(call)
        written = from_plain(FileWritten, answer)
        check_digest(name, digest.hexdigest(), written.sha256)
        return FileWritten(entry(answer["entry"]), written.created, written.sha256)

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileEntry:
        """What the name is; with `follow=False` a link itself."""
        answer = await self._call("GET", "stat", path=os.fspath(path), follow=follow)
        return entry(answer)

    async def exists(self, path: PathLike) -> bool:
        """Whether there is anything of that name, a dangling link too."""
        try:
            await self.stat(path, follow=False)
        except FileNotFound:
            return False
        return True

    async def list(self, path: PathLike = ".", *, recursive: bool = False) -> list[FileEntry]:
        """All names in a folder, sorted by path."""
        return [found async for found in self.scan(path, recursive=recursive)]

    async def scan(self, path: PathLike = ".", *, recursive: bool = False) -> AsyncIterator[FileEntry]:
        """As `list`, page by page: any number of names in bounded memory."""
        after: str | None = None
        while True:
            page = await self.page(path, recursive=recursive, after=after)
            for item in page.entries:
                yield item
            after = page.next
            if after is None:
                return

    async def page(
        self, path: PathLike = ".", *, recursive: bool = False, limit: int = 1000, after: str | None = None
    ) -> FileList:
        """At most `limit` names (1 to 10,000), sorted; `next` of the answer is the `after` of the following page."""
        query: Query = {"path": os.fspath(path), "recursive": recursive, "limit": limit, "after": after}
        page = await self._call("GET", "list", **query)
        return FileList([entry(item) for item in page["entries"]], page.get("truncated", False), page.get("next"))

    async def mkdir(self, path: PathLike, *, mode: int | str | None = None, parents: bool = True) -> None:
        """Makes a folder; one that is there already is no error with `parents`."""
        await self._call("POST", "mkdir", path=os.fspath(path), mode=octal(mode), parents=parents)

    async def rename(self, path: PathLike, to: PathLike, *, overwrite: bool = True) -> None:
        """In one step. Raises AlreadyExists without `overwrite`."""
        await self._call("POST", "rename", path=os.fspath(path), to=os.fspath(to), overwrite=overwrite)

    async def copy(self, path: PathLike, to: PathLike) -> None:
        """A file or a folder with all below it, inside the sandbox."""
        await self._call("POST", "copy", path=os.fspath(path), to=os.fspath(to))

    async def remove(self, path: PathLike, *, recursive: bool = False) -> int:
        """Returns how many names went. A folder with anything in it needs `recursive`."""
        query: Query = {"path": os.fspath(path), "recursive": recursive}
        answer = await self._connection.request(Call("DELETE", url(*self._path, **query), read_seconds=_LONG))
        return int(answer["removed"])

    async def upload(self, source: PathLike, path: PathLike, *, progress: Progress | None = None) -> int:
        """A local file or folder into the sandbox, with its permission bits; returns the bytes of content sent.

        A folder is laid over what is there; owners, devices and sockets stay behind.
        """
        local = Path(source)
        if local.is_dir():
            with tempfile.TemporaryFile() as spool:
                size = await to_thread(pack, local, spool)
                spool.seek(0)
                await self.write_tar(path, _pieces(spool, _scaled(progress, size)))
            return size
        with await to_thread(local.open, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise NotARegularFile(f"{local} is neither a file nor a folder", path=os.fspath(local))
            mode = stat.S_IMODE(status.st_mode) & 0o777
            written = await self.write(path, file, mode=mode, progress=_scaled(progress, status.st_size))
        return written.entry.size

    async def download(
        self, path: PathLike, target: PathLike, *, progress: Progress | None = None, skip_outer_links: bool = False
    ) -> int:
        """A file or folder of the sandbox to `target` here, which appears whole; returns the bytes received.

        A folder's names are checked: none leads out of `target`. A link that does (a venv has such) raises PathRefused
        before anything is written; with `skip_outer_links` it is left out.
        """
        found = await self.stat(path)
        local = Path(target)
        if found.type == "dir":
            with tempfile.TemporaryFile() as spool:
                size = await fill(spool, self.read_tar(path), progress, None)
                spool.seek(0)
                await to_thread(unpack, spool, local, skip_outer_links=skip_outer_links)
            return size
        part = Local(local)
        try:
            size = await fill(part.open(), self.chunks(path), progress, found.size)
            part.publish(int(found.mode, 8))
        finally:
            part.discard()
        return size

    async def stage(
        self,
        key: str,
        destination: PathLike,
        *,
        mode: int | str | None = None,
        overwrite: bool = True,
        own: bool = False,
    ) -> Staged:
        """A file of the station's store to `destination` in the sandbox, straight from the store and checked by its
        digest. Makes parents. `own`: nothing below `sessions/` that is another sandbox's. Raises FileNotFound for the
        key, PathRefused, AlreadyExists without `overwrite`."""
        wanted = StageRequest(key, encode_name(os.fspath(destination)), octal(mode) or "644", overwrite, own)
        call = Call("POST", url("sandboxes", self._path[1], "stage"), wanted, replay=overwrite, read_seconds=_LONG)
        return from_plain(Staged, await self._connection.request(call))

    async def publish(
        self,
        source: PathLike,
        *,
        key: str | None = None,
        ttl: str | None = None,
        content_type: str | None = None,
        own: bool = False,
    ) -> StoredFile:
        """A file of the sandbox into the station's store, straight to it; `key`: `None` is `files/` and a new id.

        `ttl`: as `7d`. `own`: over no file that this sandbox has not published (AlreadyExists), below `files/` or its
        own `sessions/` alone (Refused). Raises FileNotFound, Conflict where the file became shorter while it was read,
        StorageFull.
        """
        wanted = PublishRequest(encode_name(os.fspath(source)), key, ttl, content_type, own)
        call = Call("POST", url("sandboxes", self._path[1], "publish"), wanted, read_seconds=_LONG)
        return from_plain(StoredFile, await self._connection.request(call))

    async def read_tar(self, path: PathLike = ".") -> AsyncIterator[bytes]:
        """A folder as a tar stream, names relative to it."""
        call = Call("GET", url(*self._path, "archive", path=os.fspath(path)), replay=True, read_seconds=_LONG)
        async with self._connection.stream(call) as response:
            async for data in response.aiter_raw():
                yield data

    async def write_tar(self, path: PathLike, data: Data | BinaryIO | AsyncIterable[bytes]) -> int:
        """Unpacks a tar below the folder `path`; returns the number of its entries.

        Raises PathRefused for a member that leads out, InvalidInput for what is no tar.
        """
        body: Any = to_bytes(data) if isinstance(data, (str, bytes, bytearray, memoryview)) else _pieces(data, None)
        call = Call("PUT", url(*self._path, "archive", path=os.fspath(path)), content=body, read_seconds=_LONG)
        return int((await self._connection.request(call))["entries"])

    async def _call(self, method: str, verb: str, **query: Any) -> Any:
        call = Call(method, url(*self._path, verb, **query), replay=method == "GET", read_seconds=_LONG)
        return await self._connection.request(call)


async def _pieces(source: BinaryIO | AsyncIterable[bytes], progress: Progress | None) -> AsyncIterator[bytes]:
    done = 0
    if hasattr(source, "read"):
        while data := await to_thread(source.read, PIECE):
            if not isinstance(data, bytes):
                raise InvalidInput("the file must be opened in binary mode ('rb')", field="data")
            yield data
            done += len(data)
            if progress is not None:
                progress(done, None)
        return
    async for data in source:
        yield data
        done += len(data)
        if progress is not None:
            progress(done, None)


async def with_digest(source: BinaryIO | AsyncIterable[bytes], digest: Any, progress: Progress | None) -> Any:
    async for data in _pieces(source, progress):
        digest.update(data)
        yield data
    yield digest.digest()


async def fill(
    sink: BinaryIO | Local, pieces: AsyncIterator[bytes], progress: Progress | None, total: int | None
) -> int:
    done = waiting = 0
    batch: list[bytes] = []
    async for data in pieces:
        batch.append(data)
        waiting += len(data)
        if waiting >= PIECE:
            await to_thread(sink.writelines, batch)
            done, waiting, batch = done + waiting, 0, []
            if progress is not None:
                progress(done, total)
    await to_thread(sink.writelines, batch)
    done += waiting
    if progress is not None and waiting:
        progress(done, total)
    return done


def _scaled(progress: Progress | None, total: int) -> Progress | None:
    """`progress` with the total that the sender knows."""
    return None if progress is None else lambda done, _: progress(done, total)
