"""From what was asked for and what was found to the body of an engine's create call: pure functions, no default of the
engine left to chance. The table with its reasons is in docs/decisions/0013."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from station.backends.base import Labels, Layout
from station.backends.docker import seccomp
from station.backends.docker.seccomp import Profile
from station.core.errors import InvalidInput, TooLarge
from station.core.paths import HOME, HOME_WORKSPACE, TMP, WORKSPACE
from station.core.spec import NETWORK_NONE, Spec

GUEST_PLACE = "/.stn"
GUEST = f"{GUEST_PLACE}/guest"
BOX_USER = 1000
STOP_SECONDS = 2
OOM_SCORE = 500
RUN_BYTES = 16 << 20
HOME_BYTES_EPHEMERAL = 1 << 30
_PAGE_BYTES = 4096
_MIB = 1 << 20
_FILES_PER_MIB = 256
_CAPABILITIES = ("CAP_CHOWN", "CAP_KILL", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID")
"""The guest's own. It gives up CHOWN before it serves; user code has none of them."""
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_PREFIX = "station."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,120}")


@dataclass(frozen=True)
class Runtime:
    """One of the engine's, and what it is, by its program and by what a trial box has shown."""

    name: str
    sandboxed_kernel: bool = False
    """gVisor: the box has a kernel of its own, in which the guest may make PID namespaces."""


@dataclass(frozen=True)
class Image:
    """What the engine said of one."""

    name: str
    """As it was asked for."""
    id: str
    """`sha256:…`, which a box is made from: a name may mean another image tomorrow."""
    path: tuple[str, ...] = ()
    """The directories of its PATH."""
    volumes: tuple[str, ...] = ()
    """Places that it declares as volumes."""
    shell: str = "/bin/sh"
    """Of layouts; known once a container of it was looked into."""


@dataclass(frozen=True)
class Plan:
    """All that one container depends on."""

    spec: Spec
    labels: Labels
    image: Image
    runtime: Runtime
    guest_volume: str
    swappiness: bool = False
    """Whether the engine takes it: cgroup v1."""
    profile: Profile = seccomp.OWN
    network: str = NETWORK_NONE
    """The engine's, by its name there."""
    guest_options: tuple[str, ...] = ()
    labels_beside: Mapping[str, str] = field(default_factory=dict)
    """The operator's own."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Written into the labels, for whoever adopts the box: layout and capabilities."""


def check_image(image: str) -> None:
    """Raises InvalidInput for what must not be taken for an image's name."""
    if not image or image.startswith("-") or image != image.strip() or any(c in image for c in "\0\r\n"):
        raise InvalidInput(
            f"{image!r} is no name of an image; it looks like python:3.11-slim or name@sha256:…", field="image"
        )
    if len(image) > 512 or not image.isprintable() or any(c in image for c in " ?#%\\"):
        raise InvalidInput("the name of an image has at most 512 letters, digits, and ._-/:@", field="image")
    if any(part in ("", ".", "..") for part in image.split("/")):
        # An engine is asked about it by a path, in which these would lead elsewhere.
        raise InvalidInput("the name of an image has no empty parts, and none that is . or ..", field="image")


def container_name(station: str, box_id: str) -> str:
    """Derived, so that a second try finds what the first one made."""
    name = f"stn-{station}-{box_id}"
    if not _NAME.fullmatch(name):
        raise InvalidInput("a box id has letters, digits and -_. alone, at most 80", field="box_id")
    return name


def volume_names(station: str, uid: str) -> dict[str, str]:
    """By place, those of a kept sandbox."""
    if not uid.isalnum():
        raise InvalidInput("a sandbox uid has letters and digits alone", field="uid")
    return {place: f"stn-{station}-{uid}-{word}" for place, word in ((HOME, "home"), (WORKSPACE, "workspace"))}


def container_body(plan: Plan) -> dict[str, Any]:
    """The whole body of POST /containers/create."""
    return {
        "Image": plan.image.id,
        "User": "0:0",
        "Hostname": "sandbox",
        "WorkingDir": "/",
        "Entrypoint": [GUEST],
        "Cmd": guest_arguments(plan),
        "Env": [f"PATH={':'.join(_SYSTEM_PATH)}", "HOME=/", "LANG=C.UTF-8"],
        "Labels": box_labels(plan),
        "OpenStdin": True,
        "StdinOnce": False,
        "Tty": False,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "NetworkDisabled": plan.network == NETWORK_NONE,
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGTERM",
        "StopTimeout": STOP_SECONDS,
        "HostConfig": host_config(plan),
    }


