"""The files port in a directory: blobs named by their SHA-256, and a catalogue of keys beside them.

A blob comes to its name and its key into the catalogue in one step of one thread, and leaves the same way: so a blob
without a key is always what a crash has left, and nobody counts references. The state directory belongs to one station
(its lock), so that this thread is the only writer.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import sqlite3
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from station.core.errors import StationError, StorageFull, Unavailable
from station.core.records import Owner
from station.core.stored import StoredFile
from station.durable import is_full, sync_directory, write_all

from .catalog import Catalog, Removed
from .database import translated
from .files import Facts, MayReplace, Page, Room, StoredContent, Swept
from .room import GIB, Quota, check_announced, check_offset, damaged, living
from .threads import in_thread

T = TypeVar("T")

_CHUNK_BYTES = 1 << 20
_TEMPORARY = ".stn-"


class DirectoryFiles:
    """A `FileStore` below one directory, which belongs to this process."""

    def __init__(
        self,
        path: Path,
        *,
        now: Callable[[], float],
        max_file_bytes: int = 5 * GIB,
        max_bytes: int = 10 * GIB,
    ) -> None:
        """Opens or makes it; what a crash has left unfinished is removed. Raises Unavailable or StorageFull."""
        self._path = path
        self._now = now
        self._quota = Quota(max_file_bytes=max_file_bytes, max_bytes=max_bytes)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="files")
        self._may_have_orphans = True
        """Of a crash, or of a change that failed half-way: nothing else leaves a blob without a key."""
        self._closed = False
        try:
            self._catalog: Catalog = self._thread.submit(self._guarded, self._open).result()
            self._quota.files, self._quota.used = self._thread.submit(self._guarded, self._catalog.totals).result()
        except StationError:
            self._thread.shutdown()
            raise

    # ── the port ────────────────────────────────────────────────────────────────────────────────────────────────

    async def put(
        self,
        owner: Owner,
        key: str,
        content: AsyncIterable[bytes],
        facts: Facts,
        *,
        may_replace: MayReplace = lambda _there: True,
    ) -> StoredFile:
        taken = facts.size or 0
        self.reserve(taken)
        incoming = _Incoming(self._path / "incoming")
        try:
            await in_thread(self._guarded, incoming.begin)
            async for chunk in content:
                size = incoming.size + len(chunk)
                self._quota.check_size(size)
                if (more := size - taken) > 0:
                    self.reserve(more)
                    taken += more
                await in_thread(self._guarded, partial(incoming.write, chunk))
            await in_thread(self._guarded, incoming.finish)
            check_announced(incoming.size, incoming.checksum, facts)
            return await self._run(partial(self._commit, owner, key, incoming, facts, may_replace=may_replace))
        finally:
            self.release(taken)
            incoming.discard()

    async def get(self, owner: Owner, key: str, now: float) -> StoredFile | None:
        return await self._run(lambda: self._living(owner, key, now))

    async def open(self, owner: Owner, key: str, now: float, *, offset: int = 0) -> StoredContent | None:
        def opened() -> _Content | None:
            found = self._living(owner, key, now)
            if found is None:
                return None
            check_offset(offset, found)
            return _Content(found, _open_blob(self._blob(found.checksum), found), offset)

        return await self._run(opened)

    async def list(self, owner: Owner, prefix: str, now: float, *, after: str = "", limit: int = 1000) -> Page:
        found = await self._run(lambda: self._catalog.list(owner, prefix, now, after=after, limit=limit + 1))
        return Page(found[:limit], found[limit - 1].key if len(found) > limit else None)

    async def delete(self, owner: Owner, key: str) -> bool:
        return await self._remove(lambda: self._catalog.remove(owner, key)) > 0

    async def delete_below(self, owner: Owner, prefix: str) -> int:
        return await self._remove(lambda: self._catalog.remove_below(owner, prefix))

    def reserve(self, size: int, *, anyway: bool = False) -> None:
        self._quota.reserve(size, anyway=anyway)

    def release(self, size: int) -> None:
        self._quota.release(size)

    async def room(self) -> Room:
        return await self._run(self._quota.room)

    async def sweep(self, now: float) -> Swept:
        expired = await self._remove(lambda: self._catalog.remove_expired(now))
        return Swept(expired, await self._run(self._drop_orphans))

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._catalog.close)
            self._thread.shutdown()

    # ── on the thread ───────────────────────────────────────────────────────────────────────────────────────────

    def _open(self) -> Catalog:
        for name in ("blobs", "incoming"):
            (self._path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in (self._path / "incoming").iterdir():
            left.unlink()
        return Catalog(self._path / "catalog.db")

    def _commit(
        self, owner: Owner, key: str, incoming: _Incoming, facts: Facts, *, may_replace: MayReplace
    ) -> StoredFile:
        file = StoredFile(
            key, incoming.size, facts.content_type, incoming.checksum, self._now(), facts.expires_at, facts.metadata
        )
        before = self._catalog.get(owner, key)
        self._quota.check_key(key, before, may_replace)
        is_new = not self._catalog.has(owner, file.checksum)
        with self._between(), self._catalog.transaction():
            # Also over a blob that is there: it may have been damaged since, and this one is known to be good.
            incoming.move(self._blob(file.checksum))
            self._catalog.put(owner, file)
        self._quota.used += file.size if is_new else 0
        if before is None:
            self._quota.files += 1
        else:
            self._let_go([(owner, before.checksum, before.size)])
        return file

    def _living(self, owner: Owner, key: str, now: float) -> StoredFile | None:
        return living(self._catalog.get(owner, key), now)

    async def _remove(self, rows: Callable[[], Removed]) -> int:
        def removed() -> int:
            with self._catalog.transaction():
                removed = rows()
            self._quota.files -= len(removed)
            self._let_go(removed)
            return len(removed)

        return await self._run(removed)

    def _let_go(self, removed: Removed) -> None:
        self._quota.used -= sum(
            size for owner, checksum, size in set(removed) if not self._catalog.has(owner, checksum)
        )
        self._drop_unnamed((checksum, size) for _, checksum, size in removed)

    def _drop_unnamed(self, contents: Iterable[tuple[str, int]]) -> int:
        """Bytes that no key names any more. After the catalogue: a crash leaves a blob too many, never one too few."""
        freed = 0
        with self._between():
            for checksum, size in set(contents):
                if not self._catalog.is_named(checksum):
                    self._blob(checksum).unlink(missing_ok=True)
                    freed += size
        return freed

    @contextmanager
    def _between(self) -> Iterator[None]:
        """Around what makes blobs and keys differ for a moment: where it fails, they may go on to."""
        known, self._may_have_orphans = self._may_have_orphans, True
        yield
        self._may_have_orphans = known

    def _drop_orphans(self) -> int:
        """Looks at every blob, and so only where there is a reason to."""
        if not self._may_have_orphans:
            return 0
        freed = self._drop_unnamed([(path.name, path.stat().st_size) for path in _blobs(self._path / "blobs")])
        self._may_have_orphans = False
        return freed

    def _blob(self, checksum: str) -> Path:
        return self._path / "blobs" / checksum[:2] / checksum

    # ── small things ────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise Unavailable("the file store is closed: the station is stopping")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work)

    def _guarded(self, work: Callable[[], T]) -> T:
        """Foreign errors become ours here and nowhere else."""
        full = "the disk is full: no room in the file store"
        unusable = "the file store cannot be used"
        try:
            return work()
        except sqlite3.Error as error:
            otherwise = Unavailable(f"{unusable}: {error}", retryable=False)
            raise translated(error, self._path / "catalog.db", full=full, otherwise=otherwise) from error
        except OSError as error:
            if is_full(error):
                raise StorageFull(full, retryable=True) from error
            raise Unavailable(f"{unusable}: {error.strerror}", retryable=False) from error


class _Incoming:
    """A content that comes: under a temporary name until it is whole."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f"{_TEMPORARY}{secrets.token_hex(8)}"
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self.size = 0

    def begin(self) -> None:
        self._file = self._path.open("xb", buffering=0)

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()

    def write(self, chunk: bytes) -> None:
        assert self._file is not None
        write_all(self._file, chunk)
        self._hash.update(chunk)
        self.size += len(chunk)

    def finish(self) -> None:
        """On the disk when this returns."""
        assert self._file is not None
        os.fsync(self._file.fileno())
        self._file.close()

    def move(self, target: Path) -> None:
        """To its name, durably."""
        if not target.parent.exists():
            target.parent.mkdir(mode=0o700)
            sync_directory(target.parent.parent)
        self._path.replace(target)
        sync_directory(target.parent)

    def discard(self) -> None:
        """Nothing of it is left, unless it was moved."""
        if self._file is not None:
            self._file.close()
        with suppress(OSError):
            self._path.unlink()


class _Content:
    """See `StoredContent`."""

    def __init__(self, file: StoredFile, blob: BinaryIO, offset: int) -> None:
        self.file = file
        self._blob = blob
        self._offset = offset

    async def __aiter__(self) -> AsyncIterator[bytes]:
        digest, size = hashlib.sha256(), 0
        if self._offset:
            self._blob.seek(self._offset)
        while chunk := await in_thread(self._blob.read, _CHUNK_BYTES):
            size += len(chunk)
            if not self._offset:
                digest.update(chunk)
            # The last chunk is given only after the whole was found to be good.
            if not self._offset and size >= self.file.size and digest.hexdigest() != self.file.checksum:
                raise damaged(self.file)
            yield chunk
        if size != self.file.size - self._offset:
            raise damaged(self.file)

    async def aclose(self) -> None:
        self._blob.close()


def _open_blob(path: Path, file: StoredFile) -> BinaryIO:
    try:
        return path.open("rb", buffering=0)
    except FileNotFoundError as error:
        raise damaged(file) from error


def _blobs(directory: Path) -> Iterator[Path]:
    for shelf in directory.iterdir():
        yield from shelf.iterdir()
