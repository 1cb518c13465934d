"""Workspaces in containers: each one non-root container with a persistent home, on the machine's kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Literal

from station._adapter.adapter import Adapter
from station._adapter.errors import Code, SandboxError, invalid
from station._adapter.plan import Bounds, Plan, environment, number, place, tenant, text, whole
from station._adapter.values import Capabilities, CommandRun, FileContent, FileEntry, FileList, Sandbox
from station.client._build import Isolated
from station.core.capabilities import ASSERTED, UNRESTRICTED
from station.core.errors import InvalidInput
from station.core.paths import TMP
from station.core.spec import NETWORK_NONE, Limits, may_be_given

__all__ = [
    "Capabilities",
    "Code",
    "CommandRun",
    "ContainerSandboxAdapter",
    "FileContent",
    "FileEntry",
    "FileList",
    "Sandbox",
    "SandboxError",
]

MOST_MEMORY_MB = 1_048_576
MOST_CPUS = 1024
MOST_PIDS = 1_000_000
_FIXED = ("HOME", "LANG", "NPM_CONFIG_PREFIX", "PATH", "TMPDIR")
_USER = re.compile(r"[1-9][0-9]{0,9}:[1-9][0-9]{0,9}")
_BY_NETWORK = {NETWORK_NONE: NETWORK_NONE, "bridge": UNRESTRICTED}


class ContainerSandboxAdapter(Adapter):
    """Workspaces in containers of an engine with Docker's API. Where the engine or a policy is missing, `ready`
    refuses; nothing ever runs on the host instead."""

    def __init__(
        self,
        root_dir: str | os.PathLike[str],
        image: str,
        *,
        engine: Literal["docker", "podman"] = "docker",
        executable: str | None = None,
        runtime: str | None = None,
        seccomp_profile: str | os.PathLike[str] | None = None,
        pull: Literal["never", "missing"] = "never",
        network: str = "none",
        network_restricted: bool = False,
        user: str = "1000:1000",
        cpus: float | None = None,
        memory_mb: int | None = None,
        pids_limit: int | None = None,
        max_environments: int = 8,
        max_concurrent: int = 16,
        max_output_bytes: int = 512 * 1024,
        max_timeout_ms: int = 3_600_000,
        max_history_per_sandbox: int = 100,
        max_file_bytes: int = 4 * 1024 * 1024,
        env: Mapping[str, str] | None = None,
        tenant_id: str | None = None,
    ) -> None:
        """Raises SandboxError (`invalid_input`) for an option that cannot be. Nothing is started or asked before
        `ready`.

        `root_dir`: the state directory of the station that holds the records, for this alone. `image`: by name or
        digest; a workspace keeps the one that it was made with. `pull`: whether one that the engine lacks is pulled,
        with the credentials of the station's environment (`STN_SANDBOX_REGISTRY_*`). `executable`: where it is named
        it must be there; Station speaks to the engine itself (`DOCKER_HOST`). `runtime`: the engine's, by its name
        there.
        `seccomp_profile`: an absolute path; `None`: Station's own. `network`: `none`, `bridge`, or one that the engine
        has; `network_restricted`: the operator's word that something else restricts that one. `cpus`, `memory_mb`,
        `pids_limit`: named, each is refused where the engine cannot enforce it; `None`: 1, 1024, 256 as far as it can.
        `tenant_id`: whose root this is, for ever. The others as those of `HostSandboxAdapter`; of `env`, HOME, PATH,
        LANG, TMPDIR and NPM_CONFIG_PREFIX are the workspace's.
        """
        bounds = Bounds(
            max_environments,
            max_concurrent,
            max_output_bytes=max_output_bytes,
            max_timeout_ms=max_timeout_ms,
            max_history_per_sandbox=max_history_per_sandbox,
            max_file_bytes=max_file_bytes,
        )
        if engine not in ("docker", "podman"):
            raise invalid(f"engine is docker or podman; it is {engine!r}")
        if pull not in ("never", "missing"):
            raise invalid(f"pull is never or missing; it is {pull!r}")
        _check_network(network, restricted=network_restricted)
        if not _USER.fullmatch(text("user", user)):
            raise invalid(f"user is two numbers above zero, as 1000:1000; it is {user!r}")
        given = environment(env, identifiers=True)
        settings: dict[str, Any] = {"docker_image": _image(image), "pull": pull}
        if runtime is not None:
            settings["docker_runtime"] = text("runtime", runtime)
        if seccomp_profile is not None:
            settings["docker_seccomp"] = _profile(seccomp_profile)
        if network != NETWORK_NONE:
            settings |= {"docker_network": network, "docker_network_restricted": network_restricted}
        if tenant(tenant_id) is not None:
            settings["serves_others"] = True
        where: Isolated = {"backend": "docker", "image": image, "limits": _limits(cpus, memory_mb, pids_limit)}
        if network == NETWORK_NONE:
            where["network"] = NETWORK_NONE
        super().__init__(
            Plan(
                name=engine,
                root=place(root_dir),
                backend="docker",
                bounds=bounds,
                where=where,
                settings=settings,
                env={key: value for key, value in given.items() if key not in _FIXED} | {"TMPDIR": TMP},
                network=_BY_NETWORK.get(network, ASSERTED if network_restricted else UNRESTRICTED),
                network_restricted=network == NETWORK_NONE or network_restricted,
                tenant_id=tenant_id,
                engine=engine,
                executable=None if executable is None else text("executable", executable),
                user=user,
            )
        )


def _image(image: str) -> str:
    if text("image", image).startswith("-"):
        raise invalid("image must not begin with '-'")
    return image


def _profile(path: str | os.PathLike[str]) -> str:
    found = text("seccomp_profile", os.fspath(path))
    if not os.path.isabs(found):
        raise invalid("seccomp_profile must be an absolute path")
    return found


def _check_network(network: object, *, restricted: object) -> None:
    if not isinstance(network, str) or not may_be_given(network):
        raise invalid(f"network is none, bridge or the name of one of the engine's; {network!r} is not")
    if not isinstance(restricted, bool):
        raise invalid("network_restricted is true or false")
    if restricted and network in _BY_NETWORK:
        raise invalid(f"network_restricted says that something else restricts a network; not with {network}")


def _limits(cpus: object, memory_mb: object, pids: object) -> Limits:
    """Those that were named. Raises SandboxError for one that cannot be."""
    try:
        return Limits(
            cpus=None if cpus is None else number("cpus", cpus, MOST_CPUS),
            memory_mb=None if memory_mb is None else whole("memory_mb", memory_mb, MOST_MEMORY_MB),
            pids=None if pids is None else whole("pids_limit", pids, MOST_PIDS),
        )
    except InvalidInput as error:
        raise invalid(error.message) from error
