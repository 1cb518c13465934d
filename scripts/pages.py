#!/usr/bin/env python3
"""Writes docs/cli.md from the commands, docs/tools.md from the agent's tools, docs/isolation.md from the last run of
the attacks, and what reference.py and settings_page.py make. --check: fails where they differ."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import isolation
import reference
import settings_page
import typer

from station.cli.app import app
from station.mcp import docs

DOCS = Path(__file__).resolve().parent.parent / "docs"
HEAD = """\
# The command line

<!-- Written by scripts/pages.py from `stn --help` and its like: change those. -->

Exit codes of `run` and `exec`: the program's own; 124 it timed out, 125 Station itself failed, 126 it cannot be run,
127 it was not found, 128+n it was ended by signal n, 130 it was cancelled (Ctrl-C). A failure of Station is one
sentence on standard error and 125; a wrong option of another command is 2.

`--json` prints one JSON value on standard output, an error too: `{error, code, message, retryable, detail}`. That tells
a failure of Station from a program that ends with 125 itself.
On a terminal, control sequences in output and names are shown instead of obeyed, colours excepted (`--raw` passes
them); into a file or pipe every byte goes as it is.
"""
NOTE = "<!-- Written by scripts/pages.py from src/station/mcp (guide.md, inputs, answers, tools): change those. -->"


def cli() -> str:
    command = typer.main.get_command(app)
    settings = {**(app.info.context_settings or {}), "terminal_width": 100}
    root = typer.Context(command, info_name="stn", **settings)
    parts = [HEAD, _block("stn", command.get_help(root))]
    return "\n".join([*parts, *_below(command, root, settings)])


def _below(group: Any, context: typer.Context, settings: dict[str, Any]) -> Iterator[str]:
    """The commands of a group, those of the groups in it too."""
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        inner = typer.Context(found, parent=context, info_name=name, **settings)
        yield _block(inner.command_path, found.get_help(inner))
        if hasattr(found, "list_commands"):
            yield from _below(found, inner, settings)


def _block(title: str, text: str) -> str:
    return f"## {title}\n\n```\n{text.rstrip()}\n```\n"


def tools() -> str:
    title, _, rest = docs.page().partition("\n")
    return f"{title}\n\n{NOTE}\n{rest}"


def attacked() -> str:
    return isolation.page(DOCS / "isolation.json")


def main() -> int:
    differing = []
    pages = {"cli.md": cli, "tools.md": tools, "isolation.md": attacked}
    pages |= {"api.md": reference.api, "errors.md": reference.errors_page, "limits.md": reference.limits_page}
    pages["settings.md"] = settings_page.page
    for name, make in pages.items():
        page, wanted = DOCS / name, make()
        if "--check" not in sys.argv[1:]:
            page.write_text(wanted, encoding="utf-8")
        elif not page.exists() or page.read_text(encoding="utf-8") != wanted:
            differing.append(name)
            print(f"docs/{name} differs from the program: run scripts/pages.py")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
