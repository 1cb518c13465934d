"""`stn serve`: the one place of the command line that starts a server."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    *,
    home: Annotated[str | None, typer.Option("--home", hidden=True)] = None,
    background: Annotated[bool, typer.Option("--background", hidden=True)] = False,
    ready_fd: Annotated[int | None, typer.Option("--ready-fd", hidden=True)] = None,
) -> None:
    """Run a station in the foreground.

    It listens on the unix socket of the state directory.
    """
    # The first process ends at once, so that the station is no child of the program that wanted it.
    if background and os.fork():
        os._exit(0)
    if home:
        os.environ["STN_HOME"] = home
    from station.client._home import find_home
    from station.server.serve import run

    raise typer.Exit(run(find_home(home), background=background, ready_fd=ready_fd))
