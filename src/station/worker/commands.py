"""From what was asked for to what the guest is told. Pure."""

from __future__ import annotations

import posixpath
import signal

from station.backends.base import Layout
from station.core.errors import InvalidInput, PathRefused
from station.core.ids import is_process_id
from station.core.interpreters import shell_argv
from station.core.paths import HOME_WORKSPACE, resolve
from station.core.wire import ExecRequest, is_too_long
from station.guest.files import root_in
from station.guest.frames import StartRecord

GRACE_SECONDS = 1.0


def check_id(process_id: str) -> str:
    """`process_id` itself. Raises InvalidInput for one that could be no id: it names files of the station."""
    if not is_process_id(process_id):
        raise InvalidInput("an id is prc_ and up to 64 letters, digits, '_' or '-'", field="id")
    return process_id


def start_record(
    layout: Layout, request: ExecRequest, *, timeout_seconds: float | None, with_stdin: bool
) -> StartRecord:
    """Raises InvalidInput for what no kernel would start."""
    argv = tuple(request.argv) if request.argv is not None else (*shell_argv(layout.shell), request.command or "")
    if any(map(is_too_long, argv)):
        raise InvalidInput("a command or argument is over 128 KiB, the kernel's bound; use a file", field="command")
    return StartRecord(
        argv=argv,
        cwd=directory(layout, request.cwd),
        env=dict(layout.env) | request.env,
        stdin=with_stdin,
        timeout_seconds=timeout_seconds,
        grace_seconds=GRACE_SECONDS,
        output_limit=request.output_limit_bytes or 0,
    )


def directory(layout: Layout, cwd: str) -> str:
    """Where a command starts, in the box's own view. An absolute one may be anywhere in the box; a relative one
    is below the workspace and is refused with PathRefused where it leads out. The workspace below the home is named as
    the caller has named it."""
    absolute = posixpath.normpath(cwd)
    if absolute == HOME_WORKSPACE or absolute.startswith(f"{HOME_WORKSPACE}/"):
        resolve(cwd)
        return f"{layout.home}/workspace{absolute[len(HOME_WORKSPACE) :]}"
    try:
        path = resolve(cwd)
    except PathRefused:
        if cwd.startswith("/"):
            return cwd
        raise
    root = root_in(layout, path)
    return root if path.is_root else f"{root}/{path.relative}"


def signal_number(asked: int | str) -> int:
    """Of a number, or a name with or without SIG. Raises InvalidInput for what is neither."""
    if isinstance(asked, str):
        text = asked.strip().upper()
        if text.isdecimal():
            return signal_number(int(text))
        name = text if text.startswith("SIG") else f"SIG{text}"
        try:
            return signal.Signals[name].value
        except KeyError:
            raise InvalidInput(f"{asked!r} is no signal; use a number or a name such as TERM", field="signal") from None
    if not 1 <= asked <= 64:
        raise InvalidInput(f"a signal is a number from 1 to 64; {asked} is none", field="signal")
    return asked


def command_of(request: ExecRequest) -> tuple[str, ...]:
    """As it is recorded: argv, or the shell line alone."""
    return tuple(request.argv) if request.argv is not None else (request.command or "",)
