"""The form of a backup: a tar of a state directory, in gzip, that tells at its end what it must hold.

Its first member is `backup.json`, its last `manifest.jsonl`: a line of JSON for each member between them, in their
order, with the SHA-256 of each file. A reader makes the same lines of what it reads: where they differ the archive is
damaged, where the last member is missing it was cut.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import IO, Any, BinaryIO, Self, cast

from station.core.errors import InvalidInput

FORMAT = 1
HEADER, MANIFEST = "backup.json", "manifest.jsonl"
_MOST_HEADER_BYTES = 1 << 20
_MOST_FACTS_BYTES = 256 << 10
"""What an archive may say of one member. The longest name in a state directory has some 50 KiB."""
_MOST_TIME = 1 << 62
_MOST_ID = (1 << 32) - 2
_LISTING_IN_MEMORY = 8 << 20
_PIECE = 1 << 20
_QUICK = 1
"""Of gzip: the disk is to be what bounds a backup."""


@dataclass(frozen=True)
class Header:
    """What a backup says of itself before all else."""

    version: str
    """Of the program that made it."""
    station_id: str
    created_at: float
    secrets: bool
    """Whether settings, tokens and keys are in it."""
    workspaces: bool
    """Whether the files of sandboxes are: read one after the other, while what runs there went on."""
    format: int = FORMAT


class Writer:
    """Used as a context manager; only `finish` makes the archive whole."""

    def __init__(self, sink: BinaryIO, header: Header, advance: Callable[[int], object]) -> None:
        """`advance` is told how many bytes of files have gone by."""
        self._advance = advance
        self._packed = gzip.GzipFile(fileobj=sink, mode="wb", compresslevel=_QUICK, mtime=0)
        self._tar = tarfile.open(fileobj=self._packed, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self._listing = _Listing()
        self._add(_info(HEADER, 0o600), json.dumps(asdict(header)).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listing.close()

    def data(self, path: str, content: bytes) -> None:
        digest = self._add(_info(path, 0o600), content)
        self._listing.file(path, len(content), digest)

    def directory(self, path: str, facts: os.stat_result) -> None:
        info = _info(path, facts.st_mode, facts)
        info.type = tarfile.DIRTYPE
        self._put(info)
        self._listing.other("directory", path)

    def link(self, path: str, target: str, facts: os.stat_result) -> None:
        info = _info(path, 0o777, facts)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._put(info)
        self._listing.other("link", path, target)

    def file(self, path: str, opened: BinaryIO, facts: os.stat_result) -> bool:
        """As many bytes as it had; False: it got shorter meanwhile, and is filled up with zeros."""
        info = _info(path, facts.st_mode, facts)
        info.size = facts.st_size
        source = _Measured(opened, facts.st_size, self._advance)
        self._put(info, source)
        self._listing.file(path, facts.st_size, source.digest)
        return source.whole

    def finish(self) -> None:
        with self._listing.opened() as (size, lines):
            info = _info(MANIFEST, 0o600)
            info.size = size
            self._put(info, lines)
        self._tar.close()
        self._packed.close()

    def _put(self, info: tarfile.TarInfo, content: IO[bytes] | None = None) -> None:
        self._tar.addfile(info, content)
        _forget(self._tar)

    def _add(self, info: tarfile.TarInfo, content: bytes) -> str:
        info.size = len(content)
        self._put(info, io.BytesIO(content))
        self._advance(len(content))
        return hashlib.sha256(content).hexdigest()


class Member:
    """What a reader comes to. Of a file `chunks` must be read to its end before the next."""

    def __init__(self, info: tarfile.TarInfo, content: IO[bytes] | None, listing: _Listing) -> None:
        self.info = info
        self.path = info.name
        self._content = content
        self._listing = listing

    def chunks(self) -> Iterator[bytes]:
        assert self._content is not None
        digest = hashlib.sha256()
        while chunk := self._next():
            digest.update(chunk)
            yield chunk
        self._listing.file(self.path, self.info.size, digest.hexdigest())

    def _next(self) -> bytes:
        assert self._content is not None
        with _translated():
            return self._content.read(_PIECE)


class Reader:
    """Goes through an archive once. Raises InvalidInput for one that is damaged, cut, or none."""

    def __init__(self, source: BinaryIO) -> None:
        with _translated():
            self._packed = _Bounded(gzip.GzipFile(fileobj=source, mode="rb"))
            self._tar = tarfile.open(fileobj=cast(IO[bytes], self._packed), mode="r|")  # noqa: SIM115
            self.header = _header(self._small(HEADER, self._next()))

    def members(self) -> Iterator[Member]:
        """Files, directories and links; when they end, all of them are known to be what was put in."""
        listing = _Listing()
        try:
            while True:
                with _translated():
                    info = self._next()
                    if info is None:
                        raise InvalidInput("the archive was cut: its end is missing", field="file")
                    if info.name == MANIFEST:
                        self._compare(info, listing)
                        return
                    member = self._member(info, listing)
                    _forget(self._tar)
                yield member
        finally:
            listing.close()

    def _next(self) -> tarfile.TarInfo | None:
        with self._packed.bounded(_MOST_FACTS_BYTES):
            info = self._tar.next()
        # What an archive says of all its members would be kept, and grow.
        if self._tar.pax_headers or (info is not None and not _is_ours(info)):
            raise InvalidInput("the archive says of a member what no backup says", field="file")
        return info

    def _member(self, info: tarfile.TarInfo, listing: _Listing) -> Member:
        if info.isdir():
            listing.other("directory", info.name)
        elif info.issym():
            listing.other("link", info.name, info.linkname)
        return Member(info, self._tar.extractfile(info) if info.isreg() else None, listing)

    def _compare(self, info: tarfile.TarInfo, listing: _Listing) -> None:
        told = self._tar.extractfile(info)
        with listing.opened() as (size, lines):
            same = told is not None and info.size == size
            while same and told is not None and (line := lines.read(_PIECE)):
                same = told.read(len(line)) == line
        same = same and self._next() is None
        # To the end, where the check sum of gzip stands: the tar is filled up with zeros.
        while same and (rest := self._packed.read(_PIECE)):
            same = not rest.strip(b"\0")
        if not same:
            raise InvalidInput("the archive is damaged: it does not hold what its manifest says", field="file")

    def _small(self, name: str, info: tarfile.TarInfo | None) -> bytes:
        found = self._tar.extractfile(info) if info is not None and info.name == name and info.isreg() else None
        if found is None or info is None or info.size > _MOST_HEADER_BYTES:
            raise InvalidInput("this is no archive of `stn backup`", field="file")
        return found.read()


class _Listing:
    """The lines of the manifest, so far."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_LISTING_IN_MEMORY)  # noqa: SIM115 - closed by its owner
        self.close = self._file.close

    def file(self, path: str, size: int, digest: str) -> None:
        self.other("file", path, size, digest)

    def other(self, *facts: object) -> None:
        self._file.write(json.dumps(facts).encode() + b"\n")

    @contextmanager
    def opened(self) -> Iterator[tuple[int, IO[bytes]]]:
        """Its size, and its lines from the first."""
        size = self._file.tell()
        self._file.seek(0)
        yield size, self._file
        self._file.seek(size)


