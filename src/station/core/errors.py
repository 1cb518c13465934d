"""Every error that Station raises on purpose. Agents decide by `code`, people by the sentence.

    StationError
    ├── InvalidInput          400  what was asked for makes no sense; the sentence names the field
    │   ├── PathRefused       400  a path outside workspace, home and /tmp
    │   ├── MethodNotAllowed  405  the path is there, and does something else
    │   ├── TooLarge          413
    │   └── UnsupportedMedia  415  a body of another kind than this takes
    ├── Unauthenticated       401  no token, or not the right one
    ├── Refused               403  policy says no
    ├── NotFound              404  no such sandbox, process or file (or another's)
    │   ├── SandboxNotFound
    │   ├── ProcessNotFound
    │   └── FileNotFound
    ├── Conflict              409  the thing is in a state that does not allow this
    │   ├── AlreadyExists
    │   ├── Busy
    │   ├── SandboxFailed          quarantined or failed; the reason is in the sentence
    │   └── NotARegularFile
    ├── Misdirected           421  the request names another host than this station
    ├── CannotEnforce         422  a limit or policy named by the caller that this backend cannot keep
    ├── LimitReached          429  retryable
    ├── StorageFull           507
    ├── Unavailable           503  retryable
    │   ├── BackendUnavailable     this machine cannot run that backend; not retryable
    │   ├── StationUnreachable     no station answered
    │   └── BoxLost                the box ended under the call
    └── InternalError         500  a fault of Station itself

HTTP status and the JSON body derive from the class; `from_body` is the way back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self


class StationError(Exception):
    """Root of all errors of Station.

    `detail` holds machine-readable facts (names, limits, alternatives), never a secret.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: bool = False

    def __init__(self, message: str, *, retryable: bool | None = None, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.detail: dict[str, Any] = detail
        if retryable is not None:
            self.retryable = retryable

    def again(self) -> Self:
        """A copy to be raised: each of many that wait is told by an exception with a traceback of its own."""
        return type(self)(self.message, retryable=self.retryable, **self.detail)

    def to_body(self) -> dict[str, Any]:
        """The body of an HTTP answer."""
        return {
            "error": type(self).__name__,
            "code": self.code,
            "message": self.message,
            "retryable": self.retryable,
            "detail": self.detail,
        }


class InvalidInput(StationError):
    """What was asked for makes no sense; nothing was done."""

    code = "invalid_input"
    status = 400


class PathRefused(InvalidInput):
    """A path that leads outside workspace, home and /tmp."""

    code = "path_refused"


class TooLarge(InvalidInput):
    """More bytes or names than a bound allows."""

    code = "too_large"
    status = 413


class MethodNotAllowed(InvalidInput):
    """The path is there, and takes other methods; the header Allow names them."""

    code = "method_not_allowed"
    status = 405


class UnsupportedMedia(InvalidInput):
    """A body of another kind than this takes."""

    code = "unsupported_media"
    status = 415


class Unauthenticated(StationError):
    """No token was shown, or not the right one."""

    code = "unauthenticated"
    status = 401


class Refused(StationError):
    """Policy says no; asking again will not help."""

    code = "refused"
    status = 403


class NotFound(StationError):
    """No such thing, or it is another's."""

    code = "not_found"
    status = 404


class SandboxNotFound(NotFound):
    """No sandbox of that name."""

    code = "sandbox_not_found"


class ProcessNotFound(NotFound):
    """No process of that id in that sandbox, or it was forgotten."""

    code = "process_not_found"


class FileNotFound(NotFound):
    """No file of that name in the sandbox."""

    code = "file_not_found"


class Conflict(StationError):
    """The thing is in a state that does not allow this."""

    code = "conflict"
    status = 409


class AlreadyExists(Conflict):
    """It is there already, and replacing it was not asked for."""

    code = "already_exists"


class Busy(Conflict):
    """Something else holds it; it may be free later."""

    code = "busy"
    retryable = True


class SandboxFailed(Conflict):
    """The sandbox is failed or quarantined; the sentence has the reason."""

    code = "sandbox_failed"


class NotARegularFile(Conflict):
    """A directory, fifo, socket or device where a regular file is needed."""

    code = "not_a_regular_file"


class Misdirected(StationError):
    """The request names another host than this station: it was meant for somebody else, or a page forged it."""

    code = "misdirected"
    status = 421


class CannotEnforce(StationError):
    """A limit or policy that the caller named and that cannot be kept here."""

    code = "cannot_enforce"
    status = 422


class LimitReached(StationError):
    """A bound on how many at once; free one, or ask again later."""

    code = "limit_reached"
    status = 429
    retryable = True


class StorageFull(StationError):
    """No room: on the disk, in a quota or in a size-limited file system."""

    code = "storage_full"
    status = 507


class Unavailable(StationError):
    """It cannot be done now."""

    code = "unavailable"
    status = 503
    retryable = True


class BackendUnavailable(Unavailable):
    """This machine cannot run that backend; the sentence names what is missing."""

    code = "backend_unavailable"
    retryable = False


class StationUnreachable(Unavailable):
    """No station answered on the socket, and none could be started."""

    code = "station_unreachable"


class BoxLost(Unavailable):
    """The box ended, or could not be reached, while something waited for it."""

    code = "box_lost"


class InternalError(StationError):
    """A fault of Station itself."""

    code = "internal"


def _tree(root: type[StationError]) -> dict[str, type[StationError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        # One with the code of its parent is somebody's own, and nothing that travels.
        found |= {code: kind for code, kind in _tree(child).items() if code not in found}
    return found


def from_body(body: Mapping[str, Any]) -> StationError:
    """The error that a station answered with; an unknown code becomes `StationError`."""
    code = str(body.get("code", "internal"))
    kind = _tree(StationError).get(code, StationError)
    error = kind(str(body.get("message", "the station gave no reason")))
    error.retryable = bool(body.get("retryable", False))
    error.detail = dict(body.get("detail") or {})
    return error
