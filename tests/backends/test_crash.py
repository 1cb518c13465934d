"""A station that is killed at each step of making a box leaves nothing that the next one does not find and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from station.backends._processes import marked
from station.backends.bubblewrap import BubblewrapBackend
from station.core.errors import BoxLost
from station.guest.session import GuestSession

STATION = f"test{os.getpid()}"  # as in conftest
STEPS = ("directory", "cgroup", "spawned", "started")

# Makes a box and is killed by itself at the step; every step is a call that is wrapped.
MAKER = """
    import asyncio, os, signal, sys
    from pathlib import Path
    from station.backends import _local, _boxdir
    from station.backends._cgroups import Cgroups
    from station.backends.base import Labels
    from station.backends.bubblewrap import BubblewrapBackend
    from station.core.spec import Spec

    def kill_after(owner, name):
        original = getattr(owner, name)  # bound already, if it is a classmethod

        def method(*args, **kwargs):
            original(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, method)

    async def main(state, step, station):
        backend = BubblewrapBackend(Path(state), station_id=station)
        capabilities = await backend.probe()
        assert capabilities.available, capabilities.reason
        if step == "directory":
            kill_after(_boxdir.BoxDirectory, "create")
        elif step == "cgroup":
            kill_after(Cgroups, "create")
        elif step == "spawned":
            kill_after(_local, "spawn")
        labels = Labels("b1", "u", 1, 1, station, os.getpid(), 0)
        await backend.create(Spec("bubblewrap", ephemeral=True), labels)
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main(*sys.argv[1:]))
"""


def make_and_die(state: Path, step: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MAKER), str(state), step, STATION], capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def cgroups() -> list[Path]:
    # os.walk, as it passes over what is gone by the time it gets there.
    walk = os.walk("/sys/fs/cgroup")
    return [Path(top, name) for top, names, _ in walk for name in names if name.startswith(f"station-{STATION}")]


@pytest.mark.parametrize("step", STEPS)
async def test_what_a_killed_station_leaves_is_found_and_can_be_ended(state: Path, step: str) -> None:
    make_and_die(state, step)
    backend = BubblewrapBackend(state, station_id=STATION)
    found = [(labels, ref) async for labels, ref in backend.boxes()]
    assert [labels.box_id for labels, _ in found] == ["b1"]
    try:
        box = await backend.adopt(found[0][1])
    except BoxLost:
        assert step != "started"
    else:
        session = await GuestSession.connect(box.connect)
        await session.aclose()
        await box.destroy()
    assert [x async for x in backend.boxes()] == []
    assert marked(f"{STATION}:b1") == []
    assert cgroups() == []
    await backend.aclose()


async def test_a_box_whose_bwrap_was_killed_before_it_told_the_pid_is_ended(
    state: Path, bubblewrap: BubblewrapBackend, labels: Callable[..., object]
) -> None:
    """bwrap's child then waits for ever for a word of its parent; only its command line tells whose it is."""
    make_and_die(state, "started")
    (state / "boxes" / "bubblewrap" / "b1" / "info.json").write_text("")
    ((_, ref),) = [x async for x in bubblewrap.boxes()]
    assert ref.data == {}
    with pytest.raises(BoxLost):
        await bubblewrap.adopt(ref)
    assert marked(f"{STATION}:b1") == []
    assert os.listdir(state / "boxes" / "bubblewrap") == []
