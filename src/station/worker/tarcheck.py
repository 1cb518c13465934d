"""Which members of a tar archive are let in: directories, regular files, and relative links that stay inside.

The rules are our own (hardening 3.5); `tarfile` only parses. Nothing here touches a file.
"""

from __future__ import annotations

import posixpath
import tarfile
from dataclasses import dataclass
from typing import NoReturn

from station.core.errors import InvalidInput, TooLarge
from station.core.paths import MAX_COMPONENT_BYTES, MAX_PATH_BYTES, encode_name
from station.guest.packs import EntryKind

_EXTENSIONS = {
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}
_MAX_EXTENSION_BYTES = 1024 * 1024
_MAX_EXTENSIONS_IN_A_ROW = 8
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a fifo",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


@dataclass(frozen=True)
class Caps:
    """Bounds of one import."""

    members: int = 100_000
    total_bytes: int = 8 * 1024**3
    depth: int = 128
    ratio: int = 200
    """Bytes that one compressed byte may become, after the first MiB."""


@dataclass(frozen=True)
class Member:
    """One admitted member: `kind` as in the guest's entries, f, d or l."""

    kind: EntryKind
    path: str
    mode: int
    size: int
    mtime_ns: int
    target: str | None = None


def refused(name: str, why: str) -> InvalidInput:
    """The archive is refused because of one member; nothing was changed."""
    shown = encode_name(name)[:300]
    return InvalidInput(f"the archive was refused and nothing changed: member {shown!r} {why}", member=shown)


class Checker:
    """Admits the members of one archive, in their order."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self._kinds: dict[str, str] = {}
        """By path: f, d, l, or p for a directory that is only implied so far."""
        self._bytes = 0
        self._extensions = 0
        self.ended = False
        """Whether the end mark was seen: without it the archive was cut or is damaged."""

    def header(self, info: tarfile.TarInfo) -> None:
        """Called for each raw header, before what it announces is read into memory."""
        if info.type in _EXTENSIONS:
            self._extensions += 1
            if info.size > _MAX_EXTENSION_BYTES or self._extensions > _MAX_EXTENSIONS_IN_A_ROW:
                raise refused(info.name, "has an extended header out of all bounds")
            return
        self._extensions = 0
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE):
            raise refused(info.name, f"is {_KINDS.get(info.type, 'of a kind that is not known')}")
        if info.size < 0:
            raise refused(info.name, "has a size below zero")

    def admit(self, info: tarfile.TarInfo) -> Member | None:
        """The member, or `None` for the root itself. Raises InvalidInput or TooLarge for what is not let in."""
        if any(key.startswith("GNU.sparse") for key in info.pax_headers):
            raise refused(info.name, "is a sparse file")
        path = self._path(info.name)
        if path is None:
            if not info.isdir():
                raise refused(info.name, "has no name")
            return None
        kind: EntryKind = "d" if info.isdir() else "l" if info.issym() else "f"
        self._place(info.name, path, kind)
        size = info.size if kind == "f" else 0
        self._bytes += size
        if self._bytes > self._caps.total_bytes:
            raise TooLarge(f"the archive unpacks to more than {self._caps.total_bytes} bytes; nothing changed")
        target = self._target(info, path) if kind == "l" else None
        mtime = min(max(int(info.mtime), 0), 2**33)
        return Member(kind, path, info.mode & 0o777, size, mtime * 10**9, target)

    def _path(self, name: str) -> str | None:
        if not name or "\0" in name:
            raise refused(name, "has an empty name or one with NUL")
        if name.startswith("/"):
            raise refused(name, "has an absolute name")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise refused(name, "has '..' in its name")
        if len(parts) > self._caps.depth:
            raise refused(name, f"is more than {self._caps.depth} directories deep")
        if any(len(part.encode("utf-8", "surrogateescape")) > MAX_COMPONENT_BYTES for part in parts):
            raise refused(name, f"has a component of more than {MAX_COMPONENT_BYTES} bytes")
        path = "/".join(parts)
        if len(path.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
            raise refused(name, f"has a name of more than {MAX_PATH_BYTES} bytes")
        return path or None

    def _place(self, name: str, path: str, kind: str) -> None:
        parent = posixpath.dirname(path)
        while parent and (there := self._kinds.get(parent)) != "d":
            if there in ("l", "f"):
                raise refused(name, f"would be written through {encode_name(parent)!r}, which is no directory")
            if there == "p":
                break
            self._kinds[parent] = "p"
            parent = posixpath.dirname(parent)
        there = self._kinds.get(path)
        if there is not None and not (there == "p" and kind == "d"):
            raise refused(name, "is there twice")
        self._kinds[path] = kind
        if len(self._kinds) > self._caps.members:
            raise TooLarge(f"the archive has more than {self._caps.members} members; nothing changed")

    @staticmethod
    def _target(info: tarfile.TarInfo, path: str) -> str:
        target = info.linkname
        if not target or "\0" in target or len(target.encode("utf-8", "surrogateescape")) >= MAX_PATH_BYTES:
            raise refused(info.name, "is a link with an empty or overlong target")
        if target.startswith("/"):
            raise refused(info.name, "is a link to an absolute path")
        parts = [part for part in target.split("/") if part not in ("", ".")]
        ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
        # A `..` after a name could climb out of a link of that name; at the front it is counted from real directories.
        if ups > path.count("/") or ".." in parts[ups:]:
            raise refused(info.name, "is a link that leads out of the archive")
        return target


def header_class(checker: Checker) -> type[tarfile.TarInfo]:
    """A TarInfo that shows every raw header to `checker` first: sizes are judged before anything is read by them."""

    class Header(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                checker.ended = True
            info = super().frombuf(buf, encoding, errors)
            checker.header(info)
            return info

        def _sparse(self, *_: object) -> NoReturn:
            raise refused(self.name, "is a sparse file")

        # Else tarfile reads a map of any length into memory before anybody is asked.
        _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _sparse

    return Header
