"""Tar to the guest's pack format and back, as streams of bounded memory. Never `extract`: tarfile only parses here.

The parser is synchronous, so it runs in a thread; bytes cross over in batches.
"""

from __future__ import annotations

import asyncio
import tarfile
import threading
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar, cast

from station.core.errors import InvalidInput, TooLarge
from station.guest.packs import END, Entry, read_pack

from .tarcheck import BATCH_BYTES, Caps, Checker, Headers, Member, Reader, refused

T = TypeVar("T")
_GZIP = b"\x1f\x8b"
_RATIO_FREE_BYTES = 1024 * 1024
_DAMAGED = "the archive was refused and nothing changed: "


class Gunzip:
    """The bytes of a gzip file, with a bound on how much may come out of how little."""

    def __init__(self, file: Reader, ratio: int) -> None:
        self._file = file
        self._ratio = ratio
        self._in = self._out = 0
        self._engine = zlib.decompressobj(wbits=31)
        self._pending = b""

    def read(self, size: int = BATCH_BYTES, /) -> bytes:
        while True:
            data = self._pending
            if not data and not (data := self._file.read(BATCH_BYTES)):
                if not self._engine.eof:
                    raise InvalidInput(_DAMAGED + "its gzip stream ends early")
                return b""
            if not self._pending:
                self._in += len(data)
            try:
                if self._engine.eof:
                    self._engine = zlib.decompressobj(wbits=31)
                out = self._engine.decompress(data, size)
            except zlib.error as error:
                raise InvalidInput(_DAMAGED + f"its gzip stream is damaged ({error})") from error
            self._pending = self._engine.unused_data if self._engine.eof else self._engine.unconsumed_tail
            self._out += len(out)
            if self._out > _RATIO_FREE_BYTES + self._ratio * self._in:
                raise TooLarge(_DAMAGED + f"it unpacks to more than {self._ratio} times its size")
            if out:
                return out


class Peekable:
    """A reader whose first bytes can be looked at."""

    def __init__(self, file: Reader) -> None:
        self._file = file
        self._front = b""

    def peek(self, size: int) -> bytes:
        while len(self._front) < size and (data := self._file.read(BATCH_BYTES)):
            self._front += data
        return self._front[:size]

    def read(self, size: int = BATCH_BYTES, /) -> bytes:
        if not self._front:
            return self._file.read(size)
        data, self._front = self._front[:size], self._front[size:]
        return data


def members(file: Reader, caps: Caps) -> Iterator[Member | bytes]:
    """Each admitted member, followed by its bytes. Raises InvalidInput or TooLarge at the first that is not let in."""
    front = Peekable(file)
    checker = Checker(caps)
    source = Headers(Gunzip(front, caps.ratio) if front.peek(2) == _GZIP else front, checker)
    try:
        with tarfile.open(
            fileobj=cast(Any, source),
            mode="r|",
            bufsize=BATCH_BYTES,
            encoding="utf-8",
            errors="surrogateescape",
        ) as tar:
            yield from _members(tar, checker)
    except (tarfile.TarError, ValueError) as error:  # on odd numbers tarfile raises the latter
        raise InvalidInput(_DAMAGED + f"it is no tar archive, or damaged ({error})") from error
    if not checker.ended:
        raise InvalidInput(_DAMAGED + "it is damaged or ends early")
    left = caps.total_bytes
    while left > 0 and (data := source.read(BATCH_BYTES)):  # what follows the end is read, so that a digest after it is
        left -= len(data)


def _members(tar: tarfile.TarFile, checker: Checker) -> Iterator[Member | bytes]:
    while (info := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # typeshed hides it; in stream mode it only grows
        member = checker.admit(info)
        if member is None:
            continue
        yield member
        if member.kind == "f" and member.size:
            data = tar.extractfile(info)
            if data is None:
                raise refused(info.name, "has no content")
            while chunk := data.read(BATCH_BYTES):
                yield chunk


class _Stopped(Exception):
    """The consumer has gone; the thread ends."""


class Bridge:
    """Lets a thread use coroutines of the loop, one at a time, until it is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._stopped = False
        self._pending: Future[Any] | None = None

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._stopped:
                coroutine.close()
                raise _Stopped
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            self._pending = future
        try:
            return future.result()
        except CancelledError as error:
            raise _Stopped from error

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._pending is not None:
                self._pending.cancel()


class _Feed:
    """A file for the thread, filled from an asynchronous source."""

    def __init__(self, bridge: Bridge, source: AsyncIterable[bytes]) -> None:
        self._bridge = bridge
        self._source = aiter(source)
        self._rest = b""

    def read(self, size: int = BATCH_BYTES, /) -> bytes:
        if not self._rest:
            self._rest = self._bridge.call(self._more())
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    async def _more(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while size < BATCH_BYTES:
            try:
                part = await anext(self._source)
            except StopAsyncIteration:
                break
            parts.append(part)
            size += len(part)
        return b"".join(parts)


async def packed(source: AsyncIterable[bytes], caps: Caps | None = None) -> AsyncGenerator[bytes, None]:
    """The pack stream of a tar archive (plain or gzip). Raises InvalidInput or TooLarge naming the member that is
    not let in; the stream then has no end mark, so that the guest changes nothing."""
    bridge = Bridge(asyncio.get_running_loop())
    out: asyncio.Queue[bytes | None] = asyncio.Queue(4)

    def work() -> None:
        try:
            for batch in _batches(members(_Feed(bridge, source), caps or Caps())):
                bridge.call(out.put(batch))
        finally:
            with suppress(_Stopped):
                bridge.call(out.put(None))

    worker = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        while (batch := await out.get()) is not None:
            yield batch
        await worker
    finally:
        bridge.stop()
        await asyncio.wait({worker})
        if not worker.cancelled():
            worker.exception()


def _batches(events: Iterator[Member | bytes]) -> Iterator[bytes]:
    """The pack stream in pieces of useful size, its end mark last."""
    batch = bytearray()
    for event in events:
        batch += event if isinstance(event, bytes) else _entry(event).encode()
        if len(batch) >= BATCH_BYTES:
            yield bytes(batch)
            batch.clear()
    yield bytes(batch) + END


def _entry(member: Member) -> Entry:
    return Entry(member.kind, member.mode, member.size, member.mtime_ns, 1, member.path, member.target)


async def to_tar(pack: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """A tar archive (GNU format) of a pack. What is no file, directory or link is left out, as the guest does.

    Raises InternalError where the pack is cut: the archive then has no end mark, and no reader takes it for whole.
    """
    size = left = 0
    async for event in read_pack(pack):
        if isinstance(event, bytes):
            left -= len(event)
            yield event
            if not left:
                yield bytes(-size % tarfile.BLOCKSIZE)
        elif event.kind != "o":
            yield _header(event).tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
            size = left = event.size if event.kind == "f" else 0
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(entry: Entry) -> tarfile.TarInfo:
    info = tarfile.TarInfo(entry.path)
    info.mode = entry.mode
    info.mtime = max(entry.mtime_ns // 10**9, 0)
    match entry.kind:
        case "d":
            info.type = tarfile.DIRTYPE
        case "l":
            info.type, info.linkname = tarfile.SYMTYPE, entry.target or ""
        case _:
            info.size = entry.size
    return info
