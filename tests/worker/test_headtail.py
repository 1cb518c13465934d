"""Output that is kept in memory."""

from __future__ import annotations

import tracemalloc

from station.worker.headtail import HeadTail

MIB = 1 << 20


def test_the_memory_of_a_run_is_bounded_whatever_it_writes() -> None:
    """The control: a plain buffer holds all of it."""

    def peak(kept: HeadTail | bytearray) -> int:
        tracemalloc.start()
        for number in range(64):
            data = bytes([number]) * MIB
            if isinstance(kept, HeadTail):
                kept.append(data)
            else:
                kept += data
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(bytearray()) >= 64 * MIB
    bounded = HeadTail(MIB, 2 * MIB)
    assert peak(bounded) < 16 * MIB
    assert bounded.view().total_bytes == 64 * MIB
