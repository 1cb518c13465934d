"""What each tool answers, as structured content. A field whose default is `None` is left out where it is `None`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict

_DOCS = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True)
class Artifact:
    __pydantic_config__ = _DOCS

    path: str
    """Relative to /workspace."""
    size_bytes: int
    content_base64: str | None = None
    """Left out where there is no room for it in an answer."""


@dataclass(frozen=True)
class RunLimits:
    __pydantic_config__ = _DOCS

    timeout_seconds: float
    max_stdout_bytes: int
    """Of each output stream, what an answer shows."""


@dataclass(frozen=True)
class RunAnswer:
    """Of `sandbox_run`."""

    __pydantic_config__ = _DOCS

    ok: bool
    """Whether the program ended with exit code 0."""
    runtime: str
    exit_code: int | None
    """124: out of time. 128+n: ended by signal n. null: lost, there is none."""
    duration_ms: float
    stdout: str
    stderr: str
    timed_out: bool
    stdout_truncated: bool
    stderr_truncated: bool
    limits: RunLimits
    ending: str
    """In one word: exited, signalled, timed_out, cancelled, oom, output_limit or lost."""
    isolation: str
    """Where it really ran: backend, isolation grade, network, image."""
    artifacts: list[Artifact] = field(default_factory=list)
    artifacts_missing: list[str] = field(default_factory=list)
    """Names or patterns that matched nothing."""
    artifacts_left_out: int | None = None
    """How many more matched: an answer lists the first 200."""
    error: str | None = None
    """What went wrong, in a sentence; left out where `ok`."""
    hint: str | None = None
    """What may help."""


@dataclass(frozen=True)
class OpenAnswer:
    """Of `sandbox_open`."""

    __pydantic_config__ = _DOCS

    sandbox_id: str
    image: str
    """`host:/usr`: the programs of the machine that Station runs on, read-only."""
    workdir: str
    created: bool
    """False: it was there, with its files."""
    network: str
    """What it can reach: `none`, `unrestricted`, or `asserted by operator`."""
    isolation: str
    """Where it really runs: backend, isolation grade, network, image."""
    timeout_seconds: float
    """Of commands that name none."""
    removed_after_idle_seconds: int | None = None
    """Left unused for so long it is removed with its files; left out: kept until it is closed."""


@dataclass(frozen=True)
class ExecAnswer:
    """Of `sandbox_exec`."""

    __pydantic_config__ = _DOCS

    exit_code: int | None
    """124: out of time. 128+n: ended by signal n. 126, 127: the program cannot run, is not there. null: lost."""
    stdout: str
    stderr: str
    duration_ms: float
    timed_out: bool
    truncated: bool
    """Whether one of the streams was longer; the rest: sandbox_output with `process_id` and an offset."""
    stdout_truncated: bool
    stderr_truncated: bool
    stdout_bytes: int
    """All that it wrote."""
    stderr_bytes: int
    sandbox_id: str
    process_id: str
    ending: str
    """In one word: exited, signalled, timed_out, cancelled, oom, output_limit or lost."""
    stdout_next: int | None = None
    """Where it was longer: give it to sandbox_output as `stdout_offset` to go on."""
    stderr_next: int | None = None
    """The same of standard error."""
    ended_children: int | None = None
    """Programs that were still running when the command ended, and were ended with it."""
    hint: str | None = None
    """What may help."""


@dataclass(frozen=True)
class StartAnswer:
    """Of `sandbox_start`."""

    __pydantic_config__ = _DOCS

    process_id: str
    sandbox_id: str


@dataclass(frozen=True)
class OutputAnswer:
    """Of `sandbox_output`."""

    __pydantic_config__ = _DOCS

    process_id: str
    sandbox_id: str
    running: bool
    stdout: str
    stderr: str
    encoding: Literal["utf-8", "base64"]
    """Of `stdout` and `stderr`."""
    stdout_next: int
    """Give it as `stdout_offset` to go on."""
    stderr_next: int
    more: bool
    """Whether there is more to read now, or may be later."""
    exit_code: int | None = None
    """Left out while it runs."""
    ending: str | None = None
    stdout_lost_bytes: int | None = None
    """Bytes after `stdout_offset` that are no longer kept."""
    stderr_lost_bytes: int | None = None


@dataclass(frozen=True)
class KillAnswer:
    """Of `sandbox_kill`."""

    __pydantic_config__ = _DOCS

    ok: bool
    process_id: str
    running: bool
    """Whether it still runs: a signal may be handled."""
    exit_code: int | None = None
    already_ended: bool | None = None


@dataclass(frozen=True)
class WriteAnswer:
    """Of `sandbox_fs_write`."""

    __pydantic_config__ = _DOCS

    ok: bool
    path: str
    """As given."""
    size_bytes: int
    created: bool
    """False: it replaced a file."""
    sandbox_id: str


@dataclass(frozen=True)
class ReadAnswer:
    """Of `sandbox_fs_read`."""

    __pydantic_config__ = _DOCS

    path: str
    """As given."""
    encoding: Literal["utf-8", "base64"]
    truncated: bool
    """Whether the file goes on after this."""
    size_bytes: int
    """Of what is here."""
    total_size_bytes: int
    sandbox_id: str
    contents: str | None = None
    """Exactly the bytes, where `encoding` is utf-8."""
    content: str | None = None
    """The same as `contents`."""
    contents_b64: str | None = None
    """Exactly the bytes, where `encoding` is base64."""
    next_offset: int | None = None
    """Give it as `offset` to go on; left out at the end of the file."""


@dataclass(frozen=True)
class Entry:
    __pydantic_config__ = _DOCS

    path: str
    """Relative to /workspace, or absolute where it is not below it."""
    type: Literal["file", "dir", "symlink", "other"]
    size: int
    mode: str
    mtime_unix: float


@dataclass(frozen=True)
class ListAnswer:
    """Of `sandbox_fs_list`."""

    __pydantic_config__ = _DOCS

    entries: list[Entry]
    truncated: bool
    sandbox_id: str
    next_cursor: str | None = None
    """Give it as `cursor` to go on."""


@dataclass(frozen=True)
class DeleteAnswer:
    """Of `sandbox_fs_delete`."""

    __pydantic_config__ = _DOCS

    ok: bool
    deleted: str
    """As given."""
    sandbox_id: str
    removed: int
    """How many names went; 0: there was none."""


@dataclass(frozen=True)
class StageAnswer:
    """Of `sandbox_stage_file`."""

    __pydantic_config__ = _DOCS

    ok: bool
    path: str
    """As given."""
    size_bytes: int
    checksum: str
    """SHA-256, hex."""
    sandbox_id: str


@dataclass(frozen=True)
class PublishAnswer:
    """Of `sandbox_publish_file`."""

    __pydantic_config__ = _DOCS

    ok: bool
    file_key: str
    """For sandbox_stage_file, `stn files download`, or whoever is to have the file."""
    size_bytes: int
    checksum: str
    """SHA-256, hex."""
    content_type: str
    """By the end of its name."""
    sandbox_id: str
    expires_at: float | None = None
    """When it goes by itself, in seconds since the epoch. Left out: it stays."""


@dataclass(frozen=True)
class CloseAnswer:
    """Of `sandbox_close`."""

    __pydantic_config__ = _DOCS

    ok: bool
    already_closed: bool
    """There was no such sandbox any more."""
