"""Files that outlive a crash of the machine: whole or not at all, and on the disk before anybody is told."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write_private(file: Path, data: bytes, *, replace: bool = True) -> None:
    """Whole or not at all, durably, and for this user alone. `replace` false: one that is there meanwhile stays as it
    is. Raises OSError."""
    half = file.with_name(f".stn-{secrets.token_hex(8)}")
    try:
        with _new(half) as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        if replace:
            half.replace(file)
        else:
            with suppress(FileExistsError):
                os.link(half, file)
        sync_directory(file.parent)
    finally:
        with suppress(OSError):  # it has its name, or never came to be; what went wrong is told already
            half.unlink()


@contextmanager
def new_private(file: Path) -> Iterator[BinaryIO]:
    """A new file to be written to within: it has its name once that ends well, durably and for this user alone; else
    nothing is left. Raises OSError; FileExistsError where one has come meanwhile."""
    half = file.with_name(f".stn-{secrets.token_hex(8)}")
    with _new(half) as opened:
        try:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())
            os.link(half, file)
            sync_directory(file.parent)
        finally:
            half.unlink(missing_ok=True)


def _new(file: Path) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(file, flags, 0o600), "wb")


def write_all(file: BinaryIO, data: bytes) -> None:
    """All of it to a file without a buffer, which may take a part at a time. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def in_memory(content: bytes) -> Iterator[int]:
    """A file without a name that holds this, for whoever reads files alone: as `/proc/self/fd/N`, from its first byte
    each time. What it is a copy of may change meanwhile, and no disk has it. Raises OSError."""
    fd = os.memfd_create("station", os.MFD_CLOEXEC)
    with open(fd, "wb", buffering=0) as opened:
        write_all(opened, content)
        yield fd


def is_full(error: OSError) -> bool:
    """Whether it tells of a disk or a quota without room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def sync_directory(directory: Path) -> None:
    """The names in it are on the disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
