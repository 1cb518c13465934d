"""What the commands have in common: options, exit codes, how failures and endings are told."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from station.core.display import escape
from station.core.endings import Ending, EndingKind
from station.core.errors import InvalidInput, StationError

if TYPE_CHECKING:
    from station.client._sync.client import Client

STATION_FAILED = 125

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value; errors too.")]
RawOption = Annotated[bool, typer.Option("--raw", help="Pass control sequences to the terminal.")]
BackendOption = Annotated[
    str | None,
    typer.Option(metavar="B", help="How code is isolated: bubblewrap, host, … [default: the best without root]"),
]
ImageOption = Annotated[str | None, typer.Option(metavar="I", help="Root file system, on backends that have images.")]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        metavar="none|public|LIST", help="What may be reached. [default: none; on docker what the operator gives]"
    ),
]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="A variable; K alone takes its value from here.")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="End the command after that long, 1 to 3600. [default: sandbox.timeout_seconds, 120]"
    ),
]
MountOption = Annotated[str | None, typer.Option(metavar="DIR[:ro]", help="A folder of yours as the workspace.")]
MemoryOption = Annotated[int | None, typer.Option(metavar="N", help="Limit of memory, in MiB.")]
CpusOption = Annotated[float | None, typer.Option(metavar="X", help="Limit of processors.")]
PidsOption = Annotated[int | None, typer.Option(metavar="N", help="Limit of processes.")]
BestEffortOption = Annotated[bool, typer.Option("--best-effort", help="Accept a limit that cannot be enforced here.")]


def connect(*, start: bool = True, any_version: bool = False, url: str | None = None) -> Client:
    """A connection to the station of this state directory, or to the one at `url`."""
    from station.client._sync.client import Client

    return Client(start=start, any_version=any_version, url=url)


def parse_env(given: list[str] | None) -> dict[str, str]:
    """Raises InvalidInput for a name alone that is not set here."""
    env = {}
    for item in given or []:
        name, equals, value = item.partition("=")
        if not equals:
            if name not in os.environ:
                raise InvalidInput(f"--env {escape(name)}: it is not set here; write {escape(name)}=VALUE", field="env")
            value = os.environ[name]
        env[name] = value
    return env


def parse_limits(memory_mb: int | None, cpus: float | None, pids: int | None) -> dict[str, float]:
    """Those that were named."""
    named = {"memory_mb": memory_mb, "cpus": cpus, "pids": pids}
    return {name: value for name, value in named.items() if value is not None}


def print_json(value: Any) -> None:
    """Dataclasses too; names that are no UTF-8 as escapes."""
    from station.core.codec import to_plain

    print(json.dumps(to_plain(value), indent=2, ensure_ascii=not sys.stdout.isatty()))


def complain(error: StationError, *, as_json: bool = False) -> int:
    """Tells of a failure of Station; returns its exit code."""
    if as_json:
        print_json(error.to_body())
    sentence = _KNOB.sub(lambda found: _OPTIONS[found[0]], escape(error.message, keep="\n"))
    hint = "" if sentence.endswith("?") else _HINTS.get(error.code, "")  # a guess says enough
    print(f"stn: {sentence}{hint}", file=sys.stderr)
    return STATION_FAILED


# A failure names the knob as the SDK has it; here it is an option.
_OPTIONS = {
    "backend: docker": "--backend docker",
    "best_effort: true": "--best-effort",
    "force: true": "--force",
    "skip_outer_links: true": "--skip-outer-links",
    "limits.memory_mb": "--memory-mb",
    "limits.cpus": "--cpus",
    "limits.pids": "--pids",
    "timeout_seconds": "--timeout",
}
_KNOB = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, _OPTIONS))})(?!\w)")
_HINTS = {
    "sandbox_not_found": "; `stn ls` shows those there are, `stn open NAME` makes one",
    "unauthenticated": "; `stn` shows the one in STN_TOKEN",
}


def note(text: str) -> None:
    """One line beside the output of a program."""
    print(f"stn: {escape(text)}", file=sys.stderr)


def tell_ending(ending: Ending, ended_children: int) -> int:
    """The exit code, and a word where it does not say enough."""
    words = {
        EndingKind.TIMED_OUT: "ended: out of time (--timeout sets it)",
        EndingKind.OOM: "ended: out of memory (--memory-mb sets the limit)",
        EndingKind.OUTPUT_LIMIT: "ended: too much output",
        EndingKind.CANCELLED: "cancelled",
        EndingKind.LOST: "lost: no exit code is known",
    }
    if ending.kind in words:
        note(words[ending.kind] + (f": {ending.reason}" if ending.reason else ""))
    elif ending.reason:
        note(ending.reason)
    if ended_children:
        children = "1 child" if ended_children == 1 else f"{ended_children} children"
        note(f"{children} still ran and ended with the command; `stn exec --detach` starts what is to go on")
    return STATION_FAILED if ending.exit_code is None else ending.exit_code
