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

from . import cases, engine, tools

CASES = ("exec", "many", "run", "sustained", "output", "files", "idle", "tools")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Station against baselines of one run.")
    parser.add_argument("--json", action="store_true", help="one object on standard output, nothing else")
    parser.add_argument("--rounds", type=int, default=50, help="samples of each median (default 50)")
    parser.add_argument("--only", action="append", choices=CASES, help="only this case; may be given again")
    parser.add_argument("--file-mib", type=int, default=1024, help="size of the file case (default 1024)")
    parser.add_argument("--idle", type=int, default=500, help="sandboxes of the idle case (default 500)")
    return parser.parse_args()


async def station(stack: AsyncExitStack, home: Path, pool: int | None = None) -> AsyncClient:
    """A station of its own, stopped with the stack."""
    if pool is not None:
        (home / "station.yaml").write_text(f"sandbox:\n  pool_size: {pool}\n", encoding="utf-8")
    client = await stack.enter_async_context(aconnect(home))
    stack.push_async_callback(client.stop)
    await client.info()
    return client


async def measure(options: argparse.Namespace) -> dict[str, float | str]:
    chosen = options.only or CASES
    machine = f"{os.cpu_count()} cores, {platform.release()}"
    report: dict[str, float | str] = {"version": __version__, "machine": machine}
    async with AsyncExitStack() as stack:
        homes = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stn-bench-"))) for _ in range(2)]
        warm = await station(stack, homes[0])
        docker = box = None
        if {"exec", "many", "run"} & set(chosen):
            try:
                docker = await stack.enter_async_context(engine.docker())
                box = await stack.enter_async_context(engine.container(docker))
            except engine.NoEngine as why:
                report["docker"] = f"not compared: {why}"
        cold = await station(stack, homes[1], pool=0) if "run" in chosen else warm
        todo: dict[str, Callable[[], Awaitable[cases.Report]]] = {
            "exec": lambda: cases.exec_true(warm, box, options.rounds),
            "many": lambda: cases.exec_many(warm, box, options.rounds),
            "run": lambda: cases.run_once(warm, cold, docker is not None, options.rounds),
            "sustained": lambda: cases.run_sustained(warm, options.rounds),
            "output": lambda: cases.output(warm, homes[0]),
            "files": lambda: cases.files(warm, homes[0], options.file_mib * cases.MIB),
            "idle": lambda: cases.idle(warm, options.idle),
            "tools": lambda: tools.tools(warm, homes[0], options.rounds),
        }
        for name in chosen:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            report |= {key: round(value, 3) for key, value in (await todo[name]()).items()}
    return report


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
