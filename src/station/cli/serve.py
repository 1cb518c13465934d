"""`stn serve`: the one place of the command line that starts a server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from station.server.net.faces import Face


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    *,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Answer on this TCP address too; port 0 takes a free one."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings, in place of station.yaml in the state directory.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON once requests are answered; errors too.")
    ] = False,
    home: Annotated[str | None, typer.Option("--home", hidden=True)] = None,
    background: Annotated[bool, typer.Option("--background", hidden=True)] = False,
    ready_fd: Annotated[int | None, typer.Option("--ready-fd", hidden=True)] = None,
) -> None:
    """Run a station in the foreground.

    It listens on the unix socket of the state directory, and with --listen (or the setting `listen`)
    on TCP: there every request needs the operator's token, which stands in the file operator.token of
    the state directory, or comes from STN_TOKEN. MCP clients find their tools at /mcp.

    Variables STN_... come from the environment, else from .env in the working directory, else from
    .env in the state directory.
    """
    # The first process ends at once, so that the station is no child of the program that wanted it.
    if background and os.fork():
        os._exit(0)
    if home:
        os.environ["STN_HOME"] = home
    from station.client._home import find_home
    from station.server.serve import Options, run

    options = Options(
        background=background,
        ready_fd=ready_fd,
        listen=listen,
        config=Path(config).absolute() if config else None,
        # A station in the background serves whoever comes: the folder of who came first must not change it.
        directory=None if background else Path.cwd(),
        json=json,
        faces={"/mcp": _mcp},
    )
    raise typer.Exit(run(find_home(home), options))


def _mcp() -> Face:
    from station.mcp.http import app

    return app
