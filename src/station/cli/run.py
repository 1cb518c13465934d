"""`stn run`: code in a fresh box, which is gone afterwards."""

from __future__ import annotations

import glob
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from station.core.errors import AlreadyExists, FileNotFound, InvalidInput, PathRefused
from station.core.paths import encode_name

from .shared import (
    BackendOption,
    BestEffortOption,
    CpusOption,
    EnvOption,
    ImageOption,
    JsonOption,
    MemoryOption,
    MountOption,
    NetworkOption,
    PidsOption,
    RawOption,
    TimeoutOption,
    connect,
    note,
    parse_env,
    parse_limits,
    print_json,
    tell_ending,
)
from .text import Passage, dim, isolation_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from station.client.results import RunResult

_SUFFIXES = {".py": "python", ".js": "node", ".mjs": "node", ".cjs": "node", ".sh": "bash", ".bash": "bash"}


def register(app: typer.Typer) -> None:
    app.command("run", no_args_is_help=True)(run)


def run(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="FILE [-- ARGS...]", help="A script, or - for standard input.")
    ] = None,
    *,
    code: Annotated[str | None, typer.Option("-c", metavar="CODE", help="The code itself instead of FILE.")] = None,
    runtime: Annotated[
        str | None, typer.Option(metavar="R", help="python, node or bash. [default: by FILE's suffix, else python]")
    ] = None,
    file: Annotated[
        list[str] | None, typer.Option(metavar="SRC[=DEST]", help="A file of yours into the box; may be repeated.")
    ] = None,
    artifact: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN[=DEST]", help="A file, or a pattern of files, to bring back; may be repeated."),
    ] = None,
    env: EnvOption = None,
    timeout: TimeoutOption = None,
    network: NetworkOption = None,
    backend: BackendOption = None,
    image: ImageOption = None,
    mount: MountOption = None,
    memory_mb: MemoryOption = None,
    cpus: CpusOption = None,
    pids: PidsOption = None,
    best_effort: BestEffortOption = False,
    raw: RawOption = False,
    json: JsonOption = False,
) -> None:
    """Run code in a fresh box, which is gone afterwards.

    Exits with the program's code; 124 timed out, 125 Station failed, 128+n ended by signal n.
    """
    source, args, chosen = _source(code, words or [], runtime)
    wanted = dict(_pair(item) for item in artifact or [])
    options: dict[str, Any] = {
        "runtime": chosen,
        "args": args,
        "env": parse_env(env),
        "files": _files(file or []),
        "artifacts": list(wanted),
        "timeout_seconds": timeout,
        "network": network,
        "backend": backend,
        "image": image,
        "mount": mount,
        "limits": parse_limits(memory_mb, cpus, pids),
        "best_effort": best_effort,
    }
    with connect() as client:
        if json:
            answer = client.run_raw(source, options)
            print_json(answer)
            raise typer.Exit(_code(answer))
        result = client.run(source, **options)
    raise typer.Exit(_show(result, wanted, raw))


def _show(result: RunResult, wanted: Mapping[str, str | None], raw: bool) -> int:
    for data, sink in ((result.stdout_view, sys.stdout.buffer), (result.stderr_view, sys.stderr.buffer)):
        passage = Passage(sink, raw=raw)
        passage.write(data.head.to_bytes())
        if data.omitted_bytes:
            passage.write(f"\n... [{data.omitted_bytes} bytes omitted] ...\n".encode())
        passage.write(data.tail.to_bytes() if data.tail else b"")
        passage.close()
    _bring_back(result, wanted)
    code = tell_ending(result.ending, result.ended_children)
    if result.isolation is not None and sys.stderr.isatty():
        print(dim(f"{isolation_line(result.isolation)} · {result.duration_seconds * 1000:.0f} ms"), file=sys.stderr)
    return code


def _code(answer: Mapping[str, Any]) -> int:
    code = answer.get("exit_code")
    return 125 if code is None else int(code)


def _source(code: str | None, words: list[str], runtime: str | None) -> tuple[str, list[str], str]:
    """The code, its arguments, its runtime."""
    if code is not None:
        return code, words, runtime or "python"
    if not words:
        raise InvalidInput("give a FILE, - for standard input, or -c CODE", field="code")
    name, args = words[0], words[1:]
    raw = sys.stdin.buffer.read() if name == "-" else _read(name)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{encode_name(name)} is no text in UTF-8", field="code") from error
    return text, args, runtime or _SUFFIXES.get(Path(name).suffix, "python")


def _read(name: str) -> bytes:
    path = Path(name)
    if path.is_dir():
        raise InvalidInput(f"{encode_name(name)} is a folder: --mount it, or copy it into a sandbox with `stn cp`")
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FileNotFound(f"there is no file {encode_name(name)} here", path=encode_name(name)) from error


def _pair(item: str) -> tuple[str, str | None]:
    left, equals, right = item.rpartition("=")
    # A file may have a = in its name.
    return (left, right) if equals and left and not Path(item).exists() else (item, None)


def _files(given: list[str]) -> dict[str, bytes]:
    files = {}
    for item in given:
        source, target = _pair(item)
        files[target or Path(source).name] = _read(source)
    return files


def _bring_back(result: RunResult, wanted: Mapping[str, str | None]) -> None:
    for name, data in result.artifacts.items():
        target = _place(name, wanted)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        note(f"{name} → {target} ({len(data)} bytes)")
    for pattern in result.artifacts_missing:
        note(f"nothing matched --artifact {pattern}")


def _place(name: str, wanted: Mapping[str, str | None]) -> Path:
    """Where an artifact goes. Its name was chosen by the code that ran, so it may not choose a file of the user's."""
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts:
        raise PathRefused(f"the artifact {encode_name(name)} would lead out of this folder", path=encode_name(name))
    if name in wanted:
        given = wanted[name]
        return (
            Path(given) / inside.name
            if given and (given.endswith("/") or Path(given).is_dir())
            else Path(given or name)
        )
    pattern = next((p for p in wanted if glob.has_magic(p) and wanted[p] and _matches(inside, p)), None)
    target = Path(wanted[pattern] or ".") / inside if pattern else Path(*inside.parts)
    if pattern is None and (target.exists() or target.is_symlink()):
        raise AlreadyExists(
            f"{target} is here already and the pattern did not name it: give it a folder, --artifact 'PATTERN=DEST/'",
            path=encode_name(name),
        )
    return target


def _matches(name: PurePosixPath, pattern: str) -> bool:
    return "**" in pattern or name.match(pattern)
