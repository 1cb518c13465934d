"""`scripts/bench [--json] [--rounds N] [--only CASE]...`: ratios of one run, for a machine that is shared and noisy."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from station import AsyncClient, __version__, aconnect

from . import cases, engine, engines, tools

CASES = ("exec", "many", "run", "sustained", "output", "files", "idle", "tools")
ON_ENGINE = ("docker", "gvisor", "creates")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Station against baselines of one run.")
    parser.add_argument("--json", action="store_true", help="one object on standard output, nothing else")
    parser.add_argument("--rounds", type=int, default=50, help="samples of each median (default 50)")
    parser.add_argument("--only", action="append", choices=CASES + ON_ENGINE, help="only this case; may be given again")
    parser.add_argument("--file-mib", type=int, default=1024, help="size of the file case (default 1024)")
    parser.add_argument("--idle", type=int, default=500, help="sandboxes of the idle case (default 500)")
    return parser.parse_args()


async def station(stack: AsyncExitStack, **sandbox: object) -> AsyncClient:
    """A station of its own with these settings, stopped with the stack."""
    home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stn-bench-")))
    if sandbox:
        (home / "station.yaml").write_text(json.dumps({"sandbox": sandbox}), encoding="utf-8")
    client = await stack.enter_async_context(aconnect(home))
    stack.push_async_callback(client.stop)
    await client.info()
    return client


Report = dict[str, float | str]


async def measure(options: argparse.Namespace) -> Report:
    chosen = set(options.only or CASES + ON_ENGINE)
    report: Report = {"version": __version__, "machine": f"{os.cpu_count()} cores, {platform.release()}"}
    async with AsyncExitStack() as stack:
        docker = None
        if chosen & {"exec", "many", "run", *ON_ENGINE}:
            try:
                docker = await stack.enter_async_context(engine.docker())
            except engine.NoEngine as why:
                report["docker"] = f"not compared: {why}"
        if chosen & set(CASES):
            await on_machine(stack, options, docker, report)
        if chosen & set(ON_ENGINE) and docker is not None:
            await on_engine(stack, options, docker, report)
    return report


async def on_machine(
    stack: AsyncExitStack, options: argparse.Namespace, docker: engine.Docker | None, report: Report
) -> None:
    """The cases of the backend that needs no engine."""
    chosen = options.only or CASES
    warm = await station(stack, backend="bubblewrap")
    cold = await station(stack, backend="bubblewrap", pool_size=0) if "run" in chosen else warm
    box = await stack.enter_async_context(engine.container(docker)) if docker is not None else None
    todo: dict[str, Callable[[], Awaitable[cases.Report]]] = {
        "exec": lambda: cases.exec_true(warm, box, options.rounds),
        "many": lambda: cases.exec_many(warm, box, options.rounds),
        "run": lambda: cases.run_once(warm, cold, docker is not None, options.rounds),
        "sustained": lambda: cases.run_sustained(warm, options.rounds),
        "output": lambda: cases.output(warm, warm.home),
        "files": lambda: cases.files(warm, warm.home, options.file_mib * cases.MIB),
        "idle": lambda: cases.idle(warm, options.idle),
        "tools": lambda: tools.tools(warm, warm.home, options.rounds),
    }
    for name in chosen:
        if name in todo:
            await case(name, todo[name], report)


async def on_engine(stack: AsyncExitStack, options: argparse.Namespace, docker: engine.Docker, report: Report) -> None:
    """The cases of sandboxes in an engine."""
    chosen = options.only or ON_ENGINE
    settings = {"backend": "docker", "docker_image": engine.IMAGE, "docker_runtime": "runc"}
    if {"docker", "creates"} & set(chosen):
        warm = await station(stack, **settings)
        cold = await station(stack, **settings, pool_size=0)
    if "docker" in chosen:
        await case("docker", lambda: engines.docker(warm, cold, docker, options.rounds), report)
    if "gvisor" in chosen:
        client = await station(stack, **settings | {"docker_runtime": "runsc", "pool_size": 0})
        await case("gvisor", lambda: engines.gvisor(client, docker, options.rounds), report)
    if "creates" in chosen:
        await case("creates", lambda: engines.creates(cold, docker), report)


async def case(name: str, measured: Callable[[], Awaitable[cases.Report]], report: Report) -> None:
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    try:
        report |= {key: round(value, 3) for key, value in (await measured()).items()}
    except engine.NoEngine as why:
        report[name] = f"not compared: {why}"


def main() -> None:
    options = arguments()
    report = asyncio.run(measure(options))
    if options.json:
        print(json.dumps(report))
        return
    for key, value in report.items():
        print(f"{key:36} {value}")


if __name__ == "__main__":
    main()
