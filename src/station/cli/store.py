"""`stn files`: the station's file store."""

from __future__ import annotations

import os
import posixpath
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from station.core.display import escape
from station.core.errors import AlreadyExists, FileNotFound, InvalidInput
from station.core.paths import encode_name
from station.core.stored import check_key

from .files import bar, split
from .shared import JsonOption, connect, print_json
from .text import table

if TYPE_CHECKING:
    from station.client._sync.client import Client
    from station.core.stored import StoredFile

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="As files/f_…; a bare one is below files/.")]
KeyOption = Annotated[str | None, typer.Option(metavar="KEY", help="[default: files/ and a new id]")]
TtlOption = Annotated[str | None, typer.Option(metavar="DUR", help="Remove it after so long: 90s, 15m, 12h, 7d, 2w.")]
StationOption = Annotated[
    str | None,
    typer.Option(
        "--station", metavar="URL", help="A station on TCP, with the token in STN_TOKEN. [default: this machine's]"
    ),
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="All that is known of the file.")]
_UNITS = ("B", "KB", "MB", "GB", "TB")


def register(app: typer.Typer) -> None:
    files = typer.Typer(
        help="Keep files in the station's store; sandboxes are given them by key.", no_args_is_help=True
    )
    for command in (upload, download, info, delete, stage, publish):
        files.command(command.__name__, no_args_is_help=True)(command)
    files.command("list")(list_)
    app.add_typer(files, name="files")


def upload(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A file; - for standard input.")],
    *,
    key: KeyOption = None,
    ttl: TtlOption = None,
    station: StationOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> None:
    """Put a file into the store; a KEY that is there is overwritten."""
    with connect(url=station) as client:
        if path == "-":
            stored = client.files.write(key, sys.stdin.buffer, ttl=ttl)
        else:
            local = Path(path)
            if not local.exists():
                raise FileNotFound(f"there is no file {encode_name(path)} here", path=encode_name(path))
            with bar(local.name) as progress:
                stored = client.files.upload(local, key=key, ttl=ttl, progress=progress)
    _tell("Uploaded", stored.key, stored, verbose=verbose, json=json)


def download(
    key: KeyArgument,
    *,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="PATH", help="A file or folder; - for standard output.")
    ] = None,
    station: StationOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> None:
    """Bring a file of the store here, checked by its digest.

    Without -o it gets the name that it was uploaded with, else the end of its key; a file of that name is not
    overwritten.
    """
    with connect(url=station) as client:
        if output == "-":
            for chunk in client.files.chunks(key):
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            return
        target = _target(client, key, output)
        with bar(target.name) as progress:
            stored = client.files.download(key, target, progress=progress)
    _tell("Downloaded", os.fspath(target), stored, verbose=verbose, json=json)


def list_(
    *,
    prefix: Annotated[str, typer.Option(metavar="PREFIX", help="Only keys that begin so.")] = "",
    station: StationOption = None,
    json: JsonOption = False,
) -> None:
    """List what is in the store, by key."""
    with connect(url=station) as client:
        found = client.files.list(prefix)
    if json:
        print_json({"files": found, "count": len(found)})
        return
    if not found:
        print("No files found")
        return
    rows = [
        (file.key, size_text(file.size), file.content_type, _time(file.created_at), _time(file.expires_at))
        for file in found
    ]
    print(f"Found {len(found)} file(s):\n\n{table(('Key', 'Size', 'Type', 'Created', 'Expires'), rows)}")


