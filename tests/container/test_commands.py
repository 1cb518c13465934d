"""Commands through both adapters: groups 1 to 9, 12 and 13 of the requirements, and W1, W4, W6."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from station import connect
from station._adapter.adapter import Adapter
from station.container import CommandRun, SandboxError
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.engine import Engine
from tests.observer import Observer

from .conftest import Bed, alive, done, over, refused, write

pytestmark = [pytest.mark.filterwarnings(REFUSED_SOCKET), pytest.mark.timeout(180)]


async def test_ws_01_a_command_is_told_truly_and_kept(bed: Bed):
    async with bed.ready() as adapter:
        workspace = await adapter.create()
        assert (workspace.backend, adapter.name) == (adapter.name, {"host": "host-process"}.get(bed.kind, bed.kind))
        run = await done(adapter, workspace.id, "echo out; echo err >&2; echo kept > file; exit 7")
        assert (run.status, run.exit_code, run.stdout, run.stderr) == ("failed", 7, "out\n", "err\n")
        assert not run.truncated
        assert run.finished_at is not None
        assert run.started_at <= run.finished_at
    async with bed.ready() as again:
        assert await again.get(workspace.id) == workspace
        assert await again.list() == [workspace]
        assert await again.command(workspace.id, run.id) == run
        assert (await again.read_file(workspace.id, "file")).data == b"kept\n"


async def test_ws_02_limits_of_one(bed: Bed):
    async with bed.ready(max_environments=1, max_concurrent=1, max_output_bytes=1000) as adapter:
        workspace = (await adapter.create()).id
        with refused("capacity", 429, "max_sandboxes"):
            await adapter.create()
        run = await adapter.exec(workspace, "yes", timeout_ms=1000)
        with refused("capacity", 429):
            await adapter.exec(workspace, "true")
        with refused("busy", 409):
            await adapter.destroy(workspace)
        run = await over(adapter, run)
        assert (run.status, run.truncated, run.exit_code) == ("timed_out", True, None)
        assert (len(run.stdout), len(run.stdout_tail)) == (1000, 1000)
        assert run.stdout_bytes > 1_000_000
        assert (await done(adapter, workspace, "echo again")).stdout == "again\n"
        await adapter.destroy(workspace)
        with refused("not_found", 404):
            await adapter.get(workspace)
        await adapter.create()


async def test_ws_02_of_many_who_come_at_once_none_is_one_too_many(bed: Bed):
    async with bed.ready(max_environments=2) as adapter:
        made = await asyncio.gather(*(adapter.create() for _ in range(5)), return_exceptions=True)
        assert sorted(getattr(each, "code", "made") for each in made) == ["capacity"] * 3 + ["made"] * 2
        assert len(await adapter.list()) == 2


async def test_ws_03_a_bad_working_directory_is_refused_by_name(shared: Adapter, workspace: str):
    await done(shared, workspace, "mkdir -p in/side; touch plain ran; rm ran; ln -sfn /etc out; ln -sfn in/side link")
    for cwd in ("/etc", "..", "in/../../..", "out", "missing", "plain", "/workspace/../etc", "a\0b", "x" * 5000):
        with refused("invalid_input", 400):
            await shared.exec(workspace, "touch /workspace/ran ran", cwd=cwd)
    assert "ran" not in [entry.name for entry in (await shared.list_files(workspace)).entries]
    # Inverted: what stays inside is resolved.
    for cwd in ("in/../in/side", "in/side/../../in/side", "/workspace/in/side", "link", "workspace/in/side"):
        assert (await done(shared, workspace, "basename $(pwd -P)", cwd=cwd)).stdout == "side\n"
    assert (await done(shared, workspace, "pwd", cwd="/tmp")).status == "completed"


async def test_ws_03_bad_ids_commands_and_times(shared: Adapter, workspace: str):
    for sandbox_id in ("../x", "", "ws_", f"{workspace}/..", workspace.lower(), "x" * 500, "ws_" + "0" * 26):
        with refused("not_found", 404):
            await shared.exec(sandbox_id, "true")
        with refused("not_found", 404):
            await shared.destroy(sandbox_id)
    for run_id in ("../x", "", "prc_none", "prc_/../x"):
        with refused("not_found", 404):
            await shared.command(workspace, run_id)
        with refused("not_found", 404):
            await shared.cancel(workspace, run_id)
    for command in ("", " \n\t", "a\0b", "x" * 65_537, "é" * 32_769):
        with refused("invalid_input", 400):
            await shared.exec(workspace, command)
    assert (await done(shared, workspace, ": " + "x" * 65_000)).status == "completed"
    for timeout_ms in (-1, 0, 999, 3_600_001, True, 1.5, "1000"):
        with refused("invalid_input", 400):
            await shared.exec(workspace, "true", timeout_ms=timeout_ms)  # type: ignore[arg-type]


async def test_ws_03_the_workers_own_variables_are_not_seen(bed: Bed, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORKERS_SECRET", "s3cr3t")
    async with bed.ready(env={"OWN": "mine", "HOME": "/nowhere", "LANG": "xx"}) as adapter:
        run = await done(adapter, (await adapter.create()).id, "env")
    seen = dict(line.split("=", 1) for line in run.stdout.splitlines())
    with connect(bed.root) as client:  # the station itself has it
        assert b"s3cr3t" in Path(f"/proc/{client.info().pid}/environ").read_bytes()
    assert "s3cr3t" not in run.stdout
    assert (seen["OWN"], seen["LANG"]) == ("mine", "C.UTF-8")
    assert seen["HOME"].endswith("/home/node" if bed.kind == "docker" else "/home")
    assert bed.kind == "host" or seen["TMPDIR"] == "/tmp"


async def test_ws_04_a_restart_interrupts_nothing(bed: Bed):
    async with bed.ready() as adapter:
        workspace = (await adapter.create()).id
        run = await adapter.exec(workspace, "echo begun; until test -e go; do sleep 0.05; done; echo done; exit 3")
    bed.end_station()
    async with bed.ready() as again:
        assert (await again.command(workspace, run.id)).status == "running"
        await write(again, workspace, "go", b"")
        run = await over(again, run)
        assert (run.status, run.exit_code, run.stdout) == ("failed", 3, "begun\ndone\n")


async def test_ws_04_a_lost_run_is_interrupted_and_never_rerun(bed: Bed, request: pytest.FixtureRequest):
    async with bed.ready() as adapter:
        workspace = (await adapter.create()).id
        run = await adapter.exec(workspace, "echo once >> count; echo said; exec sleep 300")
        async with asyncio.timeout(20):
            while not (await adapter.command(workspace, run.id)).stdout:
                pass
        with connect(bed.root) as client:
            uid = client.get(workspace).id
        if bed.kind == "docker":
            engine: Engine = request.getfixturevalue("engine")
            engine.docker("kill", engine.docker("ps", "-q", "--filter", f"label=station.id={uid}"))
        else:
            for pid in Observer(bed.root).guests(uid):
                os.kill(pid, signal.SIGKILL)
        run = await over(adapter, run)
        assert (run.status, run.exit_code, run.stdout) == ("interrupted", None, "said\n")
        assert run.reason
        assert (await done(adapter, workspace, "cat count")).stdout == "once\n"


async def test_ws_05_a_shell_that_exits_takes_its_children_along(shared: Adapter, workspace: str):
    run = await done(shared, workspace, "sleep 300.0501 & (setsid sleep 300.0502 &); echo done", timeout_ms=30_000)
    assert (run.status, run.stdout) == ("completed", "done\n")
    assert alive("300.0501") == alive("300.0502") == []


async def test_ws_06_what_ignores_term_is_cancelled(shared: Adapter, workspace: str):
    run = await shared.exec(workspace, "trap '' TERM; echo up; while :; do sleep 300.06; done")
    async with asyncio.timeout(20):
        while not (await shared.command(workspace, run.id)).stdout:
            pass
    ended = await shared.cancel(workspace, run.id)
    assert (ended.status, ended.stdout, ended.exit_code) == ("cancelled", "up\n", None)
    assert ended.finished_at is not None
    assert alive("300.06") == []
    assert await shared.cancel(workspace, run.id) == ended


async def test_ws_07_characters_are_whole(bed: Bed):
    async with bed.ready(max_output_bytes=5) as adapter:
        workspace = (await adapter.create()).id
        run = await done(adapter, workspace, r"printf '\344\275'; sleep 0.1; printf '\240'")
        assert (run.stdout, run.truncated) == ("你", False)
        run = await done(adapter, workspace, "printf 你好")
        assert (run.stdout, run.stdout_tail, run.truncated, run.stdout_bytes) == ("你", "", True, 6)
        run = await done(adapter, workspace, r"printf 'a\377b\344'")
        assert (run.stdout, run.truncated) == ("a\ufffdb\ufffd", False)
        run = await done(adapter, workspace, "printf 12345; printf %1000s; printf 好ab")
        assert (run.stdout, run.stdout_tail) == ("12345", "好ab")


async def test_ws_08_a_missing_shell_is_told_and_frees_its_slot(tmp_path: Path, bed: Bed):
    if bed.kind == "docker":
        async with bed.ready(image="station-test/static") as adapter:
            workspace = (await adapter.create()).id
            runs = [await done(adapter, workspace, "true") for _ in range(2)]
    else:
        async with bed.ready(max_concurrent=1, shell="/no/such/shell") as adapter:
            workspace = (await adapter.create()).id
            runs = [await done(adapter, workspace, "true") for _ in range(2)]
    for run in runs:
        assert (run.status, run.exit_code) == ("failed", 127)
        assert run.reason
        assert run.stdout == run.stderr == ""


async def test_ws_09_history_is_bounded(bed: Bed):
    async def known(adapter: Adapter, runs: list[CommandRun]) -> list[bool]:
        found = []
        for run in runs:
            try:
                found.append(await adapter.command(run.sandbox_id, run.id) == run)
            except SandboxError as error:
                found.append(error.code != "not_found")
        return found

    async with bed.ready(max_history_per_sandbox=3) as adapter:
        workspace = (await adapter.create()).id
        await write(adapter, workspace, "file", b"stays")
        runs = [await done(adapter, workspace, f"echo {number}") for number in range(5)]
        assert await known(adapter, runs) == [False, False, True, True, True]
    async with bed.ready(max_history_per_sandbox=1) as adapter:
        assert await known(adapter, runs) == [False] * 4 + [True]
        assert (await adapter.read_file(workspace, "file")).data == b"stays"


async def test_ws_12_tools_of_npm_are_on_the_path_of_their_workspace(bed: Bed):
    options = {} if bed.kind == "host" else {"image": "node:20-slim"}
    async with bed.ready(**options) as adapter:
        one, other = (await adapter.create()).id, (await adapter.create()).id
        await write(adapter, one, "tool/package.json", b'{"name":"tool","version":"1.0.0","bin":{"a-tool":"run.js"}}')
        await write(adapter, one, "tool/run.js", b"#!/usr/bin/env node\nconsole.log('tool ran')\n")
        installed = await done(adapter, one, "npm install --offline --no-audit --no-fund --global ./tool")
        if bed.kind == "host" and "npm: command not found" in installed.stderr:
            pytest.skip("this machine has no npm")
        assert installed.status == "completed", installed
        assert (await done(adapter, one, "a-tool")).stdout == "tool ran\n"
        assert (await done(adapter, other, "a-tool")).exit_code == 127
        path = (await done(adapter, one, "echo $PATH")).stdout.strip().split(":")
        assert (await done(adapter, one, "command -v a-tool")).stdout.strip() in (f"{place}/a-tool" for place in path)
    async with bed.ready(**options) as adapter:
        assert (await done(adapter, one, "a-tool")).stdout == "tool ran\n"
    if bed.kind == "docker":
        assert path[:2] == ["/home/node/.local/bin", "/workspace/node_modules/.bin"]
    else:
        assert [re.sub(".*/(home|workspace)/", r"\1/", place) for place in path[1:3]] == [
            "home/.local/bin", "workspace/node_modules/.bin"
        ]  # fmt: skip


async def test_ws_13_the_operators_prefix_is_honoured_on_the_host_alone(bed: Bed):
    given = {"NPM_CONFIG_PREFIX": "/opt/own", "PATH": "/opt/own/bin:/usr/bin:/bin"}
    async with bed.ready(env=given) as adapter:
        run = await done(adapter, (await adapter.create()).id, 'echo "$NPM_CONFIG_PREFIX $PATH"')
    if bed.kind == "host":
        assert run.stdout == "/opt/own /opt/own/bin:/usr/bin:/bin\n"
    else:
        assert run.stdout.startswith("/home/node/.local /home/node/.local/bin:/workspace/node_modules/.bin:")
        assert "/opt/own" not in run.stdout


async def test_ws_w1_one_command_ends_and_no_sibling(shared: Adapter, workspace: str):
    """Group 36 too: the one that has left its session goes along."""
    sibling = await shared.exec(workspace, "echo up; until test -e stop-36; do sleep 0.05; done; echo unharmed")
    for number, command in enumerate(["cancel", "timeout"]):
        word = f"300.36{number}"
        run = await shared.exec(
            workspace,
            f"(setsid sleep {word}1 &) ; setsid sleep {word}2 & sleep {word}3",
            timeout_ms=1500 + 60_000 * (1 - number),
        )
        async with asyncio.timeout(20):
            while len(alive(word)) < 3:
                await asyncio.to_thread(os.sched_yield)
        run = await (shared.cancel(workspace, run.id) if command == "cancel" else over(shared, run))
        assert run.status == {"cancel": "cancelled", "timeout": "timed_out"}[command]
        assert alive(word) == []
    assert (await shared.command(workspace, sibling.id)).status == "running"
    await write(shared, workspace, "stop-36", b"")
    sibling = await over(shared, sibling)
    assert (sibling.status, sibling.stdout) == ("completed", "up\nunharmed\n")


async def test_ws_w4_a_command_that_ends_at_once_is_recorded_truly(shared: Adapter, workspace: str):
    runs = await asyncio.gather(*(done(shared, workspace, f"echo {number}; exit {number}") for number in range(12)))
    assert [(run.exit_code, run.stdout) for run in runs] == [(number, f"{number}\n") for number in range(12)]


async def test_ws_w6_output_past_the_cap_costs_no_memory(bed: Bed):
    def resident(pid: int) -> int:
        return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])

    async with bed.ready(max_output_bytes=4096) as adapter:
        workspace = (await adapter.create()).id
        with connect(bed.root) as client:
            pid = client.info().pid
        await done(adapter, workspace, "head -c 1M /dev/zero")
        before = resident(pid)
        run = await done(adapter, workspace, "head -c 100M /dev/zero | tr '\\0' a")
        assert (run.status, run.stdout_bytes) == ("completed", 100 << 20)
        assert run.stdout == run.stdout_tail == "a" * 4096
        assert resident(pid) - before < 30 << 10
