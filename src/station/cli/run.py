"""`stn run`: code in a fresh box, which is gone afterwards."""

from __future__ import annotations

import posixpath
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from station.core.errors import AlreadyExists, FileNotFound, InvalidInput, PathRefused
from station.core.globs import expression, is_pattern
from station.core.paths import WORKSPACE, decode_name, encode_name

from .shared import (
    STATION_FAILED,
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
    from collections.abc import Mapping, Sequence

    from station.client.results import RunResult

Wanted = tuple[str, str | None]
"""The name or pattern of an artifact, and where it is to go."""
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

    Its standard input is empty. Its output comes when it has ended; of more than 16 MiB a stream the first and the last
    8, and where that is no terminal the exit code is 125. `stn exec` passes input (-i), and all output as it comes.

    Exits with the program's code; 124 timed out, 125 Station failed, 128+n ended by signal n.
    """
    from station.core.wire import MAX_KEPT_BYTES

    source, args, chosen = _source(code, words or [], runtime)
    wanted = [_pair(item) for item in artifact or []]
    options: dict[str, Any] = {
        "runtime": chosen,
        "args": args,
        "env": parse_env(env),
        "files": _files(file or []),
        "artifacts": list(dict.fromkeys(pattern for pattern, _ in wanted)),
        "timeout_seconds": timeout,
        "output_kept_bytes": MAX_KEPT_BYTES,
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


def _show(result: RunResult, wanted: Sequence[Wanted], raw: bool) -> int:
    cut = False
    for data, sink in ((result.stdout_view, sys.stdout.buffer), (result.stderr_view, sys.stderr.buffer)):
        passage = Passage(sink, raw=raw)
        passage.write(data.head.to_bytes())
        if data.omitted_bytes:
            passage.write(f"\n... [{data.omitted_bytes} bytes omitted] ...\n".encode())
            note(
                f"{data.omitted_bytes} bytes of output left out: write a file and bring it back with --artifact, or "
                "use `stn open` and `stn exec`, which pass on everything"
            )
            cut = cut or not sink.isatty()
        passage.write(data.tail.to_bytes() if data.tail else b"")
        passage.close()
    _bring_back(result, wanted)
    code = tell_ending(result.ending, result.ended_children)
    if result.isolation is not None and sys.stderr.isatty():
        print(dim(f"{isolation_line(result.isolation)} · {result.duration_seconds * 1000:.0f} ms"), file=sys.stderr)
    # A program behind a pipe, or who opens the file later, reads no note.
    return STATION_FAILED if cut else code


def _code(answer: Mapping[str, Any]) -> int:
    code = answer.get("exit_code")
    return STATION_FAILED if code is None else int(code)


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


def _bring_back(result: RunResult, wanted: Sequence[Wanted]) -> None:
    for name, data in result.artifacts.items():
        for target in _places(name, wanted):
            if target is None:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            note(f"{name} → {target} ({len(data)} bytes)")
    for pattern in result.artifacts_missing:
        note(f"no file matched --artifact {pattern} (of a folder: DIR/**)")


def _places(name: str, wanted: Sequence[Wanted]) -> list[Path | None]:
    """Where an artifact goes, `None`: to standard output. Its name was chosen by the code that ran, so it may not
    choose a file of the user's."""
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts:
        raise PathRefused(f"the artifact {encode_name(name)} would lead out of this folder", path=encode_name(name))
    places: dict[Path | None, None] = {}
    for pattern, given in wanted:
        named = _is_name(pattern, name)
        if given == "-" and (named or _matches(name, pattern)):
            places[None] = None
        elif named:
            folder = given and (given.endswith("/") or Path(given).is_dir())
            places[Path(given or "") / inside.name if folder else Path(given or name)] = None
        elif given and _matches(name, pattern):
            places[Path(given) / inside] = None
    if places:
        return list(places)
    target = Path(*inside.parts)
    if target.exists() or target.is_symlink():
        raise AlreadyExists(
            f"{target} is here already and the pattern did not name it: give it a folder, --artifact 'PATTERN=DEST/'",
            path=encode_name(name),
        )
    return [target]


def _is_name(pattern: str, name: str) -> bool:
    """Whether it asked for this very file."""
    return posixpath.normpath(posixpath.join(WORKSPACE, decode_name(pattern))) == f"{WORKSPACE}/{name}"


def _matches(name: str, pattern: str) -> bool:
    pattern = decode_name(pattern)
    return is_pattern(pattern) and expression(pattern).fullmatch(name) is not None
