"""`stn status stop doctor version`: the station itself."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from station.core.display import escape
from station.core.errors import StationUnreachable

from .attack import AttackedImageOption, AttackedOption, AttackOption
from .attack import attack as run_attacks
from .diagnosis import audit_lines, report
from .shared import JsonOption, complain, connect, note, print_json
from .text import ago

if TYPE_CHECKING:
    from station.core.wire import StationView


def register(app: typer.Typer) -> None:
    for command in (status, stop, doctor, version):
        app.command(command.__name__)(command)


def status(*, json: JsonOption = False) -> None:
    """Show the station that runs; none is started.

    Exits with 1 where none runs.
    """
    with connect(start=False, any_version=True) as client:
        try:
            view = client.info()
        except StationUnreachable:
            print_json(_state(client.home)) if json else print(f"no station runs for {client.home}")
            raise typer.Exit(1) from None
    if json:
        print_json(_state(client.home, view))
        return
    print(f"station {view.version} runs, process {view.pid}, since {ago(view.started_at)}, in {escape(view.home)}")
    print(
        f"backend {view.default_backend or 'none that works'}; sandboxes {view.sandboxes}, with a box {view.live_boxes}"
    )
    print(f"running processes {view.running_processes}; boxes made ahead {view.pool_boxes}")
    _tell_of_settings(view)


def _tell_of_settings(view: StationView) -> None:
    if view.settings_changed:
        note(
            "its settings (station.yaml or .env) were changed since the station started: `stn stop`, and the next "
            "command starts it with them"
        )


def _state(home: str, view: StationView | None = None) -> dict[str, Any]:
    """The same keys whether one runs or not."""
    from station.core.wire import StationView

    facts = dict.fromkeys(field.name for field in fields(StationView)) if view is None else vars(view)
    return {"running": view is not None, **facts, "home": home}


def stop(*, json: JsonOption = False) -> None:
    """End the station. Sandboxes stay, and what runs in them goes on."""
    from station.client._start import listens

    with connect(start=False, any_version=True) as client:
        try:
            client.stop()
            stopped = True
        except StationUnreachable:
            if listens(Path(client.home)):
                raise
            stopped = False
    if json:
        print_json({"stopped": stopped, "home": client.home})
    elif stopped:
        print("stopped; the sandboxes stay, and the next command starts it again")
    else:
        print(f"no station runs for {client.home}")


def version(*, json: JsonOption = False) -> None:
    """Print the version of this program."""
    from station import __version__

    print_json({"version": __version__}) if json else print(f"stn {__version__}")


def doctor(
    *,
    attack: AttackOption = False,
    backend: AttackedOption = None,
    image: AttackedImageOption = None,
    json: JsonOption = False,
) -> None:
    """Show what is enforced on this machine, by what, or why not.

    For each backend, limit by limit, with what would help where something cannot be enforced; then the audit of this
    machine and of the engine, check by check; then which backend may run code of others (sandbox.serves_others).
    Exits with 1 where no backend works.

    With --attack each backend that isolates (docker with the runtime that is set) is attacked from within temporary
    sandboxes, which nothing outlives, and the table says what held.
    What could hurt this machine if a sandbox held nothing is left out: setting the clock, reboot and swap, ending or
    slowing other processes, using up descriptors, filling disks. Then it exits with 0 where all that is guaranteed
    held, 1 where an attack got somewhere, 125 where something could not be tried.
    """
    if attack or backend or image:
        raise typer.Exit(run_attacks(backend or [], image, asked=attack, as_json=json))
    with connect() as client:
        try:
            found, view = client.doctor(), client.info()
        except StationUnreachable as error:
            raise typer.Exit(_without_station(error, Path(client.home), as_json=json)) from None
    if json:
        print_json(found)
    else:
        print(report(found, colours=sys.stdout.isatty()))
    _tell_of_settings(view)
    raise typer.Exit(0 if any(answer.available for answer in found.backends) else 1)


def _without_station(error: StationUnreachable, home: Path, *, as_json: bool) -> int:
    """What the machine tells is the same, and may say why none could be started."""
    from station.core.audit import machine_checks
    from station.core.codec import to_plain
    from station.machine import look

    checks = machine_checks(look(home))
    if as_json:
        error.detail["checks"] = to_plain(checks)
    code = complain(error, as_json=as_json)
    if not as_json:
        print(audit_lines(checks, colours=sys.stderr.isatty()), file=sys.stderr)
    return code
