"""Machines built from directories, looked at; and the audit that decides by what it found."""

from __future__ import annotations

import ctypes
import os
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from station.backends.fake import FakeBackend
from station.core.audit import Status, machine_checks
from station.core.capabilities import Capabilities, Grade, GuestUid, Level, LimitReport
from station.core.errors import Refused, Unavailable
from station.core.machine import Disk, Engine, Machine
from station.machine import clock_synced, disk_of, look
from station.worker.audit import FRESH_SECONDS, Audit, Policy

RED = {
    "proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
    "proc/sys/user/max_user_namespaces": "0\n",
    "proc/sys/fs/protected_symlinks": "0\n",
    "proc/sys/fs/protected_hardlinks": "1\n",
    "proc/sys/fs/protected_fifos": "0\n",
    "proc/sys/fs/protected_regular": "2\n",
    "proc/sys/fs/inotify/max_user_instances": "128\n",
    "proc/sys/dev/tty/legacy_tiocsti": "1\n",
    "proc/sys/kernel/io_uring_disabled": "0\n",
    "proc/sys/kernel/yama/ptrace_scope": "0\n",
    "proc/1/cgroup": "0::/kubepods.slice/x\n",
    "proc/1/environ": "",
    "proc/self/cgroup": "1:memory:/\n",
    # The directory is there and can be written, as a mkdir in the tmpfs around cgroups "succeeds".
    "proc/self/mountinfo": "1 0 0:1 / /data rw - ext4 /dev/sda rw\n2 1 0:2 / /sys/fs/cgroup rw - tmpfs cgroup rw\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "1",
    "proc/self/status": "Name:\tx\nNoNewPrivs:\t0\n",
    "proc/swaps": "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n",
    "sys/kernel/mm/ksm/run": "1\n",
}
GREEN = {
    **RED,
    "proc/sys/user/max_user_namespaces": "15000\n",
    "proc/sys/fs/protected_symlinks": "1\n",
    "proc/sys/fs/protected_fifos": "1\n",
    "proc/sys/fs/inotify/max_user_instances": "8192\n",
    "proc/sys/dev/tty/legacy_tiocsti": "0\n",
    "proc/sys/kernel/io_uring_disabled": "2\n",
    "proc/sys/kernel/yama/ptrace_scope": "1\n",
    "proc/1/cgroup": "0::/\n",
    "proc/self/cgroup": "0::/user.slice/station\n",
    "proc/self/mountinfo": "1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup/user.slice/station/cgroup.controllers": "cpuset cpu io memory pids\n",
    "sys/fs/cgroup/user.slice/station/memory.swap.max": "max\n",
    "proc/self/status": "Name:\tx\nNoNewPrivs:\t0\nSeccomp:\t0\n",
    "sys/kernel/mm/ksm/run": "0\n",
}


