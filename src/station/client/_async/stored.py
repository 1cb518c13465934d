"""Files of the station's store: uploaded, listed, downloaded; what a sandbox is given and gives by key."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO

from station.client._build import Call, Data, to_bytes, url
from station.client._io_async import to_thread
from station.client._transfer import PIECE, Local, Progress
from station.core.codec import from_plain
from station.core.errors import Conflict, FileNotFound, InternalError, InvalidInput, NotFound, StationUnreachable
from station.core.ids import new_id
from station.core.stored import (
    UPLOAD_BYTES,
    FileListing,
    StoredFile,
    Upload,
    UploadRequest,
    check_key,
    check_prefix,
)

from .connection import AsyncConnection
from .files import PathLike, fill, with_digest

_LONG = 3600.0
_STALLS = 5


class AsyncStoredFiles:
    """The file store of one station. A key is `files/…`, `runs/…` or `sessions/…`; a bare one is below `files/`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def upload(
        self,
        source: PathLike,
        *,
        key: str | None = None,
        ttl: str | None = None,
        content_type: str | None = None,
        progress: Progress | None = None,
    ) -> StoredFile:
        """A local file into the store, whole or not at all; over a broken connection it goes on where it was.

        `key`: `None` is `files/` and a new id; one that is there is overwritten. `ttl`: as `7d`; `None` is what its
        place says. Raises StorageFull where the store has no room, TooLarge beyond `files.max_file_bytes`.
        """
        local = Path(source)
        with await to_thread(local.open, "rb") as file:
            size, checksum = await to_thread(_measured, file)
            wanted = UploadRequest(size, checksum, _key(key), ttl, content_type, local.name)
            if size <= UPLOAD_BYTES:
                stored = await self._put(await to_thread(file.read), wanted)
                _told(progress, size, size)
            else:
                stored = await self._in_pieces(file, wanted, progress)
        return _checked(stored, checksum)

    async def write(
        self,
        key: str | None,
        data: Data | BinaryIO | AsyncIterable[bytes],
        *,
        ttl: str | None = None,
        content_type: str | None = None,
        progress: Progress | None = None,
    ) -> StoredFile:
        """Bytes, or a stream that can be read once, into the store; checked by its digest at both ends."""
        if isinstance(data, (str, bytes, bytearray, memoryview)):
            raw = to_bytes(data)
            wanted = UploadRequest(len(raw), hashlib.sha256(raw).hexdigest(), _key(key), ttl, content_type)
            return _checked(await self._put(raw, wanted), wanted.checksum)
        digest = hashlib.sha256()
        path = url("files", _key(key), digest="append", ttl=ttl, content_type=content_type)
        call = Call("PUT", path, content=with_digest(data, digest, progress), read_seconds=_LONG)
        return _checked(from_plain(StoredFile, await self._connection.request(call)), digest.hexdigest())

    async def download(self, key: str, target: PathLike, *, progress: Progress | None = None) -> StoredFile:
        """A file of the store to `target` here, which appears whole and with the digest that the store acknowledged.

        Raises FileNotFound.
        """
        stored = await self.info(key)
        part = Local(Path(target))
        digest = hashlib.sha256()
        try:
            sink = part.open()
            await fill(sink, _noted(self.chunks(key), digest), progress, stored.size)
            _checked(stored, digest.hexdigest())
            part.publish(None)
        finally:
            part.discard()
        return stored

    async def read(self, key: str) -> bytes:
        """The whole content. Raises FileNotFound."""
        return b"".join([chunk async for chunk in self.chunks(key)])

    async def chunks(self, key: str) -> AsyncIterator[bytes]:
        """The content piece by piece; over a broken connection it goes on, unless the key was written again.

        Raises FileNotFound, and InternalError where what came is not what the store acknowledged.
        """
        digest, done, stalls = hashlib.sha256(), 0, 0
        checksum: str | None = None
        while True:
            before = done
            try:
                call = Call("GET", url("files", check_key(key), offset=done), replay=True)
                async with self._connection.stream(call) as response:
                    told = response.headers["x-checksum"]
                    if checksum not in (None, told):
                        raise Conflict(f"{key} was written again while it was read", retryable=True, key=key)
                    checksum = told
                    async for data in response.aiter_raw():
                        digest.update(data)
                        done += len(data)
                        yield data
            except StationUnreachable:
                stalls = stalls + 1 if done == before else 0
                if stalls > _STALLS:
                    raise
                continue
            if digest.hexdigest() != checksum:
                raise InternalError(f"{key} did not come as it is stored; try again", retryable=True, key=key)
            return

    async def info(self, key: str) -> StoredFile:
        """What is known of it. Raises FileNotFound."""
        call = Call("GET", url("files", check_key(key), info=True), replay=True)
        return from_plain(StoredFile, await self._connection.request(call))

    async def list(self, prefix: str = "") -> list[StoredFile]:
        """All whose keys begin with `prefix`, by key."""
        return [file async for file in self.scan(prefix)]

    async def scan(self, prefix: str = "") -> AsyncIterator[StoredFile]:
        """As `list`, page by page."""
        after: str | None = None
        while True:
            call = Call("GET", url("files", prefix=check_prefix(prefix) or None, after=after), replay=True)
            page = from_plain(FileListing, await self._connection.request(call))
            for file in page.files:
                yield file
            if page.next is None:
                return
            after = page.next

    async def delete(self, key: str) -> bool:
        """Whether there was one."""
        try:
            await self._connection.request(Call("DELETE", url("files", check_key(key))))
        except FileNotFound:
            return False
        return True

    async def _put(self, data: bytes, wanted: UploadRequest) -> StoredFile:
        query = {"ttl": wanted.ttl, "content_type": wanted.content_type, "filename": wanted.filename}
        path = url("files", str(wanted.key), digest="append", **query)
        call = Call("PUT", path, content=data + bytes.fromhex(wanted.checksum), replay=True, read_seconds=_LONG)
        return from_plain(StoredFile, await self._connection.request(call))

    async def _in_pieces(self, file: BinaryIO, wanted: UploadRequest, progress: Progress | None) -> StoredFile:
        upload = from_plain(Upload, await self._connection.request(Call("POST", url("uploads"), wanted)))
        offset, stalls = upload.offset, 0
        while offset < upload.size:
            try:
                offset, stalls = await self._piece(file, upload, offset), 0
            except (StationUnreachable, Conflict) as error:
                # Whether the piece has come is not known, or another one is next: the station says where to go on.
                stalls += 1
                if stalls > _STALLS:
                    raise error
                offset = await self._offset(upload)
            _told(progress, offset, upload.size)
        return await self._finish(upload)

    async def _piece(self, file: BinaryIO, upload: Upload, offset: int) -> int:
        def read() -> bytes:
            file.seek(offset)
            return file.read(UPLOAD_BYTES)

        piece = await to_thread(read)
        if not piece:
            raise InvalidInput("the file became shorter while it was uploaded; nothing was stored", field="source")
        sealed = piece + hashlib.sha256(piece).digest()
        call = Call("PUT", url("uploads", upload.id, offset=offset), content=sealed, read_seconds=_LONG)
        return from_plain(Upload, await self._connection.request(call)).offset

    async def _offset(self, upload: Upload) -> int:
        call = Call("GET", url("uploads", upload.id), replay=True)
        return from_plain(Upload, await self._connection.request(call)).offset

    async def _finish(self, upload: Upload) -> StoredFile:
        call = Call("POST", url("uploads", upload.id, "finish"), content=b"", replay=True, read_seconds=_LONG)
        try:
            return from_plain(StoredFile, await self._connection.request(call))
        except NotFound:
            # Sent again after a lost answer: then it is stored already.
            stored = await self.info(upload.key)
            if stored.checksum != upload.checksum:
                raise
            return stored


def _key(key: str | None) -> str:
    """Chosen here, so that a call that is sent again names the same one."""
    return check_key(new_id("f", time.time()) if key is None else key)


def _measured(file: BinaryIO) -> tuple[int, str]:
    digest = hashlib.sha256()
    while data := file.read(PIECE):
        digest.update(data)
    size = file.tell()
    file.seek(0)
    return size, digest.hexdigest()


async def _noted(pieces: AsyncIterator[bytes], digest: Any) -> AsyncIterator[bytes]:
    async for data in pieces:
        digest.update(data)
        yield data


def _checked(stored: StoredFile, checksum: str) -> StoredFile:
    if stored.checksum != checksum:
        raise InternalError(
            f"{stored.key} was altered on its way: its digest is another", retryable=True, key=stored.key
        )
    return stored


def _told(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)
