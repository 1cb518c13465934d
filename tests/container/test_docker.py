"""The container adapter on a real engine: groups 27, 30, 33, 34 and 37 of the requirements, and W7, W13 to W16."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import traceback
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from station import connect
from station.container import SandboxError
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.docker.proxy import FaultProxy
from tests.engine import Engine

from .conftest import Bed, bed_of, container_of, done, is_held, over, refused, write

pytestmark = [pytest.mark.docker, pytest.mark.filterwarnings(REFUSED_SOCKET), pytest.mark.timeout(180)]


@pytest.fixture
async def bed(engine_url: Callable[[str], None], ran: Callable[[str], None]) -> AsyncIterator[Bed]:
    engine_url("docker")
    async with bed_of("docker") as made:
        yield made
    ran("docker")


def inspected(bed: Bed, engine: Engine, workspace: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(engine.docker("inspect", container_of(bed, engine, workspace)))[0]
    return found


async def test_ws_27_what_a_command_is_and_what_its_container_is(bed: Bed, engine: Engine):
    """W15 too."""
    secret, command_secret = f"env-{uuid.uuid4().hex}", f"argv-{uuid.uuid4().hex}"
    async with bed.ready(memory_mb=256, pids_limit=64, cpus=0.5, env={"TOKEN": secret}) as adapter:
        one, other = (await adapter.create()).id, (await adapter.create()).id
        await write(adapter, other, "of-the-other", b"")
        run = await done(adapter, one, "id -u; id -g; id -G; grep -E '^(Cap|Seccomp:|NoNewPrivs)' /proc/self/status")
        lines = run.stdout.split("\n")
        assert lines[:3] == ["1000"] * 3
        status = dict(line.split(":\t") for line in lines[3:] if line)
        assert {value for name, value in status.items() if name.startswith("Cap")} == {"0" * 16}
        assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
        run = await done(adapter, one, "ls /var/run/docker.sock /run/docker.sock; echo x > /etc/x; echo x > /usr/x")
        assert run.stderr.count("\n") == 4
        assert (await done(adapter, one, "tr '\\0' ' ' < /proc/1/cmdline")).stdout.startswith("/.stn/guest serve ")
        look = "find / -path /proc -prune -o -name 'of-the-*' -print 2>/dev/null"
        assert [len((await done(adapter, each, look)).stdout.split()) for each in (one, other)] == [0, 2]
        run = await adapter.exec(one, f"echo $TOKEN; : {command_secret}; until test -e go; do sleep 0.05; done")
        found = inspected(bed, engine, one)
        await write(adapter, one, "go", b"")
        assert (await over(adapter, run)).stdout == f"{secret}\n"
    host = found["HostConfig"]
    assert (host["Memory"], host["MemorySwap"]) == (256 << 20, 256 << 20)
    assert (host["PidsLimit"], host["NanoCpus"]) == (64, 500_000_000)
    assert host["ReadonlyRootfs"]
    assert not host["Privileged"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert (host["NetworkMode"], host["IpcMode"], host["LogConfig"]["Type"]) == ("none", "private", "none")
    assert host["ShmSize"] <= 64 << 20
    assert {limit["Name"] for limit in host["Ulimits"]} >= {"core", "nofile"}
    assert {mount["Type"] for mount in found["Mounts"]} == {"volume"}
    assert not host["Binds"]
    text = json.dumps(found)
    assert secret not in text
    assert command_secret not in text
    kept = [path for path in bed.root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert [path for path in kept if path.parent.name != "output" and path.suffix != ".out"] == []


async def test_ws_a14_the_workspace_reads_as_in_the_home(bed: Bed):
    async with bed.ready() as adapter:
        workspace = (await adapter.create()).id
        await done(adapter, workspace, "mkdir sub; touch /workspace/same")
        where = "pwd; pwd -P; python3 -c 'import os; print(os.getcwd())'"
        assert (await done(adapter, workspace, where)).stdout == "/home/node/workspace\n" * 3
        for cwd in ("sub", "/workspace/sub", "/home/node/workspace/sub"):
            assert (await done(adapter, workspace, where, cwd=cwd)).stdout == "/home/node/workspace/sub\n" * 3
        assert (await done(adapter, workspace, "pwd", cwd="/home/node")).stdout == "/home/node\n"
        assert (await done(adapter, workspace, "ls; ls ~/workspace; ls /workspace")).stdout == "same\nsub\n" * 3


async def test_ws_30_long_output_keeps_head_and_tail(bed: Bed):
    """Inverted. The tail is there too."""
    async with bed.ready(max_output_bytes=4096) as adapter:
        workspace = (await adapter.create()).id
        run = await done(adapter, workspace, "for i in $(seq 10000); do printf '%04d\\n' $((i % 10000)); done")
        assert (run.status, run.truncated, run.stdout_bytes) == ("completed", True, 50_000)
        assert run.stdout.startswith("0001\n0002\n")
        assert run.stdout_tail.endswith("9999\n0000\n")
        assert (len(run.stdout), len(run.stdout_tail)) == (4096, 4096)
        slow = await done(adapter, workspace, "echo begun; sleep 300", timeout_ms=1000)
        assert (slow.status, slow.stdout, slow.exit_code) == ("timed_out", "begun\n", None)


async def test_ws_33_reopening_keeps_workspaces_and_a_changed_network_quarantines_them(bed: Bed, network: str):
    """Inverted: those of before are refused by name, the adapter opens. W11."""
    async with bed.ready() as adapter:
        one, other = (await adapter.create()).id, (await adapter.create()).id
        await write(adapter, one, "file", b"kept")
        tool = r"mkdir -p ~/.local/bin; printf '#!/bin/sh\necho tool\n' > ~/.local/bin/tool; chmod +x ~/.local/bin/tool"
        assert (await done(adapter, one, tool)).status == "completed"
    bed.end_station()
    async with bed.ready() as adapter:
        assert {workspace.id for workspace in await adapter.list()} == {one, other}
        assert (await adapter.read_file(one, "file")).data == b"kept"
        assert (await done(adapter, one, "tool")).stdout == "tool\n"
        assert (await done(adapter, other, "tool")).exit_code == 127
    async with bed.ready(network=network, network_restricted=True) as changed:
        assert changed.capabilities.network_restricted
        for call in (
            lambda: changed.exec(one, "true"),
            lambda: changed.get(other),
            lambda: changed.read_file(one, "file"),
        ):
            with refused("invalid_state", 409, "network 'none'"):
                await call()
        assert {workspace.id for workspace in await changed.list()} == {one, other}
        fresh = (await changed.create()).id
        seen = await done(changed, fresh, "cat /proc/net/dev")
        assert "eth0" in seen.stdout
        await changed.destroy(other)
    async with bed.ready() as adapter:
        assert (await done(adapter, one, "cat file")).stdout == "kept"


async def test_ws_20_a_network_that_the_engine_lacks_is_refused(bed: Bed):
    adapter = bed.adapter(network="stn-no-such-network", network_restricted=True)
    with refused("unavailable", 503):
        await adapter.create()


async def test_ws_34_no_network_goes_out_and_limits_are_the_kernels(bed: Bed, engine: Engine):
    probe = (
        "import socket\n"
        "for to in (('1.1.1.1', 53), ('169.254.169.254', 80), ('10.0.0.1', 80)):\n"
        "    try: socket.create_connection(to, timeout=3); print('out')\n"
        "    except OSError as error: print(error.errno)\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname()); print('loopback')\n"
    )
    async with bed.ready(max_concurrent=1, memory_mb=128, pids_limit=32) as adapter:
        workspace = (await adapter.create()).id
        await write(adapter, workspace, "probe.py", probe.encode())
        assert (await done(adapter, workspace, "python3 probe.py")).stdout == "101\n101\n101\nloopback\n"
        assert adapter.limits["memory_mb"].level == adapter.limits["pids"].level == "enforced"
        pid = int(engine.docker("inspect", "-f", "{{.State.Pid}}", container_of(bed, engine, workspace)))
        assert limit_of(pid, "memory", "memory.limit_in_bytes", "memory.max") == str(128 << 20)
        assert limit_of(pid, "pids", "pids.max", "pids.max") == "32"
        eaten = await done(adapter, workspace, "python3 -c 'x = b\"x\" * (400 << 20); print(len(x))'")
        assert (eaten.status, eaten.stdout) == ("failed", "")
        forks = await done(adapter, workspace, "for i in $(seq 60); do sleep 300.34 & done; echo all")
        assert "Resource temporarily unavailable" in forks.stderr or "annot fork" in forks.stderr
        both = await asyncio.gather(*(adapter.exec(workspace, "sleep 2") for _ in range(2)), return_exceptions=True)
        assert sorted(getattr(each, "code", "accepted") for each in both) == ["accepted", "capacity"]


def limit_of(pid: int, controller: str, v1: str, v2: str) -> str:
    """Of the cgroup of a process of this machine."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return Path(f"/sys/fs/cgroup/{controller}{path}/{v1}").read_text().strip()
    unified = next(line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::"))
    return Path(f"/sys/fs/cgroup{unified[3:]}/{v2}").read_text().strip()


async def test_ws_37_a_failed_launch_leaves_nothing_and_the_next_works(bed: Bed, engine: Engine):
    name = f"station-test/gone-{uuid.uuid4().hex[:8]}"
    engine.docker("tag", "station-test/busybox", name)
    try:
        async with bed.ready(image=name) as adapter:
            engine.docker("rmi", name)
            with refused("invalid_input", 400, name):
                await adapter.create()
            assert await adapter.list() == []
            assert engine.docker("ps", "-aq", "--filter", f"label=station.station={station_of(bed)}") == ""
            engine.docker("tag", "station-test/busybox", name)
            assert (await done(adapter, (await adapter.create()).id, "echo works")).stdout == "works\n"
    finally:
        engine.docker("rmi", name, check=False)


def station_of(bed: Bed) -> str:
    return (bed.root / "station_id").read_text().strip()


async def test_ws_37_so_too_where_the_engine_refuses(bed: Bed, engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """Its class is told, and nothing of what it says."""
    async with FaultProxy.before(engine.url) as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.url)
        async with bed.ready(image="station-test/busybox") as adapter:
            proxy.answer(r"POST \S+/containers/create", "500 Error", b'{"message": "driver failed: secret-7"}')
            with pytest.raises(SandboxError) as caught:
                await adapter.create()
            assert (caught.value.code, caught.value.status) == ("unavailable", 503)
            assert "engine_error" in caught.value.message
            assert "secret-7" not in "".join(traceback.format_exception(caught.value))
            assert await adapter.list() == []
            proxy.lies.clear()
            assert (await done(adapter, (await adapter.create()).id, "echo works")).stdout == "works\n"
            for workspace in await adapter.list():
                await adapter.destroy(workspace.id)
        bed.end_station()
        monkeypatch.setenv("DOCKER_HOST", engine.url)


async def test_ws_w14_a_workspace_keeps_the_image_that_it_was_made_with(bed: Bed, engine: Engine):
    name = f"station-test/moving-{uuid.uuid4().hex[:8]}"
    engine.docker("tag", "station-test/busybox", name)
    try:
        async with bed.ready(image=name) as adapter:
            workspace = (await adapter.create()).id
            await write(adapter, workspace, "file", b"kept")
            engine.docker("tag", "python:3.11-slim", name)
            engine.docker("rm", "-f", container_of(bed, engine, workspace))
            seen = await done(adapter, workspace, "cat file; command -v python3; command -v busybox")
            assert seen.stdout == "keptbusybox\n", seen
            assert "python3" in (await done(adapter, (await adapter.create()).id, "command -v python3")).stdout
    finally:
        engine.docker("rmi", name, check=False)


async def test_ws_w13_a_container_that_was_changed_is_made_anew_with_its_files(bed: Bed, engine: Engine):
    async with bed.ready() as adapter:
        workspace = (await adapter.create()).id
        await write(adapter, workspace, "file", b"kept")
        before = container_of(bed, engine, workspace)
    bed.end_station()
    engine.docker("update", "--memory", "2g", "--memory-swap", "2g", before)
    async with bed.ready() as adapter:
        assert (await done(adapter, workspace, "cat file")).stdout == "kept"
        found = inspected(bed, engine, workspace)
        assert found["Id"][:12] != before[:12]
        assert found["HostConfig"]["Memory"] == 1 << 30


async def test_ws_w7_no_process_of_the_engine_for_a_command_or_a_file(bed: Bed, engine: Engine):
    async with bed.ready() as adapter:
        workspace = (await adapter.create()).id
        assert inspected(bed, engine, workspace)["ExecIDs"] is None
        run = await adapter.exec(workspace, "echo up; until test -e go; do sleep 0.05; done")
        assert inspected(bed, engine, workspace)["ExecIDs"] is None
        await write(adapter, workspace, "go", b"")
        await over(adapter, run)
        assert inspected(bed, engine, workspace)["ExecIDs"] is None


async def test_ws_w16_a_failed_exec_puts_no_words_of_the_engine_in_the_output(bed: Bed):
    async with bed.ready(image="station-test/static") as adapter:
        run = await done(adapter, (await adapter.create()).id, "true")
    assert (run.status, run.exit_code, run.stdout, run.stderr) == ("failed", 127, "", "")


async def test_ws_21_code_of_a_tenant_runs_only_where_the_layers_hold(bed: Bed, engine: Engine):
    """By the host audit: either the adapter is ready, or it says which layer is missing."""
    with connect(bed.root.with_name("look")) as client:
        diagnosis = client.doctor()
        client.stop()
    missing = diagnosis.serves_others["docker"]
    adapter = bed.adapter(tenant_id="acme")
    if missing:
        with refused("unsupported", 422, "serves_others"):
            await adapter.ready()
        return
    await adapter.ready()
    assert (await done(adapter, (await adapter.create()).id, "echo served")).stdout == "served\n"


async def test_ws_20_podman_is_not_taken_for_granted(bed: Bed):
    with refused("unsupported", 422, "not Podman"):
        await bed.adapter(engine="podman").ready()


async def test_the_page_shows_a_program_that_runs(bed: Bed):
    program = str(Path(__file__).parents[2] / "docs_src" / "containers.py")
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, program, str(bed.root)], capture_output=True, text=True, timeout=50
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("completed Python 3.")
    assert "\n/home/node/workspace\n" in ran.stdout


