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

from station.core.endings import EndingKind
from station.core.errors import BoxLost
from station.core.principals import LOCAL
from station.core.spec import Spec
from station.guest.frames import StartRecord
from tests.engine import ROOT, Engine, OwnEngine
from tests.observer import of_process

from .conftest import Bed, bed_on, run, session_of
from .stationed import execute, opened, start, station_on, until, until_saved, until_written

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
        if _is_dead(pid):
            break
        time.sleep(0.05)
    pidfile.unlink(missing_ok=True)


@pytest.fixture
async def place(own: OwnEngine) -> AsyncIterator[Bed]:
    async with bed_on(own.url) as made:
        yield made


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_hd_d09_a_restart_under_load_loses_no_line_and_no_box(
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
        async with asyncio.timeout(30):
            assert await end
    for n in range(3):
        await backend.remove_files(f"u{n}")


async def test_hd_d09_what_ends_while_the_engine_is_away_is_seen_when_it_is_back(own: OwnEngine, place: Bed) -> None:
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


@pytest.fixture
def without_live_restore(own: OwnEngine) -> Iterator[OwnEngine]:
    own.live_restore = False
    stop(own, signal.SIGTERM)
    own.start()
    yield own
    own.live_restore = True
    stop(own, signal.SIGTERM)
    own.start()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_hd_d09_without_live_restore_commands_end_lost_and_files_and_name_are_kept(
    without_live_restore: OwnEngine, tmp_path: Path, number: signal.Signals
) -> None:
    own = without_live_restore
    async with station_on(own.url, tmp_path) as station:
        uid = await opened(station)
        await execute(station, uid, "echo kept > file")
        process = await start(station, uid, "echo begun; exec sleep 1000")
        await until_written(station, uid, process.id)
        await asyncio.to_thread(stop, own, number)
        own.start()  # from this very thread: the engine ends with the one that started it
        await until_saved(station, uid)
        ended = await station.processes.get(uid, process.id, output=True)
        assert ended.ending is not None
        assert ended.ending.kind is EndingKind.LOST
        assert ended.ending.reason
        assert number == signal.SIGTERM or "engine was away or restarted" in ended.ending.reason
        assert ended.stdout is not None
        assert ended.stdout.to_bytes() == b"begun\n"
        again = await execute(station, uid, "cat file")
        assert again.stdout is not None
        assert again.stdout.to_bytes() == b"kept\n"
        assert (await station.sandboxes.get(uid)).generation == 2
        await station.delete_all()


async def test_hd_d09_a_shim_that_is_killed_ends_commands_as_lost(own: OwnEngine, tmp_path: Path) -> None:
    async with station_on(own.url, tmp_path) as station:
        uid = await opened(station)
        process = await start(station, uid, "exec sleep 1000")
        record = await station.sandboxes.get(uid)
        assert record.box is not None
        pid = int(Engine(own.url).docker("inspect", "-f", "{{.State.Pid}}", str(record.box.data["container"])))
        os.kill(_parent(pid), signal.SIGKILL)
        await until_saved(station, uid)
        ended = await station.processes.get(uid, process.id)
        assert ended.ending is not None
        assert ended.ending.kind is EndingKind.LOST
        await until(lambda: _is_dead(pid))
        await station.delete_all()


def _is_dead(pid: int) -> bool:
    """Gone, or a zombie that only the machine's init can take away."""
    stat = of_process(pid, "stat")
    return not stat or stat.rpartition(b")")[2].split()[0] == b"Z"


def _parent(pid: int) -> int:
    found = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert "shim" in Path(f"/proc/{found}/comm").read_text()
    return found


@pytest.mark.full
async def test_hd_5_containerd_killed_between_short_parallel_execs_loses_no_exit(
    own: OwnEngine, tmp_path: Path
) -> None:
    """Exits come from the guest; containerd has no part in them."""
    count, at_once = 500, asyncio.Semaphore(12)
    async with station_on(own.url, tmp_path) as station:
        uid = await opened(station)
        live = await station.live(uid, LOCAL)
        done = 0

        async def one(number: int) -> int | None:
            nonlocal done
            async with at_once:
                view = await execute(station, uid, f"exit {number % 7}", timeout_seconds=30.0)
            done += 1
            return view.exit_code

        running = [asyncio.create_task(one(number)) for number in range(count)]
        await until(lambda: done > 50)
        containerd = int((own.run / "exec" / "containerd" / "containerd.pid").read_text())
        os.kill(containerd, signal.SIGKILL)
        async with asyncio.timeout(60):
            assert await asyncio.gather(*running) == [number % 7 for number in range(count)]
        assert station.boxes.get(uid) is live
        # The engine has started another one, and can remove what it has.
        await until(lambda: _containerd(own) not in (None, containerd), 30)
        await station.delete_all()


def _containerd(own: OwnEngine) -> int | None:
    try:
        return int((own.run / "exec" / "containerd" / "containerd.pid").read_text())
    except (OSError, ValueError):
        return None
