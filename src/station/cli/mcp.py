"""`stn mcp`: the agent's tools, for a client that starts this program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .shared import (
    BackendOption,
    BestEffortOption,
    CpusOption,
    ImageOption,
    MemoryOption,
    MountOption,
    NetworkOption,
    PidsOption,
    parse_limits,
)

if TYPE_CHECKING:
    from station.client._build import Isolated


def register(app: typer.Typer) -> None:
    app.command("mcp")(mcp)


def mcp(
    *,
    sandbox: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The default sandbox, as `stn open` has it. [default: one of its own]"),
    ] = None,
    mount: MountOption = None,
    backend: BackendOption = None,
    image: ImageOption = None,
    network: NetworkOption = None,
    memory_mb: MemoryOption = None,
    cpus: CpusOption = None,
    pids: PidsOption = None,
    best_effort: BestEffortOption = False,
) -> None:
    """Serve the sandbox tools over MCP, on standard input and output.

    For the configuration of an MCP client; docs/mcp.md has it for the well-known ones. Without --sandbox the default
    sandbox is this process's own, and is removed with its files when nobody has used it for 30 minutes.
    """
    from station.mcp.stdio import serve

    where: Isolated = {
        "mount": mount,
        "backend": backend,
        "image": image,
        "network": network,
        "limits": parse_limits(memory_mb, cpus, pids),
        "best_effort": best_effort,
    }
    serve(sandbox, where)