def guest_arguments(plan: Plan) -> list[str]:
    words = ["serve", "--fd", "-", "--box", f"{plan.labels.station}:{plan.labels.box_id}"]
    words += ["--uid", str(BOX_USER), "--gid", str(BOX_USER), "--own", HOME, "--own", WORKSPACE]
    if plan.spec.ephemeral:
        # Two sized tmpfs cannot be one directory at two places; volumes can.
        words += ["--link", f"{HOME_WORKSPACE}:{WORKSPACE}"]
    return [*words, *plan.guest_options]


def host_config(plan: Plan) -> dict[str, Any]:
    limits = plan.spec.effective
    memory = (limits.memory_mb or 0) * _MIB
    config: dict[str, Any] = {
        "Runtime": plan.runtime.name,
        "CapDrop": ["ALL"],
        "CapAdd": sorted((*_CAPABILITIES, *(("CAP_SYS_ADMIN",) if plan.runtime.sandboxed_kernel else ()))),
        "SecurityOpt": ["no-new-privileges", f"seccomp={plan.profile.text}"],
        "Privileged": False,
        "Init": False,
        "ReadonlyRootfs": True,
        "NetworkMode": plan.network,
        "PublishAllPorts": False,
        "CgroupnsMode": "private",
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "",
        "ShmSize": (limits.shm_mb or 0) * _MIB,
        "Memory": memory,
        "MemorySwap": memory,
        "OomKillDisable": False,
        "OomScoreAdj": OOM_SCORE,
        "NanoCpus": round((limits.cpus or 0) * 1_000_000_000),
        "PidsLimit": pids_limit(plan),
        "Ulimits": ulimits(plan.spec),
        "Tmpfs": tmpfs(plan.spec),
        "Mounts": mounts(plan),
        "Sysctls": {} if plan.runtime.sandboxed_kernel else sysctls(plan.spec),
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "AutoRemove": False,
        "Binds": [],
        "Devices": [],
    }
    if plan.swappiness:
        config["MemorySwappiness"] = 0
    return config


GVISOR_HOST_PIDS = 4096
"""Threads of the box's kernel on the machine, of which a process inside needs several; no limit that a box can feel."""


def pids_limit(plan: Plan) -> int:
    wanted = plan.spec.effective.pids or 0
    return max(wanted, GVISOR_HOST_PIDS) if plan.runtime.sandboxed_kernel else wanted


def ulimits(spec: Spec) -> list[dict[str, Any]]:
    """No nproc: the kernel counts a user's processes over all boxes."""
    limits = spec.effective
    wanted = [("core", 0), ("nofile", limits.open_files or 0)]
    if limits.max_file_size_bytes is not None:
        wanted.append(("fsize", limits.max_file_size_bytes))
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in wanted]


