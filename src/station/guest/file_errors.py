"""What the ending of a file primitive means: errors of Station, with sentences that name the sandbox path alone."""

from __future__ import annotations

import errno
import logging

from station.core.errors import (
    AlreadyExists,
    Busy,
    Conflict,
    FileNotFound,
    InternalError,
    InvalidInput,
    LimitReached,
    NotARegularFile,
    PathRefused,
    Refused,
    StationError,
    StorageFull,
    TooLarge,
    Unavailable,
)
from station.core.paths import encode_name

from .endings import ExitKind, GuestExit, Reason

NOT_REGULAR, REFUSED, DIGEST, ARCHIVE = 200, 201, 202, 203

log = logging.getLogger(__name__)

_OUTSIDE = "{} leads out of its folder, by a link or a file system mounted there"

_ERRORS: dict[int, tuple[type[StationError], str]] = {
    errno.ENOENT: (FileNotFound, "{} does not exist"),
    errno.EEXIST: (AlreadyExists, "{} exists already"),
    errno.ENOTDIR: (Conflict, "{}, or a part of it, is not a folder"),
    errno.EISDIR: (NotARegularFile, "{} is a folder"),
    errno.ENOTEMPTY: (Conflict, "{} is a folder that is not empty"),
    errno.ENOSPC: (StorageFull, "there is no room left for {}"),
    errno.EDQUOT: (StorageFull, "the quota leaves no room for {}"),
    errno.EFBIG: (TooLarge, "{} would be larger than a file may be"),
    errno.ENAMETOOLONG: (InvalidInput, "{} has a name that is too long"),
    errno.EINVAL: (InvalidInput, "{} cannot be used like this"),
    errno.EACCES: (Refused, "the permissions of {}, or of a folder above it, do not allow this"),
    errno.EPERM: (Refused, "the sandbox's user may not do this with {}"),
    errno.EROFS: (Refused, "{} is read-only"),
    errno.EBUSY: (Refused, "{} is protected, and read-only here: git, a shell or an editor runs what stands in it"),
    errno.ETXTBSY: (Busy, "{} is a program that is running"),
    errno.ELOOP: (PathRefused, _OUTSIDE),
    errno.EXDEV: (PathRefused, _OUTSIDE),
    errno.EIO: (Conflict, "{} became shorter while it was read, or its disk failed"),
    errno.ENOMEM: (Unavailable, "there is no memory left for {}"),
    errno.EMFILE: (Unavailable, "too many files are open for {}"),
    errno.ENFILE: (Unavailable, "too many files are open for {}"),
    errno.EAGAIN: (LimitReached, "the sandbox has no room for another process; {} was not touched"),
    NOT_REGULAR: (NotARegularFile, "{} is not a regular file"),
    REFUSED: (PathRefused, _OUTSIDE),
    DIGEST: (InvalidInput, "what arrived for {} is not what was sent: its digest differs, and nothing was changed"),
    ARCHIVE: (InvalidInput, "the archive for {} is refused, and nothing was changed"),
}
_ACROSS = "{} cannot be moved to another file system; copy it and remove it"


def check(ended: GuestExit, applet: str, subject: str, stderr: bytes = b"") -> None:
    """Returns where it succeeded, else raises what its ending means. `subject`: the sandbox path to name."""
    if ended.kind is ExitKind.EXITED and ended.value == 0 and ended.reason is Reason.NONE:
        return
    name = encode_name(subject)
    log.debug("%s of %s: %s", applet, name, stderr[-500:])
    if ended.reason is Reason.TIMED_OUT:
        raise Unavailable(f"{applet} of {name} took too long and was ended", path=name)
    if ended.reason is Reason.OUTPUT_LIMIT:
        raise TooLarge(f"the answer of {applet} for {name} is too long; ask for less", path=name)
    if ended.kind is ExitKind.NO_MEANS and ended.value == errno.EAGAIN:
        raise _error(errno.EAGAIN, name)
    if ended.kind is not ExitKind.EXITED or ended.reason is not Reason.NONE:
        raise Unavailable(f"{applet} of {name} was ended before it was done", path=name)
    if applet == "rename" and ended.value == errno.EXDEV:
        raise Conflict(_ACROSS.format(name), path=name)
    raise _error(ended.value, name, _last_line(stderr) if ended.value == ARCHIVE else "")


def _error(code: int, name: str, why: str = "") -> StationError:
    if code not in _ERRORS:
        told = errno.errorcode.get(code, str(code))
        return InternalError(f"the guest failed at {name} with {told}", path=name, errno=told)
    kind, sentence = _ERRORS[code]
    message = sentence.format(name) + (f": {why}" if why else "")
    if code == errno.EIO:
        return kind(message, retryable=True, path=name, errno="EIO")
    if code == DIGEST:
        return kind(message, path=name, field="digest", reason="digest")
    if code == ARCHIVE:
        return kind(message, path=name, reason="archive")
    if code in errno.errorcode:
        return kind(message, path=name, errno=errno.errorcode[code])
    return kind(message, path=name)


def _last_line(stderr: bytes) -> str:
    """Why an archive was refused; the names in it are the caller's own."""
    line = stderr.rstrip(b"\n\0").rpartition(b"\n")[2][-300:]
    return encode_name(line.decode("utf-8", "surrogateescape"))
