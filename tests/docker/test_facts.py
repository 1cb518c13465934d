"""What follows from what an engine tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from station.backends.docker import facts
from station.backends.docker._api import address_of, parse_version
from station.backends.docker.config import Runtime
from station.backends.docker.engine import translate
from station.backends.docker.facts import EngineFacts, Trial, Verdict
from station.backends.docker.images import BY_RUNTIME, Images, parse_image
from station.backends.docker.quota import Quota
from station.core.capabilities import Grade, GuestUid, Level
from station.core.errors import (
    AlreadyExists,
    BackendUnavailable,
    Conflict,
    InvalidInput,
    NotFound,
    Refused,
    StationError,
    StorageFull,
    Unavailable,
)
from station.core.spec import Limits, Spec

INFO: dict[str, Any] = {
    "ServerVersion": "20.10.24",
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=default"],
    "CgroupVersion": "1",
    "MemoryLimit": True,
    "SwapLimit": True,
    "CpuCfsQuota": True,
    "PidsLimit": True,
    "Runtimes": {"runc": {"path": "runc"}, "secure": {"path": "/usr/bin/runsc"}, "io.containerd.runsc.v1": {}},
    "DefaultRuntime": "runc",
    "KernelVersion": "6.1",
    "OSType": "linux",
    "Architecture": "x86_64",
    "LiveRestoreEnabled": True,
}
FACTS = EngineFacts.parse(INFO, (1, 41))
TRIAL = Trial(
    gvisor=False,
    containment="subreaper",
    seccomp=True,
    separate_uid=True,
    tmp_bytes=256 << 20,
    filtered=True,
    doors_shut=True,
)
RUNC = Runtime("runc")


def parsed(**changed: Any) -> EngineFacts:
    return EngineFacts.parse({**INFO, **changed}, (1, 41))


def test_info_is_read() -> None:
    assert (FACTS.seccomp, FACTS.apparmor, FACTS.rootless, FACTS.cgroup_version) == ("default", True, False, 1)
    assert FACTS.controllers == {"memory", "swap", "cpu", "pids"}
    assert parsed(CgroupVersion="2").cgroup_version == 2
    empty = EngineFacts.parse({}, (1, 41))
    assert (empty.seccomp, empty.controllers, empty.runtimes) == (None, frozenset(), {})


def test_the_runtime_is_the_one_that_is_asked_for_or_none() -> None:
    assert facts.choose_runtime(FACTS, None) == RUNC
    assert facts.choose_runtime(FACTS, "secure") == Runtime("secure", sandboxed_kernel=True)
    missing = facts.choose_runtime(FACTS, "kata")
    assert isinstance(missing, Verdict)
    assert "'kata'" in missing.reason
    assert "docker_runtime" in (missing.remedy or "")


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"OSType": "windows"}, "windows"),
        ({"Architecture": "riscv64"}, "riscv64"),
        ({"SecurityOptions": ["name=apparmor"]}, "seccomp"),
        ({"SecurityOptions": None}, "seccomp"),
    ],
)
def test_an_engine_that_cannot_confine_is_refused(changed: dict[str, Any], word: str) -> None:
    verdict = facts.refusal(parsed(**changed))
    assert verdict is not None
    assert word in verdict.reason
    assert facts.refusal(FACTS) is None


def test_a_kernel_of_its_own_is_believed_when_it_shows() -> None:
    runsc = Runtime("secure", sandboxed_kernel=True)
    seen, not_seen = replace(TRIAL, gvisor=True), TRIAL
    assert facts.capabilities_of(FACTS, runsc, seen, {"linux": "i"}).grade is Grade.USER_KERNEL
    lowered = facts.capabilities_of(FACTS, runsc, not_seen, {"linux": "i"})
    assert lowered.grade is Grade.CONTAINER
    assert any("own kernel" in note for note in lowered.notes)
    assert facts.capabilities_of(FACTS, RUNC, seen, {"linux": "i"}).grade is Grade.CONTAINER


def test_limits_are_told_as_they_hold() -> None:
    found = facts.capabilities_of(FACTS, RUNC, TRIAL, {"linux": "i"})
    assert set(found.limits) >= set(Limits.__dataclass_fields__)
    levels = {name: report.level for name, report in found.limits.items()}
    assert levels.pop("workspace_mb") is Level.NOT_ENFORCED
    assert set(levels.values()) == {Level.ENFORCED}
    assert found.guest_uid is GuestUid.SEPARATE
    quota = facts.limit_reports(FACTS, RUNC, replace(TRIAL, quota=Quota.PROJECT))
    assert quota["workspace_mb"].level is Level.ENFORCED
    gvisor = facts.limit_reports(FACTS, Runtime("runsc", sandboxed_kernel=True), TRIAL)
    assert gvisor["pids"].level is Level.NOT_ENFORCED
    assert gvisor["pids"].remedy


def test_what_the_engine_cannot_limit_is_not_promised() -> None:
    rootless = parsed(
        SecurityOptions=["name=seccomp,profile=default", "name=rootless"], MemoryLimit=False, PidsLimit=None
    )
    found = facts.limit_reports(rootless, RUNC, TRIAL)
    for name in ("memory_mb", "pids"):
        assert found[name].level is Level.NOT_ENFORCED
        assert "systemd" in (found[name].remedy or "")
    assert found["cpus"].level is Level.ENFORCED


def test_the_network_is_none_until_an_operator_says_otherwise() -> None:
    found = facts.capabilities_of(FACTS, RUNC, TRIAL, {"linux": "i"})
    assert (found.network, found.operator_network) == ("none", False)


def test_doctor_names_the_layers_that_a_trial_box_has_shown() -> None:
    notes = " ".join(facts.capabilities_of(FACTS, RUNC, TRIAL, {"linux": "i"}).notes)
    assert "in force: seccomp, AppArmor" in notes
    assert "Station's own profile on everything in a box; the guest's filter on user code" in notes
    bare = replace(TRIAL, seccomp=False, filtered=False)
    notes = " ".join(facts.capabilities_of(parsed(SecurityOptions=[]), RUNC, bare, {"linux": "i"}).notes)
    assert "in force: nothing beyond namespaces and capabilities" in notes
    assert "cannot filter" in notes


def test_a_box_in_memory_has_a_bounded_workspace() -> None:
    found = facts.capabilities_of(FACTS, RUNC, TRIAL, {"linux": "i"})
    told = facts.for_spec(found, Spec("docker", ephemeral=True, limits=Limits(workspace_mb=8))).limits
    assert (told["workspace_mb"].level, told["workspace_mb"].value) == (Level.ENFORCED, 8)
    assert told["max_file_size_bytes"].level is Level.NOT_ENFORCED
    assert facts.for_spec(found, Spec("docker")).limits["workspace_mb"].level is Level.NOT_ENFORCED


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (404, "No such image: x", NotFound),
        (409, 'Conflict. The container name "/x" is already in use by container "y"', AlreadyExists),
        (409, "removal of container x is already in progress", Conflict),
        (403, "no", Refused),
        (400, "OCI runtime create failed", BackendUnavailable),
        (500, "write /var/lib/docker/x: no space left on device", StorageFull),
        (500, "something", Unavailable),
    ],
)
def test_refusals_have_a_class(status: int, message: str, kind: type[StationError]) -> None:
    assert type(translate(status, message, "do it")) is kind


def test_the_engines_paths_stay_with_the_engine() -> None:
    said = translate(500, "open /var/lib/docker/overlay2/abc/merged: \x1b[31m\nno such file", "start it").message
    assert "overlay2" not in said
    assert "\n" not in said
    assert len(translate(500, "x" * 10_000, "start it").message) < 500


@pytest.mark.parametrize(
    ("environ", "url", "socket", "tls"),
    [
        ({"DOCKER_HOST": "unix:///a/b"}, "unix:///a/b", "/a/b", None),
        ({"DOCKER_HOST": "tcp://h:2375"}, "tcp://h:2375", None, None),
        (
            {"DOCKER_HOST": "tcp://h:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/c"},
            "tcp://h:2376",
            None,
            "/c",
        ),
        ({"DOCKER_HOST": "tcp://h:2376", "DOCKER_TLS_VERIFY": ""}, "tcp://h:2376", None, None),
    ],
)
def test_an_engine_is_where_docker_host_says(
    environ: dict[str, str], url: str, socket: str | None, tls: str | None
) -> None:
    found = address_of(environ)
    assert found is not None
    assert (found.url, found.socket, found.tls) == (url, socket, Path(tls) if tls else None)


@pytest.mark.parametrize("host", ["ssh://h", "npipe:////./pipe/x", "nonsense", "unix://relative", "tcp://"])
def test_other_addresses_are_refused(host: str) -> None:
    with pytest.raises(InvalidInput, match="DOCKER_HOST"):
        address_of({"DOCKER_HOST": host})


def test_versions_are_compared_as_numbers() -> None:
    assert parse_version("1.41") < parse_version("1.100")
    assert parse_version("") == parse_version("x.y") == (0, 0)


def image(**more: Any) -> dict[str, Any]:
    return {"Id": "sha256:" + "a" * 64, "Config": {}, **more}


def test_an_image_is_what_its_digest_says() -> None:
    digest = "sha256:" + "b" * 64
    right = image(RepoDigests=[f"python@{digest}"])
    assert parse_image(f"python@{digest}", right).id == right["Id"]
    with pytest.raises(InvalidInput, match="digest"):
        parse_image(f"python@{digest}", image(RepoDigests=["python@sha256:" + "c" * 64]))
    with pytest.raises(InvalidInput, match="digest"):
        parse_image(f"python@{digest}", image())


def test_what_an_image_says_of_itself_is_read() -> None:
    config = {"Env": ["A=b", "PATH=/x:relative:/y"], "Volumes": {"/data/": {}, "odd": {}}}
    found = parse_image("i", image(Config=config))
    assert (found.path, found.volumes) == (("/x", "/y"), ("/data",))
    for nonsense in ({}, {"Id": 7}, {"Id": "../x"}, {"Id": "a" * 64, "Config": "x"}):
        with pytest.raises(Unavailable):
            parse_image("i", nonsense)
    with pytest.raises(InvalidInput, match="windows"):
        parse_image("i", image(Os="windows"))


def test_names_go_from_the_caller_over_the_operator_to_ours() -> None:
    none: Any = None
    built_in = Images(none, by_runtime={})
    assert built_in.name_for(Spec("docker", runtime="node")) == "node:20-slim"
    assert built_in.name_for(Spec("docker")) == BY_RUNTIME["linux"]
    operators = Images(none, by_runtime={"python": "mine/python"}, default="mine/all")
    assert operators.name_for(Spec("docker", runtime="python")) == "mine/python"
    assert operators.name_for(Spec("docker", runtime="node")) == operators.name_for(Spec("docker")) == "mine/all"
    assert operators.name_for(Spec("docker", runtime="python", image="theirs")) == "theirs"
    with pytest.raises(InvalidInput):
        Images(none, by_runtime={}, default="--privileged")
