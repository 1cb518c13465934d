"""Facts of a machine and of an engine become checks, and checks decide who may be served: tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from station.core.audit import Check, Status, engine_checks, machine_checks, unexamined
from station.core.capabilities import Capabilities, Grade, GuestUid, Level, LimitReport
from station.core.machine import Disk, Engine, Machine, runc_is_mended
from station.core.tenancy import missing_layers, sentence

HARD = {
    "user.max_user_namespaces": 15000,
    "fs.protected_symlinks": 1,
    "fs.protected_hardlinks": 1,
    "fs.protected_fifos": 2,
    "fs.protected_regular": 2,
    "fs.inotify.max_user_instances": 8192,
    "dev.tty.legacy_tiocsti": 0,
    "kernel.io_uring_disabled": 2,
    "kernel.yama.ptrace_scope": 1,
}
GREEN = Machine(
    release="6.12.1",
    architecture="x86_64",
    python="3.11.2",
    user=1000,
    sysctls=HARD,
    cgroup_version=2,
    controllers=frozenset({"memory", "cpu", "pids"}),
    swap=False,
    seccomp=True,
    ksm=0,
    clock_synced=True,
    disk=Disk("/state", 0.5, 0.5),
)
ENGINE = Engine(
    backend="docker",
    version="27.1",
    api=(1, 46),
    runtime="runc",
    named=False,
    default_runtime="runc",
    program="runc",
    runtime_version="1.3.3",
    cgroup_version=2,
    controllers=frozenset({"memory", "swap", "cpu", "pids"}),
    seccomp="builtin",
    live_restore=True,
    address="unix:///run/docker.sock",
    socket_mode=0o660,
    disk=Disk("/var/lib/docker", 0.5, 0.5),
)
HELD = LimitReport(Level.ENFORCED, "cgroup v2")
OPEN = LimitReport(Level.NOT_ENFORCED, "nobody counts", "count them")
CONTAINER = Capabilities(
    "docker",
    True,
    Grade.CONTAINER,
    limits={"memory_mb": HELD, "pids": HELD, "workspace_mb": HELD},
    guest_uid=GuestUid.SEPARATE,
    seccomp=True,
)
GVISOR = replace(CONTAINER, grade=Grade.USER_KERNEL, seccomp=False, limits={"memory_mb": HELD, "pids": OPEN})


def sysctls(**changed: int | None) -> dict[str, int]:
    names = {name.replace("__", "."): value for name, value in changed.items()}
    return {name: value for name, value in {**HARD, **names}.items() if value is not None}


def by_id(checks: list[Check]) -> dict[str, Check]:
    found = {check.id: check for check in checks}
    assert len(found) == len(checks)
    return found


def test_a_machine_can_be_green_and_an_engine_too() -> None:
    checks = machine_checks(GREEN) + engine_checks(ENGINE, CONTAINER)
    assert [check for check in checks if check.status is not Status.OK] == []
    assert [check for check in checks if check.remedy] == []


def test_a_machine_that_tells_nothing_is_nowhere_green_by_mistake() -> None:
    told = by_id(machine_checks(Machine()))
    assert told.keys() == by_id(machine_checks(GREEN)).keys()
    for name in ("kernel", "seccomp", "swap", "disk", "protected_files", "inotify", "clock"):
        assert told[name].status is Status.UNKNOWN, name
    for name in ("cgroups", "tiocsti", "io_uring", "ptrace"):
        assert told[name].status is Status.WARNING, name


WSL_1, WSL_2 = "4.4.0-19041-Microsoft", "5.15.90.1-microsoft-standard-WSL2"
MACHINES: list[tuple[str, dict[str, Any], Status, str, str | None]] = [
    ("kernel", {"release": WSL_1}, Status.RED, "WSL 1", "wsl --set-version"),
    ("kernel", {"release": WSL_2}, Status.OK, "Microsoft", None),
    ("surroundings", {"container": "podman"}, Status.WARNING, "podman", None),
    ("surroundings", {"chroot": True}, Status.WARNING, "chroot", "nspawn"),
    (
        "user_namespaces",
        {"sysctls": sysctls(user__max_user_namespaces=0), "user": 0},
        Status.RED,
        "off",
        "sysctl -w user.max_user_namespaces=15000",
    ),
    (
        "user_namespaces",
        {"sysctls": sysctls(kernel__unprivileged_userns_clone=0)},
        Status.RED,
        "unprivileged_userns_clone",
        "sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    (
        "user_namespaces",
        {"sysctls": sysctls(kernel__apparmor_restrict_unprivileged_userns=1)},
        Status.RED,
        "AppArmor",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    (
        "user_namespaces",
        {"sysctls": sysctls(kernel__apparmor_restrict_unprivileged_userns=1), "user": 0},
        Status.OK,
        "root needs none",
        None,
    ),
    ("seccomp", {"seccomp": False}, Status.RED, "none", "CONFIG_SECCOMP_FILTER"),
    ("cgroups", {"controllers": frozenset({"cpu"})}, Status.WARNING, "memory, pids", "Delegate=yes"),
    ("cgroups", {"cgroup_version": None}, Status.WARNING, "no cgroup file system", "Delegate=yes"),
    ("swap", {"swap": True, "swap_accounted": True}, Status.OK, "accounts", None),
    ("swap", {"swap": True, "swap_accounted": False}, Status.WARNING, "beyond a limit", "swapaccount=1"),
    ("disk", {"disk": Disk("/s", 0.09, 0.5)}, Status.RED, "9%", "/s"),
    ("disk", {"disk": Disk("/s", 0.5, 0.09)}, Status.RED, "9% of the inodes", "/s"),
    ("disk", {"disk": Disk("/s", 0.1)}, Status.OK, "10%", None),
    (
        "protected_files",
        {"sysctls": sysctls(fs__protected_fifos=0)},
        Status.RED,
        "fs.protected_fifos",
        "sysctl -w fs.protected_fifos=1",
    ),
    ("protected_files", {"sysctls": sysctls(fs__protected_fifos=None)}, Status.UNKNOWN, "fs.protected_fifos", None),
    ("tiocsti", {"sysctls": sysctls(dev__tty__legacy_tiocsti=1)}, Status.WARNING, "allows", "legacy_tiocsti=0"),
    ("tiocsti", {"sysctls": sysctls(dev__tty__legacy_tiocsti=None)}, Status.WARNING, "cannot refuse", None),
    ("io_uring", {"sysctls": sysctls(kernel__io_uring_disabled=1)}, Status.WARNING, "on", "io_uring_disabled=2"),
    ("ptrace", {"sysctls": sysctls(kernel__yama__ptrace_scope=0)}, Status.WARNING, "any process", "ptrace_scope=1"),
    ("ptrace", {"sysctls": sysctls(kernel__yama__ptrace_scope=3)}, Status.OK, "3", None),
    ("inotify", {"sysctls": sysctls(fs__inotify__max_user_instances=128)}, Status.WARNING, "one box", "=8192"),
    ("ksm", {"ksm": 1}, Status.WARNING, "merged", "/sys/kernel/mm/ksm/run"),
    ("ksm", {"ksm": None}, Status.OK, "none", None),
    ("clock", {"clock_synced": False}, Status.WARNING, "not synchronised", "timesyncd"),
    ("user", {"user": 0}, Status.WARNING, "root", "delegated cgroup"),
]


@pytest.mark.parametrize(("id_", "changed", "status", "word", "remedy"), MACHINES)
def test_what_a_machine_lacks_is_told_with_the_one_thing_that_helps(
    id_: str, changed: dict[str, Any], status: Status, word: str, remedy: str | None
) -> None:
    told = by_id(machine_checks(replace(GREEN, **changed)))
    check = told.pop(id_)
    assert check.status is status
    assert word in check.found
    assert (remedy in (check.remedy or "")) if remedy else check.remedy is None
    others = by_id(machine_checks(GREEN))
    assert [name for name, one in told.items() if one != others[name] and name not in ("user", "user_namespaces")] == []


REMOTE = {"transport": "tls", "address": "tcp://h:2376", "socket_mode": None, "disk": None}
ENGINES: list[tuple[str, dict[str, Any], Status, str, str | None]] = [
    ("api", {"api": (1, 40)}, Status.RED, "1.40", "20.10"),
    ("runtime", {"runtime_version": "1.1.5+ds1"}, Status.RED, "1.1.5+ds1", "docker_runtime: runsc"),
    ("runtime", {"runtime_version": "1.1.5+ds1", "remapped": True}, Status.OK, "no root outside", None),
    ("runtime", {"runtime_version": None}, Status.UNKNOWN, "does not tell", "1.2.8"),
    ("runtime", {"program": "crun", "runtime_version": "1.8"}, Status.UNKNOWN, "crun 1.8", "runsc"),
    ("runtime", {"program": "crun", "remapped": True}, Status.OK, "crun", None),
    ("default_runtime", {"program": "runsc", "default_runtime": "runsc"}, Status.WARNING, "unset", "docker_runtime"),
    ("default_runtime", {"program": "runsc", "named": True}, Status.OK, "names", None),
    ("cgroups", {"controllers": frozenset({"cpu", "pids", "swap"})}, Status.RED, "memory", "delegation"),
    ("cgroups", {"controllers": frozenset({"memory", "pids"})}, Status.WARNING, "cpu", "delegation"),
    ("cgroups", {"controllers": frozenset({"memory", "cpu", "pids"})}, Status.WARNING, "swap", "swapaccount"),
    ("seccomp", {"seccomp": None}, Status.RED, "none", "CONFIG_SECCOMP_FILTER"),
    ("seccomp", {"seccomp": "unconfined"}, Status.WARNING, "unconfined", "daemon.json"),
    ("disk", {"disk": Disk("/d", 0.05)}, Status.RED, "5%", "/d"),
    ("live_restore", {"live_restore": False}, Status.WARNING, "end", "live-restore"),
    ("socket", {"socket_mode": 0o666}, Status.RED, "0666", "chmod o= /run/docker.sock"),
    ("socket", {"socket_mode": None}, Status.UNKNOWN, "could not", None),
    ("socket", {"transport": "tcp", "address": "tcp://h:2375"}, Status.RED, "without TLS", "DOCKER_TLS_VERIFY"),
    ("socket", REMOTE, Status.WARNING, "with TLS", "unix socket"),
]


@pytest.mark.parametrize(("id_", "changed", "status", "word", "remedy"), ENGINES)
def test_what_an_engine_lacks_is_told_with_the_one_thing_that_helps(
    id_: str, changed: dict[str, Any], status: Status, word: str, remedy: str | None
) -> None:
    check = by_id(engine_checks(replace(ENGINE, **changed), CONTAINER))[f"docker.{id_}"]
    assert (check.status, check.backend) == (status, "docker")
    assert word in check.found
    assert (remedy in (check.remedy or "")) if remedy else check.remedy is None


def test_a_kernel_of_its_own_needs_no_new_runc_once_it_has_shown() -> None:
    old = replace(ENGINE, program="runsc", runtime_version=None)
    assert by_id(engine_checks(old, GVISOR))["docker.runtime"].status is Status.OK
    not_shown = replace(GVISOR, grade=Grade.CONTAINER)
    assert by_id(engine_checks(old, not_shown))["docker.runtime"].status is Status.UNKNOWN


def test_a_quota_is_what_the_trial_has_shown() -> None:
    without = replace(CONTAINER, limits={**CONTAINER.limits, "workspace_mb": OPEN})
    check = by_id(engine_checks(ENGINE, without))["docker.quota"]
    assert (check.status, check.remedy, check.required) == (Status.WARNING, "count them", False)


@pytest.mark.parametrize(
    ("version", "mended"),
    [
        ("1.1.5+ds1", False),
        ("1.1.15", False),
        ("1.2.7", False),
        ("1.2.8", True),
        ("1.2.8-rc.1", False),
        ("1.2.10", True),
        ("1.3.2", False),
        ("1.3.3", True),
        ("v1.3.4", True),
        ("1.4.0-rc.2", False),
        ("1.4.0-rc.3", True),
        ("1.4.0", True),
        ("1.5.0-rc.1", True),
        ("2.0.0", True),
        ("0.9.9", False),
        ("", None),
        ("unknown", None),
    ],
)
def test_the_floor_of_runc(version: str, mended: bool | None) -> None:
    assert runc_is_mended(version) is mended


def audited(engine: Engine = ENGINE, machine: Machine = GREEN, capabilities: Capabilities = CONTAINER) -> list[Check]:
    return machine_checks(machine) + engine_checks(engine, capabilities)


BUBBLEWRAP = replace(CONTAINER, backend="bubblewrap", grade=Grade.PROCESS)
SERVED: list[tuple[str, Capabilities, list[Check], Grade, list[str]]] = [
    ("all layers", CONTAINER, audited(), Grade.CONTAINER, []),
    ("weaker than asked for", BUBBLEWRAP, audited(), Grade.CONTAINER, ["grade"]),
    ("as weak as asked for", BUBBLEWRAP, audited(), Grade.PROCESS, []),
    ("weaker than a kernel", CONTAINER, audited(), Grade.USER_KERNEL, ["grade"]),
    ("old runc", CONTAINER, audited(replace(ENGINE, runtime_version="1.1.5")), Grade.CONTAINER, ["docker.runtime"]),
    ("old runc, remapped", CONTAINER, audited(replace(ENGINE, runtime_version="1.1.5", remapped=True)), Grade.NONE, []),
    ("unknown runc", CONTAINER, audited(replace(ENGINE, runtime_version=None)), Grade.NONE, ["docker.runtime"]),
    ("another's engine", BUBBLEWRAP, audited(replace(ENGINE, runtime_version="1.1.5")), Grade.PROCESS, []),
    (
        "gVisor beside an old runc",
        GVISOR,
        audited(replace(ENGINE, runtime_version="1.1.5", program="runsc"), capabilities=GVISOR),
        Grade.USER_KERNEL,
        [],
    ),
    ("gVisor, no bound of memory", replace(GVISOR, limits={}), [], Grade.CONTAINER, ["memory_mb"]),
    ("shared user", replace(CONTAINER, guest_uid=GuestUid.SHARED), audited(), Grade.CONTAINER, ["guest_uid"]),
    ("no filter", replace(CONTAINER, seccomp=False), audited(), Grade.CONTAINER, ["filter"]),
    ("no word of a filter", replace(CONTAINER, seccomp=None), audited(), Grade.CONTAINER, ["filter"]),
    ("bridge", replace(CONTAINER, network="unrestricted"), audited(), Grade.CONTAINER, ["network"]),
    ("a network of another name", replace(CONTAINER, network="public"), audited(), Grade.CONTAINER, ["network"]),
    ("the operator vouches", replace(CONTAINER, network="asserted by operator"), audited(), Grade.CONTAINER, []),
    ("the door", replace(CONTAINER, network="enforced"), audited(), Grade.CONTAINER, []),
    (
        "watched memory, open pids",
        replace(CONTAINER, limits={"memory_mb": LimitReport(Level.WATCHED, "now and then"), "pids": OPEN}),
        audited(),
        Grade.CONTAINER,
        ["memory_mb", "pids"],
    ),
    ("an open socket", CONTAINER, audited(replace(ENGINE, socket_mode=0o666)), Grade.CONTAINER, ["docker.socket"]),
    ("no seccomp", CONTAINER, audited(machine=replace(GREEN, seccomp=False)), Grade.CONTAINER, ["seccomp"]),
    ("red, not required", CONTAINER, audited(machine=replace(GREEN, disk=Disk("/", 0, 0))), Grade.CONTAINER, []),
    ("an engine that is away", CONTAINER, [unexamined("docker", "away")], Grade.CONTAINER, ["docker.engine"]),
    ("not there", replace(CONTAINER, available=False, reason="no"), audited(), Grade.NONE, ["backend"]),
    (
        "host",
        Capabilities("host", True, Grade.NONE, network="unrestricted"),
        audited(),
        Grade.NONE,
        ["network", "guest_uid", "filter", "memory_mb", "pids"],
    ),
]


@pytest.mark.parametrize(
    ("capabilities", "checks", "minimum", "layers"), [row[1:] for row in SERVED], ids=[row[0] for row in SERVED]
)
def test_who_may_run_code_of_others(
    capabilities: Capabilities, checks: list[Check], minimum: Grade, layers: list[str]
) -> None:
    assert [one.layer for one in missing_layers(capabilities, checks, minimum=minimum)] == layers


def test_a_refusal_names_every_layer_and_what_helps() -> None:
    checks = audited(replace(ENGINE, runtime_version="1.1.5"))
    missing = missing_layers(replace(CONTAINER, seccomp=False), checks)
    said = sentence("docker", missing)
    for word in ("sandbox.serves_others", "backend docker", "1.1.5", "docker_runtime: runsc", "filtered"):
        assert word in said
