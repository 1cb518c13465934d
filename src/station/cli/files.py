"""`stn cp`: files into a sandbox and out of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from station.core.errors import FileNotFound, InvalidInput, SandboxNotFound
from station.core.paths import encode_name

from .shared import JsonOption, connect, print_json

if TYPE_CHECKING:
    from station.client._sync.client import Client
    from station.client._sync.files import Files
    from station.client._transfer import Progress


def register(app: typer.Typer) -> None:
    app.command("cp", no_args_is_help=True)(cp)


def cp(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A file or folder; NAME:PATH in a sandbox; - for standard input.")
    ],
    target: Annotated[str, typer.Argument(metavar="DEST", help="As SRC; - for standard output.")],
    *,
    skip_outer_links: Annotated[
        bool, typer.Option("--skip-outer-links", help="Of a sandbox's folder: leave out links that lead out of it.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Copy a file or folder into a sandbox, or out of it.

    One side is NAME:PATH; a PATH that is relative is below /workspace. A local file with a colon is written ./a:b.
    Of several colons the first one before a / parts the two, where there is none the last.
    """
    here, there = split(source), split(target)
    if (here is None) == (there is None):
        raise InvalidInput("one side, and only one, is NAME:PATH in a sandbox", field="target")
    with connect() as client:
        if there is not None:
            files, path = _place(client, target, there)
            _upload(files, source, path)
        elif here is not None:
            files, path = _place(client, source, here)
            _download(files, path, target, skip_outer_links)
    if json and target != "-":  # where the content goes to standard output, nothing else may
        print_json({"source": encode_name(source), "target": encode_name(target)})


def split(word: str) -> tuple[str, str] | None:
    """(sandbox, path) of `NAME:PATH`; `None` for a local name.

    A name may have colons: it ends at the first one before a `/`, where there is none at the last one.
    """
    if word.startswith((".", "/", "~")):
        return None
    at = word.find(":/")
    name, colon, path = (word[:at], ":", word[at + 1 :]) if at >= 0 else word.rpartition(":")
    return (name, path or ".") if colon and name else None


def _place(client: Client, word: str, likely: tuple[str, str]) -> tuple[Files, str]:
    """`likely` of `split`; where there is no such sandbox, up to the first colon, if that is one: then the path has
    the others. Raises SandboxNotFound."""
    name, path = likely
    try:
        return client.get(name).files, path
    except SandboxNotFound:
        shorter, _, rest = word.partition(":")
        if shorter == name:
            raise
        try:
            return client.get(shorter).files, rest
        except SandboxNotFound:
            pass
        raise


def _upload(files: Files, source: str, path: str) -> None:
    if source == "-":
        files.write(path, sys.stdin.buffer)
        return
    local = Path(source)
    if not local.exists():
        raise FileNotFound(f"there is no file {encode_name(source)} here", path=encode_name(source))
    name = local.resolve().name
    with bar(name) as progress:
        files.upload(local, f"{path.rstrip('/')}/{name}" if _is_folder(files, path) else path, progress=progress)


def _is_folder(files: Files, path: str) -> bool:
    if path.endswith("/"):
        return True
    try:
        return files.stat(path).type == "dir"
    except FileNotFound:
        return False


def _download(files: Files, path: str, target: str, skip_outer_links: bool) -> None:
    if target == "-":
        for data in files.chunks(path):
            sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    local = Path(target)
    name = os.path.basename(path.rstrip("/")) or "workspace"
    if local.is_dir() or target.endswith("/"):
        local.mkdir(parents=True, exist_ok=True)
        local = local / ("workspace" if name in (".", "..") else name)
    with bar(name) as progress:
        files.download(path, local, progress=progress, skip_outer_links=skip_outer_links)


@contextmanager
def bar(name: str) -> Iterator[Progress | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(encode_name(name), total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
