"""The root of an adapter: options, tenants, settings, other programs, damage: groups 10, 11, 14, 19, 20, 21 and 33."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from station import connect
from station._adapter.adapter import Adapter
from station.client._build import named
from station.container import ContainerSandboxAdapter, SandboxError
from station.host import HostSandboxAdapter
from tests.acceptance.test_full_disk import fill
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.engine import Engine

from .conftest import Bed, bed_of, done, is_held, over, refused, write

pytestmark = [pytest.mark.filterwarnings(REFUSED_SOCKET), pytest.mark.timeout(180)]
BOTH: list[dict[str, Any]] = [
    *({name: value} for name in (
        "max_environments", "max_concurrent", "max_output_bytes", "max_timeout_ms", "max_history_per_sandbox",
        "max_file_bytes",
    ) for value in (0, -1, 1.5, "1", True, None, 1 << 40)),
    {"max_environments": 1001}, {"max_concurrent": 1001}, {"max_history_per_sandbox": 10_001},
    {"env": {"": "x"}}, {"env": {"A=B": "x"}}, {"env": {"A\0": "x"}}, {"env": {"A": "\0"}}, {"env": {"A": 1}},
    {"env": {1: "x"}},
]  # fmt: skip
HOST: list[dict[str, Any]] = [{"shell": ""}, {"shell": "/bin/\0sh"}, {"root_dir": ""}, {"root_dir": "a\0b"}]
CONTAINER: list[dict[str, Any]] = [
    *({"image": image} for image in ("", "--privileged", "-v", "a\0b", "a\nb", "a\rb", None)),
    *({"network": name} for name in (
        "", "host", "Host", "default", "private", "slirp4netns", "pasta", "container:x", "a b", "x" * 129, "a/b", None,
    )),
    {"network_restricted": "yes"}, {"network_restricted": 1}, {"network_restricted": True},
    {"network": "bridge", "network_restricted": True},
    *({"user": user} for user in ("node", "0:0", "1000", "1000:0", "0:1000", "01:1", "-1:1", "root:root", "", "1:1:1")),
    {"env": {"1A": "x"}}, {"env": {"A-B": "x"}}, {"env": {"A B": "x"}},
    *({"tenant_id": tenant} for tenant in ("", "-a", "_a", "a/b", "a b", "x" * 129, 7, "ä")),
    *({"cpus": cpus} for cpus in (0, -1, 1025, "1", float("nan"), float("inf"), True)),
    *({"memory_mb": memory} for memory in (0, -1, 1_048_577, 1.5, "1")),
    *({"pids_limit": pids} for pids in (0, -1, 1_000_001, 1.5, 5)),
    {"engine": "lxc"}, {"seccomp_profile": "relative.json"}, {"seccomp_profile": "/a\nb"}, {"executable": ""},
    {"runtime": ""},
]  # fmt: skip


@pytest.mark.parametrize("options", [*BOTH, *HOST], ids=repr)
def test_ws_19_the_host_adapter_refuses(options: dict[str, Any], tmp_path: Path):
    with refused("invalid_input", 400):
        HostSandboxAdapter(**{"root_dir": tmp_path / "root", **options})
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("options", [*BOTH, *CONTAINER], ids=repr)
def test_ws_19_the_container_adapter_refuses(options: dict[str, Any], tmp_path: Path):
    with refused("invalid_input", 400):
        ContainerSandboxAdapter(**{"root_dir": tmp_path / "root", "image": "x", **options})
    assert not (tmp_path / "root").exists()


def test_ws_19_what_is_at_the_bounds_is_taken(tmp_path: Path):
    adapter = ContainerSandboxAdapter(
        tmp_path, "name@sha256:" + "0" * 64, network="own_net-1.x", network_restricted=True, user="1000:1000", cpus=0.5,
        memory_mb=1_048_576, pids_limit=1_000_000, max_environments=1000, max_history_per_sandbox=10_000,
        tenant_id="a" * 128, env={"_A1": "x=y\n"},
    )  # fmt: skip
    capabilities = adapter.capabilities
    assert (capabilities.isolated, capabilities.network_restricted) == (True, True)
    assert not capabilities.pty
    assert not capabilities.services
    host = HostSandboxAdapter(tmp_path).capabilities
    assert (host.isolated, host.network_restricted) == (False, None)
    assert ContainerSandboxAdapter(tmp_path, "x", network="bridge").capabilities.network_restricted is False
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
async def missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    """A machine whose engine is not there."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    async with bed_of("docker") as bed:
        yield bed