async def test_ws_21_below_the_floor_the_missing_layer_is_named(bed: Bed):
    """An ordinary engine's containers share the machine's kernel, and no user namespace holds their root."""
    with connect(bed.root.with_name("look")) as client:
        missing = client.doctor().serves_others["docker"]
        client.stop()
    if not missing:
        pytest.skip("this engine serves others with its own runtime")
    adapter = bed.adapter(image="station-test/busybox", tenant_id="acme")
    with pytest.raises(SandboxError) as caught:
        await adapter.ready()
    assert (caught.value.code, caught.value.status) == ("unsupported", 422)
    assert all(one.why in caught.value.message for one in missing), missing
    with refused("unsupported", 422):
        await adapter.create()
    assert not is_held(bed.root)
    # The control: for the operator's own code it is good enough.
    async with bed.ready(root=bed.root.with_name("own"), image="station-test/busybox") as own:
        assert (await done(own, (await own.create()).id, "echo own")).stdout == "own\n"
        await own.destroy((await own.list())[0].id)
    with connect(bed.root.with_name("own")) as client:
        client.stop()


@pytest.mark.full
async def test_ws_21_on_gvisor_a_tenant_is_served(bed: Bed, engine: Engine):
    if not engine.works("runsc"):
        pytest.skip("there is no gVisor here")
    look = bed.root.with_name("look")
    async with bed.ready(root=look, image="station-test/busybox", runtime="runsc"):
        with connect(look) as client:
            missing = client.doctor().serves_others["docker"]
            client.stop()
    if missing:
        pytest.skip(f"this machine serves nobody, with gVisor neither: {missing[0].why}")
    adapter = bed.adapter(image="station-test/busybox", runtime="runsc", tenant_id="acme")
    await adapter.ready()
    assert (await done(adapter, (await adapter.create()).id, "echo served")).stdout == "served\n"
    with refused("invalid_state", 409, "acme"):
        await bed.adapter(image="station-test/busybox", runtime="runsc", tenant_id="other").ready()
