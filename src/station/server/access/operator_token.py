"""The operator's token: who shows it on TCP may do all that the user of this station may."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from station.core.errors import InvalidInput, Refused, Unavailable
from station.durable import write_private

FILE = "operator.token"
VARIABLE = "STN_TOKEN"
_PREFIX = "stn_op_"
_RANDOM_BYTES = 32
# What a header can carry, and nobody guesses.
_FITS = re.compile(rb"[\x21-\x7e]{16,512}")
_MOST_BYTES = 4096
_WHAT = "the token"


@dataclass(frozen=True)
class Token:
    secret: bytes = field(repr=False)
    file: Path | None
    """`None`: from the environment."""


def take(environ: MutableMapping[str, str] = os.environ) -> str | None:
    """STN_TOKEN, which is in the environment no more: no child process inherits it."""
    return environ.pop(VARIABLE, None) or None


def operator_token(home: Path, given: str | None = None) -> Token:
    """The given one, else that of the state directory, made where there is none yet.

    Raises InvalidInput for a given one that is too short, Refused for a file that others can read or made.
    """
    if given is not None:
        secret = given.encode(errors="surrogateescape")
        if not _FITS.fullmatch(secret):
            raise InvalidInput(
                f"{VARIABLE} must be 16 to 512 visible ASCII characters; without it a token is made in {home / FILE}",
                field=VARIABLE,
            )
        return Token(secret, None)
    file = home / FILE
    try:
        return Token(_read(file) if os.path.lexists(file) else _make(file), file)
    except OSError as error:
        raise Unavailable(f"the token {file} cannot be used: {error.strerror}", retryable=False) from error


def read_private(file: Path, what: str, *, most_bytes: int) -> bytes:
    """At most so many bytes of a file that is ours alone; `what` begins the sentence about one that is not. Raises
    Refused, and OSError where it cannot be read."""
    if file.is_symlink():
        raise _refusal(file, what, "is a symbolic link")
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as opened:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _refusal(file, what, "is no regular file")
        if found.st_uid != os.geteuid():
            raise _refusal(file, what, f"belongs to the user with uid {found.st_uid}, this is uid {os.geteuid()}")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise _refusal(file, what, f"is open to others (mode {stat.S_IMODE(found.st_mode):03o})")
        return opened.read(most_bytes)


def _read(file: Path) -> bytes:
    secret = read_private(file, _WHAT, most_bytes=_MOST_BYTES).strip()
    if not _FITS.fullmatch(secret):
        raise _refusal(file, _WHAT, "holds no token of 16 to 512 visible ASCII characters")
    return secret


def _make(file: Path) -> bytes:
    # The caller holds the lock of the directory, so nobody else makes it.
    secret = (_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)).encode()
    write_private(file, secret + b"\n")
    return secret


def _refusal(file: Path, what: str, fault: str) -> Refused:
    return Refused(f"{what} {file} {fault}, so it may be no secret: remove it, and a new one is made", file=str(file))
