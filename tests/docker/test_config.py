"""The create body, as a table: what is written there decides what code in a box may do."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from station.backends.base import Labels
from station.backends.docker import adoption, config, seccomp
from station.backends.docker.config import Image, Plan, Runtime
from station.backends.docker.profile import own_profile
from station.backends.docker.seccomp import Profile
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
        ("SecurityOpt", ["no-new-privileges", f"seccomp={own_profile()}"]),
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


def test_a_profile_is_always_brought_and_named_in_the_labels() -> None:
    theirs = Profile('{"defaultAction":"SCMP_ACT_ERRNO"}', operators=True)
    for profile in (seccomp.OWN, theirs):
        plan = replace(PLAN, profile=profile)
        assert config.host_config(plan)["SecurityOpt"] == ["no-new-privileges", f"seccomp={profile.text}"]
        assert config.box_labels(plan)["station.seccomp"] == hashlib.sha256(profile.text.encode()).hexdigest()


@pytest.mark.parametrize(("network", "disabled"), [("none", True), ("bridge", False), ("mine", False)])
def test_a_network_is_what_the_plan_says(network: str, disabled: bool) -> None:
    body = config.container_body(replace(PLAN, network=network))
    assert (body["HostConfig"]["NetworkMode"], body["NetworkDisabled"]) == (network, disabled)


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


# Each row: where the field is, and a value that lets code do or use more, or other things, than was asked for.
DRIFTS: list[tuple[str, str, object]] = [
    ("Config", "User", "1000"),
    ("Config", "Cmd", ["sh"]),
    ("Config", "Entrypoint", ["/bin/sh"]),
    ("Config", "Tty", True),
    ("Config", "OpenStdin", False),
    ("Config", "StdinOnce", True),
    ("Config", "WorkingDir", "/workspace"),
    ("Config", "StopSignal", "SIGKILL"),
    ("Config", "NetworkDisabled", False),
    ("HostConfig", "CapAdd", ["CAP_SYS_ADMIN"]),
    ("HostConfig", "CapDrop", []),
    ("HostConfig", "SecurityOpt", ["no-new-privileges", "seccomp=unconfined"]),
    ("HostConfig", "SecurityOpt", [f"seccomp={own_profile()}"]),
    ("HostConfig", "SecurityOpt", ["no-new-privileges", f"seccomp={own_profile(own_kernel=True)}"]),
    ("HostConfig", "SecurityOpt", ["no-new-privileges", f"seccomp={own_profile()}", "apparmor=unconfined"]),
    ("HostConfig", "Privileged", True),
    ("HostConfig", "ReadonlyRootfs", False),
    ("HostConfig", "NetworkMode", "bridge"),
    ("HostConfig", "PortBindings", {"80/tcp": [{"HostPort": "80"}]}),
    ("HostConfig", "PublishAllPorts", True),
    ("HostConfig", "Dns", ["1.1.1.1"]),
    ("HostConfig", "ExtraHosts", ["a:1.2.3.4"]),
    ("HostConfig", "Links", ["other"]),
    ("HostConfig", "IpcMode", "host"),
    ("HostConfig", "PidMode", "host"),
    ("HostConfig", "UTSMode", "host"),
    ("HostConfig", "UsernsMode", "host"),
    ("HostConfig", "CgroupnsMode", "host"),
    ("HostConfig", "CgroupParent", "/other"),
    ("HostConfig", "Runtime", "runsc"),
    ("HostConfig", "Memory", 1),
    ("HostConfig", "MemorySwap", -1),
    ("HostConfig", "MemorySwappiness", 60),
    ("HostConfig", "OomKillDisable", True),
    ("HostConfig", "OomScoreAdj", -1000),
    ("HostConfig", "NanoCpus", 0),
    ("HostConfig", "CpuShares", 4096),
    ("HostConfig", "CpusetCpus", "0"),
    ("HostConfig", "PidsLimit", None),
    ("HostConfig", "Ulimits", []),
    ("HostConfig", "ShmSize", 1 << 40),
    ("HostConfig", "Sysctls", {}),
    ("HostConfig", "StorageOpt", {"size": "1T"}),
    ("HostConfig", "Binds", ["/:/host"]),
    ("HostConfig", "VolumesFrom", ["other"]),
    ("HostConfig", "Mounts", [{"Type": "bind", "Source": "/", "Target": "/host"}]),
    ("HostConfig", "Tmpfs", {"/tmp": ""}),
    ("HostConfig", "Devices", [{"PathOnHost": "/dev/kvm"}]),
    ("HostConfig", "DeviceCgroupRules", ["a *:* rwm"]),
    ("HostConfig", "DeviceRequests", [{"Driver": "nvidia"}]),
    ("HostConfig", "GroupAdd", ["0"]),
    ("HostConfig", "MaskedPaths", []),
    ("HostConfig", "ReadonlyPaths", []),
    ("HostConfig", "LogConfig", {"Type": "json-file", "Config": {}}),
    ("HostConfig", "RestartPolicy", {"Name": "always", "MaximumRetryCount": 0}),
    ("HostConfig", "AutoRemove", True),
    ("HostConfig", "Init", True),
]


def inspected(plan: Plan = PLAN) -> dict[str, Any]:
    body = config.container_body(plan)
    config_part = {key: value for key, value in body.items() if key != "HostConfig"}
    return {"Image": body["Image"], "Config": config_part, "HostConfig": dict(body["HostConfig"])}


@pytest.mark.parametrize(("section", "key", "value"), DRIFTS, ids=[f"{row[1]}={str(row[2])[:30]}" for row in DRIFTS])
def test_a_changed_container_has_another_fingerprint(section: str, key: str, value: object) -> None:
    plan = replace(PLAN, swappiness=key == "MemorySwappiness")
    body, found = config.container_body(plan), inspected(plan)
    assert adoption.fingerprint(found) == adoption.fingerprint(body)
    found[section] = {**found[section], key: value}
    assert adoption.fingerprint(found) != adoption.fingerprint(body)


def test_another_image_under_the_same_name_is_another_container() -> None:
    found = {**inspected(), "Image": "sha256:" + "b" * 64}
    assert adoption.fingerprint(found) != adoption.fingerprint(config.container_body(PLAN))


def test_every_field_that_a_box_is_made_with_is_compared() -> None:
    told = {"Labels", "Healthcheck", "Env", "Hostname", "StopTimeout", "AttachStdin", "AttachStdout", "AttachStderr"}
    compared = {row[1] for row in DRIFTS} | {"Image", "HostConfig"}
    assert set(config.container_body(PLAN)) - compared == told
    assert set(host(replace(PLAN, swappiness=True))) - compared == set()


def test_an_engines_way_to_write_the_same_changes_no_fingerprint() -> None:
    found = inspected()
    found["HostConfig"] |= {
        "CapAdd": ["SETUID", "KILL", "SETGID", "CHOWN", "SETPCAP"],
        "Binds": None,
        "Devices": None,
        "Dns": None,
        "CpuShares": 0,
        "MemorySwappiness": -1,
        "OomKillDisable": None,
        "RestartPolicy": {"Name": "", "MaximumRetryCount": 0},
        "MaskedPaths": ["/proc/kcore"],
        "ReadonlyPaths": ["/proc/sys"],
        "ConsoleSize": [0, 0],
    }
    assert adoption.fingerprint(found) == adoption.fingerprint(config.container_body(PLAN))


THEIRS = Profile("{}", operators=True)
OTHERS = Profile("{ }", operators=True)


@pytest.mark.parametrize(
    ("made", "now", "word"),
    [
        ((seccomp.OWN, "none"), (seccomp.OWN, "none"), None),
        ((seccomp.OWN_KERNEL, "none"), (seccomp.OWN, "none"), None),
        ((Profile("an earlier release's"), "none"), (seccomp.OWN, "none"), None),
        ((THEIRS, "mine"), (THEIRS, "mine"), None),
        ((seccomp.OWN, "none"), (THEIRS, "none"), "docker_seccomp"),
        ((THEIRS, "none"), (seccomp.OWN, "none"), "docker_seccomp"),
        ((THEIRS, "none"), (OTHERS, "none"), "docker_seccomp"),
        ((seccomp.OWN, "mine"), (seccomp.OWN, "none"), "docker_network"),
        ((seccomp.OWN, "mine"), (seccomp.OWN, "other"), "docker_network"),
    ],
)
def test_a_box_is_adopted_as_boxes_are_made_now_or_not(
    made: tuple[Profile, str], now: tuple[Profile, str], word: str | None
) -> None:
    profile, network = made
    found = inspected(replace(PLAN, profile=profile, network=network))
    found["NetworkSettings"] = {"Networks": {network: {}}}
    known = {"fingerprint": adoption.fingerprint(found), "seccomp": adoption.seccomp_word(profile)}
    told = adoption.drift(found, known, profile=now[0], network=now[1])
    assert told is None if word is None else word in (told or "")


@pytest.mark.parametrize("networks", [{}, {"mine": {}, "other": {}}, {"other": {}}, None])
def test_a_box_that_is_in_another_network_than_it_was_made_for_is_not_adopted(networks: object) -> None:
    found = {**inspected(replace(PLAN, network="mine")), "NetworkSettings": {"Networks": networks}}
    known = {"fingerprint": adoption.fingerprint(found), "seccomp": "station"}
    assert "mine" in (adoption.drift(found, known, profile=seccomp.OWN, network="mine") or "")


@pytest.mark.parametrize("known", [None, {}, {"fingerprint": "0" * 32, "seccomp": "station"}])
def test_a_box_whose_labels_do_not_vouch_for_it_is_not_adopted(known: dict[str, Any] | None) -> None:
    assert adoption.drift(inspected(), known, profile=seccomp.OWN, network="none")
