"""What the host audit asks of an engine."""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from station.backends.docker.engine import Engine
from station.backends.docker.facts import EngineFacts
from station.core import machine
from station.machine import disk_of

if TYPE_CHECKING:
    from station.backends.docker._api import Address

_FEATURES = "org.opencontainers.runtime-spec.features"
_RUNC = "org.opencontainers.runc.version"


async def examine(engine: Engine, *, backend: str, runtime: str | None) -> machine.Engine:
    """As it is now. `runtime`: the operator's choice. Raises Unavailable where it does not answer."""
    api = await engine.version()
    info, about = await engine.info(), await engine.about()
    facts = EngineFacts.parse(info, api)
    name = runtime or facts.default_runtime
    mode, disk = await asyncio.to_thread(_look, engine.address, str(info.get("DockerRootDir") or ""))
    return machine.Engine(
        backend=backend,
        version=facts.version,
        api=api,
        runtime=name,
        named=runtime is not None,
        default_runtime=facts.default_runtime,
        program=posixpath.basename(facts.runtimes.get(name, "")) or name,
        runtime_version=runtime_version(info, about, name),
        remapped=facts.rootless or facts.userns,
        cgroup_version=facts.cgroup_version,
        controllers=facts.controllers,
        seccomp=facts.seccomp,
        live_restore=facts.live_restore,
        transport=transport_of(engine.address),
        address=engine.address.url,
        socket_mode=mode,
        disk=disk,
    )


def runtime_version(info: Mapping[str, Any], about: Mapping[str, Any], name: str) -> str | None:
    """From what newer engines tell of each runtime, else from `GET /version`, which tells of the one that the engine
    finds on its PATH: of a runtime with another path nothing is known then."""
    runtimes = info.get("Runtimes")
    entry = runtimes.get(name) if isinstance(runtimes, dict) else None
    if not isinstance(entry, dict):
        return None
    if told := _of_features(entry):
        return told
    program = entry.get("path")
    components = about.get("Components")
    for item in components if isinstance(components, list) and isinstance(program, str) else ():
        if isinstance(item, dict) and item.get("Name") == program and item.get("Version"):
            return str(item["Version"])[:80]
    return None


def _of_features(entry: Mapping[str, Any]) -> str | None:
    status = entry.get("status")
    try:
        told = json.loads(status[_FEATURES])["annotations"][_RUNC] if isinstance(status, dict) else None
    except (KeyError, TypeError, ValueError):
        return None
    return str(told)[:80] if told else None


def transport_of(address: Address) -> Literal["unix", "tcp", "tls"]:
    if address.socket is not None:
        return "unix"
    return "tcp" if address.tls is None else "tls"


def _look(address: Address, root: str) -> tuple[int | None, machine.Disk | None]:
    """The mode of its socket, and the disk of its data where that is this machine's."""
    if address.socket is None:
        return None, None
    try:
        mode = stat.S_IMODE(os.stat(address.socket).st_mode)
    except OSError:
        mode = None
    return mode, disk_of(Path(root)) if root.startswith("/") and Path(root).exists() else None
