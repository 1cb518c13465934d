"""Files of a live box by the path rules of `core.paths`, over the guest's file primitives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from station.core.errors import AlreadyExists, Conflict, FileNotFound, InvalidInput, StationError
from station.core.paths import HOME, WORKSPACE, SandboxPath, decode_name, encode_name, resolve
from station.core.wire import FileEntry, FileList, FileWritten
from station.guest.files import ReadStream
from station.guest.packs import Entry

from .archive import packed, to_tar
from .tarcheck import Caps
from .unpacking import unpack

if TYPE_CHECKING:
    from .live import LiveBox

MAX_LIST = 10_000
PACK_BYTES = 16 * 1024**3
"""The most that one copy of a tree or one archive may hold."""
_NAMES = {WORKSPACE: "workspace root", HOME: "home directory"}


@dataclass(frozen=True)
class FileRead:
    """A file that is being read. Use it as a context manager: leaving it ends the read."""

    entry: FileEntry
    length: int
    """How many bytes come, exactly; the stream raises Conflict where the file became shorter meanwhile."""
    chunks: ReadStream

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.chunks.aclose()


class Files:
    """File operations by path. Without state: a live box is given to each.

    All raise PathRefused outside workspace, home and /tmp, BoxLost, and for the file what `GuestFiles` raises. Paths
    are text with surrogate escapes (`core.paths`); a relative one is below the workspace.
    """

    def __init__(self, *, caps: Caps | None = None) -> None:
        self._caps = caps or Caps()

    async def stat(self, live: LiveBox, path: str, *, follow: bool = True) -> FileEntry:
        place = resolve(path)
        return (await live.files.stat(place, follow=follow)).to_wire(place.absolute)

    async def list(
        self, live: LiveBox, path: str, *, recursive: bool = False, limit: int = 1000, after: str | None = None
    ) -> FileList:
        """At most `limit` names after the cursor, without the root; `next` of the answer is the next cursor."""
        if not 1 <= limit <= MAX_LIST:
            raise InvalidInput(f"limit must be from 1 to {MAX_LIST}; it is {limit}", field="limit")
        place = resolve(path)
        listing = await live.files.list(
            place, recursive=recursive, limit=limit, after=decode_name(after) if after else ""
        )
        entries = [entry.to_wire(f"{place.absolute}/{entry.path}") for entry in listing.entries]
        if not listing.more:
            return FileList(entries)
        return FileList(entries, truncated=True, next=encode_name(listing.entries[-1].path))

    async def read(self, live: LiveBox, path: str, *, offset: int = 0, length: int | None = None) -> FileRead:
        """Opens it: the entry is of the file that is read, whatever happens to its name meanwhile."""
        if offset < 0 or (length is not None and length < 0):
            raise InvalidInput("offset and length must not be below zero", field="offset")
        place = resolve(path)
        stream = await live.files.read(place, offset=offset, length=length)
        left = max(stream.entry.size - offset, 0)
        return FileRead(stream.entry.to_wire(place.absolute), left if length is None else min(length, left), stream)

    async def write(
        self,
        live: LiveBox,
        path: str,
        source: bytes | AsyncIterable[bytes],
        *,
        mode: int = 0o644,
        overwrite: bool = True,
        parents: bool = True,
        sealed: bool = False,
    ) -> FileWritten:
        """All of it or nothing, also when `source` raises. Without `overwrite`, AlreadyExists where something is.
        `sealed`: `source` ends with its SHA-256, else InvalidInput."""
        place = _no_root(resolve(path), "write")
        done = await live.files.write(
            place,
            source,
            mode=mode & 0o777,
            exclusive=not overwrite,
            parents=parents,
            durable=_durable(live),
            sealed=sealed,
        )
        return FileWritten(done.entry.to_wire(place.absolute), done.created, done.sha256)

    async def mkdir(self, live: LiveBox, path: str, *, mode: int = 0o755, parents: bool = True) -> bool:
        """Whether it was made; with `parents`, one that is there already is no error."""
        return await live.files.mkdir(resolve(path), mode=mode & 0o777, parents=parents)

    async def rename(self, live: LiveBox, path: str, to: str, *, overwrite: bool = True) -> None:
        """At once within a file system. Between two (workspace and /tmp) it is a copy and a removal: if it is cut, the
        source is still there."""
        source, target = _no_root(resolve(path), "rename"), _no_root(resolve(to), "replace")
        try:
            await live.files.rename(source, target, exclusive=not overwrite, parents=True)
        except Conflict:
            if source.root == target.root or await self._is_directory(live, target):
                raise
            await self._copy(live, source, target, overwrite=overwrite)
            await live.files.remove(source, recursive=True)

    async def remove(self, live: LiveBox, path: str, *, recursive: bool = False) -> int:
        """How many names are gone; 0 where there was nothing. Raises InvalidInput for a root, Conflict for a directory
        without `recursive`."""
        place = resolve(path)
        if place.is_root:
            raise InvalidInput(f"cannot delete {_NAMES.get(place.root, place.root)}", field="path")
        try:
            return await live.files.remove(place, recursive=recursive)
        except Conflict as error:
            if recursive or not await self._is_directory(live, place):
                raise
            sentence = f"{encode_name(place.absolute)} is a directory; give recursive=true to delete it"
            raise Conflict(sentence, path=encode_name(place.absolute)) from error

    async def copy(self, live: LiveBox, path: str, to: str, *, overwrite: bool = True) -> None:
        """A file, or a tree, which is merged into a directory that is there. Links in a tree stay links."""
        await self._copy(live, resolve(path), _no_root(resolve(to), "replace"), overwrite=overwrite)

    async def _copy(self, live: LiveBox, source: SandboxPath, target: SandboxPath, *, overwrite: bool) -> None:
        if f"{target.absolute}/".startswith(f"{source.absolute}/"):
            raise InvalidInput("a file or directory cannot be copied onto or into itself", field="to")
        entry = await live.files.stat(source)
        if entry.kind == "d":
            if not overwrite and await self._exists(live, target):
                raise AlreadyExists(f"{encode_name(target.absolute)} exists already", path=encode_name(target.absolute))
            async with closing(live.files.pack(source, PACK_BYTES)) as pack:
                await unpack(live.files, target, pack, mode=entry.mode, durable=_durable(live))
            return
        async with await live.files.read(source) as stream:
            await live.files.write(
                target, stream, mode=stream.entry.mode, exclusive=not overwrite, parents=True, durable=_durable(live)
            )

    async def archive(self, live: LiveBox, path: str) -> AsyncIterator[bytes]:
        """The tree as a tar archive; complete, or it raises and has no end mark."""
        async with closing(live.files.pack(resolve(path), PACK_BYTES)) as pack:
            async for chunk in to_tar(pack):
                yield chunk

    async def extract(self, live: LiveBox, path: str, source: AsyncIterable[bytes]) -> int:
        """Merges a tar archive (plain or gzip) into a directory, which is made if need be; the number of entries.

        A member that is not let in is named by InvalidInput or TooLarge, and nothing has changed then.
        """
        place = resolve(path)
        async with closing(packed(source, self._caps)) as pack:
            return await unpack(live.files, place, pack, durable=_durable(live))

    async def _is_directory(self, live: LiveBox, place: SandboxPath) -> bool:
        with suppress(StationError):
            return (await live.files.stat(place, follow=False)).kind == "d"
        return False

    async def _exists(self, live: LiveBox, place: SandboxPath) -> bool:
        try:
            await live.files.stat(place, follow=False)
        except FileNotFound:
            return False
        return True


async def walk(live: LiveBox, place: SandboxPath) -> AsyncIterator[Entry]:
    """Every name below a directory, page by page."""
    after = ""
    while True:
        listing = await live.files.list(place, recursive=True, limit=MAX_LIST, after=after)
        for entry in listing.entries:
            yield entry
        if not listing.more:
            return
        after = listing.entries[-1].path


def _no_root(place: SandboxPath, what: str) -> SandboxPath:
    if place.is_root:
        raise InvalidInput(f"cannot {what} {_NAMES.get(place.root, place.root)}", field="path")
    return place


def _durable(live: LiveBox) -> bool:
    """Files that outlive the box are on the disk before they are acknowledged."""
    return not live.spec.ephemeral


@asynccontextmanager
async def closing(chunks: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """Ends a generator now, not when it is collected: what it holds in the box ends with it."""
    try:
        yield chunks
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()
