"""Files inside a sandbox, by the guest's file primitives: typed, and with errors that name the sandbox path."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Protocol, Self

from station.core.errors import InternalError
from station.core.paths import HOME, TMP, WORKSPACE, SandboxPath

from .applets import Command, Source, Stream, answer_of
from .packs import Entry, parse_entries, parse_entry
from .session import GuestSession

QUICK_SECONDS = 60.0
STREAM_SECONDS = 3600.0


class Places(Protocol):
    """Where the roots of sandbox paths are in the box's own view: `station.backends.base.Layout`."""

    @property
    def workspace(self) -> str: ...

    @property
    def home(self) -> str: ...

    @property
    def tmp(self) -> str: ...


def root_in(layout: Places, path: SandboxPath) -> str:
    """The directory in the box that `path` is relative to."""
    return {WORKSPACE: layout.workspace, HOME: layout.home, TMP: layout.tmp}[path.root]


@dataclass(frozen=True)
class Listing:
    entries: list[Entry]
    more: bool
    """Whether there are more after the last of these."""


@dataclass(frozen=True)
class Written:
    entry: Entry
    created: bool
    """False: it replaced something."""
    sha256: str


@dataclass(frozen=True)
class Space:
    free: int
    total: int


class ReadStream:
    """The bytes of one regular file, checked against the guest's digest at the end. To be iterated once.

    A context manager: leaving it ends a read that was not taken to its end, as `aclose` does.
    """

    def __init__(self, stream: Stream, entry: Entry, path: SandboxPath) -> None:
        self.entry = entry
        """The file as it was when it was opened."""
        self._stream = stream
        self._path = path

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Raises Conflict where the file became shorter meanwhile, InternalError where the digest differs."""
        digest = hashlib.sha256()
        async for data in self._content():
            digest.update(data)
            yield data
        if self._told() != digest.digest():
            raise InternalError(f"what was read of {self._path.absolute} is not what the guest sent")

    async def sealed(self) -> AsyncIterator[bytes]:
        """The bytes unchecked, and then the 32 of the guest's digest: for whoever passes them on to the one that
        checks. Raises Conflict as iterating does."""
        async for data in self._content():
            yield data
        yield self._told()

    async def _content(self) -> AsyncIterator[bytes]:
        try:
            while data := await self._stream.next():
                yield data
        finally:
            self._stream.close()

    def _told(self) -> bytes:
        """The guest's digest."""
        fields = bytes(self._stream.stderr).split(b"\0")
        try:
            return bytes.fromhex(fields[1].decode("ascii"))
        except (IndexError, ValueError):
            raise InternalError(f"the guest told no digest for {self._path.absolute}") from None

    async def aclose(self) -> None:
        """Ends the read. Repeating is no error."""
        self._stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class GuestFiles:
    """Every file primitive. All of them raise BoxLost when the box is gone, and for the file itself FileNotFound,
    AlreadyExists, NotARegularFile, PathRefused, StorageFull, TooLarge, Refused, Conflict, Busy, InvalidInput or
    Unavailable (`station.guest.file_errors`).

    Cancelled, a primitive is killed: a write or unpack then has changed nothing, or all of it.
    """

    def __init__(
        self,
        session: GuestSession,
        layout: Places,
        *,
        quick_seconds: float = QUICK_SECONDS,
        stream_seconds: float = STREAM_SECONDS,
    ) -> None:
        """`quick_seconds` bounds a primitive that answers once, `stream_seconds` one that streams or walks a tree."""
        self._session = session
        self._layout = layout
        self._quick_seconds = quick_seconds
        self._stream_seconds = stream_seconds

    async def stat(self, path: SandboxPath, *, follow: bool = True) -> Entry:
        """`follow`: a final link is followed, where it stays beneath the root."""
        answer = await self._ask(self._quick("stat", path, "f" if follow else ""))
        entries, _ = parse_entries(answer)
        return _only(entries, path)

    async def list(self, path: SandboxPath, *, recursive: bool = False, limit: int = 1000, after: str = "") -> Listing:
        """At most `limit` names, sorted by bytes, that come after the path `after` of an earlier entry."""
        command = self._quick("list", path, "r" if recursive else "", str(limit), after)
        return Listing(*parse_entries(await self._ask(command)))

    async def read(self, path: SandboxPath, *, offset: int = 0, length: int | None = None) -> ReadStream:
        """Opens the file; its bytes `offset`.. come from the stream, at most `length` (`None`: to the end)."""
        stream = Stream(self._session, self._slow("read", path, str(offset), str(-1 if length is None else length)))
        opened = False
        try:
            entry = parse_entry(await stream.first_field())
            opened = True
        finally:
            if not opened:
                stream.close()
        return ReadStream(stream, entry, path)

    async def write(
        self,
        path: SandboxPath,
        source: bytes | AsyncIterable[bytes],
        *,
        mode: int = 0o644,
        exclusive: bool = False,
        parents: bool = False,
        durable: bool = False,
        sealed: bool = False,
    ) -> Written:
        """Replaces the file as a whole, or changes nothing: also when `source` raises, which goes on to the caller.

        `sealed`: the last 32 bytes of `source` are the SHA-256 of those before, and InvalidInput is raised where not.
        `exclusive`: raises AlreadyExists if there is something. `durable`: on the disk when this returns.
        """
        flags = _flags(x=exclusive, p=parents, d=durable)
        feed = Source(source, sealed=sealed)
        answer = await self._ask(self._slow("write", path, f"{mode:o}", flags), feed)
        verdict, _, rest = answer.partition(b"\0")
        entries, _ = parse_entries(rest)
        return Written(_only(entries, path), verdict == b"c", feed.sha256)

    async def mkdir(self, path: SandboxPath, *, mode: int = 0o755, parents: bool = False) -> bool:
        """Whether it was made; False only with `parents`, where it was there already."""
        answer = await self._ask(self._quick("mkdir", path, f"{mode:o}", _flags(p=parents)))
        return answer == b"c\0"

    async def rename(
        self, path: SandboxPath, to: SandboxPath, *, exclusive: bool = False, parents: bool = False
    ) -> None:
        """Raises Conflict where the two are on different file systems."""
        target = (root_in(self._layout, to), to.relative, _flags(x=exclusive, p=parents))
        await self._ask(self._quick("rename", path, *target))

    async def remove(self, path: SandboxPath, *, recursive: bool = False) -> int:
        """How many names are gone; 0 for what was not there."""
        return _number(await self._ask(self._slow("remove", path, _flags(r=recursive))), path)

    async def chmod(self, path: SandboxPath, mode: int) -> None:
        await self._ask(self._quick("chmod", path, f"{mode:o}"))

    async def pack(self, path: SandboxPath, limit: int) -> AsyncIterator[bytes]:
        """The tree below `path` as a pack (`station.guest.packs`). Raises TooLarge above `limit` bytes."""
        stream = Stream(self._session, self._slow("pack", path, str(limit)))
        try:
            while data := await stream.next():
                yield data
        finally:
            stream.close()

    async def unpack(
        self,
        path: SandboxPath,
        source: bytes | AsyncIterable[bytes],
        *,
        mode: int = 0o755,
        parents: bool = False,
        durable: bool = False,
    ) -> int:
        """Merges a pack into the directory `path`, all of it or nothing, and tells how many entries it had."""
        command = self._slow("unpack", path, f"{mode:o}", _flags(p=parents, d=durable))
        return _number(await self._ask(command, Source(source)), path)

    async def space(self, path: SandboxPath) -> Space:
        """Of the file system of the path's root."""
        command = Command("space", (root_in(self._layout, path),), path.root, self._quick_seconds, path.root)
        free, _, total = (await self._ask(command)).rstrip(b"\0").partition(b" ")
        return Space(_number(free, path), _number(total, path))

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _ask(self, command: Command, source: Source | None = None) -> bytes:
        return await answer_of(self._session, command, source)

    def _quick(self, name: str, path: SandboxPath, *args: str) -> Command:
        return self._command(name, path, args, self._quick_seconds)

    def _slow(self, name: str, path: SandboxPath, *args: str) -> Command:
        return self._command(name, path, args, self._stream_seconds)

    def _command(self, name: str, path: SandboxPath, args: tuple[str, ...], seconds: float) -> Command:
        return Command(name, (root_in(self._layout, path), path.relative, *args), path.absolute, seconds, path.root)


def _flags(**flags: bool) -> str:
    return "".join(name for name, is_set in flags.items() if is_set)


def _only(entries: list[Entry], path: SandboxPath) -> Entry:
    if len(entries) != 1:
        raise InternalError(f"the guest told {len(entries)} entries for {path.absolute}")
    return entries[0]


def _number(answer: bytes, path: SandboxPath) -> int:
    digits = answer.rstrip(b"\0")
    if not digits.isdigit():
        raise InternalError(f"the guest told no number for {path.absolute}")
    return int(digits)
