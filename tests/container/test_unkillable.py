"""A tree that is not provably dead: ruling A17, the rest of group 36. The kernel is made to keep a process, as a disk
that does not answer does: in a frozen cgroup of version 1 not even SIGKILL ends it."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from station import connect
from station._adapter.adapter import Adapter
from station.container import CommandRun
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.observer import of_process

from .conftest import Bed, alive, done, over, refused, write

FREEZER = Path("/sys/fs/cgroup/freezer")
pytestmark = [
    pytest.mark.root,
    pytest.mark.filterwarnings(REFUSED_SOCKET),
    pytest.mark.timeout(240),
    pytest.mark.skipif(not (FREEZER / "tasks").exists(), reason="needs the freezer of cgroup v1: that of v2 lets go"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root, to freeze a process"),
]


@dataclass
class Freezer:
    place: Path

    def freeze(self, pid: int) -> None:
        (self.place / "tasks").write_text(str(pid))
        (self.place / "freezer.state").write_text("FROZEN")

    def thaw(self) -> None:
        (self.place / "freezer.state").write_text("THAWED")


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    place = FREEZER / f"stn-test-{uuid.uuid4().hex[:12]}"
    place.mkdir()
    made = Freezer(place)
    yield made
    made.thaw()
    for pid in (place / "tasks").read_text().split():
        (FREEZER / "tasks").write_text(pid)
    place.rmdir()


async def begun(adapter: Adapter, workspace: str, word: str, timeout_ms: int | None = None) -> tuple[CommandRun, int]:
    """A command that sleeps for `word` seconds, and its pid on this machine."""
    run = await adapter.exec(workspace, f"exec sleep {word}", timeout_ms=timeout_ms)
    async with asyncio.timeout(20):
        while not (found := [pid for pid in alive(word) if of_process(pid, "comm") == b"sleep\n"]):
            await asyncio.to_thread(os.sched_yield)
    return run, found[0]


def generation(bed: Bed, workspace: str) -> int:
    with connect(bed.root) as client:
        return client.get(workspace).view.generation


@pytest.mark.parametrize("way", ["cancel", pytest.param("timeout", marks=pytest.mark.full)])
async def test_ws_36_a_tree_that_cannot_be_ended_costs_its_box_and_no_other(bed: Bed, freezer: Freezer, way: str):
    word = {"cancel": "300.171", "timeout": "300.172"}[way]
    async with bed.ready() as adapter:
        one, other = (await adapter.create()).id, (await adapter.create()).id
        await write(adapter, one, "file", b"kept")
        elsewhere = await adapter.exec(other, "until test -e go; do sleep 0.05; done; echo unharmed")
        sibling = await adapter.exec(one, "echo up; sleep 300.173")
        # The control: what can be ended costs nothing.
        run, _ = await begun(adapter, one, "300.170")
        assert (await adapter.cancel(one, run.id)).status == "cancelled"
        assert (await adapter.command(one, sibling.id)).status == "running"

        run, pid = await begun(adapter, one, word, timeout_ms=3_600_000 if way == "cancel" else 3000)
        freezer.freeze(pid)
        run = await (adapter.cancel(one, run.id) if way == "cancel" else over(adapter, run))
        sibling = await over(adapter, sibling)
        assert (run.status, run.exit_code, sibling.status, sibling.stdout) == (
            "interrupted", None, "interrupted", "up\n"
        )  # fmt: skip
        assert run.reason == sibling.reason
        assert f"the processes of {run.id} could not be ended" in (run.reason or "")
        assert generation(bed, one) == 1

        # While it lives there is no second box beside it; what was, is told.
        assert Path(f"/proc/{pid}").exists()
        if bed.kind == "host":  # an engine is asked to remove its container for minutes before that is an answer
            with refused("unavailable", 503):
                await adapter.exec(one, "true")
        assert (await adapter.command(one, run.id)).status == "interrupted"
        assert (await adapter.command(other, elsewhere.id)).status == "running"

        freezer.thaw()
        assert (await done(adapter, one, "cat file")).stdout == "kept"
        assert generation(bed, one) == 2
        assert alive(word) == alive("300.173") == []
        await write(adapter, other, "go", b"")
        assert (await over(adapter, elsewhere)).stdout == "unharmed\n"
        assert generation(bed, other) == 1
