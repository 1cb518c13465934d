"""The one error of the adapters, and the one place where Station's become it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from station.core import errors
from station.core.errors import StationError


class Code(StrEnum):
    """What went wrong; programs decide by it."""

    INVALID_INPUT = "invalid_input"
    NOT_FOUND = "not_found"
    BUSY = "busy"
    CONFLICT = "conflict"
    INVALID_STATE = "invalid_state"
    CAPACITY = "capacity"
    UNAVAILABLE = "unavailable"
    UNSUPPORTED = "unsupported"
    STORAGE_ERROR = "storage_error"


_STATUS = {
    Code.INVALID_INPUT: 400,
    Code.NOT_FOUND: 404,
    Code.BUSY: 409,
    Code.CONFLICT: 409,
    Code.INVALID_STATE: 409,
    Code.CAPACITY: 429,
    Code.UNAVAILABLE: 503,
    Code.UNSUPPORTED: 422,
    Code.STORAGE_ERROR: 507,
}
_FULL = 507
_TOO_LARGE = 413


class SandboxError(Exception):
    """The one error of the adapters. `code` is for programs, the sentence for people, `status` is that of HTTP."""

    def __init__(
        self, code: Code | str, message: str, *, status: int | None = None, retryable: bool | None = None
    ) -> None:
        super().__init__(message)
        self.code = Code(code)
        self.message = message
        self.status = _STATUS[self.code] if status is None else status
        self.retryable = self.code in (Code.BUSY, Code.CAPACITY) if retryable is None else retryable
        """Whether the same call may do later what it did not do now."""

    def again(self) -> SandboxError:
        """A copy to be raised: with a traceback of its own."""
        return SandboxError(self.code, self.message, status=self.status, retryable=self.retryable)


def invalid(message: str) -> SandboxError:
    return SandboxError(Code.INVALID_INPUT, message)


def unsupported(message: str) -> SandboxError:
    return SandboxError(Code.UNSUPPORTED, message)


def invalid_state(message: str) -> SandboxError:
    return SandboxError(Code.INVALID_STATE, message)


# What a call about a file was answered with by the kernel of the box. All others: unavailable.
_BY_ERRNO = {
    **dict.fromkeys(("ENOENT",), Code.NOT_FOUND),
    **dict.fromkeys(
        ("ENOTDIR", "EISDIR", "ELOOP", "EINVAL", "EACCES", "EPERM", "ENOTEMPTY", "ENAMETOOLONG", "EEXIST", "EROFS",
         "EBUSY", "ETXTBSY", "EXDEV"),
        Code.INVALID_INPUT,
    ),
    **dict.fromkeys(("ENOSPC", "EDQUOT", "EFBIG", "EMFILE", "ENFILE"), Code.CAPACITY),
}  # fmt: skip
# The first that fits.
_BY_CLASS: tuple[tuple[type[StationError], Code], ...] = (
    (errors.InvalidInput, Code.INVALID_INPUT),
    (errors.NotFound, Code.NOT_FOUND),
    (errors.SandboxFailed, Code.INVALID_STATE),
    (errors.Busy, Code.BUSY),
    (errors.NotARegularFile, Code.INVALID_INPUT),
    (errors.Conflict, Code.INVALID_STATE),
    (errors.Refused, Code.UNSUPPORTED),
    (errors.CannotEnforce, Code.UNSUPPORTED),
    (errors.LimitReached, Code.CAPACITY),
    (errors.StorageFull, Code.STORAGE_ERROR),
)


def translate(error: StationError, *, of_file: bool = False) -> SandboxError:
    """`of_file`: the call was about a file in a sandbox, where a conflict means that the name was not fit for it."""
    detail = error.detail
    if engine := detail.get("engine"):
        code = Code.CAPACITY if engine == "resource_exhausted" else Code.UNAVAILABLE
        status = _FULL if code is Code.CAPACITY else None
        sentence = f"the container engine did not do what it was asked for ({engine}); `stn doctor` tells more"
        return SandboxError(code, sentence, status=status, retryable=error.retryable)
    if of_file and "errno" in detail:
        code = _BY_ERRNO.get(detail["errno"], Code.UNAVAILABLE)
        return SandboxError(code, error.message, status=_FULL if code is Code.CAPACITY else None)
    if "store" in detail:
        return SandboxError(Code.STORAGE_ERROR, error.message, retryable=error.retryable)
    code = next((code for kind, code in _BY_CLASS if isinstance(error, kind)), Code.UNAVAILABLE)
    if of_file and code is Code.INVALID_STATE and not isinstance(error, errors.SandboxFailed):
        code = Code.INVALID_INPUT
    status = _TOO_LARGE if isinstance(error, errors.TooLarge) else None
    return SandboxError(code, error.message, status=status, retryable=error.retryable)


@contextmanager
def translated(*, of_file: bool = False) -> Iterator[None]:
    """What Station raises within becomes a SandboxError. Of an engine's refusal nothing is handed on but its class."""
    try:
        yield
    except StationError as error:
        raise translate(error, of_file=of_file) from (None if "engine" in error.detail else error)
