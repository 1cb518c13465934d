"""What travels between a station and its clients: one schema, used by both ends.

The server validates these with pydantic (unknown keys are refused), the SDK fills and reads them as plain dataclasses.
Files travel as raw bodies and their paths in the query, percent-coded (`core.paths`).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Literal

from .audit import Check
from .capabilities import Capabilities, Grade, Isolation
from .endings import Ending
from .errors import InvalidInput
from .paths import WORKSPACE
from .records import Usage
from .spec import FORBID_EXTRA, RUNTIMES, Limits, Mount, check_network
from .states import PublicState
from .tenancy import MINIMUM, Missing

API = "/api/v1"
DIGEST_BYTES = 32
"""Of the SHA-256 that follows the bytes of a transfer."""
SOCKET, LOCK, LOG = "station.sock", "station.lock", "station.log"
"""Names in the state directory that both ends know. The lock is held, and has the pid, for a station's whole life."""
MAX_STRING_BYTES = 128 * 1024
DEFAULT_KEPT_BYTES, MAX_KEPT_BYTES = 1024 * 1024, 16 * 1024 * 1024
"""Of each output stream of a run: half of it is its head, half its tail."""
DEFAULT_SHOWN_BYTES = 200_000
"""Of each output stream, what the agent's tools show (`sandbox.max_stdout_bytes`)."""
MIN_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS, DEFAULT_TIMEOUT_SECONDS = 1.0, 3600.0, 120.0


def check_timeout(seconds: float | None) -> None:
    """Raises InvalidInput unless `None` or within 1..3600."""
    if seconds is not None and not MIN_TIMEOUT_SECONDS <= seconds <= MAX_TIMEOUT_SECONDS:
        raise InvalidInput(
            f"timeout_seconds must be between {MIN_TIMEOUT_SECONDS:g} and {MAX_TIMEOUT_SECONDS:g}; it is {seconds:g}",
            field="timeout_seconds",
        )


def check_env(env: dict[str, str]) -> None:
    """Raises InvalidInput for a name or value that no environment can hold, or that is over 128 KiB."""
    for key, value in env.items():
        if not key or "=" in key or "\0" in key or "\n" in key:
            raise InvalidInput("a variable name must not be empty or contain '=', newline or NUL", field="env")
        if "\0" in value:
            raise InvalidInput(f"the value of {key} contains NUL", field="env")
        if is_too_long(f"{key}={value}"):
            raise InvalidInput(f"the value of {key} is over 128 KiB, the kernel's bound; use a file", field="env")


def is_too_long(text: str) -> bool:
    """Whether the kernel takes it neither as an argument nor as a variable (MAX_ARG_STRLEN, its NUL included)."""
    # Characters first: it spares the encoding in all but absurd cases.
    return len(text) * 4 >= MAX_STRING_BYTES and len(text.encode(errors="replace")) >= MAX_STRING_BYTES


@dataclass(frozen=True)
class Content:
    """Bytes in JSON: as text where they are UTF-8, else base64."""

    __pydantic_config__ = FORBID_EXTRA

    data: str
    encoding: Literal["utf-8", "base64"] = "utf-8"

    @classmethod
    def of(cls, raw: bytes) -> Content:
        try:
            return cls(raw.decode())
        except UnicodeDecodeError:
            return cls(base64.b64encode(raw).decode(), "base64")

    def to_bytes(self) -> bytes:
        """Raises InvalidInput where base64 is damaged."""
        if self.encoding == "utf-8":
            return self.data.encode("utf-8", "surrogatepass")
        try:
            return base64.b64decode(self.data, validate=True)
        except ValueError as error:
            raise InvalidInput("the content is not valid base64", field="data") from error


@dataclass(frozen=True)
class StreamView:
    """One output stream: all of it, or its head and tail with exact offsets."""

    head: Content
    total_bytes: int
    omitted_bytes: int = 0
    """Bytes between head and tail that are not here; 0: `head` is all."""
    tail: Content | None = None

    def to_bytes(self) -> bytes:
        return self.head.to_bytes() + (self.tail.to_bytes() if self.tail else b"")


@dataclass(frozen=True)
class OpenRequest:
    """POST /sandboxes: get or create by name. An existing one is returned, or 409 where a named field differs."""

    __pydantic_config__ = FORBID_EXTRA

    name: str = "default"
    backend: str | None = None
    image: str | None = None
    runtime: str | None = None
    network: str | None = None
    limits: Limits = field(default_factory=Limits)
    best_effort: bool = False
    mount: Mount | None = None
    timeout_seconds: float | None = None
    """Of its commands that name none; `None`: the station's `sandbox.timeout_seconds`."""
    temporary: bool = False
    """Of a new one: removed with its files after `sandbox.idle_timeout_minutes` without use. An existing one stays what
    it is."""

    def __post_init__(self) -> None:
        check_timeout(self.timeout_seconds)
        check_network(self.network)


