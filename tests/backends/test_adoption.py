"""A reference names a process by more than its number."""

from __future__ import annotations

import asyncio

import pytest

from station.backends._box import boot_id
from station.backends._processes import handle_of
from station.backends.bubblewrap import BubblewrapBackend
from station.core.errors import BoxLost
from station.core.records import BoxRef


@pytest.mark.parametrize("differs", ["boot", "start"])
async def test_a_process_that_has_the_number_of_a_box_by_chance_is_left_alone(
    bubblewrap: BubblewrapBackend, differs: str
) -> None:
    """The control: by its own reference the same process is ended, as what is left of a box that has no directory."""
    stranger = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
    handle = handle_of(stranger.pid)
    assert handle is not None
    data = {"pid": handle.pid, "start": handle.start, "boot": boot_id()}
    wrong = {**data, "boot": "another"} if differs == "boot" else {**data, "start": handle.start + 1}
    with pytest.raises(BoxLost):
        await bubblewrap.adopt(BoxRef("bubblewrap", "b9", wrong))
    assert handle_of(stranger.pid) == handle
    assert stranger.returncode is None
    with pytest.raises(BoxLost):
        await bubblewrap.adopt(BoxRef("bubblewrap", "b9", data))
    assert await stranger.wait() == -9
