"""The one stream of a container outlives the stations that speak over it."""

from __future__ import annotations

import struct

import pytest

from station.core.spec import Spec
from station.guest.frames import MAGIC, START

from .conftest import Bed, run, session_of

pytestmark = pytest.mark.docker


async def test_half_a_frame_that_a_station_left_swallows_nothing_of_the_next(bed: Bed) -> None:
    """It died in the middle of a send: the guest waits for the rest, and takes whatever comes for it."""
    backend = bed.backend()
    await backend.probe()
    box = await backend.create(Spec("docker", ephemeral=True), bed.labels())
    async with session_of(box) as session:
        assert (await run(session, box, "true"))[0] == 0
    stream = await box.connect()
    await stream.send(MAGIC + struct.pack("<III", START, 9, 60_000) + b"half")
    await stream.aclose()
    await box.let_go()
    again = await bed.backend().adopt(box.ref)
    async with session_of(again) as session:
        assert await run(session, again, "echo", "whole") == (0, "whole\n")
    await again.destroy()
