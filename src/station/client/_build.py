"""From the arguments of the SDK to the requests of the wire, and back. Pure but for reading the clock for ids."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict
from urllib.parse import quote_from_bytes

from station.core.codec import from_plain, to_plain
from station.core.errors import InternalError, InvalidInput, ProcessNotFound, SandboxNotFound
from station.core.ids import check_name, is_process_id, is_tool_id, is_uid, new_id, uid_of
from station.core.paths import decode_name, encode_name
from station.core.records import Owner
from station.core.spec import Limits, Mount
from station.core.suggest import suggestion
from station.core.wire import API, Content, ExecRequest, FileEntry, OpenRequest, RunRequest
from station.core.wire import RunResult as WireRunResult

from .results import RunResult

Command = str | Sequence[str]
Data = str | bytes | bytearray | memoryview
LimitsLike = Limits | Mapping[str, float] | None
MountLike = Mount | str | os.PathLike[str] | None


class Isolated(TypedDict):
    """Where code is to run: what `run`, `map` and `Sandbox.open` have in common."""

    backend: NotRequired[str | None]
    image: NotRequired[str | None]
    network: NotRequired[str | None]
    limits: NotRequired[LimitsLike]
    best_effort: NotRequired[bool]
    mount: NotRequired[MountLike]


class Program(TypedDict):
    """How code is to run: what a snippet and the call that it is of have in common."""

    runtime: NotRequired[str]
    args: NotRequired[Sequence[str]]
    env: NotRequired[Mapping[str, str]]
    stdin: NotRequired[Data | None]
    files: NotRequired[Mapping[str, Data]]
    artifacts: NotRequired[Sequence[str]]
    timeout_seconds: NotRequired[float | None]
    output_limit_bytes: NotRequired[int | None]
    output_kept_bytes: NotRequired[int | None]


class Snippet(Program):
    """A snippet of `map` with settings of its own, which go before those of the call."""

    code: str


SNIPPET_KEYS = frozenset({"code", *Program.__annotations__, *Isolated.__annotations__})


class RunOptions(Isolated, Program):
    """What `map` and `imap` take beside the snippets; as for `run`."""

    end_when_left: NotRequired[bool]


@dataclass(frozen=True)
class Call:
    """One HTTP request, ready to be sent once or again."""

    method: str
    path: str
    body: Any = None
    """A dataclass of the wire, sent as JSON; `None`: no JSON body."""
    content: Any = None
    """A raw body: bytes, or an iterable of bytes that can be sent once only."""
    headers: Mapping[str, str] = field(default_factory=dict)
    replay: bool = False
    """Whether sending it twice does what sending it once does."""
    read_seconds: float = 60.0
    """How long the station may keep silent before the connection counts as broken."""

    @property
    def raw(self) -> Any:
        """Raises InvalidInput for text that is no Unicode (names with surrogate escapes): JSON cannot carry it."""
        if self.body is None:
            return self.content
        try:
            return json.dumps(to_plain(self.body), ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"{error.object[error.start : error.end]!a} stands for bytes that are no UTF-8; paths of files alone "
                "may hold such, commands and variables not"
            ) from None


def to_bytes(data: Data, field: str = "data") -> bytes:
    """Text as UTF-8. Raises InvalidInput for anything else: of a number, `bytes` would make so many NULs."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise InvalidInput(f"{field} must be text or bytes, not {type(data).__name__}", field=field)


def content(data: Data | None) -> Content | None:
    return None if data is None else Content.of(to_bytes(data, "stdin"))


def limits(given: LimitsLike) -> Limits:
    """Raises InvalidInput for a limit that does not exist or is not above zero."""
    if given is None or isinstance(given, Limits):
        return given or Limits()
    unknown = sorted(set(given) - set(Limits.__dataclass_fields__))
    if unknown:
        hint = suggestion(unknown[0], Limits.__dataclass_fields__)
        raise InvalidInput(f"there is no limit {unknown[0]!r}{hint}", field="limits")
    return Limits(**given)  # type: ignore[arg-type] # checked by the station, which knows each kind


def mount(given: MountLike) -> Mount | None:
    """`DIR` or `DIR:ro`, made absolute."""
    if given is None or isinstance(given, Mount):
        return given
    text = os.fspath(given)
    source, read_only = (text[:-3], True) if text.endswith(":ro") else (text.removesuffix(":rw"), False)
    return Mount(os.fspath(Path(source).expanduser().absolute()), read_only=read_only)


def process_id() -> str:
    return new_id("prc", time.time())


def run_request(code: str, options: Mapping[str, Any]) -> RunRequest:
    """`options` are the keywords of `run`; those that are `None` are left to the station."""
    if not isinstance(code, str):
        raise InvalidInput(f"code must be text, not {type(code).__name__}", field="code")
    given = {key: value for key, value in options.items() if value is not None}
    given["limits"], given["mount"] = limits(given.get("limits")), mount(given.get("mount"))
    given["stdin"] = content(given.get("stdin"))
    given["files"] = {encode_name(os.fspath(n)): _file(n, d) for n, d in given.get("files", {}).items()}
    for key in ("args", "artifacts"):
        given[key] = _words(given.get(key, ()), key)
    given["env"] = dict(given.get("env", {}))
    unknown = sorted(set(given) - set(RunRequest.__dataclass_fields__))
    if unknown:
        raise TypeError(f"run() got an unexpected keyword argument {unknown[0]!r}")
    return RunRequest(code, id=process_id(), **given)


