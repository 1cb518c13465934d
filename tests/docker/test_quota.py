"""Home and workspace of a kept sandbox have a size: that of an ext4 image each, or the engine's project quota."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from station.backends.docker import DockerBackend, QuotaMode, disks, loops, quota, volumes
from station.backends.docker._api import Address
from station.backends.docker.box import DockerBox
from station.backends.docker.disks import Disks
from station.backends.docker.engine import Engine as Calls
from station.backends.docker.facts import EngineFacts
from station.backends.docker.quota import Bound, Quota, bound_of
from station.core.capabilities import Level
from station.core.errors import InternalError, StationError, StorageFull, Unavailable
from station.core.paths import HOME, WORKSPACE
from station.core.spec import Limits, Spec
from tests.engine import ROOT, SMALLEST, Engine, OwnEngine, _trial
from tests.observer import Observer

from .conftest import IMAGE, Bed, in_fresh, run, session_of

SIZE_MB = 32
SPEC = Spec("docker", limits=Limits(workspace_mb=SIZE_MB), best_effort=True)
PAST = f"head -c {2 * SIZE_MB}M /dev/zero > big; wc -c < big"
FILES = """
import os
made = 0
try:
    while made < 20_000:
        os.close(os.open(f'{made}', os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError: pass
print(made)
"""
HOLDER = """
import sys
from pathlib import Path
from station.backends.docker import loops
print(loops.attach(Path(sys.argv[1])).path, flush=True)
sys.stdin.read()
"""

pure = pytest.mark.parametrize
root = pytest.mark.skipif(disks.missing() is not None, reason=f"an image needs more: {disks.missing()}")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Not the engine of this run, which has live-restore."""
    with OwnEngine.in_a_slot() as own:
        own.stop()
        own.live_restore = False
        own.start()
        environment = {**os.environ, "DOCKER_HOST": own.url}
        subprocess.run([ROOT / "scripts" / "image", IMAGE, SMALLEST], env=environment, check=True)
        plain = Engine(own.url)
        yield Engine(own.url, {name: _trial(plain, name) for name in ("runc", "runsc") if shutil.which(name)})


def images(bed: Bed) -> Path:
    return bed.state / "boxes" / "docker" / "quota"


def attached(bed: Bed) -> list[str]:
    """Images of the bed that a loop device leads to, as the kernel tells."""
    told = [path.read_text().strip() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    return sorted(Path(line).name for line in told if line.startswith(str(bed.state)))


async def having_images(bed: Bed, runtime: str = "runc") -> DockerBackend:
    backend = bed.backend(runtime=runtime)
    report = (await backend.probe()).limits["workspace_mb"]
    if report.by != "size of an ext4 image":
        pytest.skip(f"no images with this engine: {report.by}")
    return backend


@asynccontextmanager
async def boxed(backend: DockerBackend, bed: Bed, spec: Spec = SPEC, generation: int = 1) -> AsyncIterator[DockerBox]:
    box = await backend.create(spec, bed.labels(generation=generation))
    try:
        yield box
    finally:
        await box.destroy()


def output(*argv: str | Path) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def memory(path: Path, size_mb: int) -> Iterator[None]:
    """A small disk."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "stn-quota-test", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


# ── what follows from what ──────────────────────────────────────────────────────────────────────────────────────────


def test_what_bounds_a_sandbox_is_read_from_its_labels_again() -> None:
    for kind in (Quota.PROJECT, Quota.IMAGE):
        bound = Bound(kind, 100)
        assert bound_of(bound.labels) == bound
    assert Bound().labels == {}
    for damaged in ("", "image", "image:", "image:x", "image:-1", "image:٣", "tape:100", "image:1:2"):
        assert bound_of({"station.quota": damaged}) == Bound()


def test_each_kind_has_its_options() -> None:
    assert Bound().options(WORKSPACE, "/d") == {}
    assert Bound(Quota.PROJECT, 100).options(WORKSPACE, "/d") == {"size": "100m"}
    assert Bound(Quota.PROJECT, 100).options(HOME, "/d") == {"size": "1024m"}
    options = Bound(Quota.IMAGE, 100).options(HOME, "/d")
    assert (options["type"], options["device"]) == ("ext4", "/d")
    assert {"nosuid", "nodev"} <= set(options["o"].split(","))
    assert Bound(Quota.IMAGE, 5000).home_mb == 5000


@pure(
    ("url", "changed", "why"),
    [
        ("tcp", {}, "another machine"),
        ("unix", {"podman": True}, "Podman"),
        ("unix", {"rootless": True}, "users of their own"),
        ("unix", {"userns": True}, "users of their own"),
        ("unix", {"live_restore": True, "version": "20.10.24"}, "live-restore"),
        ("unix", {"live_restore": True, "version": "nonsense"}, "live-restore"),
        ("unix", {"live_restore": True, "version": "28.2.2"}, None),
        ("unix", {"version": "20.10.24"}, None),
        ("unix", {}, None),
    ],
)
def test_an_engine_that_would_not_mount_our_devices_is_told_by_its_reason(
    url: str, changed: dict[str, Any], why: str | None
) -> None:
    found = replace(EngineFacts.parse({}, (1, 41)), **changed)
    engine = Calls(Address("x", socket="/s" if url == "unix" else None))
    told = volumes._elsewhere(engine, found)
    assert told is None if why is None else why in str(told)


def test_a_station_that_is_not_root_or_has_no_tools_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "not root" in str(disks.missing())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(disks, "_PLACES", "/nowhere")
    assert disks.missing() == "mkfs.ext4 and debugfs not found (apt install e2fsprogs)"


def test_a_sandbox_without_a_quota_says_so_only_where_new_ones_have_one() -> None:
    has, lacks = quota.report(Quota.IMAGE, ""), quota.report(Quota.NONE, quota.TURNED_OFF)
    assert lacks.remedy == "sandbox.docker_workspace_quota: auto"
    assert quota.report_of(Bound(), new=lacks) == lacks
    assert quota.report_of(Bound(), new=has).level is Level.NOT_ENFORCED
    assert quota.report_of(Bound(Quota.IMAGE, 1), new=lacks) == has


# ── images and devices ──────────────────────────────────────────────────────────────────────────────────────────────


@root
async def test_an_image_is_empty_and_has_its_size_and_hardly_any_of_the_disk(tmp_path: Path) -> None:
    store = Disks(tmp_path)
    for size in (1, SIZE_MB, 2048):
        await store.make(f"u{size}", {"workspace": size})
        image = tmp_path / f"u{size}-workspace.img"
        facts = dict(line.split(":", 1) for line in output("dumpe2fs", "-h", image).splitlines() if ":" in line)
        assert "has_journal" in facts["Filesystem features"]
        usable = int(facts["Free blocks"]) * int(facts["Block size"])
        assert size * 0.8 * 2**20 <= usable <= size * 2**20
        assert int(facts["Free inodes"]) >= min(1000, size * 100)
        assert image.stat().st_blocks * 512 < 2**20
        assert image.stat().st_mode & 0o777 == 0o600
        assert "lost+found" not in output("debugfs", "-R", "ls /", image)
    assert {path.suffix for path in tmp_path.iterdir()} == {".img"}


@root
async def test_what_a_killed_station_left_half_made_is_made_anew(tmp_path: Path) -> None:
    store = Disks(tmp_path)
    (tmp_path / "u1-home.new").write_bytes(b"half")
    (tmp_path / "u1-home.dev").symlink_to("/dev/loop-of-another")
    (tmp_path / "blank.new").write_bytes(b"half")
    await store.sweep()
    assert not (tmp_path / "u1-home.dev").is_symlink()
    await store.make("u1", {"home": 8})
    assert (tmp_path / "u1-home.img").stat().st_size == quota.image_bytes(8)
    store.remove("u1", ("home",))
    store.remove("u1", ("home",))
    assert list(tmp_path.iterdir()) == []


@root
def test_a_device_goes_with_the_process_that_attached_it(tmp_path: Path) -> None:
    """The control: one attached in the usual way stays when everybody has gone."""
    asyncio.run(Disks(tmp_path).make("u1", {"home": 8}))
    image = tmp_path / "u1-home.img"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(image)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        path = holder.stdout.readline().strip()
        again = loops.attach(image)
        assert again.path == path, "two file systems on the same bytes"
        again.close()
        assert _leads(image) == [path]
        holder.send_signal(signal.SIGKILL)
    Observer.until(lambda: _leads(image) == [], "the device outlived the process")

    other = output("losetup", "--find", "--show", image)
    try:
        assert _leads(image) == [other]
    finally:
        output("losetup", "--detach", other)


def _leads(image: Path) -> list[str]:
    return [line.partition(":")[0] for line in output("losetup", "--associated", image).splitlines()]


@root
async def test_a_start_that_is_cancelled_or_fails_leaves_no_device_and_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Disks(tmp_path)
    await store.make("u1", {"home": 8})

    async def start(reached: asyncio.Event, ends: asyncio.Event) -> None:
        async with store.attached("u1", ("home",)):
            assert os.readlink(store.device("u1", "home")) in _leads(tmp_path / "u1-home.img")
            reached.set()
            await ends.wait()
            raise Unavailable("the engine has gone")

    for fails in (True, False):
        reached, ends = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(start(reached, ends))
        await reached.wait()
        ends.set() if fails else task.cancel()
        with pytest.raises(Unavailable if fails else asyncio.CancelledError):
            await task
        assert not os.path.lexists(store.device("u1", "home"))
        Observer.until(lambda: _leads(tmp_path / "u1-home.img") == [], "a device was left")

    working, go_on, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def slowly(image: Path) -> loops.Device:
        loop.call_soon_threadsafe(working.set)
        assert go_on.wait(5)
        return attach(image)

    attach = loops.attach
    monkeypatch.setattr(loops, "attach", slowly)
    early = asyncio.create_task(start(asyncio.Event(), asyncio.Event()))
    await asyncio.wait_for(working.wait(), 5)
    early.cancel()  # while the thread attaches
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await early
    async with store.attached("u1", ("home",)):  # waits for that thread
        pass
    Observer.until(lambda: _leads(tmp_path / "u1-home.img") == [], "a device was left")
    assert not os.path.lexists(store.device("u1", "home"))


@root
async def test_a_disk_without_room_for_an_image_is_told_with_the_setting(tmp_path: Path) -> None:
    with memory(tmp_path / "small", 1):
        store = Disks(tmp_path / "small")
        fill = tmp_path / "small" / "fill"
        await store.make("u1", {"home": 8})
        fill.write_bytes(bytes(512 << 10))
        sizes = {f"home{number}": 8 for number in range(20)}
        with pytest.raises(StorageFull, match=r"sandbox\.docker_workspace_quota: off") as caught:
            await store.make("u2", sizes)
        assert caught.value.retryable
        assert not list((tmp_path / "small").glob("*.new"))
        fill.unlink()
        store.remove("u2", tuple(sizes))
        await store.make("u3", {"home": 8})


@root
async def test_without_loop_devices_the_setting_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Disks(tmp_path)
    await store.make("u1", {"home": 8})
    monkeypatch.setattr(loops, "_CONTROL", str(tmp_path / "none"))
    with pytest.raises(Unavailable, match=r"no loop device.*sandbox\.docker_workspace_quota|no loop device") as caught:
        async with store.attached("u1", ("home",)):
            pass
    assert "docker_workspace_quota" in caught.value.detail["remedy"]
    assert not os.path.lexists(store.device("u1", "home"))


# ── boxes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.docker
@pytest.mark.root
@pure("runtime", ["runc", pytest.param("runsc", marks=pytest.mark.full)])
async def test_a_workspace_and_a_home_are_full_at_their_size(
    bed: Bed, engine: Engine, ran: Callable[[str], None], runtime: str
) -> None:
    """The control: with the quota off the same bytes and files go beyond."""
    if not engine.works(runtime):
        pytest.skip(f"the engine has no working {runtime}: {engine.runtimes.get(runtime, 'not installed')}")
    backend = await having_images(bed, runtime=runtime)
    async with boxed(backend, bed) as box, session_of(box) as session:
        report = box.capabilities.limits["workspace_mb"]
        assert (report.level, report.value) == (Level.ENFORCED, SIZE_MB)
        image = images(bed) / "uid1-workspace.img"
        for place in (WORKSPACE, f"{HOME}/workspace"):
            _, said = await run(session, box, "sh", "-c", f"cd {place}; {PAST}; sync")
            assert "No space left" in said
        assert image.stat().st_blocks * 512 <= quota.image_bytes(SIZE_MB)
        # gVisor keeps a deleted file open for a while, so that its room is not free at once.
        await run(session, box, "sh", "-c", ": > big; rm big")
        made = int((await run(session, box, "python3", "-c", FILES))[1])
        assert SIZE_MB * 100 <= made <= quota.files_for(SIZE_MB)
        assert (await run(session, box, "sh", "-c", "echo more > 0"))[0] == 0, "a full directory is still a workspace"
        total = await run(session, box, "python3", "-c", f"import os; s = os.statvfs({HOME!r}); print(s.f_blocks)")
        assert int(total[1]) * 4096 <= quota.LEAST_HOME_MB * 2**20
    await backend.remove_files("uid1")

    off = bed.backend(runtime=runtime, workspace_quota=QuotaMode.OFF)
    await off.probe()
    async with boxed(off, bed) as box, session_of(box) as session:
        assert box.capabilities.limits["workspace_mb"].level is Level.NOT_ENFORCED
        _, said = await run(session, box, "sh", "-c", PAST)
        assert said.strip() == str(2 * SIZE_MB * 2**20)
        assert int((await run(session, box, "python3", "-c", FILES))[1]) > quota.files_for(SIZE_MB)
    if runtime == "runsc":
        ran("gvisor")


@pytest.mark.docker
@pytest.mark.root
async def test_files_outlive_boxes_and_nothing_outlives_the_sandbox(bed: Bed) -> None:
    backend = await having_images(bed)
    assert attached(bed) == []
    assert list(images(bed).iterdir()) == [], "the trial has left something"
    async with boxed(backend, bed) as box, session_of(box) as session:
        assert attached(bed) == ["uid1-home.img", "uid1-workspace.img"]
        assert not list(images(bed).glob("*.dev"))
        await run(session, box, "sh", "-c", f"echo here > {WORKSPACE}/file; echo there > {HOME}/file; ls -A")
        assert (await run(session, box, "ls", "-A"))[1] == "file\n"
        await backend.aclose()
        adopted = await bed.backend().adopt(box.ref)
        assert adopted.capabilities.limits["workspace_mb"] == box.capabilities.limits["workspace_mb"]
        await adopted.destroy()
    Observer.until(lambda: attached(bed) == [], "a device outlived its box")
    late = bed.backend()
    told = await in_fresh(late, bed.labels(generation=2), SPEC, "cat", f"{WORKSPACE}/file", f"{HOME}/file")
    assert told == (0, "here\nthere\n")
    await late.remove_files("uid1")
    await late.remove_files("uid1")
    assert list(images(bed).iterdir()) == []
    Observer.until(lambda: attached(bed) == [], "a device outlived its sandbox")


@pytest.mark.docker
@pytest.mark.root
async def test_what_bounds_a_sandbox_is_decided_for_its_first_box(bed: Bed) -> None:
    """A sandbox of an earlier release, or made while the setting was off, is no other one when that changes."""
    off = bed.backend(workspace_quota=QuotaMode.OFF)
    await off.probe()
    await in_fresh(off, bed.labels(), SPEC, "true")
    auto = await having_images(bed)
    async with boxed(auto, bed, generation=2) as box:
        report = box.capabilities.limits["workspace_mb"]
        assert (report.level, report.remedy) == (Level.NOT_ENFORCED, "open a new sandbox, and copy over")
    await auto.remove_files("uid1")
    async with boxed(auto, bed, generation=3):
        pass
    larger = Spec("docker", limits=Limits(workspace_mb=2 * SIZE_MB), best_effort=True)
    async with boxed(off, bed, larger, generation=4) as box, session_of(box) as session:
        report = box.capabilities.limits["workspace_mb"]
        assert (report.level, report.value) == (Level.ENFORCED, SIZE_MB)
        assert "No space left" in (await run(session, box, "sh", "-c", PAST))[1]


@pytest.mark.docker
@pytest.mark.root
async def test_an_image_that_is_gone_is_named_and_not_replaced_by_an_empty_one(bed: Bed, engine: Engine) -> None:
    backend = await having_images(bed)
    await in_fresh(backend, bed.labels(), SPEC, "true")
    image = images(bed) / "uid1-workspace.img"
    image.rename(image.with_suffix(".away"))
    with pytest.raises(InternalError, match="workspace of sandbox uid1 was in"):
        await backend.create(SPEC, bed.labels(generation=2))
    assert engine.docker("ps", "-aq", "--filter", f"label=station.station={bed.station}") == ""
    image.with_suffix(".away").rename(image)
    await in_fresh(backend, bed.labels(generation=3), SPEC, "true")


@pytest.mark.docker
@pytest.mark.root
async def test_a_start_that_the_engine_refuses_leaves_no_device(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = await having_images(bed)

    async def refuses(self: Calls, container: str) -> None:
        raise Unavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(Calls, "start", refuses)
        with pytest.raises(Unavailable, match="not now"):
            await backend.create(SPEC, bed.labels())
    Observer.until(lambda: attached(bed) == [], "a device was left")
    assert not list(images(bed).glob("*.dev"))
    await in_fresh(backend, bed.labels(), SPEC, "true")


@pytest.mark.docker
@pytest.mark.root
async def test_a_trial_that_fails_is_told_and_boxes_are_made_without(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    await having_images(bed)
    monkeypatch.setattr(loops, "_CONTROL", str(bed.state / "none"))
    backend = bed.backend()
    report = (await backend.probe()).limits["workspace_mb"]
    assert report.level is Level.NOT_ENFORCED
    assert "no loop device" in report.by
    assert list(images(bed).iterdir()) == []
    async with boxed(backend, bed) as box, session_of(box) as session:
        assert (await run(session, box, "sh", "-c", PAST))[1].strip() == str(2 * SIZE_MB * 2**20)


@pytest.mark.docker
@pytest.mark.root
async def test_a_full_disk_below_is_an_error_inside_and_a_new_box_goes_on_when_there_is_room(bed: Bed) -> None:
    """Images take room as they fill, so that the disk may be full before they are."""
    with memory(images(bed), 24):
        backend = await having_images(bed)
        fill = images(bed) / "fill"
        async with boxed(backend, bed) as box, session_of(box) as session:
            assert (await run(session, box, "sh", "-c", "echo kept > file; sync"))[0] == 0
            with pytest.raises(subprocess.CalledProcessError):
                output("dd", "if=/dev/zero", f"of={fill}", "bs=64K")
            code, said = await run(session, box, "sh", "-c", "dd if=/dev/zero of=big bs=1M count=16 conv=fsync")
            assert code != 0, said
        with pytest.raises(StationError) as caught:
            await backend.create(SPEC, bed.labels("uid2"))
        assert isinstance(caught.value, StorageFull)
        fill.unlink()
        told = await in_fresh(backend, bed.labels(generation=2), SPEC, "sh", "-c", "rm -f big; cat file; echo x > y")
        assert told == (0, "kept\n")
        await backend.remove_files("uid1")
        await backend.remove_files("uid2")
