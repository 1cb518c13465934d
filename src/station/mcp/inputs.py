"""What each tool takes. The schemas and descriptions that clients see are made from these classes.

`SPELLINGS` are other names that published descriptions of these tools use for a field; they are accepted, and not
listed, so that a model is shown one way to say a thing.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, MaxLen
from pydantic import ConfigDict, Field

from station.core.errors import InvalidInput
from station.core.spec import RUNTIMES
from station.core.wire import MAX_TIMEOUT_SECONDS, MIN_TIMEOUT_SECONDS

STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
READ_BYTES, MAX_READ_BYTES = 262_144, 16 * 1024 * 1024
MAX_WRITE_BYTES = 16 * 1024 * 1024
"""Of one file; what is larger comes by `stn cp`, or is made inside."""
MAX_WAIT_SECONDS = 60.0
PAGE = 1000

Seconds = Annotated[float, Ge(MIN_TIMEOUT_SECONDS), Le(MAX_TIMEOUT_SECONDS)]
# The kernel's bound; one that is longer is not even asked for.
Path = Annotated[str, MaxLen(4096)]
Spellings = dict[str, str]
SandboxId = Annotated[
    str | None, Field(description="From sandbox_open. Default: the default sandbox, opened when needed.")
]


@dataclass(frozen=True)
class RunInput:
    """`sandbox_run`"""

    __pydantic_config__ = STRICT
    SPELLINGS: ClassVar[Spellings] = {"timeout": "timeout_seconds"}

    code: str
    """The program, whole; it becomes main.py, main.js or main.sh in /workspace, which is the working directory."""
    runtime: Annotated[str | None, Field(json_schema_extra={"enum": list(RUNTIMES)})] = None
    """The language of `code`. Default: python."""
    args: list[str] = field(default_factory=list)
    """Arguments of the program."""
    stdin: str | None = None
    """What it reads on standard input."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables."""
    files: dict[str, str] = field(default_factory=dict)
    """Text files to put there before, by path relative to /workspace."""
    files_b64: dict[str, str] = field(default_factory=dict)
    """Binary files to put there before, base64, by path relative to /workspace."""
    artifacts: list[str] = field(default_factory=list)
    """Files to bring back afterwards: names or glob patterns relative to /workspace (`*.png`, `out/**`)."""
    timeout_seconds: Seconds | None = None
    """End the program after that long. Default: 120, unless the operator set another."""


@dataclass(frozen=True)
class OpenInput:
    """`sandbox_open`"""

    __pydantic_config__ = STRICT
    SPELLINGS: ClassVar[Spellings] = {"name": "session_key", "timeout": "timeout_seconds"}

    session_key: str | None = None
    """A name of your choice for it; the same name gives the same sandbox again. Default: `default`."""
    image: str | None = None
    """Root file system, where the operator's backend has images. Default: the operator's."""
    runtime: Annotated[str | None, Field(json_schema_extra={"enum": ["linux", *RUNTIMES]})] = None
    """What it must be able to run. Default: linux, whatever is installed."""
    timeout_seconds: Seconds | None = None
    """Time limit of its commands that name none."""


@dataclass(frozen=True)
class CommandInput:
    """What `sandbox_exec` and `sandbox_start` have in common."""

    __pydantic_config__ = STRICT
    SPELLINGS: ClassVar[Spellings] = {"cmd": "command", "workdir": "cwd", "timeout": "timeout_seconds"}

    # Not docstrings below them: pydantic looks for those in a class itself, not in its bases.
    command: Annotated[
        str | list[str],
        Field(
            description="A line for the shell (bash where there is one, else sh), or a program and its arguments as a "
            "list."
        ),
    ]
    sandbox_id: SandboxId = None
    cwd: Annotated[str, Field(description="Working directory; a relative one counts from /workspace.")] = "/workspace"
    env: Annotated[dict[str, str], Field(description="Environment variables, on top of the sandbox's.")] = field(
        default_factory=dict
    )
    stdin: Annotated[str | None, Field(description="What it reads on standard input. Default: nothing.")] = None


@dataclass(frozen=True)
class ExecInput(CommandInput):
    """`sandbox_exec`"""

    timeout_seconds: Seconds | None = None
    """End the command, with all that it started, after that long. Default: 120, unless sandbox_open or the operator set
    another. For what is to go on longer, use sandbox_start."""


@dataclass(frozen=True)
class StartInput(CommandInput):
    """`sandbox_start`"""

    timeout_seconds: Seconds | None = None
    """End it after that long. Default: no limit."""


@dataclass(frozen=True)
class OutputInput:
    """`sandbox_output`"""

    __pydantic_config__ = STRICT
    process_id: str
    """From sandbox_start or sandbox_exec."""
    sandbox_id: str | None = None
    """The sandbox it runs in. Default: the default sandbox."""
    stdout_offset: Annotated[int, Ge(0)] = 0
    """First byte wanted of standard output; `stdout_next` of the last answer goes on where that ended."""
    stderr_offset: Annotated[int, Ge(0)] = 0
    """First byte wanted of standard error."""
    wait_seconds: Annotated[float, Ge(0), Le(MAX_WAIT_SECONDS)] = 0.0
    """Wait up to that long for it to end or to fill the answer. Default: answer at once with what there is."""
    max_bytes: Annotated[int, Ge(1), Le(MAX_READ_BYTES)] | None = None
    """At most so much of each stream. Default: 200,000, unless the operator set another."""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """`base64` gives the exact bytes."""


