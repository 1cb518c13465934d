"""What a container must still be when it is adopted: pure functions over what was asked for and what was found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from station.backends.docker import networks
from station.backends.docker.networks import OperatorNetwork
from station.backends.docker.seccomp import Profile
from station.core.spec import NETWORK_NONE

_EQUAL_ALREADY = (
    "AutoRemove", "Binds", "CapDrop", "Cgroup", "CgroupParent", "CgroupnsMode", "CpuPeriod", "CpuQuota", "CpuShares",
    "CpuRealtimePeriod", "CpuRealtimeRuntime", "CpusetCpus", "CpusetMems", "DeviceCgroupRules", "DeviceRequests",
    "Devices", "Dns", "DnsOptions", "DnsSearch", "ExtraHosts", "GroupAdd", "Init", "IpcMode", "KernelMemory", "Links",
    "Memory", "MemoryReservation", "MemorySwap", "NanoCpus", "NetworkMode", "OomKillDisable", "OomScoreAdj", "PidMode",
    "PidsLimit", "PortBindings", "Privileged", "PublishAllPorts", "ReadonlyRootfs", "Runtime", "SecurityOpt", "ShmSize",
    "StorageOpt", "Sysctls", "Tmpfs", "UTSMode", "UsernsMode", "VolumesFrom",
)  # fmt: skip
"""Of HostConfig, those that engines give back as they were given; what is empty is equal, however it is written."""


def _capabilities(found: Any) -> list[str]:
    return sorted(f"CAP_{str(name).upper().removeprefix('CAP_')}" for name in found or ())


def _ulimits(found: Any) -> list[tuple[str, Any, Any]]:
    return sorted((str(one.get("Name")), one.get("Soft"), one.get("Hard")) for one in found or ())


def _mounts(found: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (
            str(one.get("Type")),
            str(one.get("Source") or ""),
            str(one.get("Target")),
            bool(one.get("ReadOnly")),
            json.dumps(one.get("TmpfsOptions") or None, sort_keys=True),
            str((one.get("BindOptions") or {}).get("Propagation") or ""),
        )
        for one in found or ()
    )


def _log(found: Any) -> str:
    return str((found or {}).get("Type") or "")


def _restart(found: Any) -> str:
    name = str((found or {}).get("Name") or "no")
    return "" if name == "no" else name


def _swappiness(found: Any) -> Any:
    """-1 is how engines write that nothing was asked for."""
    return None if found == -1 else found


def _unmasked(found: Any) -> bool:
    """Engines write their own list where none was given; an empty one hides nothing."""
    return isinstance(found, list) and not found


_SORTED: Mapping[str, Callable[[Any], Any]] = {
    "CapAdd": _capabilities,
    "Ulimits": _ulimits,
    "Mounts": _mounts,
    "LogConfig": _log,
    "RestartPolicy": _restart,
    "MemorySwappiness": _swappiness,
    "MaskedPaths": _unmasked,
    "ReadonlyPaths": _unmasked,
}
_CONFIG_KEYS = (
    "User",
    "Entrypoint",
    "Cmd",
    "Tty",
    "OpenStdin",
    "StdinOnce",
    "WorkingDir",
    "StopSignal",
    "NetworkDisabled",
)


def fingerprint(document: Mapping[str, Any]) -> str:
    """Of the parts of a create body, or of an inspected container, that decide what its code may do and use."""
    config = document.get("Config") or document
    host = document.get("HostConfig") or {}
    facts: dict[str, Any] = {key: host.get(key) for key in _EQUAL_ALREADY}
    facts |= {key: normal(host.get(key)) for key, normal in _SORTED.items()}
    facts |= {key: config.get(key) for key in _CONFIG_KEYS}
    facts["Image"] = document.get("Image")  # of an inspected one the id that it was made from, whatever it was called
    text = json.dumps({key: value or None for key, value in facts.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def seccomp_word(profile: Profile) -> str:
    """For the facts of a box. Station's own differs from one release to the next: no reason to end a box."""
    return f"operator:{profile.fingerprint}" if profile.operators else "station"


def drift(found: Mapping[str, Any], known: Mapping[str, Any] | None, *, profile: Profile, network: str) -> str | None:
    """Why a container that runs must not be a box any more; `None`: it may. `known`: the facts in its labels;
    `profile` and `network`: what a box of its spec would get now."""
    if known is None or known.get("fingerprint") != fingerprint(found):
        return "its container was changed from outside, or made by an earlier release"
    if known.get("seccomp") != seccomp_word(profile):
        return "it has another seccomp profile than boxes are given now (sandbox.docker_seccomp)"
    has = str((found.get("HostConfig") or {}).get("NetworkMode"))
    if has != network:
        return f"it has the network {has}, and boxes are given {network} now (sandbox.docker_network)"
    return networks.differs(found, network)


def worth_now(known: Mapping[str, Any], given: OperatorNetwork) -> dict[str, Any]:
    """The facts of a box that stays, with what the operator says of its network now: an assertion may have been
    withdrawn since the box was made."""
    report = given.report_of(str(known.get("network", NETWORK_NONE)))
    return {**known, "capabilities": {**known["capabilities"], "network": report}}
