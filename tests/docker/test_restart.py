"""The engine itself is restarted, updated, killed: what runs in boxes goes on (live-restore)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from station.core.errors import BoxLost
from station.core.spec import Spec
from station.guest.frames import StartRecord
from tests.engine import ROOT, OwnEngine

from .conftest import Bed, bed_on, run, session_of

pytestmark = [pytest.mark.docker, pytest.mark.root, pytest.mark.timeout(180)]
LINES = 400
COUNT = f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo $i; sleep 0.02; done"


@pytest.fixture(scope="module")
def own() -> Iterator[OwnEngine]:
    """Not the engine of this run: others use that."""
    with OwnEngine.in_a_slot() as engine:
        environment = {**os.environ, "DOCKER_HOST": engine.url}
        subprocess.run([ROOT / "scripts" / "image", "station-test/busybox"], env=environment, check=True)
        yield engine


def stop(own: OwnEngine, number: int) -> None:
    """Its containerd dies with it. Where nobody reaps that in time, the next dockerd takes the zombie for alive."""
    pidfile = own.run / "exec" / "containerd" / "containerd.pid"
    pid = int(pidfile.read_text())
    own.stop(number)
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                break
        except OSError:
            break
        time.sleep(0.05)
    pidfile.unlink(missing_ok=True)


@pytest.fixture
async def place(own: OwnEngine) -> AsyncIterator[Bed]:
    async with bed_on(own.url) as made:
        yield made


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_restart_under_load_loses_no_line_and_no_box(
    own: OwnEngine, place: Bed, number: signal.Signals
) -> None:
    backend = place.backend(image="station-test/busybox")
    await backend.probe()
    spec = Spec("docker")
    boxes = [await backend.create(spec, place.labels(f"u{n}")) for n in range(3)]
    ends = [asyncio.create_task(box.ended()) for box in boxes]

    async def count(index: int) -> list[bytes]:
        box = boxes[index]
        async with session_of(box) as session:
            record = StartRecord(argv=("sh", "-c", COUNT), env=dict(box.layout.env))
            process = session.start(record, guest_id=session.next_id())
            lines = b"".join([chunk.data async for chunk in process.chunks()]).split()
            assert (await process.exit()).value == 0
            assert (await run(session, box, "echo", "next"))[1] == "next\n"
            return lines

    tasks = [asyncio.create_task(count(index)) for index in range(len(boxes))]
    await asyncio.sleep(1.0)
    await asyncio.to_thread(stop, own, number)
    await asyncio.sleep(0.5)
    own.start()  # from this very thread: the engine ends with the one that started it
    async with asyncio.timeout(60):
        for lines in await asyncio.gather(*tasks):
            assert lines == [b"%d" % n for n in range(1, LINES + 1)]
    assert not any(end.done() for end in ends)
    for box, end in zip(boxes, ends, strict=True):
        await box.destroy()
        async with asyncio.timeout(10):
            assert await end
    for n in range(3):
        await backend.remove_files(f"u{n}")


async def test_what_ends_while_the_engine_is_away_is_seen_when_it_is_back(own: OwnEngine, place: Bed) -> None:
    backend = place.backend(image="station-test/busybox")
    await backend.probe()
    box = await backend.create(Spec("docker"), place.labels())
    ended = asyncio.create_task(box.ended())
    await asyncio.sleep(0.1)
    found = await backend._ask().inspect(box.container)
    assert found
    await asyncio.to_thread(stop, own, signal.SIGKILL)
    os.kill(int(found["State"]["Pid"]), signal.SIGKILL)
    await asyncio.sleep(0.3)
    assert not ended.done()
    own.start()  # from this very thread: the engine ends with the one that started it
    async with asyncio.timeout(20):
        assert await ended
    with pytest.raises(BoxLost):
        await place.backend(image="station-test/busybox").adopt(box.ref)
    # The files are there for the next one.
    again = await backend.create(Spec("docker"), place.labels(generation=2))
    await again.destroy()
