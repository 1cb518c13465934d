"""What is measured. `*_ratio` is baseline over ours, larger is better; the rest is reported."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import aiodocker

from station import AsyncClient, AsyncSandbox

from . import engine, memory
from .measure import interleaved, timed

Report = dict[str, float]
CALLERS = 16
MIB = 2**20


async def bare(argv: list[str]) -> None:
    """fork and exec of the host, the floor of anything that starts a program."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]  # our own output is the report
    pid = os.posix_spawn(argv[0], argv, {}, file_actions=quiet)
    await asyncio.to_thread(os.waitpid, pid, 0)


async def exec_true(client: AsyncClient, box: aiodocker.containers.DockerContainer | None, rounds: int) -> Report:
    """`true` in a kept sandbox, one caller; the baseline is Docker's exec API in a running container."""
    async with await client.open("bench-exec") as sandbox:
        actions = {"ours": lambda: sandbox.exec(["true"]), "bare": lambda: bare(["/bin/true"])}
        if box:
            actions["docker"] = lambda: engine.docker_exec(box, ["true"])
        took = await interleaved(actions, rounds)
        await sandbox.delete()
    report = {"exec_true_ms": took["ours"] * 1e3, "exec_true_over_bare_fork_exec": took["ours"] / took["bare"]}
    if box:
        report |= {"exec_true_docker_ms": took["docker"] * 1e3, "exec_true_ratio": took["docker"] / took["ours"]}
    return report


async def exec_many(client: AsyncClient, box: aiodocker.containers.DockerContainer | None, rounds: int) -> Report:
    """`true` by 16 callers at once, calls a second."""
    async with await client.open("bench-many") as sandbox:
        ours = await _throughput(lambda: sandbox.exec(["true"]), rounds * 20)
        await sandbox.delete()
    report = {"exec_true_16_per_second": ours}
    if box:
        docker = await _throughput(lambda: engine.docker_exec(box, ["true"]), rounds * 2)
        report |= {"exec_true_16_docker_per_second": docker, "exec_true_16_ratio": ours / docker}
    return report


async def _throughput(action, calls: int) -> float:  # type: ignore[no-untyped-def]
    left = iter(range(calls))

    async def caller() -> None:
        for _ in left:
            await action()

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return calls / (time.perf_counter() - begun)


async def run_once(warm: AsyncClient, cold: AsyncClient, with_docker: bool, rounds: int) -> Report:
    """`run("print(1)")` from a full pool and without one; the baseline is `docker run --rm` of an image with Python."""

    async def from_pool() -> None:
        result = await warm.run("print(1)")
        assert result.stdout == "1\n", result

    async def without() -> None:
        result = await cold.run("print(1)")
        assert (result.stdout, result.warm) == ("1\n", False), result

    actions = {"warm": from_pool, "cold": without, "bare": lambda: bare(["/usr/bin/python3", "-c", "print(1)"])}
    if with_docker:
        actions["docker"] = lambda: engine.docker_run(["python3", "-c", "print(1)"])
    took = await interleaved(actions, rounds)
    report = {"run_warm_ms": took["warm"] * 1e3, "run_cold_ms": took["cold"] * 1e3}
    report["run_warm_over_bare_python"] = took["warm"] / took["bare"]
    if with_docker:
        report["run_docker_ms"] = took["docker"] * 1e3
        report["run_warm_ratio"] = took["docker"] / took["warm"]
        report["run_cold_ratio"] = took["docker"] / took["cold"]
    return report


async def run_sustained(client: AsyncClient, rounds: int) -> Report:
    """Runs a second that go on for ever: the pool is refilled meanwhile."""
    begun = time.perf_counter()
    results = await client.map(["print(1)"] * rounds * 4, concurrency=8, progress=False)
    took = time.perf_counter() - begun
    assert all(result.ok for result in results)
    return {"run_sustained_per_second": len(results) / took}


async def output(client: AsyncClient, home: Path) -> Report:
    """100 MB of output against ten times 10 MB: 1 is linear. The station's memory meanwhile."""
    async with await client.open("bench-output") as sandbox:
        small = await timed(lambda: sandbox.exec("head -c 10000000 /dev/zero"))
        before = memory.station_rss(home)
        large = await timed(lambda: sandbox.exec("head -c 100000000 /dev/zero"))
        grown = memory.station_rss(home) - before
        await sandbox.delete()
    return {
        "output_100mb_linear_ratio": 10 * small / large,
        "output_mb_per_second": 100 / large,
        "output_station_growth_mib": grown / MIB,
    }


async def files(client: AsyncClient, home: Path, size: int) -> Report:
    """One large file up and down, beside `cp` of the same bytes."""
    with TemporaryDirectory(prefix="station-bench-files-", dir=home) as directory:
        source, copy, back = (Path(directory) / name for name in ("source", "copy", "back"))
        block = os.urandom(MIB)
        with open(source, "wb") as file:
            file.writelines(block for _ in range(size // MIB))
        async with await client.open("bench-files") as sandbox:
            before = memory.station_rss(home)
            up = await timed(lambda: sandbox.files.upload(source, "big"))
            down = await timed(lambda: sandbox.files.download("big", back))
            grown = memory.station_rss(home) - before
            same = _digest(source) == _digest(back)
            await sandbox.delete()
        begun = time.perf_counter()
        shutil.copyfile(source, copy)
        plain = time.perf_counter() - begun
    assert same, "the file came back changed"
    mb = size / 1e6
    return {
        "file_up_mb_per_second": mb / up,
        "file_down_mb_per_second": mb / down,
        "file_cp_mb_per_second": mb / plain,
        "file_station_growth_mib": grown / MIB,
    }


def _digest(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


async def idle(client: AsyncClient, count: int) -> Report:
    """Memory of an idle sandbox: what its own processes hold (proportional set size), and the station's share."""
    station_before = memory.station_pss(client.home)
    free_before = memory.available()
    begun = time.perf_counter()
    boxes: list[AsyncSandbox] = []
    for start in range(0, count, 8):
        names = [f"bench-idle-{number}" for number in range(start, min(start + 8, count))]
        boxes += await asyncio.gather(*(client.open(name) for name in names))
    took = time.perf_counter() - begun
    each = memory.boxes_pss(client.home) / count
    report = {
        "idle_sandboxes": float(count),
        "idle_mib_each": each / MIB,
        "idle_station_mib_each": (memory.station_pss(client.home) - station_before) / count / MIB,
        "idle_machine_mib_each": (free_before - memory.available()) / count / MIB,
        "idle_created_per_second": count / took,
    }
    for start in range(0, count, 8):
        await asyncio.gather(*(box.delete() for box in boxes[start : start + 8]))
    return report