@dataclass(frozen=True)
class SandboxView:
    """What the API says of a sandbox."""

    id: str
    """The wire uid, the same for every life of the name; paths of the API use it, or `tool_id`."""
    name: str
    state: PublicState
    generation: int
    workdir: str
    isolation: Isolation
    created_at: float
    last_active_at: float
    created: bool = False
    """True in the answer to the open that made it."""
    reason: str | None = None
    mount: Mount | None = None
    processes: int = 0
    """Running ones."""
    tool_id: str = ""
    """`ses_` and a ULID: this life of the name. After a delete and a new open it is another, and the old one is not
    found."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Of its commands that name none."""
    remove_at: float | None = None
    """When it will be removed with its files unless it is used before; `None`: kept until somebody deletes it."""
    changed: str | None = None
    """Which of the operator's choices, network or seccomp profile, is otherwise now than when it was made; its next box
    is made with that of now. `None`: none."""
    deployment: str | None = None
    """The name of the deployment that owns it; `None`: it is the operator's."""


@dataclass(frozen=True)
class ExecRequest:
    """POST /sandboxes/{id}/exec (start and wait) and /processes (start). Exactly one of command and argv."""

    __pydantic_config__ = FORBID_EXTRA

    command: str | None = None
    """A line for the shell (bash, else sh; no start-up files)."""
    argv: list[str] | None = None
    cwd: str = WORKSPACE
    env: dict[str, str] = field(default_factory=dict)
    stdin: Content | None = None
    """`None`: /dev/null. Given: these bytes, then end of file."""
    stdin_open: bool = False
    """Keep stdin open for later writes (processes only)."""
    timeout_seconds: float | None = None
    """`None`: the sandbox's for exec, none for a started process."""
    output_limit_bytes: int | None = None
    """End with output_limit after that many bytes of both streams; `None`: none."""
    id: str | None = None
    """A `prc_` id of the caller's choice: sent again, it joins the process instead of starting a second."""
    end_when_left: bool = False
    """Once nobody has waited for its end or followed its output for 10 s, it is cancelled; to join it in time keeps it.
    Else it needs nobody."""

    def __post_init__(self) -> None:
        check_timeout(self.timeout_seconds)
        check_env(self.env)
        if (self.command is None) == (self.argv is None):
            raise InvalidInput("give either command (a shell line) or argv (a list)", field="command")
        if self.argv is not None and (not self.argv or not self.argv[0]):
            raise InvalidInput("argv needs a program", field="argv")
        if any("\0" in part for part in [self.command or "", self.cwd, *(self.argv or [])]):
            raise InvalidInput("a command must not contain NUL", field="command")
        if self.output_limit_bytes is not None and self.output_limit_bytes <= 0:
            raise InvalidInput("output_limit_bytes must be above zero", field="output_limit_bytes")
        if self.stdin is not None and self.stdin_open:
            raise InvalidInput("give stdin or stdin_open, not both", field="stdin")


@dataclass(frozen=True)
class ProcessView:
    """A process: how it was started, what is known of it, and (where asked for) its output."""

    id: str
    sandbox: str
    command: list[str]
    shell: bool
    cwd: str
    state: Literal["accepted", "running", "ended"]
    started_at: float
    pid: int | None = None
    ended_at: float | None = None
    ending: Ending | None = None
    exit_code: int | None = None
    """The view of `ending` that a shell would show; `None` while running and when lost."""
    status: str = "running"
    """In one word: running, completed, failed, timed_out, cancelled, interrupted."""
    timed_out: bool = False
    ended_children: int = 0
    usage: Usage | None = None
    stdout: StreamView | None = None
    stderr: StreamView | None = None


@dataclass(frozen=True)
class OutputEvent:
    """One line of GET .../processes/{pid}/output: NDJSON, offsets absolute in each stream.

    `data`: bytes from `offset` on. `gap`: bytes `offset`..`to` are gone. `end`: the process ended, nothing follows.
    `keepalive`: nothing happened for 10 s.
    """

    event: Literal["data", "gap", "end", "keepalive"]
    stream: Literal["stdout", "stderr"] | None = None
    offset: int = 0
    to: int = 0
    content: Content | None = None
    process: ProcessView | None = None


@dataclass(frozen=True)
class FileEntry:
    """One name. `path` is percent-coded and absolute inside the sandbox."""

    path: str
    type: Literal["file", "dir", "symlink", "other"]
    size: int
    mode: str
    """Octal permission bits: `644`."""
    mtime: float
    target: str | None = None
    """Of a link, percent-coded."""


@dataclass(frozen=True)
class FileList:
    entries: list[FileEntry]
    truncated: bool = False
    next: str | None = None
    """Give it as `after` to go on; `None`: that was all."""


@dataclass(frozen=True)
class FileWritten:
    entry: FileEntry
    created: bool
    sha256: str


@dataclass(frozen=True)
class Artifact:
    path: str
    """As named inside, relative to the workspace, percent-coded."""
    size_bytes: int
    sha256: str
    content: Content


