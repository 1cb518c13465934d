"""What the SDK answers with."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from station.core.capabilities import Isolation
from station.core.endings import Ending, EndingKind
from station.core.errors import StationError
from station.core.records import Usage
from station.core.wire import Content, ProcessView, StreamView
from station.core.wire import RunResult as WireRunResult


class CommandFailed(Exception):
    """A command or snippet did not end with exit code 0. Raised by `check()` alone; no failure of Station.

    `result` is the whole result.
    """

    def __init__(self, message: str, result: Output) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True, repr=False)
class Output:
    """What `ExecResult` and `RunResult` share: how it ended, and both output streams."""

    ending: Ending
    stdout_view: StreamView
    stderr_view: StreamView
    ended_children: int = 0
    """Children that were still running when the command ended, and were ended with it."""
    usage: Usage | None = None
    """`None` where the backend cannot tell."""
    id: str | None = None

    def __repr__(self) -> str:
        fact = self.ending.code if self.ending.code is not None else self.ending.signal
        ending = self.ending.kind.value + ("" if fact is None else f"({fact})")
        sizes = f"stdout={self.stdout_view.total_bytes} B stderr={self.stderr_view.total_bytes} B"
        return f"<{type(self).__name__} {ending} {sizes}{self._where()}>"

    def _where(self) -> str:
        return ""

    @property
    def ok(self) -> bool:
        """True for exit code 0 alone."""
        return self.ending.ok

    @property
    def exit_code(self) -> int | None:
        """The code a shell would show (124 timed out, 128+n signalled); `None`: lost, there is none."""
        return self.ending.exit_code

    @property
    def timed_out(self) -> bool:
        return self.ending.kind is EndingKind.TIMED_OUT

    @property
    def stdout(self) -> str:
        """As text; bytes that are no UTF-8 show as U+FFFD, and a cut is marked where it is."""
        return _text(self.stdout_view)

    @property
    def stderr(self) -> str:
        """As text; bytes that are no UTF-8 show as U+FFFD, and a cut is marked where it is."""
        return _text(self.stderr_view)

    @property
    def stdout_bytes(self) -> bytes:
        """Byte for byte; where `stdout_omitted_bytes` is above 0, the head and the tail."""
        return self.stdout_view.to_bytes()

    @property
    def stderr_bytes(self) -> bytes:
        """Byte for byte; where `stderr_omitted_bytes` is above 0, the head and the tail."""
        return self.stderr_view.to_bytes()

    @property
    def stdout_omitted_bytes(self) -> int:
        """Bytes missing between head and tail; `Process.output` and `on_output` give long output whole."""
        return self.stdout_view.omitted_bytes

    @property
    def stderr_omitted_bytes(self) -> int:
        """Bytes missing between head and tail."""
        return self.stderr_view.omitted_bytes

    def check(self) -> Self:
        """This result itself. Raises CommandFailed unless `ok`."""
        if not self.ok:
            raise CommandFailed(_failure(self), self)
        return self


@dataclass(frozen=True, repr=False)
class ExecResult(Output):
    """A command that ended, in a sandbox that stays."""

    duration_seconds: float = 0.0

    @classmethod
    def of(cls, view: ProcessView) -> ExecResult:
        """From a view of an ended process."""
        if view.ending is None:
            raise ValueError(f"the process {view.id} has not ended")
        return cls(
            view.ending,
            view.stdout or no_output(),
            view.stderr or no_output(),
            view.ended_children,
            view.usage,
            view.id,
            duration_seconds=max(0.0, (view.ended_at or view.started_at) - view.started_at),
        )


@dataclass(frozen=True, repr=False)
class RunResult(Output):
    """A snippet that ran in a box of its own, which is gone."""

    runtime: str = "python"
    isolation: Isolation | None = None
    """Where it really ran; `None` only with `error`."""
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    """By path relative to the workspace."""
    artifacts_missing: tuple[str, ...] = ()
    """Names or patterns that matched nothing."""
    duration_seconds: float = 0.0
    """Of the program, without the making of the box."""
    warm: bool = False
    """Whether a box from the pool served it."""
    error: StationError | None = None
    """Set by `map` and `imap` alone: why Station could not run this one. `ending` is lost then."""

    @classmethod
    def of(cls, wire: WireRunResult, artifacts: Mapping[str, bytes]) -> RunResult:
        return cls(
            wire.ending,
            wire.stdout,
            wire.stderr,
            wire.ended_children,
            wire.usage,
            wire.id,
            runtime=wire.runtime,
            isolation=wire.isolation,
            artifacts=artifacts,
            artifacts_missing=tuple(wire.artifacts_missing),
            duration_seconds=wire.duration_ms / 1000,
            warm=wire.warm,
        )

    @classmethod
    def failed(cls, error: StationError, runtime: str) -> RunResult:
        """The place of a snippet that Station could not run."""
        ending = Ending.lost(error.message)
        return cls(ending, no_output(), no_output(), runtime=runtime, error=error)

    def _where(self) -> str:
        if self.error is not None:
            return f" {self.runtime}: {type(self.error).__name__}: {self.error.message}"
        return f" {self.runtime} on {self.isolation.backend}" if self.isolation else f" {self.runtime}"

    def check(self) -> Self:
        """This result itself. Raises `error` where Station could not run it, else CommandFailed unless `ok`."""
        if self.error is not None:
            raise self.error
        return super().check()


@dataclass(frozen=True)
class Chunk:
    """A piece of output of a running process."""

    stream: Literal["stdout", "stderr"]
    offset: int
    """Of its first byte, from the start of the stream."""
    data: bytes
    text: str = ""
    """`data` decoded, a character that is cut between two chunks in the later one."""
    missing_bytes: int = 0
    """Bytes right before `offset` that are gone: more was written than is kept."""


class Decoder:
    """Text of the two streams, each with its own state: a character cut between chunks is not damaged."""

    def __init__(self) -> None:
        make = codecs.getincrementaldecoder("utf-8")
        self._by_stream = {"stdout": make("replace"), "stderr": make("replace")}

    def decode(self, stream: str, data: bytes) -> str:
        return self._by_stream[stream].decode(data)


def no_output() -> StreamView:
    """Of a stream that nothing is known of."""
    return StreamView(Content(""), 0)


def _text(view: StreamView) -> str:
    head = view.head.to_bytes().decode(errors="replace")
    if view.tail is None and not view.omitted_bytes:
        return head
    tail = view.tail.to_bytes().decode(errors="replace") if view.tail else ""
    return f"{head}\n... [{view.omitted_bytes} bytes omitted] ...\n{tail}"


def _failure(result: Output) -> str:
    ending = result.ending
    said = {
        EndingKind.EXITED: f"it ended with exit code {ending.code}",
        EndingKind.SIGNALLED: f"it was ended by signal {ending.signal}",
        EndingKind.TIMED_OUT: "it ran out of time; timeout_seconds sets the bound",
        EndingKind.CANCELLED: "it was cancelled",
        EndingKind.OOM: "it ran out of memory; limits.memory_mb sets the bound",
        EndingKind.OUTPUT_LIMIT: "it wrote more than output_limit_bytes",
        EndingKind.LOST: "it was lost",
    }[ending.kind]
    reason = f" ({ending.reason})" if ending.reason else ""
    last = result.stderr.strip().splitlines()[-1:]
    return said + reason + (f": {last[0]}" if last else "")
