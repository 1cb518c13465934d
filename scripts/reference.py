"""docs/api.md from the description of the API, docs/errors.md from the classes of errors, and docs/limits.md from the
program's own constants and settings."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le

from station.core import access, errors, identity, ids, paths, spec, stored, wire
from station.server import requests, settings
from station.server.access import keys as access_keys
from station.server.access import visits
from station.server.api import operations, parameters, query
from station.server.api.openapi import describe
from station.server.net import bodies, http
from station.store import answers, uploads
from station.worker import artifacts, callers, commands, journal, processes, runs

SOURCES = Path(__file__).resolve().parent.parent / "docs_src"
NOTE = "<!-- Written by scripts/pages.py from {}: change those. -->"

# ── docs/api.md ─────────────────────────────────────────────────────────────────────────────────────────────────────


def api() -> str:
    found = describe(operations.OPERATIONS)
    title, _, rest = (SOURCES / "api.md").read_text(encoding="utf-8").partition("\n")
    note = NOTE.format("docs_src/api.md, src/station/server/operations*.py and src/station/core/wire.py")
    parts = [title, "", note, rest.rstrip(), "", "## Operations", ""]
    for path, methods in found["paths"].items():
        for method, one in methods.items():
            parts += [*_operation(method.upper(), path, one), ""]
    parts += ["## Objects", "", "A field without a default must be given; in answers every field stands.", ""]
    for name, schema in found["components"]["schemas"].items():
        parts += [*_schema(name, schema), ""]
    return "\n".join(parts).rstrip() + "\n"


def _operation(method: str, path: str, one: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {method} {path}"
    yield ""
    yield f"{one['summary']} (`{one['operationId']}`)"
    yield ""
    places = {"path": "", "query": "?", "header": "header "}
    for parameter in one["parameters"]:
        schema = parameter["schema"]
        default = f", default `{schema['default']}`" if schema.get("default") is not None else ""
        needed = ", required" if parameter.get("required") and parameter["in"] == "query" else ""
        yield f"- `{places[parameter['in']]}{parameter['name']}` ({_type(schema)}{default}{needed}): " + (
            parameter["description"] or "as its answer names it."
        )
    if body := one.get("requestBody"):
        ((media, content),) = body["content"].items()
        yield f"- body: {_content(media, content)}"
    codes = []
    for status, answer in one["responses"].items():
        if status < "400":
            contents = [_content(media, content) for media, content in answer.get("content", {}).items()]
            yield f"- **{status}** {', '.join(contents) or 'without a body'}"
        else:
            codes.append(f"{status} {answer['description']}")
    yield f"- errors: {' · '.join(codes)}"


def _content(media: str, content: Mapping[str, Any]) -> str:
    schema = content["schema"]
    if "x-line" in content:
        return f"{_type(content['x-line'])}, one a line (`{media}`)"
    if media == "application/json":
        return _type(schema)
    fields = f" with {', '.join(f'`{name}`' for name in schema['properties'])}" if "properties" in schema else ""
    return f"`{media}`{fields}"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    match schema.get("type"):
        case "array":
            return f"list of {_type(schema.get('items', {}))}"
        case "object" if "properties" in schema:
            inner = ", ".join(f"`{name}`: {_type(one)}" for name, one in schema["properties"].items())
            return f"{{{inner}}}"
        case "object" if "additionalProperties" in schema and schema["additionalProperties"] is not False:
            return f"object of {_type(schema['additionalProperties'])}"
        case None:
            return "any"
        case other:
            return str(other)


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    if words := schema.get("description"):
        yield " ".join(words.split())
        yield ""
    if "properties" not in schema:
        yield _type(schema)
        return
    for field, one in schema["properties"].items():
        default = f", default `{one['default']}`" if one.get("default") not in (None, "", [], {}) else ""
        words = f": {one['description']}" if "description" in one else ""
        yield f"- `{field}` ({_type(one)}{default}){words}"


# ── docs/errors.md ──────────────────────────────────────────────────────────────────────────────────────────────────

WHAT_TO_DO: Mapping[type[errors.StationError], str] = {
    errors.InvalidInput: "Change what `detail.field` names; `detail.errors` has all that was amiss.",
    errors.PathRefused: "Name a place below the workspace, the home or /tmp.",
    errors.MethodNotAllowed: "Use a method that the header `Allow` names.",
    errors.TooLarge: "Send less at once: large files go in pieces ([files.md](files.md)), or as an archive.",
    errors.UnsupportedMedia: "Send JSON as `application/json`, and a file in a form as `multipart/form-data`.",
    errors.Unauthenticated: "Show a token that holds ([access.md](access.md)).",
    errors.Refused: "Nothing, unless the operator changes the setting that the sentence names.",
    errors.NotFound: "Look at what there is: it has gone, never was, or is another's.",
    errors.SandboxNotFound: "Open it; an id of a life that is over stays unknown.",
    errors.ProcessNotFound: "List the processes: old ones are forgotten ([limits.md](limits.md)).",
    errors.FileNotFound: "List the directory, or the store.",
    errors.Conflict: "Read the sentence: the state of the thing has to change first.",
    errors.AlreadyExists: "Choose another name, or ask for it to be replaced.",
    errors.Busy: "Ask again later.",
    errors.SandboxFailed: "Delete it; its record is damaged, or its deletion failed for the reason in the sentence.",
    errors.NotARegularFile: "Name a file.",
    errors.Misdirected: "Use the address that `listening.json` has, or name the host in the setting `hosts`.",
    errors.CannotEnforce: "Leave the limit out, accept what can be kept (`best_effort`), or choose another backend.",
    errors.LimitReached: "Wait as long as `Retry-After` says, or end something; `detail.limit` is the bound.",
    errors.StorageFull: "Make room, or raise the limit that the sentence names; works again at once.",
    errors.Unavailable: "Ask again where `retryable` is true; else the sentence says what is missing.",
    errors.BackendUnavailable: "Do what `detail.remedy` says, or choose another backend (`stn doctor`).",
    errors.StationUnreachable: "Start one (`stn serve`), or look into `station.log`. Told by the SDK alone.",
    errors.BoxLost: "Ask again: the next use makes a new box, and the files are kept.",
    errors.InternalError: "Report it with the lines of `station.log`; it is a fault of Station.",
}
ERRORS = """\
# Errors