def sysctls(spec: Spec) -> dict[str, str]:
    """No ping sockets; and memory that belongs to no process is bounded as that of files is."""
    shared = (spec.effective.shm_mb or 0) * _MIB
    return {
        "net.ipv4.ping_group_range": "1 0",
        "kernel.shmmax": str(shared),
        "kernel.shmall": str(shared // _PAGE_BYTES),
    }


def tmpfs(spec: Spec) -> dict[str, str]:
    """Without a size one would have half of the machine's memory."""
    limits = spec.effective
    found = {TMP: _sized((limits.tmp_mb or 0) * _MIB, "1777"), "/run": _sized(RUN_BYTES, "1777")}
    if spec.ephemeral:
        found[HOME] = _sized(HOME_BYTES_EPHEMERAL, "755")
        found[WORKSPACE] = _sized((limits.workspace_mb or 0) * _MIB, "755")
    return found


def _sized(size: int, mode: str) -> str:
    files = max(1024, size // _MIB * _FILES_PER_MIB)
    return f"size={size},nr_inodes={files},mode={mode},rw,nosuid,nodev,exec"


def mounts(plan: Plan) -> list[dict[str, Any]]:
    found = [_volume(plan.guest_volume, GUEST_PLACE, read_only=True)]
    taken = {GUEST_PLACE, *tmpfs(plan.spec)}
    if not plan.spec.ephemeral:
        names = volume_names(plan.labels.station, plan.labels.uid)
        places = {HOME: names[HOME], HOME_WORKSPACE: names[WORKSPACE], WORKSPACE: names[WORKSPACE]}
        found += [_volume(name, place) for place, name in places.items()]
        taken |= set(places)
    size = (plan.spec.effective.tmp_mb or 0) * _MIB
    for place in sorted(set(plan.image.volumes) - taken):
        # A volume that an image declares is a door to the engine's disk without any bound.
        found.append({"Type": "tmpfs", "Target": place, "TmpfsOptions": {"SizeBytes": size, "Mode": 0o1777}})
    return found


def _volume(name: str, place: str, *, read_only: bool = False) -> dict[str, Any]:
    options = {"NoCopy": True}
    return {"Type": "volume", "Source": name, "Target": place, "ReadOnly": read_only, "VolumeOptions": options}


def box_labels(plan: Plan) -> dict[str, str]:
    labels = ownership(plan.labels)
    labels |= {
        f"{_PREFIX}image": plan.image.id,
        f"{_PREFIX}seccomp": plan.profile.fingerprint,
        f"{_PREFIX}facts": json.dumps(plan.facts, sort_keys=True, separators=(",", ":")),
    }
    return with_labels(labels, plan.labels_beside)


def ownership(labels: Labels) -> dict[str, str]:
    """Every one of them always: an image has labels too, and must not fill a gap."""
    return {
        f"{_PREFIX}id": labels.uid,
        f"{_PREFIX}box": labels.box_id,
        f"{_PREFIX}generation": str(labels.generation),
        f"{_PREFIX}fence": str(labels.fence),
        f"{_PREFIX}station": labels.station,
        f"{_PREFIX}owner_pid": str(labels.owner_pid),
        f"{_PREFIX}owner_start": str(labels.owner_start),
        f"{_PREFIX}pool": "true" if labels.pool else "false",
    }


def with_labels(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """An operator's or user's labels beside ours. Raises InvalidInput for one that would be taken for ours."""
    for name, value in theirs.items():
        if name.strip().lower().startswith(_PREFIX):
            raise InvalidInput(f"the label {name} is Station's own: labels {_PREFIX}* cannot be set", field="labels")
        if len(name) + len(value) > 4096:
            raise TooLarge(f"the label {name[:40]} is longer than 4096 characters", field="labels")
    return {**theirs, **ours}


def labels_from(found: Mapping[str, Any]) -> Labels | None:
    """The way back from `ownership`; `None`: not one of ours, or damaged."""
    try:
        return Labels(
            box_id=str(found[f"{_PREFIX}box"]),
            uid=str(found[f"{_PREFIX}id"]),
            generation=int(found[f"{_PREFIX}generation"]),
            fence=int(found[f"{_PREFIX}fence"]),
            station=str(found[f"{_PREFIX}station"]),
            owner_pid=int(found[f"{_PREFIX}owner_pid"]),
            owner_start=int(found[f"{_PREFIX}owner_start"]),
            pool=found[f"{_PREFIX}pool"] == "true",
        )
    except (KeyError, ValueError):
        return None


def box_layout(image: Image) -> Layout:
    """Ours first, then what the image's own PATH names, then what every image has."""
    own = (f"{HOME}/.local/bin", f"{WORKSPACE}/node_modules/.bin")
    path = dict.fromkeys((*own, *image.path, *_SYSTEM_PATH))
    env = {
        "HOME": HOME,
        "USER": "node",
        "LOGNAME": "node",
        "SHELL": image.shell,
        "PATH": ":".join(path),
        "LANG": "C.UTF-8",
        "NPM_CONFIG_PREFIX": f"{HOME}/.local",
    }
    return Layout(env=tuple(env.items()), shell=image.shell)


def facts_of(labels: Any) -> dict[str, Any] | None:
    """What `Plan.facts` wrote; `None`: there is none, or it is damaged."""
    try:
        found = json.loads(labels[f"{_PREFIX}facts"])
    except (KeyError, TypeError, ValueError):
        return None
    return found if isinstance(found, dict) and {"layout", "capabilities"} <= set(found) else None
