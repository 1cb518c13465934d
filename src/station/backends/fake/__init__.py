"""The backend `fake`: a complete second body of the isolation port, in this process, for users' own tests.

See docs/fake.md. It passes the same contract suite as the backends that isolate.
"""

from .backend import FakeBackend, FakeBox, FakeStore
from .clock import Clock, LoopClock, ManualClock
from .faults import Faults
from .process import Child, FakeProcess, Files, Program, Stdin
from .tree import File

__all__ = [
    "Child", "Clock", "FakeBackend", "FakeBox", "FakeProcess", "FakeStore", "Faults", "File", "Files", "LoopClock",
    "ManualClock", "Program", "Stdin",
]  # fmt: skip