{note}

Every failure has one form, in HTTP, `--json` of the command line and the SDK, whose exceptions have these names:

```json
{{"error": "Busy", "code": "busy", "message": "…", "retryable": true, "detail": {{}}}}
```

Programs decide by `code` and `retryable`, people by `message`. `retryable` says whether the same request may succeed
later without any change; where a class has another word for it in a case, that one counts. An answer with 429 or 503
carries `Retry-After` where it is retryable. A failure of Station never looks like the end of a program: that is a
[ProcessView](api.md#processview) or a [RunResult](api.md#runresult), with an `ending`.

| code | HTTP | class | retryable | when | what to do |
|---|---|---|---|---|---|
"""


def errors_page() -> str:
    rows = [
        f"| `{kind.code}` | {kind.status} | `{kind.__name__}` | {'yes' if kind.retryable else 'no'} | "
        f"{' '.join((kind.__doc__ or '').split())} | {WHAT_TO_DO[kind]} |"
        for kind in _kinds(errors.StationError)
    ]
    return (
        ERRORS.format(note=NOTE.format("src/station/core/errors.py and scripts/reference.py")) + "\n".join(rows) + "\n"
    )


def _kinds(root: type[errors.StationError]) -> Iterator[type[errors.StationError]]:
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield kind
            yield from _kinds(kind)


# ── docs/limits.md ──────────────────────────────────────────────────────────────────────────────────────────────────


def _bytes(count: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count / size:g} {unit}"
    return f"{count:,.0f} bytes"


def _seconds(count: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if count >= 2 * size and count % size == 0:
            return f"{count / size:g} {unit}"
    return f"{count:g} s"


_DEFAULTS = spec.DEFAULT_LIMITS
_TIMEOUT = f"{wire.MIN_TIMEOUT_SECONDS:g} to {wire.MAX_TIMEOUT_SECONDS:g} s"
_RESULTS = f"{_seconds(runs.KEPT_SECONDS)}, the last {runs.KEPT_RESULTS}"
_LISTED = f"{parameters.LIST_LIMIT.default:,}, up to {parameters.LIST_LIMIT.schema['maximum']:,}"
_HEAD = f"{_bytes(http.MAX_HEAD_BYTES)}, {http.MAX_HEADERS} lines, {_seconds(http.HEAD_SECONDS)}"
FIXED: Mapping[str, list[tuple[str, str]]] = {
    "Commands": [
        ("timeout of a command or a run, as a caller may name it", _TIMEOUT),
        ("from TERM to KILL at a timeout or a cancellation", _seconds(commands.GRACE_SECONDS)),
        ("one argument, or one variable with its name", _bytes(wire.MAX_STRING_BYTES)),
        ("kept of each output stream of a run, as a caller may name it", f"up to {_bytes(wire.MAX_KEPT_BYTES)}"),
        ("a command that is to end when nobody waits for it", f"ends after {_seconds(callers.LEFT_SECONDS)}"),
        ("ended commands are kept", _seconds(journal.KEPT_SECONDS)),
        ("ids of forgotten commands that are known to be used up, a sandbox", f"{journal.KEPT_IDS:,}"),
        ("a word about a process that is followed and says nothing", f"every {_seconds(processes.KEEPALIVE_SECONDS)}"),
        ("one wait for the end of a process", f"up to {_seconds(parameters.MAX_WAIT_SECONDS)}"),
        ("files that a run brings along", f"{runs.MAX_FILES:,}"),
        ("artifacts of a run: one, all", f"{_bytes(artifacts.FILE_BYTES)}, {_bytes(artifacts.TOTAL_BYTES)}"),
        ("a result is there for a caller who comes again", _RESULTS),
    ],
    "Sandboxes, unless a limit is named": [
        ("memory, which is swap too", f"{_DEFAULTS.memory_mb} MiB"),
        ("cpus", f"{_DEFAULTS.cpus:g}"),
        ("processes and threads", f"{_DEFAULTS.pids}"),
        ("open files of a process", f"{_DEFAULTS.open_files}"),
        ("workspace, /tmp, /dev/shm", f"{_DEFAULTS.workspace_mb}, {_DEFAULTS.tmp_mb}, {_DEFAULTS.shm_mb} MiB"),
        ("size of one file", "none"),
        ("name of a sandbox", f"1 to {ids.MAX_NAME_BYTES} bytes"),
    ],
    "Files": [
        ("a path, one name in it", f"{paths.MAX_PATH_BYTES}, {paths.MAX_COMPONENT_BYTES} bytes"),
        ("names in one answer about a directory", _LISTED),
        ("key of a stored file", f"{stored.MAX_KEY_BYTES:,} bytes"),
        ("files in the store", f"{stored.MAX_FILES:,}"),
        ("time to live of a stored file", f"up to {_seconds(stored.MAX_TTL_SECONDS)}"),
        ("time to live of one below `runs/` that names none", _seconds(stored.RUN_OUTPUT_SECONDS)),
        ("one piece of an upload", _bytes(stored.UPLOAD_BYTES)),
        ("unfinished uploads: how many, how long", f"{uploads.MAX_UPLOADS}, {_seconds(uploads.KEPT_SECONDS)}"),
        ("unfinished uploads of one deployment", f"{uploads.MAX_UPLOADS_EACH}"),
        ("what they have announced, together", f"1/{uploads.SHARE_EACH} of `files.max_bytes`"),
        ("stored files in one answer", f"{parameters.MAX_PAGE:,}"),
    ],
    "API keys, deployments and their tokens": [
        ("API keys", f"{access.MAX_KEYS:,}"),
        ("deployments", f"{access.MAX_DEPLOYMENTS:,}"),
        ("name of one", "1 to 63 letters, digits, `-` and `_`"),
        ("an identity token", _bytes(identity.MAX_BYTES)),
        ("leeway of its times", _seconds(identity.LEEWAY_SECONDS)),
        ("time to live of a key or a token", f"up to {_seconds(stored.MAX_TTL_SECONDS)}; without one, no end"),
        ("how late the last use of a key may be written down", _seconds(access_keys.USED_SECONDS)),
    ],
    "HTTP": [
        ("body of a command or a run", _bytes(requests.LARGE_BODY)),
        ("any other body of JSON", _bytes(requests.SMALL_BODY)),
        ("query of a request", _bytes(query.MAX_QUERY_BYTES)),
        ("over TCP: connections", f"{http.MAX_TCP_CONNECTIONS}"),
        ("over TCP: bodies in all that are taken whole, at once", _bytes(bodies.MAX_BYTES)),
        ("those of one deployment, and its runs at once", "half"),
        ("over TCP: requests of one deployment at once", f"{visits.MOST_OF_ONE}"),
        ("over TCP: a body that stands still", _seconds(visits.PIECE_SECONDS)),
        ("over TCP: head of a request", _HEAD),
        ("over TCP: requests that a connection sends ahead", f"{http.MAX_WAITING}"),
        ("requests under way when a station ends", f"{_seconds(http.GRACEFUL_SECONDS)}"),
        ("an Idempotency-Key", "1 to 255 visible ASCII characters"),
        ("answers kept under one: how long", _seconds(answers.KEPT_SECONDS)),
        ("how many, how large in all, of one deployment", f"{answers.MAX_ANSWERS:,}, {_bytes(answers.MAX_BYTES)}"),
        ("one that is kept, and not only that it was given", f"up to {_bytes(answers.MAX_ANSWER_BYTES)}"),
    ],
}
LIMITS = """\
# Limits and defaults

{note}

Whatever goes over a bound is refused with a sentence that names it: 400 or 413 where the request is too much by itself,
429 where there is too much at once, 507 where there is no room. Which of the limits of a sandbox a backend can keep is
told in `isolation.limits` of each answer, and by `stn doctor`.

## With a setting

Numbers of `station.yaml` ([settings.md](settings.md) says what each does).

| setting | default | range |
|---|---|---|
"""


def limits_page() -> str:
    rows = [f"| `{name}` | {default} | {bounds} |" for name, default, bounds in _numbers(settings.Settings)]
    parts = [LIMITS.format(note=NOTE.format("the program's constants and settings")) + "\n".join(rows)]
    for title, known in FIXED.items():
        lines = [f"| {words} | {value} |" for words, value in known]
        parts.append("\n".join([f"## {title}", "", "| what | bound |", "|---|---|", *lines]))
    return "\n\n".join(parts) + "\n"


def _numbers(cls: Any, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Of every setting with a bound: its place, its default, its range."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            yield from _numbers(kind, f"{prefix}{field.name}.")
            continue
        found = [one for part in (kind, *typing.get_args(kind)) for one in getattr(part, "__metadata__", ())]
        if bounds := _range(found):
            default = "unset" if field.default is None else f"{field.default:,}"
            yield f"{prefix}{field.name}", default, bounds


def _range(found: list[Any]) -> str:
    least = next((f"from {one.ge:,}" for one in found if isinstance(one, Ge)), "")
    least = least or next((f"above {one.gt:,}" for one in found if isinstance(one, Gt)), "")
    most = next((f"up to {one.le:,}" for one in found if isinstance(one, Le)), "")
    return " ".join(part for part in (least, most) if part)
