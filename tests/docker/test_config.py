"""The create body, as a table: what is written there decides what code in a box may do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from station.backends.base import Labels
from station.backends.docker import config
from station.backends.docker.config import Image, Plan, Runtime
from station.core.errors import InvalidInput, TooLarge
from station.core.spec import Limits, Spec

LABELS = Labels("u1-1", "u1", 1, 7, "station1", 42, 4242)
PLAN = Plan(Spec("docker"), LABELS, Image("python:3.11-slim", "sha256:" + "a" * 64), Runtime("runc"), "stn-guest-1")
GVISOR = replace(PLAN, runtime=Runtime("runsc", sandboxed_kernel=True))
EPHEMERAL = replace(PLAN, spec=Spec("docker", ephemeral=True))


def host(plan: Plan = PLAN, **limits: Any) -> dict[str, Any]:
    return config.host_config(replace(plan, spec=replace(plan.spec, limits=Limits(**limits))))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Runtime", "runc"),
        ("CapDrop", ["ALL"]),
        ("CapAdd", ["CAP_CHOWN", "CAP_KILL", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID"]),
        ("SecurityOpt", ["no-new-privileges"]),
        ("Privileged", False),
        ("Init", False),
        ("ReadonlyRootfs", True),
        ("NetworkMode", "none"),
        ("PublishAllPorts", False),
        ("CgroupnsMode", "private"),
        ("IpcMode", "private"),
        ("PidMode", ""),
        ("UTSMode", ""),
        ("ShmSize", 64 << 20),
        ("Memory", 1 << 30),
        ("MemorySwap", 1 << 30),
        ("OomKillDisable", False),
        ("OomScoreAdj", 500),
        ("NanoCpus", 1_000_000_000),
        ("PidsLimit", 256),
        (
            "Sysctls",
            {
                "net.ipv4.ping_group_range": "1 0",
                "kernel.shmmax": str(64 << 20),
                "kernel.shmall": str((64 << 20) // 4096),
            },
        ),
        ("LogConfig", {"Type": "none", "Config": {}}),
        ("RestartPolicy", {"Name": "no", "MaximumRetryCount": 0}),
        ("AutoRemove", False),
        ("Binds", []),
        ("Devices", []),
    ],
)
def test_nothing_is_left_to_the_engines_defaults(key: str, value: object) -> None:
    assert host()[key] == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("User", "0:0"),
        ("Entrypoint", ["/.stn/guest"]),
        ("WorkingDir", "/"),
        ("OpenStdin", True),
        ("StdinOnce", False),
        ("Tty", False),
        ("NetworkDisabled", True),
        ("Healthcheck", {"Test": ["NONE"]}),
        ("StopTimeout", 2),
        ("Image", "sha256:" + "a" * 64),
    ],
)
def test_the_image_has_no_say_in_what_runs(key: str, value: object) -> None:
    assert config.container_body(PLAN)[key] == value


def test_masked_paths_are_never_replaced() -> None:
    assert not {"MaskedPaths", "ReadonlyPaths", "Dns", "ExtraHosts", "Links", "VolumesFrom"} & set(host())


def test_swappiness_is_asked_for_only_where_the_engine_takes_it() -> None:
    assert "MemorySwappiness" not in host()
    assert config.host_config(replace(PLAN, swappiness=True))["MemorySwappiness"] == 0


def test_limits_become_the_engines() -> None:
    found = host(memory_mb=100, cpus=0.5, pids=20, open_files=70, tmp_mb=3, shm_mb=2, max_file_size_bytes=1000)
    assert (found["Memory"], found["MemorySwap"], found["NanoCpus"]) == (100 << 20, 100 << 20, 500_000_000)
    assert (found["PidsLimit"], found["ShmSize"]) == (20, 2 << 20)
    assert found["Ulimits"] == [
        {"Name": "core", "Soft": 0, "Hard": 0},
        {"Name": "nofile", "Soft": 70, "Hard": 70},
        {"Name": "fsize", "Soft": 1000, "Hard": 1000},
    ]
    assert found["Tmpfs"]["/tmp"] == f"size={3 << 20},nr_inodes=1024,mode=1777,rw,nosuid,nodev,exec"


def test_every_tmpfs_has_a_size() -> None:
    found = config.tmpfs(EPHEMERAL.spec)
    assert set(found) == {"/tmp", "/run", "/home/node", "/workspace"}
    assert all(options.startswith("size=") and "size=0," not in options for options in found.values())


def test_under_gvisor_the_guest_may_make_namespaces_and_threads() -> None:
    found = host(GVISOR)
    assert "CAP_SYS_ADMIN" in found["CapAdd"]
    assert found["PidsLimit"] == config.GVISOR_HOST_PIDS
    assert found["Sysctls"] == {}
    assert "CAP_SYS_ADMIN" not in host()["CapAdd"]


def test_a_profile_is_brought_only_where_the_engine_has_none_in_force() -> None:
    (_, option) = config.host_config(replace(PLAN, profile=True))["SecurityOpt"]
    profile = json.loads(option.removeprefix("seccomp="))
    denied = {name for rule in profile["syscalls"] if "args" not in rule for name in rule["names"]}
    assert {"io_uring_setup", "ptrace", "keyctl", "bpf"} <= denied
    # What the guest itself needs.
    assert not {"mount", "clone", "setuid", "prctl", "seccomp", "chown"} & denied


def test_a_kept_sandbox_has_volumes_and_an_ephemeral_one_none() -> None:
    kept = {m["Target"]: m for m in config.mounts(PLAN)}
    assert {place: m["Source"] for place, m in kept.items()} == {
        "/.stn": "stn-guest-1",
        "/home/node": "stn-station1-u1-home",
        "/workspace": "stn-station1-u1-workspace",
        "/home/node/workspace": "stn-station1-u1-workspace",
    }
    assert [place for place, m in kept.items() if m["ReadOnly"]] == ["/.stn"]
    assert all(m["VolumeOptions"]["NoCopy"] for m in kept.values())
    assert [m["Target"] for m in config.mounts(EPHEMERAL)] == ["/.stn"]
    assert "--link" in config.guest_arguments(EPHEMERAL)
    assert "--link" not in config.guest_arguments(PLAN)


def test_a_volume_of_the_image_is_bounded() -> None:
    plan = replace(PLAN, image=replace(PLAN.image, volumes=("/data", "/workspace", "/tmp")))
    (extra,) = [m for m in config.mounts(plan) if m["Type"] == "tmpfs"]
    assert (extra["Target"], extra["TmpfsOptions"]["SizeBytes"]) == ("/data", 256 << 20)


def test_labels_say_who_owns_it_and_come_back() -> None:
    found = config.box_labels(PLAN)
    assert config.labels_from(found) == LABELS
    for name in ("id", "generation", "fence", "station", "owner_pid", "owner_start"):
        assert f"station.{name}" in found
    assert config.labels_from({**found, "station.fence": "x"}) is None
    assert config.labels_from({}) is None


@pytest.mark.parametrize("name", ["station.id", "STATION.pool", " station.fence"])
def test_other_labels_are_never_ours(name: str) -> None:
    with pytest.raises(InvalidInput, match="own"):
        config.with_labels(config.ownership(LABELS), {name: "x"})


def test_other_labels_stand_beside_ours() -> None:
    both = config.with_labels(config.ownership(LABELS), {"team": "a"})
    assert (both["team"], both["station.id"]) == ("a", "u1")
    with pytest.raises(TooLarge):
        config.with_labels({}, {"long": "x" * 5000})


@pytest.mark.parametrize(
    "image", ["", "-v", "--privileged", "a\0b", "a\nb", "a\rb", " a", "a ", "a b", "a?b", "x" * 600, "\x1b[31m", "a#b"]
)
def test_what_is_no_image_is_refused(image: str) -> None:
    with pytest.raises(InvalidInput) as error:
        config.check_image(image)
    assert error.value.detail["field"] == "image"


@pytest.mark.parametrize("image", ["a", "python:3.11-slim", "host:5000/a/b:c", "a@sha256:" + "0" * 64])
def test_what_may_be_an_image_is_left_to_the_engine(image: str) -> None:
    config.check_image(image)


def test_names_are_of_letters_that_engines_take() -> None:
    assert config.container_name("s", "u-1") == "stn-s-u-1"
    for bad in ("a/b", "a b", "x" * 200):
        with pytest.raises(InvalidInput):
            config.container_name("s", bad)
    with pytest.raises(InvalidInput):
        config.volume_names("s", "../x")


def test_the_path_of_an_image_stands_between_ours_and_the_systems() -> None:
    env = dict(config.box_layout(replace(PLAN.image, path=("/opt/go/bin", "/usr/bin"))).env)
    assert env["PATH"].split(":") == [
        "/home/node/.local/bin", "/workspace/node_modules/.bin", "/opt/go/bin", "/usr/bin", "/usr/local/sbin",
        "/usr/local/bin", "/usr/sbin", "/sbin", "/bin",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("HostConfig", "Memory", 1),
        ("HostConfig", "CapAdd", ["CAP_SYS_ADMIN"]),
        ("HostConfig", "NetworkMode", "bridge"),
        ("HostConfig", "Privileged", True),
        ("HostConfig", "PidsLimit", None),
        ("HostConfig", "Binds", ["/:/host"]),
        ("HostConfig", "SecurityOpt", ["seccomp=unconfined"]),
        ("Config", "User", "1000"),
        ("Config", "Cmd", ["sh"]),
    ],
)
def test_a_changed_container_has_another_fingerprint(section: str, key: str, value: object) -> None:
    body = config.container_body(PLAN)
    inspected = {"Config": {k: v for k, v in body.items() if k != "HostConfig"}, "HostConfig": dict(body["HostConfig"])}
    assert config.fingerprint(inspected) == config.fingerprint(body)
    inspected[section] = {**inspected[section], key: value}
    assert config.fingerprint(inspected) != config.fingerprint(body)


def test_an_engines_way_to_write_the_same_changes_no_fingerprint() -> None:
    body = config.container_body(PLAN)
    other = {**body["HostConfig"], "CapAdd": ["SETUID", "KILL", "SETGID", "CHOWN", "SETPCAP"], "Binds": None}
    assert config.fingerprint({**body, "HostConfig": other}) == config.fingerprint(body)
