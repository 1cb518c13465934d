"""Uploads in pieces: what has come is kept over a broken connection and over a restart of the station.

A piece is checked by its own digest before any of it is written, and acknowledged once it is on the disk; the whole is
checked by the digest that was announced, when it is put into the store. So a piece that is cut, repeated or out of its
order changes nothing, and its sender is told where to go on.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from station.core.errors import (
    Busy,
    Conflict,
    InvalidInput,
    LimitReached,
    NotFound,
    StationError,
    StorageFull,
    TooLarge,
    Unavailable,
)
from station.core.ids import new_id
from station.core.records import Owner
from station.core.stored import UPLOAD_BYTES, StoredFile, Upload
from station.core.wire import DIGEST_BYTES
from station.durable import is_full, sync_directory, write_all, write_private

from .files import Facts, FileStore
from .room import GIB
from .threads import in_thread

T = TypeVar("T")

KEPT_SECONDS = 86400.0
"""How long an upload waits for its next piece."""
MAX_UPLOADS, MAX_UPLOADS_EACH = 256, 64
"""Of all, and of one deployment: it must not take the others' places."""
SHARE_EACH = 4
"""What one deployment has announced and not finished is at most one in so many bytes of the store's room: it has taken
them, also where none has come."""
_ID = re.compile(r"upl_[0-9A-HJKMNP-TV-Z]{26}")
_READ_BYTES = 1 << 20


