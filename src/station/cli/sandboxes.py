"""`stn open ls info rm`: sandboxes by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from station.core.display import escape
from station.core.errors import SandboxNotFound, StationError

from .shared import (
    BackendOption,
    BestEffortOption,
    CpusOption,
    ImageOption,
    JsonOption,
    MemoryOption,
    MountOption,
    NetworkOption,
    PidsOption,
    connect,
    note,
    parse_limits,
    print_json,
)
from .text import ago, isolation_line, table, until

if TYPE_CHECKING:
    from station.core.wire import SandboxView

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The sandbox.")]


def register(app: typer.Typer) -> None:
    app.command("open")(open_)
    app.command("ls")(ls)
    app.command("info")(info)
    app.command("rm")(rm)


def open_(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The sandbox.")] = "default",
    *,
    runtime: Annotated[
        str | None, typer.Option(metavar="R", help="What its image must have, on backends with images.")
    ] = None,
    backend: BackendOption = None,
    image: ImageOption = None,
    network: NetworkOption = None,
    mount: MountOption = None,
    memory_mb: MemoryOption = None,
    cpus: CpusOption = None,
    pids: PidsOption = None,
    best_effort: BestEffortOption = False,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="End its commands after that long, 1 to 3600, if they name none."),
    ] = None,
    temporary: Annotated[
        bool, typer.Option("--temporary", help="Remove a new one with its files when it is not used for a while.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Get the sandbox NAME ready, made new where there is none."""
    with connect() as client:
        sandbox = client.open(
            name,
            runtime=runtime,
            backend=backend,
            image=image,
            network=network,
            mount=mount,
            limits=parse_limits(memory_mb, cpus, pids),
            best_effort=best_effort,
            timeout_seconds=timeout,
            temporary=temporary,
            progress=False if json else None,
        )
    if json:
        print_json(sandbox.view)
    else:
        word = "made" if sandbox.view.created else "there already"
        kept = f"; {_kept(sandbox.view)}" if sandbox.view.remove_at is not None else ""
        print(f"{escape(name)}: {word}, {sandbox.view.state}{kept}\n{isolation_line(sandbox.isolation)}")


def ls(
    *,
    everybodys: Annotated[bool, typer.Option("--all", "-a", help="Those of deployments too.")] = False,
    json: JsonOption = False,
) -> None:
    """List the sandboxes."""
    with connect() as client:
        views = client.list(everybodys=everybodys)
    if json:
        print_json({"sandboxes": views})
    elif views:
        heads = ["NAME", "STATE", "BACKEND", "ISOLATION", "NETWORK", "RUNNING", "LAST USED", "REMARK"]
        rows = [_row(view) for view in views]
        if everybodys:
            heads.insert(0, "DEPLOYMENT")
            rows = [[view.deployment or "-", *row] for view, row in zip(views, rows, strict=True)]
        print(table(heads, rows))
    else:
        print("no sandboxes; `stn open NAME` makes one")


def _row(view: SandboxView) -> list[str]:
    where = view.isolation
    remark = view.reason or (f"mount {view.mount.source}" if view.mount else "")
    running = str(view.processes) if view.processes else "-"
    return [view.name, view.state, where.backend, where.grade, where.network, running, ago(view.last_active_at), remark]


def info(name: NameArgument = "default", *, json: JsonOption = False) -> None:
    """Show all that is known of a sandbox; it is not woken."""
    with connect() as client:
        view = client.get(name).view
    if json:
        print_json(view)
        return
    facts = {
        "name": view.name,
        "state": view.state + (f": {view.reason}" if view.reason else ""),
        "generation": str(view.generation),
        "workdir": view.workdir,
        "isolation": isolation_line(view.isolation),
        "guest uid": view.isolation.guest_uid,
        "children end by": view.isolation.containment,
        "mount": f"{view.mount.source}{' (read only)' if view.mount.read_only else ''}" if view.mount else "none",
        "running": str(view.processes),
        "made": f"{ago(view.created_at)} ago",
        "last used": f"{ago(view.last_active_at)} ago",
        "kept": _kept(view),
        "time limit": f"{view.timeout_seconds:g} s, where a command names none",
        "id": view.id,
        "tool id": view.tool_id or "none yet",
    }
    width = max(map(len, facts))
    print("\n".join(f"{key.ljust(width)}  {escape(value)}" for key, value in facts.items()))
    rows = [
        (name, r.level, f"{r.value:g}" if r.value is not None else "-", r.by)
        for name, r in view.isolation.limits.items()
    ]
    if rows:
        print("\n" + table(("LIMIT", "", "VALUE", "BY"), rows))


def _kept(view: SandboxView) -> str:
    if view.remove_at is None:
        return "until it is deleted"
    return f"temporary: removed in {until(view.remove_at)} unless it is used"


def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The sandboxes.")],
    *,
    json: JsonOption = False,
) -> None:
    """Delete sandboxes with their files and processes, for good.

    One that is not there is no error, but is named on stderr.
    """
    absent = []
    with connect() as client:
        for name in names:
            try:
                client.get(name)
            except SandboxNotFound as error:
                absent.append(name)
                note(error.message)
            except StationError:
                pass  # of a damaged one there is nothing to see, and yet it can go
            client.delete(name)
    if json:
        print_json({"deleted": [name for name in names if name not in absent], "absent": absent})
