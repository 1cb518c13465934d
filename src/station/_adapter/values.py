"""What the adapters answer with. Times are seconds since the epoch."""

from __future__ import annotations

import base64
import builtins
import codecs
from dataclasses import dataclass

from station.core.paths import WORKSPACE
from station.core.wire import FileEntry as WireEntry
from station.core.wire import ProcessView, StreamView


@dataclass(frozen=True)
class Capabilities:
    """What an adapter can do."""

    filesystem: bool
    commands: bool
    files: bool
    services: bool
    """Not yet."""
    pty: bool
    """Terminals: not yet."""
    isolated: bool
    """Whether code is kept from the machine at all."""
    network_restricted: bool | None
    """True: no network, or one that the operator says is restricted. `None`: the machine's own, as on `host`."""


@dataclass(frozen=True)
class Sandbox:
    """A workspace."""

    id: str
    created_at: float
    backend: str
    """The name of the adapter."""


@dataclass(frozen=True)
class CommandRun:
    """A command. Only `finished_at` says that it is over, its children and their clean-up included."""

    id: str
    sandbox_id: str
    status: str
    """running, completed, failed, cancelled, timed_out or interrupted."""
    stdout: str
    """The beginning of it, at most `max_output_bytes`; bytes that are no UTF-8 read U+FFFD."""
    stderr: str
    truncated: bool
    """Whether `stdout` or `stderr` is the beginning alone of what was written."""
    exit_code: int | None
    """Of one that is completed or failed: the program's own, 128+n where signal n ended it (137 too where it had no
    memory left). `None` of all others: they came to no code of their own."""
    started_at: float
    finished_at: float | None
    """`None`: it is not over."""
    reason: str | None = None
    """One sentence: which program was not found, why it was lost. `None` where the status says it all."""
    stdout_tail: str = ""
    """Of a longer stream, the end of it, at most `max_output_bytes`; it does not overlap `stdout`."""
    stderr_tail: str = ""
    stdout_bytes: int = 0
    """All that was written."""
    stderr_bytes: int = 0


@dataclass(frozen=True)
class FileEntry:
    """One name in a workspace."""

    name: str
    path: str
    """Relative to the workspace, whose root is `.`; absolute outside of it."""
    type: str
    """file, directory or symlink; other for a pipe, socket or device."""
    size: int
    modified_at: float


@dataclass(frozen=True)
class FileList:
    """Names of one folder, sorted."""

    entries: tuple[FileEntry, ...]
    next_offset: int | None
    """Where the next page begins; `None`: that was all."""


@dataclass(frozen=True)
class FileContent:
    """A piece of a file."""

    path: str
    base64: str
    bytes: int
    """How many these are."""
    total_bytes: int
    """Of the file."""
    next_offset: int
    """Right after them; equal to `total_bytes` at the end."""

    @property
    def data(self) -> builtins.bytes:
        return base64.b64decode(self.base64)


def run_of(view: ProcessView, sandbox_id: str, *, most: int) -> CommandRun:
    """`most`: bytes of each stream, once from its beginning and once from its end."""
    ended = view.state == "ended"
    out, err = _Shown(view.stdout, most, whole=ended), _Shown(view.stderr, most, whole=ended)
    return CommandRun(
        id=view.id,
        sandbox_id=sandbox_id,
        status=view.status,
        stdout=out.head,
        stderr=err.head,
        truncated=out.cut or err.cut,
        exit_code=view.exit_code if view.status in ("completed", "failed") else None,
        started_at=view.started_at,
        finished_at=view.ended_at if ended else None,
        reason=view.ending.reason if view.ending else None,
        stdout_tail=out.tail,
        stderr_tail=err.tail,
        stdout_bytes=out.total,
        stderr_bytes=err.total,
    )


class _Shown:
    """One stream as text."""

    def __init__(self, view: StreamView | None, most: int, *, whole: bool) -> None:
        """`whole`: nothing more will come."""
        head = view.head.to_bytes() if view else b""
        rest = view.tail.to_bytes() if view and view.tail else b""
        self.total = view.total_bytes if view else 0
        self.cut = self.total > most
        if view is not None and not view.omitted_bytes:
            head, rest = head[:most], head[most:]
        tail = rest[-most:]
        # What is cut inside of a character has no end that will come; what still runs may finish it yet.
        self.head = _decoded(head[:most], final=whole and not self.cut)
        self.tail = _decoded(_from_a_character_on(tail), final=whole)


def _decoded(data: bytes, *, final: bool) -> str:
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)


def _from_a_character_on(data: bytes) -> bytes:
    """Without the rest of a character whose beginning is not here: at most three bytes."""
    start = next((index for index, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), None)
    if start is None:
        return b"" if len(data) < 4 else data
    return data[start:]


def entry_of(found: WireEntry) -> FileEntry:
    path = found.path
    if path == WORKSPACE:
        path = "."
    elif path.startswith(f"{WORKSPACE}/"):
        path = path[len(WORKSPACE) + 1 :]
    kind = "directory" if found.type == "dir" else found.type
    return FileEntry(path.rpartition("/")[2], path, kind, found.size, found.mtime)