class _Measured(io.BytesIO):
    """Exactly `size` bytes of a file that may be written to meanwhile, and their digest."""

    def __init__(self, source: BinaryIO, size: int, advance: Callable[[int], object]) -> None:
        super().__init__()
        self._source, self._left, self._advance = source, size, advance
        self._hash = hashlib.sha256()
        self.whole = True

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def read(self, size: int | None = -1) -> bytes:
        wanted = self._left if size is None or size < 0 else min(size, self._left)
        found = self._source.read(wanted) or b""
        if len(found) < wanted:
            self.whole = False
            found += bytes(wanted - len(found))
        self._left -= len(found)
        self._hash.update(found)
        self._advance(len(found))
        return found


class _Bounded:
    """A stream of which within `bounded` only so many bytes are read: facts of a member are held in memory whole."""

    def __init__(self, source: gzip.GzipFile) -> None:
        self._source = source
        self._left: int | None = None

    @contextmanager
    def bounded(self, size: int) -> Iterator[None]:
        self._left = size
        try:
            yield
        finally:
            self._left = None

    def read(self, size: int) -> bytes:
        found = self._source.read(size)
        if self._left is not None:
            self._left -= len(found)
            if self._left < 0:
                raise InvalidInput("the archive says more of a member than any backup says", field="file")
        return found


def _is_ours(info: tarfile.TarInfo) -> bool:
    """Whether `Writer` could have made it. One with holes says in a line that it has terabytes."""
    kinds = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)
    facts = 0 <= info.uid <= _MOST_ID and 0 <= info.gid <= _MOST_ID and info.size >= 0
    return info.type in kinds and not info.issparse() and facts and abs(info.mtime) < _MOST_TIME


def _forget(tar: tarfile.TarFile) -> None:
    """What has gone by is kept for an end that a stream does not have."""
    tar.members.clear()  # type: ignore[attr-defined] # documented by its use alone


def _info(path: str, mode: int, facts: os.stat_result | None = None) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.mode = mode & 0o777
    if facts is not None:
        info.uid, info.gid, info.mtime = facts.st_uid, facts.st_gid, int(facts.st_mtime)
    return info


def _header(raw: bytes) -> Header:
    try:
        found: dict[str, Any] = json.loads(raw)
        known = {item.name for item in fields(Header)}
        header = Header(**{name: value for name, value in found.items() if name in known})
        time.gmtime(header.created_at + 0.0)  # a number, and of a year that there is
    except (ValueError, TypeError, AttributeError, OverflowError, OSError, RecursionError) as error:
        raise InvalidInput("this is no archive of `stn backup`", field="file") from error
    if header.format != FORMAT:
        raise InvalidInput(
            f"the archive has the form {header.format}, this program ({FORMAT}) reads its own: it was made by version "
            f"{header.version}, which restores it",
            field="file",
        )
    return header


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except EOFError as error:
        raise InvalidInput("the archive was cut: its end is missing", field="file") from error
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"the archive is damaged, or none of `stn backup`: {error}", field="file") from error
