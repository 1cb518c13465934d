"""How a process ended: always typed, never a bare number."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EndingKind(StrEnum):
    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    OOM = "oom"
    OUTPUT_LIMIT = "output_limit"
    LOST = "lost"


@dataclass(frozen=True)
class Ending:
    """The typed end of a process. Kinds that carry a fact have a constructor below."""

    kind: EndingKind
    code: int | None = None
    """The exit code; `None` unless `kind` is exited."""
    signal: int | None = None
    """The signal number; `None` unless `kind` is signalled."""
    reason: str | None = None
    """One sentence for a person: which program was not found, why it was lost. `None` where the kind says it all."""

    @classmethod
    def exited(cls, code: int, reason: str | None = None) -> Ending:
        return cls(EndingKind.EXITED, code=code, reason=reason)

    @classmethod
    def signalled(cls, number: int) -> Ending:
        return cls(EndingKind.SIGNALLED, signal=number)

    @classmethod
    def lost(cls, reason: str) -> Ending:
        return cls(EndingKind.LOST, reason=reason)

    @property
    def ok(self) -> bool:
        """True for exit code 0 alone."""
        return self.kind is EndingKind.EXITED and self.code == 0

    @property
    def exit_code(self) -> int | None:
        """The code a shell would show: 124 timed out, 128+n signalled, 130 cancelled, 137 oom. `None`: lost."""
        match self.kind:
            case EndingKind.EXITED:
                return self.code
            case EndingKind.SIGNALLED:
                return 128 + (self.signal or 0)
            case EndingKind.TIMED_OUT:
                return 124
            case EndingKind.CANCELLED:
                return 130
            case EndingKind.OOM | EndingKind.OUTPUT_LIMIT:
                return 137
            case EndingKind.LOST:
                return None

    @property
    def status(self) -> str:
        """In one word: completed, failed, cancelled, timed_out or interrupted (which is lost)."""
        match self.kind:
            case EndingKind.TIMED_OUT | EndingKind.CANCELLED:
                return self.kind.value
            case EndingKind.LOST:
                return "interrupted"
            case _:
                return "completed" if self.ok else "failed"
