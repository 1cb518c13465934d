"""Workspaces on this machine itself, without isolation: for code that you trust as yourself."""

from __future__ import annotations

import os
from collections.abc import Mapping

from station._adapter.adapter import Adapter
from station._adapter.errors import Code, SandboxError
from station._adapter.plan import Bounds, Plan, environment, place, text
from station._adapter.values import Capabilities, CommandRun, FileContent, FileEntry, FileList, Sandbox
from station.core.interpreters import shell_argv

__all__ = [
    "Capabilities",
    "Code",
    "CommandRun",
    "FileContent",
    "FileEntry",
    "FileList",
    "HostSandboxAdapter",
    "Sandbox",
    "SandboxError",
]

_FIXED = ("HOME", "LANG", "TMPDIR")


class HostSandboxAdapter(Adapter):
    """Workspaces as directories of this machine, their commands as its processes. Directories protect nothing."""

    def __init__(
        self,
        root_dir: str | os.PathLike[str],
        *,
        max_environments: int = 20,
        max_concurrent: int = 16,
        max_output_bytes: int = 512 * 1024,
        max_timeout_ms: int = 3_600_000,
        max_history_per_sandbox: int = 100,
        max_file_bytes: int = 4 * 1024 * 1024,
        env: Mapping[str, str] | None = None,
        shell: str | None = None,
    ) -> None:
        """Raises SandboxError (`invalid_input`) for an option that cannot be. Nothing is started before `ready`.

        `root_dir`: the state directory of the station that holds the workspaces, for this alone. `max_concurrent`,
        `max_history_per_sandbox`: commands of one workspace. `max_output_bytes`: of each stream, what is kept of its
        beginning, and of its end. `max_file_bytes`: what one call reads or writes. `env`: of every command; HOME, LANG
        and TMPDIR are the workspace's. `shell`: a program; `None`: bash where present, else sh.
        """
        bounds = Bounds(
            max_environments,
            max_concurrent,
            max_output_bytes=max_output_bytes,
            max_timeout_ms=max_timeout_ms,
            max_history_per_sandbox=max_history_per_sandbox,
            max_file_bytes=max_file_bytes,
        )
        given = environment(env, identifiers=False)
        super().__init__(
            Plan(
                name="host-process",
                root=place(root_dir),
                backend="host",
                bounds=bounds,
                where={"backend": "host"},
                settings={"allow_host": True},
                env={key: value for key, value in given.items() if key not in _FIXED},
                shell=None if shell is None else shell_argv(text("shell", shell, forbidden="\0")),
                isolated=False,
            )
        )