@dataclass(frozen=True)
class RunRequest:
    """POST /runs: code in a fresh box, which is destroyed after it."""

    __pydantic_config__ = FORBID_EXTRA

    code: str
    runtime: str = "python"
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    stdin: Content | None = None
    files: dict[str, Content] = field(default_factory=dict)
    """By path (absolute, or relative to the workspace, percent-coded)."""
    artifacts: list[str] = field(default_factory=list)
    """Names or glob patterns, relative to the workspace; `**` crosses directories."""
    timeout_seconds: float | None = None
    """`None`: the station's `sandbox.timeout_seconds`."""
    backend: str | None = None
    image: str | None = None
    network: str | None = None
    limits: Limits = field(default_factory=Limits)
    best_effort: bool = False
    mount: Mount | None = None
    output_limit_bytes: int | None = None
    output_kept_bytes: int = DEFAULT_KEPT_BYTES
    """Of a longer stream the first and the last half of so many are in the result."""
    id: str | None = None
    """A `prc_` id of the caller's choice, as in ExecRequest: a retry joins."""
    end_when_left: bool = False
    """Once nobody has waited for its result for 10 s, it is cancelled, as in ExecRequest."""

    def __post_init__(self) -> None:
        check_timeout(self.timeout_seconds)
        check_env(self.env)
        check_network(self.network)
        if self.runtime not in RUNTIMES:
            raise InvalidInput(
                f"runtime {self.runtime!r} is not known; choose {', '.join(RUNTIMES)}",
                field="runtime",
                allowed=list(RUNTIMES),
            )
        if any("\0" in part for part in [*self.args, *self.artifacts]):
            raise InvalidInput("args and artifacts must not contain NUL", field="args")
        if not 1 <= self.output_kept_bytes <= MAX_KEPT_BYTES:
            raise InvalidInput(
                f"output_kept_bytes must be between 1 and {MAX_KEPT_BYTES}; it is {self.output_kept_bytes}; "
                "a file brought back with artifacts holds more, and an opened sandbox streams everything",
                field="output_kept_bytes",
            )


@dataclass(frozen=True)
class RunResult:
    ok: bool
    runtime: str
    ending: Ending
    exit_code: int | None
    timed_out: bool
    stdout: StreamView
    stderr: StreamView
    duration_ms: float
    """Of the program, without the making of the box."""
    isolation: Isolation
    warm: bool
    """Whether a pool box served it."""
    artifacts: list[Artifact] = field(default_factory=list)
    artifacts_missing: list[str] = field(default_factory=list)
    """Names or patterns that matched nothing."""
    ended_children: int = 0
    usage: Usage | None = None
    id: str | None = None


@dataclass(frozen=True)
class SignalRequest:
    """POST .../processes/{pid}/signal: to the whole tree. `cancel`: TERM, then KILL after 1 s; ends `cancelled`.

    To cancel an id that nothing was started under is no error: what is to start under it within the next minute ends
    `cancelled` at once, without having begun.
    """

    __pydantic_config__ = FORBID_EXTRA

    signal: int | str = "TERM"
    """A number, or a name with or without SIG."""
    cancel: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """GET /doctor: what holds on this machine, looked at now."""

    backends: list[Capabilities]
    checks: list[Check]
    """Of the host audit: of the machine, then of each engine."""
    serves_others: dict[str, list[Missing]]
    """By backend the required layers that are missing; none: it may run code of others."""
    refuses: bool = False
    """Whether this station serves others (`sandbox.serves_others`): then a backend with a missing layer is refused."""
    minimum_isolation: Grade = MINIMUM
    """The weakest grade that code of others may get."""


@dataclass(frozen=True)
class PullView:
    """An image on its way to the engine."""

    image: str
    layers: int
    """As many as are known yet."""
    layers_done: int
    done_bytes: int
    total_bytes: int
    """Of those layers whose size is known yet."""
    seconds: float
    """Since it began."""


@dataclass(frozen=True)
class StationView:
    """GET /station."""

    version: str
    pid: int
    home: str
    started_at: float
    default_backend: str | None
    sandboxes: int
    live_boxes: int
    pool_boxes: int
    running_processes: int
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Of commands and runs that name none."""
    max_stdout_bytes: int = DEFAULT_SHOWN_BYTES
    """Of each output stream, what the agent's tools show."""
    settings_sha256: str = ""
    """Of the `station.yaml` that it has read, another where variables of its environment go before what that
    says of sandboxes."""
    settings_changed: bool = False
    """Whether `station.yaml` or a `.env` is another now than the one that it goes by: they are read at the start
    alone."""
    pulls: tuple[PullView, ...] = ()
    """Those under way."""
    deployment: str | None = None
    """Of a caller who is a deployment, its name: then nothing is told of the machine, of the operator and of others.
    `None`: the caller is the operator."""
    api: int = 1
