"""`stn status stop doctor version`: the station itself."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from station.core.display import escape
from station.core.errors import StationUnreachable

from .shared import JsonOption, complain, connect, print_json
from .text import ago, table

if TYPE_CHECKING:
    from station.core.capabilities import Capabilities
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


def doctor(*, json: JsonOption = False) -> None:
    """Show what is enforced on this machine, by what, or why not.

    For each backend, limit by limit, with what would help where something cannot be enforced.
    """
    with connect() as client:
        try:
            answers = client.doctor()
        except StationUnreachable as error:
            code = complain(error, as_json=json)
            if not json:
                print("\n".join(_facts()), file=sys.stderr)
            raise typer.Exit(code) from None
    if json:
        print_json(answers)
    else:
        print("\n\n".join([*(_report(answer) for answer in answers), "\n".join(_facts())]))
    raise typer.Exit(0 if any(answer.available for answer in answers) else 1)


def _report(answer: Capabilities) -> str:
    if not answer.available:
        lines = [f"{answer.backend}: does not work here: {escape(answer.reason or 'no reason was given')}"]
        return "\n".join([*lines, *([f"  to change that: {escape(answer.remedy)}"] if answer.remedy else [])])
    head = f"{answer.backend}: works; isolation {answer.grade}, network {answer.network}"
    images = "yes" if answer.images else "no"
    facts = f"  guest uid {answer.guest_uid}; children end by {answer.containment}; images: {images}"
    rows = [
        (
            name,
            report.level.replace("_", " "),
            "-" if report.value is None else f"{report.value:g}",
            report.by,
            report.remedy or "",
        )
        for name, report in answer.limits.items()
    ]
    limits = [table(("LIMIT", "HERE", "VALUE", "BY, OR WHY NOT", "WHAT WOULD HELP"), rows, indent="  ")] if rows else []
    return "\n".join([head, facts, *limits, *(f"  {escape(line)}" for line in answer.notes)])


def _facts() -> list[str]:
    """What a person who helps will ask first; nothing here needs a station."""
    machine = (
        f"this machine: Linux {platform.release()} on {platform.machine()}, Python {platform.python_version()}, "
        f"user {os.geteuid()}, bwrap {shutil.which('bwrap') or 'from the wheel, if it is installed'}"
    )
    lines = [machine]
    release = platform.release().lower()
    if "microsoft" in release:
        lines.append("this is WSL" + ("" if "wsl2" in release else " 1, which has no Linux kernel: WSL 2 is needed"))
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        lines.append("this is inside a container, whose own rules may forbid user namespaces")
    if _in_chroot():
        lines.append(
            "this is inside a chroot, where the kernel allows no user namespaces; a container or nspawn would do"
        )
    for name, meaning in _SWITCHES.items():
        try:
            value = Path("/proc/sys", name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        lines += [meaning] if value == _CLOSED[name] else []
    if any(name.startswith("DAGGER_") for name in os.environ):
        lines.append("DAGGER_* is set and not used: code runs on the backends above")
    return lines


def _in_chroot() -> bool:
    """Whether the root directory is no mount point."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return False
    return not any(line.split(" ")[4] == "/" for line in mounts)


_SWITCHES = {
    "kernel/apparmor_restrict_unprivileged_userns": (
        "AppArmor restricts user namespaces (Ubuntu's rule); to lift it until the next boot: "
        "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    ),
    "kernel/unprivileged_userns_clone": (
        "user namespaces are closed to users: sudo sysctl kernel.unprivileged_userns_clone=1"
    ),
    "user/max_user_namespaces": "no user namespaces may be made: sudo sysctl user.max_user_namespaces=15000",
}
_CLOSED = {
    "kernel/apparmor_restrict_unprivileged_userns": "1",
    "kernel/unprivileged_userns_clone": "0",
    "user/max_user_namespaces": "0",
}
