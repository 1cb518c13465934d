"""`stn backup restore`: beside the station, on the files of its state directory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from station.core.display import escape
from station.core.errors import AlreadyExists, FileNotFound, InvalidInput
from station.core.paths import encode_name

from .files import bar
from .shared import JsonOption, note, print_json
from .store import size_text

if TYPE_CHECKING:
    from station.server.upkeep.backup import Report


def register(app: typer.Typer) -> None:
    for command in (backup, restore):
        app.command(command.__name__, no_args_is_help=True)(command)


def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file; - for standard output.")],
    *,
    with_workspaces: Annotated[
        bool, typer.Option("--with-workspaces", help="The files of sandboxes too, of bubblewrap and host.")
    ] = False,
    with_secrets: Annotated[
        bool, typer.Option("--with-secrets", help="Settings, tokens and keys too. Keep such a file as you keep those.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write a copy of the state directory: records, stored files, history; a tar in gzip.

    A station may run meanwhile, and goes on. Each database is copied as it is at one moment, stored
    files are whole; files of sandboxes are read as they are while what runs there goes on.
    Sandboxes of an engine have their files there, and the backup has not.
    """
    from station.client._home import find_home
    from station.server.upkeep import backup as made

    home = find_home()
    with _sink(file) as sink, _steps("backup", made.size_of(home, workspaces=with_workspaces)) as advance:
        report = made.backup(home, sink, secrets=with_secrets, workspaces=with_workspaces, advance=advance)
    if json and file != "-":
        print_json({"file": encode_name(file), **vars(report)})
    else:
        _tell(file, report)


def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `stn backup` wrote; - for standard input.")],
    *,
    home: Annotated[
        str | None,
        typer.Option("--home", metavar="DIR", help="The new state directory, else as everywhere."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Fill an empty state directory from a backup.

    All of it is checked before any of it is put in place: from a damaged or cut file nothing comes.
    Sandboxes are there with the files that the backup has, and none of what ran; their next use
    makes their next box. End the station that the backup is of before this one starts: both have its id.
    """
    from station.client._home import find_home
    from station.server.upkeep.restore import restore as restored_from

    target = find_home(home)
    with _source(file) as source, _steps("restore", None) as advance:
        restored = restored_from(target, source, advance=advance)
    if json:
        print_json({"home": encode_name(str(target)), **vars(restored), "header": vars(restored.header)})
        return
    print(f"Restored: {escape(str(target))} ({restored.sandboxes} sandboxes, {size_text(restored.bytes)})")
    if not restored.header.secrets:
        note("settings, tokens and keys were not in it: station.yaml is yours to write, and a token is made anew")


def _tell(file: str, report: Report) -> None:
    left = [] if report.secrets else ["settings, tokens and keys (--with-secrets)"]
    if report.without_files:
        names = ", ".join(escape(name) for name in report.without_files[:5])
        more = f" and {len(report.without_files) - 5} more" if len(report.without_files) > 5 else ""
        left.append(f"the files of {names}{more} (--with-workspaces has those that are in the state directory)")
    if report.unreadable or report.skipped:
        left.append(f"{len(report.unreadable)} files that cannot be read, {report.skipped} sockets, pipes and devices")
    if report.sparse:
        left.append(f"{len(report.sparse)} files whose sandbox has too many bytes that are only holes or links")
    if file != "-":
        what = f"{report.sandboxes} sandboxes, {report.stored_files} stored files, {size_text(report.bytes)}"
        print(f"Backed up: {escape(file)} ({what})")
    if left:
        note(f"not in it: {'; '.join(left)}")
    if report.changed:
        note(f"{len(report.changed)} files of sandboxes were written to while they were read")


@contextmanager
def _sink(file: str) -> Iterator[BinaryIO]:
    """A file is whole or not there, and this user's alone. Raises AlreadyExists."""
    if file == "-":
        if sys.stdout.isatty():
            raise InvalidInput("a backup is no text: send it to a file or a pipe", field="file")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    from station.durable import new_private

    path = Path(file)
    if path.exists():
        raise AlreadyExists(f"{encode_name(file)} exists already; name another", path=encode_name(file))
    with new_private(path) as opened:
        yield opened


@contextmanager
def _source(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        opened = open(file, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError as error:
        raise FileNotFound(f"there is no file {encode_name(file)} here", path=encode_name(file)) from error
    with opened:
        yield opened


@contextmanager
def _steps(name: str, total: int | None) -> Iterator[Callable[[int], object]]:
    """To be told of bytes as they go by."""
    done = 0
    with bar(name) as progress:

        def advance(size: int) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(done, total)

        yield advance
