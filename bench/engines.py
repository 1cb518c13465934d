"""Sandboxes that are containers of an engine, against that engine's own ways to the same end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from station import AsyncClient
from station.backends.docker.engine import AT_ONCE

from . import engine
from .measure import interleaved

T = TypeVar("T")
Report = dict[str, float]
CREATES = 100
FULL_SECONDS = 30.0


async def docker(warm: AsyncClient, cold: AsyncClient, docker: engine.Docker, rounds: int) -> Report:
    """`true` in a kept sandbox against the exec API in its very container; `run` from a full pool and without
    one against `docker run --rm`."""
    report = await _exec("docker", warm, docker, rounds)

    async def from_pool() -> None:
        assert (await warm.run("print(1)")).warm

    async def without() -> None:
        result = await cold.run("print(1)")
        assert (result.stdout, result.warm) == ("1\n", False), result

    actions = {"warm": from_pool, "cold": without, "docker": lambda: engine.docker_run(["python3", "-c", "print(1)"])}
    await warm.run("print(1)")
    # One at a time, each of them beside nothing: an engine that refills a pool has no time for anything else.
    took = await interleaved(actions, rounds, in_a_row=1, before=lambda: _is_full(warm))
    return report | {
        "docker_run_warm_ms": took["warm"] * 1e3,
        "docker_run_cold_ms": took["cold"] * 1e3,
        "docker_run_engine_ms": took["docker"] * 1e3,
        "docker_run_warm_ratio": took["docker"] / took["warm"],
        "docker_run_cold_ratio": took["docker"] / took["cold"],
    }


async def _is_full(client: AsyncClient) -> None:
    """Returns when the pool has been full for a moment."""
    end = time.monotonic() + FULL_SECONDS
    seen = 0
    while seen < 3:
        seen = seen + 1 if (await client.info()).pool_boxes >= 2 else 0
        assert time.monotonic() < end, "the pool does not fill"
        await asyncio.sleep(0.05)


async def gvisor(client: AsyncClient, docker: engine.Docker, rounds: int) -> Report:
    """`true` in a kept sandbox against the engine's exec into the same box."""
    if not docker.engine.works("runsc"):
        raise engine.NoEngine(f"the engine cannot run runsc: {docker.engine.runtimes.get('runsc', 'it has none')}")
    return await _exec("gvisor", client, docker, rounds)


async def _exec(name: str, client: AsyncClient, docker: engine.Docker, rounds: int) -> Report:
    async with await client.open(f"bench-{name}") as sandbox:
        box = await engine.container_of(docker, sandbox.id)

        async def ours() -> None:
            assert (await sandbox.exec(["true"])).exit_code == 0

        async def theirs() -> None:
            assert await engine.docker_exec(box, ["true"]) == 0

        took = await interleaved({"ours": ours, "theirs": theirs}, rounds)
        await sandbox.delete()
    return {
        f"{name}_exec_ms": took["ours"] * 1e3,
        f"{name}_exec_engine_ms": took["theirs"] * 1e3,
        f"{name}_exec_ratio": took["theirs"] / took["ours"],
    }


async def creates(client: AsyncClient, docker: engine.Docker) -> Report:
    """100 sandboxes asked for at once, against bare containers made and started by as many calls at once."""
    await (await client.open("bench-creates-first")).delete()
    names = [f"bench-creates-{number}" for number in range(CREATES)]
    begun = time.perf_counter()
    boxes = await asyncio.gather(*(client.open(name) for name in names))
    ours = time.perf_counter() - begun
    await bounded(box.delete for box in boxes)
    begun = time.perf_counter()
    bare = await bounded((lambda: engine.made(docker, {})) for _ in names)
    theirs = time.perf_counter() - begun
    await bounded((lambda one=one: one.delete(force=True)) for one in bare)  # type: ignore[misc]
    return {
        "creates_at_once": float(CREATES),
        "creates_per_second": CREATES / ours,
        "creates_engine_per_second": CREATES / theirs,
        "creates_over_engine": ours / theirs,
    }


async def bounded(actions: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """All of them, as many at once as Station asks of an engine."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(action: Callable[[], Awaitable[T]]) -> T:
        async with room:
            return await action()

    return await asyncio.gather(*(one(action) for action in actions))
