"""1,000 calls (10,000 in the full tier) leave nothing behind, in neither process."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.mcp.driver import Raw, in_memory, pid_of, raw

pytestmark = pytest.mark.timeout(900)

COUNT = 10_000 if os.environ.get("STN_TEST_FULL") else 1_000
AT_ONCE = 4
# What may come and go: connections, pages of an allocator.
NOISE_FDS, NOISE_TASKS = 6, 2
NOISE_RSS = 12 * 1024 * 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def rss(pid: int) -> int:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def rows(home: Path) -> dict[str, int]:
    """Of every table of the registry."""
    with closing(sqlite3.connect(f"file:{home / 'registry.db'}?mode=ro", uri=True)) as database:
        names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        return {name: database.execute(f'select count(*) from "{name}"').fetchone()[0] for name in names}


async def some(server: Raw, count: int) -> None:
    """Calls of every kind that costs little, so many at once as a client may have under way."""
    kinds = [
        ("sandbox_exec", {"command": ["true"]}),
        ("sandbox_exec", {"command": ["no-such-program"]}),
        ("sandbox_exec", {"comand": "x"}),
        ("sandbox_exec", {"command": "x", "sandbox_id": "ses_nobody"}),
        ("sandbox_fs_write", {"path": "a.txt", "content": "x"}),
        ("sandbox_fs_read", {"path": "a.txt"}),
        ("sandbox_fs_list", {}),
        ("sandbox_open", {}),
        ("sandbox_output", {"process_id": "prc_nobody"}),
        ("sandbox_fs_read", {"path": "../etc/passwd"}),
    ]
    for begin in range(0, count, AT_ONCE):
        numbers = []
        for number in range(begin, begin + AT_ONCE):
            name, arguments = kinds[number % len(kinds)]
            numbers.append(await server.send("tools/call", {"name": name, "arguments": arguments}))
        await server.answers(numbers)


async def test_calls_leave_nothing_in_either_process(home: Path) -> None:
    async with raw(home) as server:
        # More than the station keeps of finished commands.
        await some(server, 300)
        mine, station = server.pid, pid_of(home)
        before = (descriptors(mine), descriptors(station), rows(home))
        sizes = rss(mine), rss(station)
        await some(server, COUNT)
        assert pid_of(home) == station
        assert descriptors(mine) <= before[0] + NOISE_FDS
        assert descriptors(station) <= before[1] + NOISE_FDS
        assert rows(home) == before[2]
        assert rss(mine) - sizes[0] < NOISE_RSS
        assert rss(station) - sizes[1] < NOISE_RSS
        await server.call("sandbox_close")


async def test_sandboxes_that_are_opened_and_closed_leave_no_row(home: Path) -> None:
    async with in_memory(home) as tools:
        await tools.open(session_key="warm")
        await tools.close(sandbox_id=(await tools.open(session_key="warm"))["sandbox_id"])
        before = rows(home)
        fds = descriptors(pid_of(home))
        for number in range(COUNT // 50):
            opened = await tools.open(session_key=str(number % 5))
            await tools.exec("sleep 1000 & echo x > f", sandbox_id=opened["sandbox_id"])
            await tools.close(sandbox_id=opened["sandbox_id"])
        after = rows(home)
        # A tombstone for each name keeps its generation, and no more than that.
        assert {name: after[name] - before[name] for name in after if after[name] > before[name] + 5} == {}
        assert descriptors(pid_of(home)) <= fds + NOISE_FDS


async def test_calls_leave_no_task_whether_they_end_or_are_given_up(home: Path) -> None:
    async with in_memory(home) as tools:
        await tools.exec("true")
        before = len(asyncio.all_tasks())
        for _ in range(20):
            long = asyncio.create_task(tools.exec("sleep 1000"))
            await tools.exec(["true"])
            long.cancel()
            await asyncio.wait({long})
            await tools.exec("")
        await tools.exec("true")
        assert len(asyncio.all_tasks()) <= before + NOISE_TASKS