def delete(
    key: KeyArgument,
    *,
    force: Annotated[bool, typer.Option("--force", "-f", help="Do not ask.")] = False,
    station: StationOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a file from the store."""
    name = check_key(key)
    with connect(url=station) as client:
        if not force:
            size = size_text(client.files.info(name).size)  # nobody is asked about what is not there
            if not agrees(f"Delete file '{escape(name)}' ({size})? [y/N]: "):
                print("Cancelled")
                raise typer.Exit(1)
        if not client.files.delete(name):
            raise FileNotFound(f"file not found: {name}", key=name)
    print_json({"deleted": name}) if json else print(f"Deleted: {escape(name)}")


def info(key: KeyArgument, *, station: StationOption = None, json: JsonOption = False) -> None:
    """Show what is known of a file of the store."""
    with connect(url=station) as client:
        stored = client.files.info(key)
    print_json(stored) if json else print(_block(stored))


def stage(
    key: KeyArgument,
    target: Annotated[
        str, typer.Argument(metavar="NAME:PATH", help="A sandbox, and a place in it; a folder ends in /.")
    ],
    *,
    station: StationOption = None,
    json: JsonOption = False,
) -> None:
    """Give a sandbox a file of the store, straight from there and checked by its digest.

    A file that is there is overwritten. In a folder it gets the end of its KEY as its name.
    """
    name, path = _place(target)
    with connect(url=station) as client:
        files = client.get(name).files
        wanted = check_key(key)
        staged = files.stage(wanted, f"{path}{posixpath.basename(wanted)}" if path.endswith("/") else path)
    print_json(staged) if json else print(f"Staged: {escape(name)}:{escape(staged.path)} ({size_text(staged.size)})")


def publish(
    source: Annotated[str, typer.Argument(metavar="NAME:PATH", help="A sandbox, and a file in it.")],
    *,
    key: KeyOption = None,
    ttl: TtlOption = None,
    station: StationOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> None:
    """Put a file of a sandbox into the store, straight from there; a KEY that is there is overwritten."""
    name, path = _place(source)
    with connect(url=station) as client:
        stored = client.get(name).files.publish(path, key=key, ttl=ttl)
    _tell("Published", stored.key, stored, verbose=verbose, json=json)


def _place(word: str) -> tuple[str, str]:
    found = split(word)
    if found is None:
        raise InvalidInput(f"{word[:80]!r} is no place in a sandbox; that is NAME:PATH", field="path")
    return found


def _target(client: Client, key: str, output: str | None) -> Path:
    """Raises AlreadyExists for a name that nobody gave and that is taken."""
    folder = output is not None and (output.endswith("/") or Path(output).is_dir())
    if output is not None and not folder:
        return Path(output)
    stored = client.files.info(key)
    # A name from the store never leads anywhere else, and hides nothing: `.envrc` would be run by some shells.
    name = posixpath.basename(stored.metadata.get("original_filename", "")) or posixpath.basename(stored.key)
    name = name.lstrip(".") or "file"
    target = Path(output or ".") / name
    if target.exists():
        raise AlreadyExists(f"{encode_name(name)} exists already; name another with -o", path=encode_name(name))
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def agrees(question: str) -> bool:
    """Standard error carries the question, so that --json stays one value."""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _tell(what: str, name: str, stored: StoredFile, *, verbose: bool, json: bool) -> None:
    if json:
        print_json(stored)
    elif verbose:
        print(_block(stored))
    else:
        print(f"{what}: {escape(name)} ({size_text(stored.size)})")


def _block(stored: StoredFile) -> str:
    rows = {
        "Key": stored.key,
        "Size": f"{size_text(stored.size)} ({stored.size} bytes)",
        "Content-Type": stored.content_type,
        "Checksum": stored.checksum,
        "Created": _time(stored.created_at),
        "Expires": _time(stored.expires_at),
        **({"Metadata": ""} if stored.metadata else {}),
        **{f"  {name}": value for name, value in sorted(stored.metadata.items())},
    }
    width = max(map(len, rows)) + 1
    return "\n".join(f"{name + ':':{width}} {escape(value)}".rstrip() for name, value in rows.items())


def size_text(size: float) -> str:
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def _time(at: float | None) -> str:
    if at is None:
        return "never"
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):  # of another version, say
        return f"{at:.0f}"