class Uploads:
    """Those of one station, below one directory."""

    def __init__(self, path: Path, store: FileStore, *, now: Callable[[], float], max_bytes: int = 10 * GIB) -> None:
        """`max_bytes`: what the store may have."""
        self._path = path
        self._store = store
        self._now = now
        self._most_each = max_bytes // SHARE_EACH
        self._turn = asyncio.Lock()
        """Of who begins one: counting and making are one step."""
        self._busy: set[str] = set()
        for size in self._announced().values():
            store.reserve(size, anyway=True)

    async def begin(self, owner: Owner, key: str, facts: Facts) -> Upload:
        """Raises InvalidInput without size and checksum, StorageFull where the store has no room for it, LimitReached
        where too many, or too large ones of one deployment, have begun and not ended."""
        if facts.size is None or facts.checksum is None or not re.fullmatch(r"[0-9a-fA-F]{64}", facts.checksum):
            raise InvalidInput("an upload in pieces announces its size and its SHA-256 in hex", field="checksum")
        upload = Upload(new_id("upl", self._now()), key, facts.size, facts.checksum.lower())
        document = {"owner": asdict(owner), "upload": asdict(upload), "facts": asdict(facts)}
        self._store.reserve(upload.size)
        begun = False
        try:
            async with self._turn:
                await in_thread(_guarded, lambda: self._begin(owner, upload, document))
            begun = True
        finally:
            if not begun:
                self._store.release(upload.size)
        return upload

    async def get(self, owner: Owner, upload_id: str) -> Upload:
        """Raises NotFound for one that never began, has ended, or is another's."""
        return (await in_thread(_guarded, lambda: self._read(owner, upload_id)))[0]

    async def append(self, owner: Owner, upload_id: str, offset: int, sealed: AsyncIterable[bytes]) -> Upload:
        """The next piece, at most 4 MiB and its SHA-256 behind it.

        Raises Conflict, with `offset` where to go on, for a piece that does not begin there; InvalidInput for a wrong
        digest; TooLarge beyond 4 MiB or the announced size; Busy where another piece is coming just now.
        """
        with self._alone(upload_id):
            upload, _ = await in_thread(_guarded, lambda: self._read(owner, upload_id))
            piece = await _piece(sealed)
            if offset != upload.offset:
                raise Conflict(
                    f"the upload goes on at byte {upload.offset}, not at {offset}", retryable=True, offset=upload.offset
                )
            if offset + len(piece) > upload.size:
                raise TooLarge(f"the upload was announced with {upload.size} bytes", field="size", offset=offset)
            await in_thread(_guarded, lambda: self._append(upload_id, piece))
            return Upload(upload.id, upload.key, upload.size, upload.checksum, offset + len(piece))

    async def finish(self, owner: Owner, upload_id: str) -> StoredFile:
        """Puts the whole into the store. Raises Conflict, with `offset`, while something is missing, and what `put`
        raises: a wrong checksum ends the upload."""
        with self._alone(upload_id):
            upload, facts = await in_thread(_guarded, lambda: self._read(owner, upload_id))
            if upload.offset != upload.size:
                raise Conflict(
                    f"{upload.size - upload.offset} bytes are still to come", retryable=True, offset=upload.offset
                )
            # Its room is the file's from here on.
            self._store.release(upload.size)
            try:
                stored = await self._store.put(owner, upload.key, _read_all(self._path / f"{upload_id}.part"), facts)
            except InvalidInput:
                await self._remove(upload_id)
                raise
            except (StationError, asyncio.CancelledError):
                self._store.reserve(upload.size, anyway=True)
                raise
            await self._remove(upload_id)
            return stored

    async def abort(self, owner: Owner, upload_id: str) -> None:
        """Nothing is left of it. Raises NotFound as `get` does."""
        with self._alone(upload_id):
            upload = await self.get(owner, upload_id)
            await self._remove(upload_id)
            self._store.release(upload.size)

    async def abort_all(self, owner: Owner) -> None:
        """Nothing is left of any of his. Raises Busy where one is just being written: whoever does that goes first."""
        for upload_id in await in_thread(_guarded, lambda: self._of(owner)):
            with suppress(NotFound):
                await self.abort(owner, upload_id)

    async def sweep(self) -> int:
        """Ends those for which no piece has come for a day; how many."""
        return len(await self.drop_idle(KEPT_SECONDS))

    async def drop_idle(self, seconds: float, *, dry_run: bool = False) -> list[int]:
        """Ends those for which no piece has come for so long, or only looks; the bytes that have come of each."""
        idle = await in_thread(_guarded, lambda: self._idle(self._now() - seconds))
        ended = {upload_id: come for upload_id, come in idle.items() if upload_id not in self._busy}
        for upload_id in () if dry_run else ended:
            size = await in_thread(_guarded, lambda upload_id=upload_id: self._size(upload_id))
            await self._remove(upload_id)
            self._store.release(size)
        return list(ended.values())

    # ── on a thread ─────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, owner: Owner, upload: Upload, document: object) -> None:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sum(1 for _ in self._path.glob("upl_*.json")) >= MAX_UPLOADS:
            raise LimitReached(f"{MAX_UPLOADS} uploads have begun and not ended; end some", limit=MAX_UPLOADS)
        if owner != Owner():
            self._check_own(self._of(owner), upload.size)
        (self._path / f"{upload.id}.part").touch(mode=0o600, exist_ok=False)
        write_private(self._path / f"{upload.id}.json", json.dumps(document).encode())
        self._touch(upload.id)

    def _check_own(self, begun: list[str], size: int) -> None:
        """Whether a deployment that has begun those may begin one more."""
        if len(begun) >= MAX_UPLOADS_EACH:
            raise LimitReached(f"{MAX_UPLOADS_EACH} uploads of yours have begun and not ended", limit=MAX_UPLOADS_EACH)
        announced = sum(self._size(upload_id) for upload_id in begun)
        if announced + size > self._most_each:
            raise LimitReached(
                f"the unfinished uploads of a deployment have at most {self._most_each} bytes together, a quarter "
                "of files.max_bytes; end some, or store the file in one piece",
                retryable=size <= self._most_each,
                setting="files.max_bytes",
                limit=self._most_each,
                current=announced,
            )

    def _idle(self, since: float) -> dict[str, int]:
        """By id the bytes that have come. A part without a record is what a crash has left."""
        last: dict[str, float] = {}
        come: dict[str, int] = {}
        for path in (*self._path.glob("upl_*"), *self._path.glob(".stn-*")):
            facts = path.stat()
            last[path.stem] = max(last.get(path.stem, 0.0), facts.st_mtime)
            come[path.stem] = come.get(path.stem, 0) + facts.st_size
        return {upload: come[upload] for upload, at in last.items() if at < since}

    def _announced(self) -> dict[str, int]:
        """By id the size of each upload that has begun."""
        return {path.stem: self._size(path.stem) for path in self._path.glob("upl_*.json")}

    def _size(self, upload_id: str) -> int:
        """0 for what has no record that can be read."""
        try:
            return int(json.loads((self._path / f"{upload_id}.json").read_bytes())["upload"]["size"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _of(self, owner: Owner) -> list[str]:
        """The ids of his."""
        return [path.stem for path in self._path.glob("upl_*.json") if self._owner(path) == asdict(owner)]

    @staticmethod
    def _owner(path: Path) -> object:
        """`None`: nobody can read whose it is."""
        try:
            return json.loads(path.read_bytes())["owner"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _read(self, owner: Owner, upload_id: str) -> tuple[Upload, Facts]:
        unknown = NotFound("there is no such upload; it was never begun, or it has ended", upload=upload_id[:80])
        if not _ID.fullmatch(upload_id):
            raise unknown
        try:
            document = json.loads((self._path / f"{upload_id}.json").read_bytes())
            come = (self._path / f"{upload_id}.part").stat().st_size
        except FileNotFoundError:
            raise unknown from None
        if document["owner"] != asdict(owner):
            raise unknown
        return Upload(**{**document["upload"], "offset": come}), Facts(**document["facts"])

    def _append(self, upload_id: str, piece: bytes) -> None:
        path = self._path / f"{upload_id}.part"
        before = path.stat().st_size
        with path.open("ab", buffering=0) as file:
            try:
                write_all(file, piece)
                os.fdatasync(file.fileno())
            except OSError:
                file.truncate(before)
                raise
        self._touch(upload_id)

    def _touch(self, upload_id: str) -> None:
        """By the station's clock, which judges when it is old."""
        for suffix in (".json", ".part"):
            os.utime(self._path / f"{upload_id}{suffix}", (self._now(), self._now()))

    async def _remove(self, upload_id: str) -> None:
        def remove() -> None:
            # The record first: a part without one is nobody's, and the next sweep of the directory takes it.
            for suffix in (".json", ".part", ""):
                (self._path / f"{upload_id}{suffix}").unlink(missing_ok=True)
            sync_directory(self._path)

        await in_thread(_guarded, remove)

    @contextmanager
    def _alone(self, upload_id: str) -> Iterator[None]:
        """One call at a time for each upload."""
        if upload_id in self._busy:
            raise Busy("another piece of this upload is coming just now", upload=upload_id)
        self._busy.add(upload_id)
        try:
            yield
        finally:
            self._busy.discard(upload_id)


async def _piece(sealed: AsyncIterable[bytes]) -> bytes:
    came = bytearray()
    async for chunk in sealed:
        came += chunk
        if len(came) > UPLOAD_BYTES + DIGEST_BYTES:
            raise TooLarge(f"a piece of an upload has at most {UPLOAD_BYTES} bytes", limit=UPLOAD_BYTES)
    piece, digest = bytes(came[:-DIGEST_BYTES]), bytes(came[-DIGEST_BYTES:])
    if hashlib.sha256(piece).digest() != digest:
        raise InvalidInput("the piece does not have the SHA-256 that follows it; nothing was kept of it", field="body")
    return piece


async def _read_all(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while chunk := await in_thread(file.read, _READ_BYTES):
            yield chunk


def _guarded(work: Callable[[], T]) -> T:
    try:
        return work()
    except OSError as error:
        if is_full(error):
            raise StorageFull("the disk is full: no room for the upload", retryable=True) from error
        raise Unavailable(f"the upload cannot be kept: {error.strerror}", retryable=False) from error
