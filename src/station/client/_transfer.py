"""Digests on both ends of a transfer, and folders as tar archives. No I/O on the wire."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from station.core.errors import InternalError, PathRefused
from station.core.paths import encode_name, link_leads_out
from station.core.wire import DIGEST_BYTES

from ._build import check_digest

Progress = Callable[[int, int | None], object]
"""Called with the bytes done so far and the bytes in all (`None`: not known)."""
PIECE = 1024 * 1024
"""How much of a local file is read or written at once: each time is a step to another thread and back."""


class Tail:
    """Takes the 32 bytes of digest off the end of a stream, and checks them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._held = b""
        self._sha256 = hashlib.sha256()

    def feed(self, data: bytes) -> bytes:
        """What came before `data`: by pieces, so that none is copied, and the last is held until `finish`."""
        if len(data) < DIGEST_BYTES:  # the digest may lie in both
            self._held += data
            return b""
        out, self._held = self._held, data
        self._sha256.update(out)
        return out

    def finish(self) -> bytes:
        """The last of the content. Raises InternalError unless all of it was seen, unaltered."""
        out, told = self._held[:-DIGEST_BYTES], self._held[-DIGEST_BYTES:]
        if len(told) < DIGEST_BYTES:
            raise InternalError(f"the transfer of {encode_name(self._name)} was cut short; try again", retryable=True)
        self._sha256.update(out)
        check_digest(self._name, self._sha256.hexdigest(), told.hex())
        return out


class Local:
    """A local file that a download fills: it appears under its name whole, or not at all."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.part = target.with_name(f".stn-{os.urandom(8).hex()}")
        self._file: BinaryIO | None = None

    def open(self) -> Local:
        self._file = self.part.open("xb")
        return self

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, pieces: list[bytes]) -> None:
        assert self._file is not None, "open() comes first"
        self._file.writelines(pieces)

    def publish(self, mode: int | None) -> None:
        """Only the bits that the umask admits."""
        assert self._file is not None, "open() comes first"
        if mode is not None:
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(self._file.fileno(), mode & 0o777 & ~mask)
        self._file.close()
        self.part.replace(self.target)

    def discard(self) -> None:
        """Repeating is no error, nor after `publish`."""
        if self._file is not None:
            self._file.close()
        self.part.unlink(missing_ok=True)


def pack(source: Path, sink: BinaryIO) -> int:
    """Writes the folder `source` as a tar with names relative to it; returns its size. Owners are left out."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        # A socket or device means nothing in another place.
        return member if member.isfile() or member.isdir() or member.issym() or member.islnk() else None

    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, errorlevel=1) as archive:
        for name in sorted(os.listdir(source)):
            archive.add(source / name, arcname=name, filter=plain)
    return sink.tell()


def unpack(archive_file: BinaryIO, target: Path, *, skip_outer_links: bool = False) -> int:
    """Unpacks a tar of a sandbox below `target`; returns the number of members.

    The archive is untrusted: raises PathRefused for a name that leads out, for a device, and, before anything is
    written, for a link that leads out, unless those are to be skipped. Links are made last and nothing is written
    through one.
    """
    start = archive_file.tell()
    if not skip_outer_links:
        with tarfile.open(fileobj=archive_file, mode="r:", errorlevel=2) as archive:
            for member in archive:
                _refuse_link_out(member)
    archive_file.seek(start)
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    links: list[tarfile.TarInfo] = []
    with tarfile.open(fileobj=archive_file, mode="r|", errorlevel=2) as archive:
        for member in archive:
            if PurePosixPath(member.name) == PurePosixPath(".") or _leads_out(member):
                continue
            count += 1
            place = _inside(target, member.name)
            if member.issym() or member.islnk():
                links.append(member)
            elif member.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif member.isfile():
                _extract(archive, member, place)
            else:
                raise PathRefused(
                    f"{encode_name(member.name)} is a device or a pipe and is not copied", path=member.name
                )
    for member in links:
        _link(target, member)
    return count


def _inside(target: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise PathRefused(f"{encode_name(name)} in the archive leads out of {target}", path=encode_name(name))
    place = target
    for part in parts[:-1]:
        place = place / part
        if place.is_symlink():
            raise PathRefused(f"{encode_name(name)} in the archive leads through a link", path=encode_name(name))
    return target.joinpath(*parts)


def _leads_out(member: tarfile.TarInfo) -> bool:
    """Whether it is a link out of the folder: a program here that writes to it would write where the sandbox says."""
    if not member.issym():
        return False
    return link_leads_out(member.linkname, sum(part != "." for part in PurePosixPath(member.name).parts) - 1)


def _refuse_link_out(member: tarfile.TarInfo) -> None:
    if _leads_out(member):
        name, target = encode_name(member.name), encode_name(member.linkname)
        raise PathRefused(
            f"{name} is a link to {target}, which leads out of the folder; nothing was copied to this machine. "
            "skip_outer_links: true copies all but such links",
            path=name,
        )


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    source = archive.extractfile(member)
    assert source is not None, "a regular file has content"
    local = Local(place).open()
    try:
        while data := source.read(PIECE):
            local.write(data)
        local.publish(stat.S_IMODE(member.mode))
    finally:
        local.discard()


def _link(target: Path, member: tarfile.TarInfo) -> None:
    place = _inside(target, member.name)
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink() or place.is_file():
        place.unlink()
    if member.issym():
        place.symlink_to(member.linkname)
    else:
        origin = _inside(target, member.linkname)
        if origin.is_symlink():
            raise PathRefused(f"{encode_name(member.name)} in the archive is a second name of a link", path=member.name)
        place.hardlink_to(origin)
