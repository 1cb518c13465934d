"""Work that is not left half-way."""

from __future__ import annotations

import asyncio
import threading

import pytest

from station.store.threads import in_thread


async def test_a_reader_that_is_cancelled_again_and_again_closes_no_file_under_its_thread() -> None:
    begun, go, ended = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        go.wait(5)
        ended.append(True)

    task = asyncio.ensure_future(in_thread(slow))
    await asyncio.to_thread(begun.wait, 5)
    for _ in range(20):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