def _file(name: object, data: Data) -> Content:
    return Content.of(to_bytes(data, f"files: {name!r}"))


def snippet(given: object) -> dict[str, Any]:
    """A snippet of `map`: what it sets of its own. Raises InvalidInput for what is neither code nor such a dict."""
    if isinstance(given, str):
        return {"code": given}
    if not isinstance(given, Mapping):
        sentence = f"a snippet is code, or a dict with `code` and settings, not {type(given).__name__}"
        raise InvalidInput(sentence, field="snippets")
    unknown = sorted(str(key) for key in given if key not in SNIPPET_KEYS)
    if unknown:
        hint = suggestion(unknown[0], SNIPPET_KEYS)
        raise InvalidInput(f"a snippet has no setting {unknown[0]!r}{hint}", field="snippets")
    if "code" not in given:
        raise InvalidInput("a snippet needs its `code`", field="snippets")
    return dict(given)


def check_many(snippets: object, concurrency: int | None) -> int:
    """How many at once. Raises InvalidInput for one string, whose characters would be the snippets, and below 1."""
    if isinstance(snippets, str):
        raise InvalidInput("snippets is a list of strings; one alone is for run()", field="snippets")
    if concurrency is not None and concurrency < 1:
        raise InvalidInput(f"concurrency must be at least 1; it is {concurrency}", field="concurrency")
    return min(32, 2 * (os.cpu_count() or 1)) if concurrency is None else concurrency


def _words(given: Sequence[str], name: str) -> list[str]:
    # A string is a sequence of strings too: "ab" would become two arguments.
    if isinstance(given, str):
        raise InvalidInput(f"{name} is a list of strings, not one string", field=name)
    return [os.fspath(word) for word in given]


def open_request(
    name: str, where: Isolated, *, runtime: str | None, timeout_seconds: float | None, temporary: bool
) -> OpenRequest:
    """Raises InvalidInput for a name that cannot be, or a time limit out of bounds."""
    return OpenRequest(
        check_name(name),
        backend=where.get("backend"),
        image=where.get("image"),
        runtime=runtime,
        network=where.get("network"),
        limits=limits(where.get("limits")),
        best_effort=where.get("best_effort", False),
        mount=mount(where.get("mount")),
        timeout_seconds=timeout_seconds,
        temporary=temporary,
    )


def named(name: str, deployment: str = Owner.deployment) -> str:
    """The id of the sandbox of that name, as paths of the API have it. Raises InvalidInput for what is no name."""
    return uid_of(deployment, check_name(name))


def check_sandbox_id(given: str) -> str:
    """`given` itself. Raises SandboxNotFound for what no sandbox can have as its id: it is to stand in a path."""
    if not is_uid(given) and not is_tool_id(given):
        raise SandboxNotFound(f"there is no sandbox with the id {given[:80]!r}; `list` tells those there are")
    return given


def check_process_id(given: str) -> str:
    """`given` itself. Raises ProcessNotFound for what no process can have as its id: it is to stand in a path."""
    if not is_process_id(given):
        raise ProcessNotFound(f"there is no process {given[:80]!r} in this sandbox")
    return given


def exec_request(command: Command, *, stdin: Data | None, env: Mapping[str, str] | None, **rest: Any) -> ExecRequest:
    """A string is a line for the shell, a sequence an argv."""
    line = command if isinstance(command, str) else None
    argv = None if line is not None else [os.fspath(word) for word in command]
    return ExecRequest(line, argv, env=dict(env or {}), stdin=content(stdin), **rest)


def run_result(answer: Mapping[str, Any]) -> RunResult:
    """Raises InternalError where an artifact is not what its digest says."""
    wire = from_plain(WireRunResult, answer)
    artifacts = {}
    for artifact in wire.artifacts:
        name, data = decode_name(artifact.path), artifact.content.to_bytes()
        check_digest(name, hashlib.sha256(data).hexdigest(), artifact.sha256)
        artifacts[name] = data
    return RunResult.of(wire, artifacts)


def check_digest(name: str, ours: str, theirs: str) -> None:
    """Raises InternalError where the two ends of a transfer saw different bytes."""
    if ours != theirs:
        raise InternalError(
            f"{encode_name(name)} was altered on its way (SHA-256 {ours[:12]}… here, {theirs[:12]}… there); try again",
            retryable=True,
            path=encode_name(name),
        )


def entry(answer: Mapping[str, Any]) -> FileEntry:
    """With its names decoded, so that they can be given back to `files`."""
    coded = from_plain(FileEntry, dict(answer))
    target = None if coded.target is None else decode_name(coded.target)
    return replace(coded, path=decode_name(coded.path), target=target)


def url(*parts: str, **query: str | int | bool | None) -> str:
    """A path of the API; what is `None` in the query is left out, and names keep every byte."""
    pairs = [f"{key}={_coded(value)}" for key, value in query.items() if value is not None]
    return "/".join([API, *parts]) + ("?" + "&".join(pairs) if pairs else "")


def _coded(value: str | int | bool | None) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return quote_from_bytes(os.fsencode(text), safe="/")


def octal(mode: int | str | None) -> str | None:
    """`0o644` and `"644"` are the same."""
    return f"{mode:o}" if isinstance(mode, int) else mode
