"""What an EXIT frame says, and the typed ending that people and agents get for it. Pure."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from enum import IntEnum

from station.core.endings import Ending, EndingKind
from station.core.errors import InvalidInput
from station.core.paths import encode_name
from station.core.records import Usage

SIGKILL = 9
NOT_FOUND, NOT_EXECUTABLE = 127, 126


class ExitKind(IntEnum):
    EXITED = 1
    SIGNALLED = 2
    NO_DIRECTORY = 3
    NO_PROGRAM = 4
    NO_MEANS = 5
    LOST = 6


class Reason(IntEnum):
    """Why the guest ended a process; `NONE`: it ended by itself."""

    NONE = 0
    CANCELLED = 1
    TIMED_OUT = 2
    OUTPUT_LIMIT = 3


_BY_REASON = {
    Reason.CANCELLED: EndingKind.CANCELLED,
    Reason.TIMED_OUT: EndingKind.TIMED_OUT,
    Reason.OUTPUT_LIMIT: EndingKind.OUTPUT_LIMIT,
}


@dataclass(frozen=True, slots=True)
class GuestExit:
    """All that the guest tells at the end of a process: its tree is empty."""

    kind: ExitKind
    value: int
    """The exit code, the signal number or the errno, by `kind`."""
    reason: Reason
    ended_children: int
    stdout_total: int
    stderr_total: int
    user_us: int
    system_us: int
    max_rss_kib: int
    wall_us: int

    def usage(self) -> Usage:
        return Usage(self.user_us / 1e6, self.system_us / 1e6, self.max_rss_kib, self.wall_us / 1e6)

    def to_ending(
        self, *, program: str = "the program", cwd: str = "the working directory", oom: bool = False
    ) -> Ending:
        """The typed ending. `oom`: the kernel ended something of this box for memory while this process ran.

        `program` is argv[0] and `cwd` what was asked for: both only for the sentences.
        Raises InvalidInput where the working directory was none: nothing ran.
        """
        if self.kind is ExitKind.NO_DIRECTORY:
            raise InvalidInput(
                f"the working directory {encode_name(cwd)} cannot be used: {_text(self.value)}", field="cwd"
            )
        if self.kind is ExitKind.NO_PROGRAM:
            return _no_program(self.value, encode_name(program))
        if self.kind is ExitKind.NO_MEANS:
            return Ending.lost(f"the guest could not start a process: {_text(self.value)}")
        if self.reason is not Reason.NONE:
            return Ending(_BY_REASON[self.reason])
        if oom and self.looks_killed:
            return Ending(EndingKind.OOM)
        if self.kind is ExitKind.EXITED:
            return Ending.exited(self.value)
        if self.kind is ExitKind.SIGNALLED:
            return Ending.signalled(self.value)
        return Ending.lost("its supervisor was ended from inside the sandbox")

    @property
    def looks_killed(self) -> bool:
        """A shell reports a child that was killed as 128 + 9; a program that went on is not the one that was ended."""
        match self.kind:
            case ExitKind.SIGNALLED:
                return self.value == SIGKILL
            case ExitKind.EXITED:
                return self.value == 128 + SIGKILL
            case _:
                return self.kind is ExitKind.LOST


def _no_program(code: int, program: str) -> Ending:
    """As a shell has it: 127 for what is not there, 126 for what is there and cannot run."""
    if code == errno.ENOENT:
        found = "does not exist" if "/" in program else "was not found in the PATH"
        return Ending.exited(NOT_FOUND, f"{program} {found}, or the interpreter that its first line names is missing")
    if code == errno.ENOTDIR:
        return Ending.exited(NOT_FOUND, f"{program} does not exist: a part of its path is not a directory")
    if code == errno.EACCES:
        return Ending.exited(NOT_EXECUTABLE, f"{program} may not be executed: it is no file, or has no x permission")
    return Ending.exited(NOT_EXECUTABLE, f"{program} cannot be executed: {_text(code)}")


def _text(code: int) -> str:
    return f"{os.strerror(code)} ({errno.errorcode.get(code, code)})"
