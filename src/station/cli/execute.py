"""`stn exec ps logs kill`: commands in a sandbox."""

from __future__ import annotations

import os
import select
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from station.core.errors import InvalidInput, StationError

from .sandboxes import NameArgument
from .shared import (
    STATION_FAILED,
    EnvOption,
    JsonOption,
    RawOption,
    TimeoutOption,
    connect,
    note,
    parse_env,
    print_json,
    tell_ending,
)
from .text import Passage, ago, table

if TYPE_CHECKING:
    from station.client._sync.processes import Process
    from station.client._sync.sandbox import Sandbox
    from station.core.wire import ProcessView

ProcessArgument = Annotated[
    str, typer.Argument(metavar="PROCESS", help="Its id, or the end of it, as `stn ps` shows it.")
]


def register(app: typer.Typer) -> None:
    app.command("exec", no_args_is_help=True)(exec_)
    app.command("ps")(ps)
    app.command("logs")(logs)
    app.command("kill")(kill)


def exec_(
    name: NameArgument,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- CMD...", help="One word: a line for the shell. Several: a program and its arguments."
        ),
    ],
    *,
    interactive: Annotated[bool, typer.Option("-i", help="Give it our standard input; it gets no terminal.")] = False,
    cwd: Annotated[str, typer.Option(metavar="DIR", help="Where it starts.")] = "/workspace",
    env: EnvOption = None,
    timeout: TimeoutOption = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print its id and leave it running.")] = False,
    raw: RawOption = False,
    json: JsonOption = False,
) -> None:
    """Run a command in the sandbox NAME, which must exist.

    Exits with the command's code; 124 timed out, 125 Station failed, 126 cannot be run, 127 not found, 128+n ended by
    signal n, 130 cancelled (Ctrl-C), 141 cancelled because nobody reads its output any more.
    """
    if detach and interactive:
        raise InvalidInput("-i and --detach exclude each other: nobody would be there to type", field="detach")
    with connect() as client:
        sandbox = client.get(name)
        process = sandbox.start(
            command[0] if len(command) == 1 else command,
            cwd=cwd,
            env=parse_env(env),
            stdin_open=interactive,
            timeout_seconds=sandbox.view.timeout_seconds if timeout is None and not detach else timeout,
        )
        if detach:
            print_json(process.view) if json else print(process.id)
            return
        try:
            with _our_input(process) if interactive else nullcontext():
                view = _waited(process) if json else _shown(process, raw)
        except KeyboardInterrupt:
            _end_now(process)
            note("cancelled")
            raise typer.Exit(130) from None
        except OSError:  # nobody reads our output any more, or it has no room
            _end_now(process)
            raise
    raise typer.Exit(_end(view, json))


def _end(view: ProcessView, json: bool) -> int:
    if json:
        print_json(view)
        return STATION_FAILED if view.exit_code is None else view.exit_code
    return tell_ending(view.ending, view.ended_children) if view.ending else STATION_FAILED


def _waited(process: Process) -> ProcessView:
    process.wait()
    return process.view


def _shown(process: Process, raw: bool, *, follow: bool = True) -> ProcessView:
    sinks = {"stdout": Passage(sys.stdout.buffer, raw=raw), "stderr": Passage(sys.stderr.buffer, raw=raw)}
    for chunk in process.output(follow=follow):
        if chunk.missing_bytes:
            note(f"{chunk.missing_bytes} bytes of {chunk.stream} are no longer kept")
        sinks[chunk.stream].write(chunk.data)
    for sink in sinks.values():
        sink.close()
    return process.view


def _end_now(process: Process) -> None:
    with suppress(StationError, TimeoutError):
        process.cancel()
        # The whole tree has ended when we have: TERM, then KILL one second later.
        process.wait(timeout_seconds=5)


@contextmanager
def _our_input(process: Process) -> Iterator[None]:
    """Standard input goes to the process until either ends."""
    wake_reader, wake_writer = os.pipe()

    def pump() -> None:
        with suppress(StationError):  # the process ended, or closed its input
            while wake_reader not in select.select([0, wake_reader], [], [])[0]:
                data = os.read(0, 65536)
                if not data:
                    process.close_stdin()
                    return
                process.write(data)

    pumping = threading.Thread(target=pump, name="stdin", daemon=True)
    pumping.start()
    try:
        yield
    finally:
        os.close(wake_writer)
        # A write may still wait for room; the station refuses it now that the process has ended.
        pumping.join(timeout=5)
        if not pumping.is_alive():
            os.close(wake_reader)


def ps(name: NameArgument = "default", *, json: JsonOption = False) -> None:
    """List the processes of a sandbox.

    Those that run, and those that ended and are still kept.
    """
    with connect() as client:
        views = client.get(name).processes.list()
    if json:
        print_json({"processes": views})
        return
    heads = ("PROCESS", "STATUS", "EXIT", "STARTED", "COMMAND")
    print(table(heads, [_row(view) for view in views]))


def _row(view: ProcessView) -> tuple[str, ...]:
    line = view.command[0] if view.shell else shlex.join(view.command)
    line = line if len(line) <= 60 else line[:59] + "…"
    return (
        view.id,
        view.status,
        "-" if view.exit_code is None else str(view.exit_code),
        f"{ago(view.started_at)} ago",
        line,
    )


def logs(
    name: NameArgument,
    process: ProcessArgument,
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until it ends.")] = False,
    raw: RawOption = False,
    json: JsonOption = False,
) -> None:
    """Print the output of a process, as far as it is kept.

    Its stdout goes to ours, its stderr to ours. With --json: what `ps` says of it, with the head and tail of both.
    """
    with connect() as client:
        if json:
            found = _find(client.get(name), process)
            if follow:
                found.wait()
            print_json(found.info(output=True))
            return
        _shown(_find(client.get(name), process), raw, follow=follow)


def kill(
    name: NameArgument,
    process: ProcessArgument,
    *,
    signal: Annotated[
        str | None, typer.Option("--signal", "-s", metavar="S", help="Send that instead, by name or number.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """End a process and everything it started.

    By TERM, then KILL after one second.
    """
    with connect() as client:
        found = _find(client.get(name), process)
        if signal is None:
            found.cancel()
        else:
            found.signal(int(signal) if signal.isdecimal() else signal)
    if json:
        print_json({"process": found.id, "signal": signal})


def _find(sandbox: Sandbox, wanted: str) -> Process:
    if wanted.startswith("prc_") and len(wanted) == 30:
        return sandbox.processes.get(wanted)
    matching = [view.id for view in sandbox.processes.list() if len(wanted) >= 4 and view.id.endswith(wanted.upper())]
    return sandbox.processes.get(matching[0] if len(matching) == 1 else wanted)