async def test_ws_20_without_its_engine_nothing_is_made_and_nothing_is_held(missing: Bed):
    adapter = missing.adapter()
    with refused("unavailable", 503, "does not answer"):
        await adapter.ready()
    assert not is_held(missing.root)
    for call in (adapter.create, adapter.list, lambda: adapter.exec("ws_" + "0" * 26, "true")):
        with refused("unavailable", 503, "does not answer"):
            await call()
    assert not is_held(missing.root)
    assert not (missing.root / "host").exists()
    # The control: one that is ready holds it.
    other = missing.root.with_name("other")
    async with HostSandboxAdapter(other):
        assert is_held(other)
    with connect(other) as client:
        client.stop()


@pytest.mark.parametrize("options", [{"executable": "/no/such/docker"}, {"executable": "no-such-docker"}], ids=repr)
async def test_ws_20_a_named_program_of_the_engine_must_be_there(missing: Bed, options: dict[str, Any]):
    with refused("unavailable", 503, "no program"):
        await missing.adapter(**options).ready()
    assert not (missing.root / "station.lock").exists()


async def test_ws_20_another_user_cannot_be_had(missing: Bed):
    with refused("unsupported", 422, "2000:2000"):
        await missing.adapter(user="2000:2000").ready()
    assert not (missing.root / "station.lock").exists()


async def test_ws_24_a_profile_that_breaks_the_rules_is_unsupported(missing: Bed, tmp_path: Path):
    profile = tmp_path / "profile.json"
    profile.write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
    with refused("unsupported", 422, r"sandbox\.docker_seccomp.* defaultAction"):
        await missing.adapter(seccomp_profile=profile).ready()
    assert not is_held(missing.root)