@dataclass(frozen=True)
class KillInput:
    """`sandbox_kill`"""

    __pydantic_config__ = STRICT
    process_id: str
    """From sandbox_start or sandbox_exec."""
    sandbox_id: str | None = None
    """The sandbox it runs in. Default: the default sandbox."""
    signal: str | int | None = None
    """Signal by name or number, sent to it and all that it started. Default: TERM, then KILL a second later."""


@dataclass(frozen=True)
class WriteInput:
    """`sandbox_fs_write`"""

    __pydantic_config__ = STRICT
    SPELLINGS: ClassVar[Spellings] = {
        "contents": "content",
        "text": "content",
        "contents_b64": "content_b64",
        "content_base64": "content_b64",
    }

    path: Path
    """Relative to /workspace, or absolute below /workspace, /home/node or /tmp. Folders on the way are made."""
    content: str | None = None
    """The whole content, as text. Give either this or `content_b64`; an empty string makes an empty file."""
    content_b64: str | None = None
    """The whole content, base64."""
    encoding: Literal["utf-8", "base64"] | None = None
    """How `content` is written. Default: utf-8."""
    mode: str | None = None
    """Permission bits, octal. Default: 0644 for a new file; one that exists keeps its own."""
    overwrite: bool = True
    """Whether a file that exists may be replaced."""
    sandbox_id: SandboxId = None

    def to_bytes(self) -> bytes:
        """Raises InvalidInput unless there is exactly one content, and for damaged base64."""
        if (self.content is None) == (self.content_b64 is None):
            given = "neither" if self.content is None else "both"
            raise InvalidInput(
                f"give either content (text) or content_b64 (base64); there was {given}", field="content"
            )
        coded = self.content if self.encoding == "base64" else self.content_b64
        return (self.content or "").encode() if coded is None else from_base64(coded, "content_b64")


@dataclass(frozen=True)
class ReadInput:
    """`sandbox_fs_read`"""

    __pydantic_config__ = STRICT
    path: Path
    """Relative to /workspace, or absolute below /workspace, /home/node or /tmp."""
    max_bytes: Annotated[int, Ge(1), Le(MAX_READ_BYTES)] = READ_BYTES
    """At most so much; a character is never cut in two."""
    offset: Annotated[int, Ge(0)] = 0
    """First byte wanted; `next_offset` of the last answer goes on where that ended."""
    encoding: Literal["utf-8", "base64"] | None = None
    """Default: text where it is UTF-8, else base64."""
    sandbox_id: SandboxId = None


@dataclass(frozen=True)
class ListInput:
    """`sandbox_fs_list`"""

    __pydantic_config__ = STRICT
    path: Path = "."
    """The folder; relative to /workspace, or absolute below /workspace, /home/node or /tmp."""
    recursive: bool = False
    """With everything below it."""
    limit: Annotated[int, Ge(1), Le(PAGE)] = PAGE
    """At most so many entries."""
    cursor: Path | None = None
    """`next_cursor` of the last answer, to go on where that ended."""
    sandbox_id: SandboxId = None


@dataclass(frozen=True)
class DeleteInput:
    """`sandbox_fs_delete`"""

    __pydantic_config__ = STRICT
    path: Path
    """Relative to /workspace, or absolute below /workspace, /home/node or /tmp."""
    recursive: bool = False
    """Needed for a folder with anything in it."""
    sandbox_id: SandboxId = None


@dataclass(frozen=True)
class StageInput:
    """`sandbox_stage_file`"""

    __pydantic_config__ = STRICT
    file_key: str
    """Key of a file in the store, as files/f_…"""
    destination: Path
    """Where it goes: relative to /workspace, or absolute below /workspace, /home/node or /tmp."""
    sandbox_id: SandboxId = None


@dataclass(frozen=True)
class PublishInput:
    """`sandbox_publish_file`"""

    __pydantic_config__ = STRICT
    source: Path
    """The file: relative to /workspace, or absolute below /workspace, /home/node or /tmp."""
    file_key: str | None = None
    """Key to store it under. Default: files/ and a new id."""
    sandbox_id: SandboxId = None


@dataclass(frozen=True)
class CloseInput:
    """`sandbox_close`"""

    __pydantic_config__ = STRICT
    sandbox_id: str | None = None
    """From sandbox_open. Default: the default sandbox."""
    delete_workspace: bool = True
    """False: only its processes end; the files wait for the next sandbox_open of the same name."""


def from_base64(text: str, name: str) -> bytes:
    """Raises InvalidInput that names the field. Line breaks, as many a program puts in, are no damage."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise InvalidInput(f"{name} is not valid base64: {error}", field=name) from None
