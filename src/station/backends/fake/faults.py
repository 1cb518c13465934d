"""What may go wrong in a fake box, on demand and always in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Moment = Literal["create", "connect", "hello", "start", "output", "exit"]


@dataclass
class Faults:
    """Switches that a test sets before or during a run. All off by default.

    Counters (`create_refusals` and the like) count down: a fault of 2 happens twice and is over.
    """

    cut_after_bytes: int | None = None
    """End a connection once the guest has sent that many bytes over it, in the middle of a frame if need be; one that
    is beyond it already ends at the guest's next word. `None`: never."""
    cut_each_time: bool = False
    """Whether every new connection is cut after `cut_after_bytes` too; else only the first one is."""
    corrupt_byte_at: int | None = None
    """Flip all bits of the byte at this offset of what the guest sends on a connection; once."""
    delay_seconds: float = 0.0
    """Each batch of frames from the guest arrives that much later, by the box's clock."""
    create_refusals: int = 0
    """So many calls of `create` raise BackendUnavailable and leave nothing."""
    lost_create_replies: int = 0
    """So many calls of `create` make the box and raise BoxLost: the reply got lost, `boxes()` knows the box."""
    destroy_failures: int = 0
    """So many calls of `destroy` raise Unavailable and change nothing."""
    kill_box_at: Moment | None = None
    """End the box at that moment, once: when it is made, connected to, greeted, told to start a process, when it first
    sends output, or instead of telling an exit."""
    disk_full: bool = False
    """While set, whatever would take room in a box fails with errno 28; files that are there stay."""

    def takes(self, counter: Literal["create_refusals", "lost_create_replies", "destroy_failures"]) -> bool:
        """Whether that fault happens now; counts it down."""
        left: int = getattr(self, counter)
        if left > 0:
            setattr(self, counter, left - 1)
        return left > 0

    def kills(self, moment: Moment) -> bool:
        """Whether the box ends at this moment; only once."""
        if self.kill_box_at != moment:
            return False
        self.kill_box_at = None
        return True
