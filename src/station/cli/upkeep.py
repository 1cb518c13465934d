"""`stn df prune`: what takes room on the station's disk, and what of it may go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from station.core.display import escape

from .shared import JsonOption, connect, print_json
from .store import StationOption, agrees, size_text
from .text import table

if TYPE_CHECKING:
    from station.core.upkeep import PruneView, UsageView

_SHOWN = 20


def register(app: typer.Typer) -> None:
    for command in (df, prune):
        app.command(command.__name__)(command)


def df(*, station: StationOption = None, json: JsonOption = False) -> None:
    """Show what takes room in the state directory, by kind and by sandbox."""
    with connect(url=station) as client:
        found = client.usage()
    print_json(found) if json else print(_told(found))


def prune(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    station: StationOption = None,
    json: JsonOption = False,
) -> None:
    """Remove what nobody can ask for any more.

    That is: boxes, files and output whose sandbox has no record, uploads that rest since an hour,
    stored files that have expired, logs that were put aside, and temporary files of a crash. No
    sandbox, no stored file and no command that is still listed is touched.
    """
    with connect(url=station) as client:
        found = client.prune(dry_run=True)
        if not dry_run and (yes or not found.parts or _may_go(found)):
            found = client.prune()
        elif not dry_run:
            print("Cancelled")
            raise typer.Exit(1)
    print_json(found) if json else print(_gone(found))


def _may_go(found: PruneView) -> bool:
    what = ", ".join(f"{part.items} {part.what}" for part in found.parts)
    return agrees(f"Remove {what} ({size_text(found.bytes)})? [y/N]: ")


def _gone(found: PruneView) -> str:
    if not found.parts:
        return "Nothing to remove"
    rows = [(part.what, str(part.items), size_text(part.bytes)) for part in found.parts]
    last = "Would free" if found.dry_run else "Freed"
    return f"{table(('WHAT', 'ITEMS', 'SIZE'), rows)}\n{last}: {size_text(found.bytes)}"


def _told(found: UsageView) -> str:
    rows = [(part.what, str(part.items), size_text(part.bytes)) for part in found.parts]
    text = f"{escape(found.home)}: {size_text(found.total_bytes)}, free on its disk {size_text(found.free_bytes)}"
    text += f"\n\n{table(('WHAT', 'ITEMS', 'SIZE'), rows)}"
    if found.sandboxes:
        rooms = [
            (
                room.name,
                room.backend,
                "with the engine" if room.files_bytes is None else size_text(room.files_bytes),
                size_text(room.output_bytes),
            )
            for room in found.sandboxes[:_SHOWN]
        ]
        text += f"\n\n{table(('SANDBOX', 'BACKEND', 'FILES', 'OUTPUT'), rooms)}"
    if (more := len(found.sandboxes) - _SHOWN) > 0:
        text += f"\nand {more} more (--json has all)"
    return text