def built(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def seen(root: Path, *, synced: bool, room: float) -> Machine:
    return look(root, root=root, clock=lambda: synced, space=lambda path: Disk(str(path), room, room))


def test_a_red_machine_is_seen_as_it_is(tmp_path: Path) -> None:
    machine = seen(built(tmp_path, RED), synced=False, room=0.01)
    told = {check.id: check for check in machine_checks(machine)}
    red = {name for name, check in told.items() if check.status is Status.RED}
    assert red == {"user_namespaces", "seccomp", "disk", "protected_files"}
    warned = {name for name, check in told.items() if check.status is Status.WARNING}
    # Who is root here is warned of that too.
    rest = {"surroundings", "cgroups", "swap", "tiocsti", "io_uring", "ptrace", "inotify", "ksm", "clock"}
    assert warned - {"user"} == rest
    assert told["surroundings"].found.startswith("a container (kubernetes)")
    assert "no cgroup file system" in told["cgroups"].found
    assert machine.chroot


def test_a_green_machine_is_seen_as_it_is(tmp_path: Path) -> None:
    machine = seen(built(tmp_path, GREEN), synced=True, room=0.5)
    bad = {check.id: check.found for check in machine_checks(machine) if check.status is not Status.OK}
    bad.pop("user", None)
    assert bad == {}
    assert machine.swap_accounted
    assert not machine.chroot


def test_controllers_that_may_not_be_given_are_not_counted(tmp_path: Path) -> None:
    files = {**GREEN, "sys/fs/cgroup/user.slice/station/cgroup.controllers": "pids\n"}
    machine = seen(built(tmp_path, files), synced=True, room=0.5)
    assert (machine.cgroup_version, machine.controllers) == (2, frozenset({"pids"}))


def test_cgroups_of_version_1_are_found_by_what_is_mounted(tmp_path: Path) -> None:
    lines = [
        f"{n} 1 0:{n} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"
        for n, name in enumerate(("memory", "pids"), 3)
    ]
    files = {
        **RED,
        "proc/self/mountinfo": "\n".join(["1 0 0:1 / / rw - ext4 /dev/sda rw", *lines, ""]),
        "proc/self/cgroup": "2:pids:/\n1:memory:/\n",
        "sys/fs/cgroup/pids/pids.max": "max",
        "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes": "1",
    }
    machine = seen(built(tmp_path, files), synced=True, room=0.5)
    assert (machine.cgroup_version, machine.controllers) == (1, frozenset({"memory", "pids"}))
    assert (machine.swap, machine.swap_accounted) == (True, True)


def test_of_both_versions_the_one_with_the_controllers_is_told(tmp_path: Path) -> None:
    """A hybrid machine, whose user may write neither."""
    lines = [
        "1 0 0:1 / / rw - ext4 /dev/sda rw",
        "2 1 0:2 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
        "3 1 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    ]
    files = {
        "proc/self/mountinfo": "\n".join([*lines, ""]),
        "proc/self/cgroup": "1:memory:/\n0::/\n",
        "sys/fs/cgroup/unified/cgroup.controllers": "",
    }
    machine = seen(built(tmp_path, files), synced=True, room=0.5)
    assert (machine.cgroup_version, machine.controllers) == (1, frozenset())


@pytest.mark.parametrize("text", ["", "nonsense\n", "1 2 - cgroup2 x rw\n", "1 2 3 4 5 - cgroup2\n", "\0\n"])
def test_nonsense_in_proc_is_unknown_and_no_error(tmp_path: Path, text: str) -> None:
    files = dict.fromkeys(GREEN, text)
    machine = look(built(tmp_path, files), root=tmp_path, clock=lambda: None)
    assert machine.cgroup_version is None
    assert machine.sysctls == {}
    told = {check.id: check.status for check in machine_checks(machine)}
    assert told["protected_files"] is Status.UNKNOWN


def test_an_empty_directory_is_a_machine_of_which_nothing_is_known(tmp_path: Path) -> None:
    machine = look(root=tmp_path, clock=lambda: None)
    assert (machine.swap, machine.seccomp, machine.ksm, machine.clock_synced, machine.disk) == (None,) * 5


def test_the_disk_is_that_of_where_a_directory_will_be(tmp_path: Path) -> None:
    found = disk_of(tmp_path / "not" / "yet")
    assert found is not None
    assert found.path == str(tmp_path)
    assert 0 <= found.free <= 1


@pytest.mark.parametrize(("answer", "synced"), [(0, True), (4, True), (5, False), (-1, None)])
def test_the_kernel_is_asked_about_its_clock_and_told_nothing(
    answer: int, synced: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adjtimex(timex: ctypes.Array[ctypes.c_char]) -> int:
        assert timex.raw == bytes(len(timex)), "a mode is set: the clock would be"
        return answer

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(adjtimex=adjtimex))
    assert clock_synced() is synced


def test_this_machine_is_looked_at() -> None:
    assert look().release == os.uname().release


# ── the audit ────────────────────────────────────────────────────────────────────────────────────────────────────────

HELD = LimitReport(Level.ENFORCED, "cgroup v2")
SOUND = Capabilities(
    "fake", True, Grade.CONTAINER, limits={"memory_mb": HELD, "pids": HELD}, guest_uid=GuestUid.SEPARATE, seccomp=True
)
ENGINE = Engine(
    "fake",
    "27.1",
    (1, 46),
    runtime="runc",
    named=True,
    default_runtime="runc",
    program="runc",
    runtime_version="1.3.3",
    controllers=frozenset({"memory", "swap", "cpu", "pids"}),
    seccomp="builtin",
    socket_mode=stat.S_IRUSR,
)


MACHINE = Machine(release="6", seccomp=True)


class Examined(FakeBackend):
    """A backend with an engine, as a test says."""

    claims = SOUND

    def __init__(self, home: Path) -> None:
        super().__init__(home, station_id="s")
        self.engine: Engine | None = ENGINE
        self.away = False
        self.asked = 0

    async def probe(self) -> Capabilities:
        return self.claims

    async def examine(self) -> Engine | None:
        self.asked += 1
        if self.away:
            raise Unavailable("the engine is away")
        return self.engine


class Bed:
    def __init__(self, home: Path, *, serves_others: bool = True) -> None:
        self.backend = Examined(home)
        self.now = 0.0
        policy = Policy(serves_others, Grade.CONTAINER)
        self.audit = Audit({"fake": self.backend}, home, policy, clock=lambda: self.now, machine=lambda _path: MACHINE)

    async def admit(self) -> None:
        await self.audit.admit(SOUND, "none")


async def test_who_serves_nobody_else_asks_nothing(tmp_path: Path) -> None:
    bed = Bed(tmp_path, serves_others=False)
    bed.backend.engine = replace(ENGINE, runtime_version="1.1.5")
    await bed.admit()
    assert bed.backend.asked == 0
    assert [one.layer for one in (await bed.audit.diagnose()).serves_others["fake"]] == ["fake.runtime"]


async def test_an_old_runtime_is_refused_and_a_mended_one_admitted_soon(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    bed.backend.engine = replace(ENGINE, runtime_version="1.1.5")
    with pytest.raises(Refused, match=r"1\.1\.5") as refused:
        await bed.admit()
    assert refused.value.detail["missing"][0]["layer"] == "fake.runtime"
    assert "1.2.8" in refused.value.detail["remedy"]
    bed.backend.engine = ENGINE
    with pytest.raises(Refused):
        await bed.admit()
    bed.now = FRESH_SECONDS
    await bed.admit()
    asked = bed.backend.asked
    await bed.admit()
    assert bed.backend.asked == asked


async def test_a_sound_engine_that_gets_worse_is_noticed(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    await bed.admit()
    bed.backend.engine = replace(ENGINE, socket_mode=0o666)
    bed.now = FRESH_SECONDS
    with pytest.raises(Refused, match="0666"):
        await bed.admit()


async def test_while_the_engine_is_away_the_last_look_holds_and_none_is_no_admission(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    bed.backend.away = True
    with pytest.raises(Unavailable) as error:
        await bed.admit()
    assert error.value.retryable
    bed.backend.away = False
    await bed.admit()
    bed.backend.away, bed.now = True, FRESH_SECONDS
    await bed.admit()
    told = await bed.audit.diagnose()
    assert [one.layer for one in told.serves_others["fake"]] == ["backend"]
    assert "fake.engine" in {check.id for check in told.checks}


async def test_a_diagnosis_repeats_nothing_good_of_an_engine_that_cannot_be_asked(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    assert (await bed.audit.diagnose()).backends == [SOUND]
    bed.backend.away = True
    (gone,) = (await bed.audit.diagnose()).backends
    assert (gone.available, gone.passing, gone.reason) == (False, True, "the engine is away")
    bed.backend.away, bed.backend.engine = False, None
    (gone,) = (await bed.audit.diagnose()).backends
    assert (gone.available, gone.reason) == (False, "there is no engine any more")


async def test_an_engine_that_has_gone_is_no_sound_one(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    bed.backend.engine = None
    with pytest.raises(Refused, match="engine"):
        await bed.admit()


async def test_the_network_of_the_very_box_decides(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    await bed.admit()
    with pytest.raises(Refused, match="unrestricted"):
        await bed.audit.admit(SOUND, "unrestricted")


async def test_the_diagnosis_is_whole(tmp_path: Path) -> None:
    told = await Bed(tmp_path).audit.diagnose()
    assert told.backends == [SOUND]
    assert (told.serves_others, told.refuses, told.minimum_isolation) == ({"fake": []}, True, Grade.CONTAINER)
    assert {check.backend for check in told.checks} == {None, "fake"}
