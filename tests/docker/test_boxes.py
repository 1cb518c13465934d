"""What is particular to boxes that are containers; the rest is in tests/contract."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest

from station.backends.base import Labels
from station.backends.docker import Pull
from station.backends.docker.config import container_name, ownership
from station.backends.docker.fence import Fence
from station.core.errors import BackendUnavailable, BoxLost, CannotEnforce, InvalidInput, StationError, Unavailable
from station.core.spec import Limits, Mount, Spec
from station.guest.binary import GUEST_VERSION
from tests.engine import Engine

from .conftest import Bed, in_fresh, run, session_of

pytestmark = pytest.mark.docker
KEPT = Spec("docker")
SHORT = Spec("docker", ephemeral=True)


async def test_an_image_that_is_not_there_is_named_with_its_remedy(bed: Bed) -> None:
    backend = bed.backend()
    with pytest.raises(InvalidInput, match=r"docker pull no/such:image.*sandbox\.pull"):
        await backend.create(replace(SHORT, image="no/such:image"), bed.labels())
    digest = "python@sha256:" + "0" * 64
    with pytest.raises(InvalidInput, match="docker pull"):
        await backend.create(replace(SHORT, image=digest), bed.labels())
    assert [item async for item in backend.boxes()] == []


async def test_a_pull_that_fails_says_so(bed: Bed) -> None:
    with pytest.raises(StationError, match=r"does not get 127\.0\.0\.1:1/none"):
        await bed.backend(pull=Pull.MISSING, pull_from=["127.0.0.1:1"]).create(
            replace(SHORT, image="127.0.0.1:1/none:x"), bed.labels()
        )


@pytest.mark.parametrize("image", ["", "--privileged", "a\nb", "a\0b"])
async def test_what_is_no_image_is_refused_before_anything(bed: Bed, image: str) -> None:
    backend = bed.backend()
    await backend.probe()
    with pytest.raises(InvalidInput):
        backend.check(replace(SHORT, image=image))


async def test_an_unknown_runtime_is_never_replaced(bed: Bed) -> None:
    backend = bed.backend(runtime="kata-none")
    found = await backend.probe()
    assert not found.available
    assert "kata-none" in (found.reason or "")
    with pytest.raises(BackendUnavailable, match="kata-none"):
        backend.check(SHORT)


async def test_a_mount_is_refused_and_names_bubblewrap(bed: Bed) -> None:
    backend = bed.backend()
    await backend.probe()
    with pytest.raises(CannotEnforce, match="bubblewrap"):
        backend.check(replace(KEPT, mount=Mount("/tmp")))


async def test_an_image_without_a_shell_runs_its_programs(bed: Bed) -> None:
    spec = replace(KEPT, image="station-test/static")
    code, text = await in_fresh(bed.backend(), bed.labels(), spec, "/hello")
    assert (code, "without a shell" in text) == (0, True)
    code, _ = await in_fresh(bed.backend(), bed.labels(generation=2), spec, "/bin/sh", "-c", "true")
    assert code == -1


async def test_an_image_without_bash_uses_sh(bed: Bed) -> None:
    backend = bed.backend()
    await backend.probe()
    for image, shell in (("station-test/busybox", "/bin/sh"), (None, "/bin/bash")):
        box = await backend.create(replace(SHORT, image=image), bed.labels(f"u{shell[-2:]}"))
        assert box.layout.shell == shell
        async with session_of(box) as session:
            assert await run(session, box, box.layout.shell, "-c", "cd ~/workspace && echo $HOME") == (
                0,
                "/home/node\n",
            )
        await box.destroy()


async def test_nothing_that_an_image_says_gets_in_the_way(bed: Bed, engine: Engine) -> None:
    before = engine.docker("volume", "ls", "-q").split()
    for spec in (KEPT, SHORT):
        line = "env; echo; mount; touch /workspace/x /data/y; id -u"
        code, text = await in_fresh(
            bed.backend(), bed.labels(), replace(spec, image="station-test/entrypoint"), "sh", "-c", line
        )
        assert code == 0, text
        env, _, mounts = text.partition("\n\n")
        assert "LD_PRELOAD" not in env
        assert "ENV=" not in env
        assert "tmpfs on /data type tmpfs" in mounts
        assert mounts.rstrip().endswith("1000")
    made = set(engine.docker("volume", "ls", "-q").split()) - set(before)
    assert not [name for name in made if not name.startswith("stn-")]


async def test_limits_hold(bed: Bed) -> None:
    limits = Limits(
        memory_mb=64, pids=30, open_files=50, tmp_mb=4, shm_mb=3, workspace_mb=5, max_file_size_bytes=1 << 20
    )
    backend = bed.backend()
    await backend.probe()
    box = await backend.create(replace(SHORT, limits=limits), bed.labels())
    async with session_of(box) as session:
        line = "ulimit -n; ulimit -f; df -m --output=size /tmp /dev/shm /workspace | tail -n +2; ulimit -c"
        assert (await run(session, box, "sh", "-c", line))[1].split() == ["50", "2048", "4", "3", "5", "0"]
        before = await box.oom_kills()
        code, _ = await run(session, box, "python3", "-c", "bytearray(256 << 20)")
        assert code == -1
        assert (before, await box.oom_kills()) == (0, 1)
        assert 0 < await box.memory_bytes() < 64 << 20
        bomb = "import os, signal\nn = 0\ntry:\n  while True:\n    if os.fork() == 0: signal.pause()\n    n += 1\n"
        bomb += "except OSError: print(n)"
        assert int((await run(session, box, "python3", "-c", bomb))[1]) < 30
        assert (await run(session, box, "true"))[0] == 0
    await box.destroy()


async def test_user_code_is_nobody_and_sees_nothing_of_the_guest(bed: Bed) -> None:
    line = "cat /proc/self/status; ls /.stn; cat /proc/1/environ; kill -9 1; kill -STOP 1; touch /x /etc/x; kill -9 -1"
    backend = bed.backend()
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    async with session_of(box) as session:
        _, text = await run(session, box, "sh", "-c", f"exec 2>&1; {line}")
        facts = dict(
            row.split(":", 1) for row in text.splitlines() if row.startswith(("Cap", "NoNew", "Seccomp", "Uid"))
        )
        assert {facts[name].strip("\t0") for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {""}
        assert (facts["NoNewPrivs"].strip(), facts["Seccomp"].strip()) == ("1", "2")
        assert text.count("ermission denied") + text.count("not permitted") + text.count("Read-only") >= 5
        status = (await run(session, box, "cat", "/proc/1/status"))[1]
        # CHOWN, given up after the start, is bit 0.
        assert "CapPrm:\t00000000000001e0" in status
        assert (await run(session, box, "true"))[0] == 0
    await box.destroy()


async def test_the_guest_is_put_into_its_volume_once(bed: Bed, engine: Engine) -> None:
    name = await guest_volume(bed)
    made = engine.docker("volume", "inspect", "-f", "{{.CreatedAt}}", name)
    await bed.backend().probe()
    assert engine.docker("volume", "inspect", "-f", "{{.CreatedAt}}", name) == made
    assert GUEST_VERSION in name


async def test_a_damaged_guest_is_replaced(bed: Bed, engine: Engine) -> None:
    name = await guest_volume(bed)
    spoil = ["run", "--rm", "--network", "none", "-v", f"{name}:/v", "station-test/busybox"]
    engine.docker(*spoil, "sh", "-c", "rm /v/guest; echo broken > /v/guest; chmod 755 /v/guest")
    assert await in_fresh(bed.backend(), bed.labels(), SHORT, "echo", "whole") == (0, "whole\n")


async def test_a_guest_that_was_removed_meanwhile_is_put_back(bed: Bed, engine: Engine) -> None:
    name = await guest_volume(bed)
    backend = bed.made[-1]
    engine.docker("run", "--rm", "--network", "none", "-v", f"{name}:/v", "station-test/busybox", "rm", "/v/guest")
    assert await in_fresh(backend, bed.labels(), SHORT, "echo", "back") == (0, "back\n")


async def guest_volume(bed: Bed) -> str:
    await bed.backend().probe()
    helpers = bed.made[-1]._helpers
    assert helpers
    return helpers.volume


async def test_a_sandbox_keeps_the_image_that_it_was_made_from(bed: Bed, engine: Engine) -> None:
    engine.docker("tag", "station-test/busybox", "station-test/moves")
    spec = replace(KEPT, image="station-test/moves")
    try:
        assert (await in_fresh(bed.backend(), bed.labels(), spec, "busybox", "true"))[0] == 0
        engine.docker("tag", "station-test/static", "station-test/moves")
        backend = bed.backend()
        assert (await in_fresh(backend, bed.labels(generation=2), spec, "busybox", "true"))[0] == 0
        assert (await in_fresh(backend, bed.labels("other"), spec, "busybox", "true"))[0] == -1
    finally:
        engine.docker("rmi", "station-test/moves")


async def test_an_image_that_a_sandbox_was_made_from_and_is_gone_is_named(bed: Bed, engine: Engine) -> None:
    engine.docker("volume", "create", "--label", "station.image=sha256:" + "0" * 64, f"stn-{bed.station}-uid1-home")
    with pytest.raises(InvalidInput, match="made from the image"):
        await bed.backend().create(KEPT, bed.labels())


async def test_a_box_that_was_changed_from_outside_is_replaced(bed: Bed, engine: Engine) -> None:
    backend = bed.backend()
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    await (await bed.backend().adopt(box.ref)).let_go()
    engine.docker("update", "--pids-limit", "1000", container_name(bed.station, "uid1-1"))
    with pytest.raises(BoxLost, match="changed from outside"):
        await bed.backend().adopt(box.ref)
    assert [item async for item in backend.boxes()] == []


async def test_a_stopped_box_is_lost_with_the_reason_and_removed(bed: Bed, engine: Engine) -> None:
    backend = bed.backend()
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    ended = asyncio.create_task(box.ended())
    engine.docker("kill", container_name(bed.station, "uid1-1"))
    async with asyncio.timeout(30):
        assert "signal 9" in await ended
    with pytest.raises(BoxLost, match="signal 9"):
        await bed.backend().adopt(box.ref)
    assert [item async for item in backend.boxes()] == []


async def test_a_box_removed_behind_our_back_is_told(bed: Bed, engine: Engine) -> None:
    backend = bed.backend()
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    ended = asyncio.create_task(box.ended())
    await asyncio.sleep(0)
    engine.docker("rm", "-f", container_name(bed.station, "uid1-1"))
    async with asyncio.timeout(30):
        assert await ended
    with pytest.raises(BoxLost):
        async with session_of(box):
            pass
    await box.destroy()


async def test_a_frozen_box_is_thawed_by_adopt_and_ends_by_destroy(bed: Bed, engine: Engine) -> None:
    backend = bed.backend()
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    name = container_name(bed.station, "uid1-1")
    await box.let_go()
    engine.docker("pause", name)
    again = await bed.backend().adopt(box.ref)
    async with session_of(again) as session:
        assert (await run(session, again, "true"))[0] == 0
    engine.docker("pause", name)
    async with asyncio.timeout(30):
        await again.destroy()
    assert [item async for item in backend.boxes()] == []


async def test_what_a_crash_left_before_the_start_is_replaced_by_the_retry(bed: Bed, engine: Engine) -> None:
    backend = bed.backend()
    await backend.probe()
    labels = bed.labels()
    words = [word for name, value in ownership(labels).items() for word in ("--label", f"{name}={value}")]
    engine.docker("create", "--name", container_name(bed.station, labels.box_id), *words, "station-test/static")
    assert [found.box_id async for found, _ in backend.boxes()] == [labels.box_id]
    box = await backend.create(KEPT, labels)
    async with session_of(box) as session:
        assert (await run(session, box, "true"))[0] == 0
    await box.destroy()


async def test_labels_alone_make_no_container_ours(bed: Bed, engine: Engine) -> None:
    """An image, or a person, may have written them."""
    backend = bed.backend()
    await backend.probe()
    words = [word for name, value in ownership(bed.labels()).items() for word in ("--label", f"{name}={value}")]
    theirs = engine.docker("create", *words, "station-test/static")
    try:
        assert [item async for item in backend.boxes()] == []
        box = await backend.create(KEPT, bed.labels())
        with pytest.raises(BoxLost, match="another's"):
            await backend.adopt(replace(box.ref, data={"container": theirs}))
        assert engine.docker("inspect", "-f", "{{.State.Status}}", theirs) == "created"
        await box.destroy()
    finally:
        engine.docker("rm", theirs)


async def test_a_second_connection_from_elsewhere_waits_and_names_the_holder(bed: Bed) -> None:
    backend = bed.backend()
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    async with session_of(box) as session:
        other = await bed.backend().adopt(box.ref)
        with pytest.raises(Unavailable, match=f"process {os.getpid()} holds"):
            await other.connect()
        assert (await run(session, box, "true"))[0] == 0
    async with session_of(other) as session:
        assert (await run(session, other, "true"))[0] == 0


async def test_a_fence_is_free_when_its_holder_dies(bed: Bed) -> None:
    path = bed.state / "lock"
    child = os.fork()
    if child == 0:
        import fcntl

        fcntl.flock(os.open(path, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
        os._exit(0)
    os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
    fence = Fence(path)
    await fence.take()
    assert fence.held
    fence.forget()
    assert not path.exists()


async def test_boxes_are_made_at_once_without_a_trace_of_helpers(bed: Bed, engine: Engine) -> None:
    backend = bed.backend()
    await backend.probe()
    labels = [bed.labels(f"u{number}") for number in range(6)]
    boxes = await asyncio.gather(*(backend.create(SHORT, each) for each in labels))
    found = {item.box_id async for item, _ in backend.boxes()}
    assert found == {each.box_id for each in labels}
    await asyncio.gather(*(box.destroy() for box in boxes))
    assert [item async for item in backend.boxes()] == []


async def test_a_station_that_never_used_the_engine_does_not_ask_it(bed: Bed) -> None:
    backend = bed.backend(url="unix:///nowhere/docker.sock")
    assert [item async for item in backend.boxes()] == []
    await backend.remove_files("uid1")


def test_a_pool_box_says_so() -> None:
    labels = Labels("b", "b", 0, 0, "s", 1, 1, pool=True)
    assert ownership(labels)["station.pool"] == "true"