@pytest.mark.docker
async def test_ws_20_a_missing_image_is_refused_by_name(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    async with bed_of("docker") as bed:
        adapter = bed.adapter(image="station-test/never:1")
        for call in (adapter.ready, adapter.create):
            with refused("unsupported", 422, "station-test/never:1"):
                await call()
        assert not is_held(bed.root)
        async with bed.ready(image="station-test/busybox") as adapter:
            assert (await done(adapter, (await adapter.create()).id, "busybox echo W23")).stdout == "W23\n"


@pytest.mark.docker
async def test_ws_20_a_limit_that_cannot_be_kept_is_refused_where_it_is_named(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    if not engine.works("runsc"):
        pytest.skip("there is no gVisor here, which cannot count processes")
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    async with bed_of("docker") as bed:
        with refused("unsupported", 422, "pids"):
            await bed.adapter(runtime="runsc", pids_limit=64).ready()
        async with bed.ready(runtime="runsc") as adapter:
            assert adapter.limits["pids"].level == "not_enforced"
            assert adapter.limits["memory_mb"].level == "enforced"


async def test_ws_21_a_root_belongs_to_its_tenant_before_any_engine_is_asked(missing: Bed):
    """The engine is not there: whoever comes to it is told so."""

    async def opens(tenant_id: str | None) -> str:
        with pytest.raises(SandboxError) as caught:
            await missing.adapter(tenant_id=tenant_id).ready()
        return str(caught.value.code)

    assert await opens("acme") == "unavailable"
    assert json.loads((missing.root / "tenant.json").read_text()) == {"tenant": "acme"}
    assert stat.S_IMODE((missing.root / "tenant.json").stat().st_mode) == 0o600
    log = (missing.root / "station.log").read_bytes()
    for other in ("other", None, "Acme"):
        assert await opens(other) == "invalid_state"
    for damage in ("", "{}", '{"tenant": 7}', "[]", '{"tenant": "acme", "x": 1}', "\0"):
        (missing.root / "tenant.json").write_text(damage)
        assert await opens("acme") == "invalid_state"
    (missing.root / "tenant.json").unlink()
    for tenant_id in ("acme", None):
        assert await opens(tenant_id) == "invalid_state"
    assert (missing.root / "station.log").read_bytes() == log, "a station was started meanwhile"
    (missing.root / "tenant.json").write_text('{"tenant": "acme"}')
    assert await opens("acme") == "unavailable"


async def test_ws_21_a_used_root_without_a_tenant_is_assigned_to_none(missing: Bed):
    with refused("unavailable"):
        await missing.adapter().ready()
    with refused("invalid_state", 409, "bound to no tenant"):
        await missing.adapter(tenant_id="acme").ready()
    fresh = missing.root.with_name("fresh")
    fresh.mkdir()
    (fresh / "tenant.json").write_text('{"tenant": null}')
    with refused("unavailable"):
        await missing.adapter(fresh, tenant_id="acme").ready()
    assert json.loads((fresh / "tenant.json").read_text()) == {"tenant": "acme"}


async def test_ws_21_bind_tenant_is_that_of_the_options(tmp_path: Path):
    bound = ContainerSandboxAdapter(tmp_path / "bound", "x", tenant_id="acme")
    await bound.bind_tenant("acme")
    for tenant_id in (None, "other"):
        with refused("invalid_state", 409):
            await bound.bind_tenant(tenant_id)
    with refused("invalid_input", 400):
        await bound.bind_tenant("../x")
    free = HostSandboxAdapter(tmp_path / "free")
    await free.bind_tenant()
    with refused("invalid_state", 409):
        await free.bind_tenant("acme")
    (tmp_path / "bound" / "tenant.json").write_text("?")
    with refused("invalid_state", 409):
        await bound.bind_tenant("acme")


async def test_ws_14_a_second_program_is_a_client_and_a_second_server_ends(bed: Bed):
    async with bed.ready() as one, bed.ready() as other:
        workspace = await one.create()
        assert await other.list() == [workspace]
        run = await one.exec(workspace.id, "echo shared; until test -e go; do sleep 0.05; done")
        await write(other, workspace.id, "go", b"")
        assert (await over(other, run)).stdout == "shared\n"
        server = [sys.executable, "-m", "station", "serve", "--home", str(bed.root)]
        second = await asyncio.to_thread(subprocess.run, server, capture_output=True, text=True, timeout=30)
        assert second.returncode == 125
        assert "runs already" in second.stderr
        await one.close()
        assert (await done(other, workspace.id, "echo on")).stdout == "on\n"
    for call in (one.ready, one.create, one.list, lambda: one.get(workspace.id)):
        with refused("unavailable", 503, "closed"):
            await call()


async def test_other_options_reach_the_station_and_interrupt_nothing(bed: Bed):
    async with bed.ready(max_concurrent=3) as adapter:
        workspace = (await adapter.create()).id
        run = await adapter.exec(workspace, "until test -e go; do sleep 0.05; done; echo done")
        with connect(bed.root) as client:
            pid = client.info().pid
        async with bed.ready(max_concurrent=3):
            with connect(bed.root) as client:
                assert client.info().pid == pid, "equal options started a station anew"
        async with bed.ready(max_concurrent=1) as other:
            with connect(bed.root) as client:
                assert client.info().pid != pid
            with refused("capacity", 429):
                await other.exec(workspace, "true")
            await write(adapter, workspace, "go", b"")
            assert (await over(adapter, run)).stdout == "done\n"


async def test_a_persons_settings_are_left_alone(tmp_path: Path):
    root = tmp_path / "root"
    adapter = HostSandboxAdapter(root)
    await adapter.bind_tenant()
    text = "sandbox:\n  allow_host: true\n  pool_size: 3\n"
    (root / "station.yaml").write_text(text)
    with refused("invalid_state", 409, "somebody else"):
        await adapter.ready()
    assert (root / "station.yaml").read_text() == text
    assert not (root / "station.lock").exists()
    (root / "station.yaml").unlink()
    async with adapter:
        written = (root / "station.yaml").read_text()
        with connect(root) as client:
            client.stop()
    # One that we wrote and somebody has changed is somebody's.
    (root / "station.yaml").write_text(written.replace('"max_processes": 16', '"max_processes": 99'))
    with refused("invalid_state", 409, "somebody else"):
        await HostSandboxAdapter(root).ready()
    # One that says the same is as good as ours.
    (root / "station.yaml").write_text(yaml.safe_dump(yaml.safe_load(written)))
    async with HostSandboxAdapter(root):
        with connect(root) as client:
            client.stop()


async def test_variables_that_go_before_the_options_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STN_SANDBOX_MAX_PROCESSES", "999")
    adapter = HostSandboxAdapter(tmp_path / "root", max_concurrent=1)
    with refused("unsupported", 422, "STN_SANDBOX_MAX_PROCESSES"):
        await adapter.ready()
    assert not is_held(tmp_path / "root")
    monkeypatch.delenv("STN_SANDBOX_MAX_PROCESSES")
    async with adapter:
        with connect(tmp_path / "root") as client:
            client.stop()


async def test_ws_10_a_broken_record_quarantines_its_workspace_alone(bed: Bed):
    async with bed.ready() as adapter:
        good, broken, foreign = [(await adapter.create()).id for _ in range(3)]
        for each in (good, broken, foreign):
            await write(adapter, each, "file", each.encode())
    bed.end_station()
    with sqlite3.connect(bed.root / "registry.db") as db:
        (document,) = db.execute("SELECT document FROM sandboxes WHERE uid = ?", (named(good),)).fetchone()
        db.execute("UPDATE sandboxes SET document = ? WHERE uid = ?", (document, named(foreign)))
        db.execute("UPDATE sandboxes SET document = ? WHERE uid = ?", (document[: len(document) // 2], named(broken)))
    db.close()
    async with bed.ready() as adapter:
        assert (await done(adapter, good, "cat file")).stdout == good
        said = []
        for each in (broken, foreign):
            with pytest.raises(SandboxError) as caught:
                await adapter.exec(each, "cat file")
            assert (caught.value.code, caught.value.status) == ("invalid_state", 409)
            said.append(caught.value.message.replace(each, ""))
        assert said[0] != said[1]
        assert (await done(adapter, (await adapter.create()).id, "echo new")).stdout == "new\n"
        for each in (broken, foreign):
            await adapter.destroy(each)
            with refused("not_found", 404):
                await adapter.get(each)
        assert (await done(adapter, good, "cat file")).stdout == good


@pytest.fixture
def small() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stn-full-") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", directory], check=True)
        try:
            yield Path(directory, "root")
        finally:
            subprocess.run(["umount", "-l", directory], check=True)


@pytest.mark.root
async def test_ws_11_without_room_for_records_nothing_runs_and_room_heals(small: Path):
    """W17 too: 507."""
    adapter: Adapter
    async with HostSandboxAdapter(small) as adapter:
        workspace = (await adapter.create()).id
        run = await adapter.exec(workspace, "until test -e go; do sleep 0.05; done; echo done")
        ballast = fill(small)
        with refused("storage_error", 507):
            await adapter.create()
        with refused("storage_error", 507):
            for number in range(300):  # the journal has some room left of its own
                await done(adapter, workspace, f"echo {number}")
        ballast.unlink()
        await write(adapter, workspace, "go", b"")
        assert (await over(adapter, run)).stdout == "done\n"
        assert (await done(adapter, workspace, "echo again")).stdout == "again\n"
        assert len(await adapter.list()) == 1
        await adapter.create()
    with connect(small) as client:
        for view in client.list():
            client.delete(view.name)
        client.stop()


async def test_a_root_of_another_user_is_refused(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("needs to be root, to make a folder another's")
    (tmp_path / "root").mkdir()
    shutil.chown(tmp_path / "root", 12345)
    with refused("invalid_state", 409, "12345"):
        await HostSandboxAdapter(tmp_path / "root").ready()
