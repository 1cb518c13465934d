"""Which members of a tar archive are let in: directories, regular files, and links: relative ones that stay inside, and
absolute ones, which are names in the sandbox that no transfer follows.

The rules are our own; `tarfile` only parses. Nothing here touches a file.
"""

from __future__ import annotations

import posixpath
import re
import tarfile
from dataclasses import dataclass
from typing import Protocol

from station.core.errors import InvalidInput, TooLarge
from station.core.paths import MAX_COMPONENT_BYTES, MAX_PATH_BYTES, encode_name, link_leads_out
from station.guest.packs import EntryKind

_EXTENSIONS = {
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}
BATCH_BYTES = 256 * 1024
_MAX_EXTENSION_BYTES = 1024 * 1024
_MAX_EXTENSIONS_IN_A_ROW = 8
_MISLEADING = re.compile(rb"\d+ (?:size=|GNU\.sparse\.)")
"""Records of an extended header by which the member's bytes end elsewhere than its own header says. Of a sparse file
tarfile would moreover read a map of any length into memory."""
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a fifo",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


class Reader(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


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
            if not 0 <= info.size <= _MAX_EXTENSION_BYTES or self._extensions > _MAX_EXTENSIONS_IN_A_ROW:
                raise refused(info.name, "has an extended header out of all bounds")
            return
        self._extensions = 0
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE):
            raise refused(info.name, f"is {_KINDS.get(info.type, 'of a kind that is not known')}")
        if info.size < 0:
            raise refused(info.name, "has a size below zero")
        if info.size and info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise refused(info.name, "is no file and yet has a size")

    def admit(self, info: tarfile.TarInfo) -> Member | None:
        """The member, or `None` for the root itself. Raises InvalidInput or TooLarge for what is not let in."""
        if any(key == "size" or key.startswith("GNU.sparse") for key in info.pax_headers):
            raise refused(info.name, "is a sparse file, or has its size in an extended header")
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
        # Absolute ones are let in, as /usr/bin/python3 in a venv: they are names, which nothing follows.
        if not target.startswith("/") and link_leads_out(target, path.count("/")):
            raise refused(info.name, "is a link that leads out of the archive")
        return target


class Headers:
    """A reader that passes a tar archive on, and shows `checker` each raw header before anybody gets to read it.

    It finds them by itself: of what tarfile calls for a header, each security release of Python calls something else.
    """

    def __init__(self, file: Reader, checker: Checker) -> None:
        self._file = file
        self._checker = checker
        self._header = bytearray()
        self._extension: bytearray | None = None
        """The extended header that is being passed on, and (below) what it is called."""
        self._name = ""
        self._skip = 0
        """How far it is to the next header, once the one before is whole."""

    def read(self, size: int = BATCH_BYTES, /) -> bytes:
        data = self._file.read(size)
        at = 0
        while at < len(data) and not self._checker.ended:
            part = data[at : at + (self._skip or tarfile.BLOCKSIZE - len(self._header))]
            at += len(part)
            if self._skip:
                self._pass_on(part)
            else:
                self._header += part
                if len(self._header) == tarfile.BLOCKSIZE:
                    self._judge(bytes(self._header))
                    self._header.clear()
        return data

    def _pass_on(self, part: bytes) -> None:
        self._skip -= len(part)
        if self._extension is None:
            return
        self._extension += part
        if not self._skip:
            if _MISLEADING.search(self._extension):
                raise refused(self._name, "is a sparse file, or has its size in an extended header")
            self._extension = None

    def _judge(self, block: bytes) -> None:
        if not any(block):
            self._checker.ended = True
            return
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        self._checker.header(info)
        self._skip = -(-info.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        if self._skip and info.type in _EXTENSIONS:
            self._extension, self._name = bytearray(), info.name
