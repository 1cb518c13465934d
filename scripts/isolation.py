"""The page docs/isolation.md, from docs/isolation.json (what the last run of scripts/attacks has shown) and from the
cases of `station.core.attacks`. Used by scripts/pages.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from station.core.attacks import ALL, CASES, OPEN, guaranteed

TARGETS = {"bubblewrap": "bubblewrap", "docker": "docker (runc)", "gvisor": "gVisor", "host": "host"}
HEAD = """\
# What isolation holds

<!-- Written by scripts/pages.py from docs/isolation.json and src/station/core/attacks.py: change those. -->

Every claim that Station makes about isolation is attacked. Each attack below runs in a real sandbox on every backend, a
look from outside judges it, and the same attack runs on a target without the defence, where it must succeed: an attack
that cannot succeed anywhere proves nothing.

`scripts/attacks` runs all of them and writes the table again (as root, with an engine; an hour). `scripts/test` runs a
part of them with every change. `stn doctor --attack` tries on your own machine what is safe there.

## What each backend guarantees

- **bubblewrap**: namespaces of its own, no capability, a filter of system calls, a uid for the guest that code cannot
  reach where subuids or root allow one. The kernel is the machine's: a fault of the kernel is a way out. Memory and
  processors are held only where there is a control group to write (root, or a delegated one); elsewhere they are
  watched, and `info` says so.
- **docker (runc)**: the same in a container of an engine, with its control groups, an image and volumes. Grade
  `container`; the kernel is the machine's here too.
- **gVisor** (`docker_runtime: runsc`): code speaks to a kernel of its own and reaches the machine's only through that.
  Grade `user-kernel`: the one to take for code of strangers. Its own bounds on processes are not the machine's, so the
  box as a whole is what ends when it takes too much.
- **host**: no isolation. What is guaranteed there is about the station: it stays up, ends what it has started and hands
  over files whole. Code can read and write whatever its user can.

What is enforced on one machine is not looked up here but probed: `stn doctor` prints it.
"""
WORDS = """\
**held**: it came to nothing. **told**: not guaranteed there, and Station says so in `info`; the attack was run and what
Station says is true. **open**: it got somewhere and should not. **failed**: it got somewhere in this run. **-**: it
does not apply, or was not run. A number leads to an exception below.
"""


NO_RUN = """\
## The last run

None is on record in this version: `scripts/attacks` makes one. Until then the table says what is guaranteed.
"""


def page(source: Path) -> str:
    """Without a run on record: what is guaranteed, and that nothing has been shown."""
    if not source.exists():
        promised = [_promised(name) for name, case in CASES.items() if not case.nothing_yet]
        known = [_open({"case": case, "target": target, "open": vars(one)}) for (case, target), one in OPEN.items()]
        parts = [HEAD, NO_RUN, _head(), *promised, "", *_section("Open", known), *_section("Not tried yet", _later())]
        return "\n".join(parts).rstrip() + "\n"
    found = json.loads(source.read_text(encoding="utf-8"))
    cells = {(cell["case"], cell["target"]): cell for cell in found["cells"]}
    notes: list[str] = []
    rows = [_row(case, cells, notes) for case in CASES if any((case, target) in cells for target in ALL)]
    parts = [HEAD, _about(found["about"]), WORDS, _head(), *rows, ""]
    parts += _section("Gets somewhere, and is no harm", [f"{at}. {note}" for at, note in enumerate(notes, 1)])
    parts += _section("Open", [_open(cell) for cell in cells.values() if "open" in cell])
    parts += _section("Not tried yet", _later())
    parts += _section("Not shown by this machine", _unshown(cells), _UNSHOWN)
    return "\n".join(parts).rstrip() + "\n"


def _promised(case: str) -> str:
    words = [
        "**open**" if (case, target) in OPEN else "guaranteed" if guaranteed(case, target) else "-"
        for target in TARGETS
    ]
    return f"| {case} | {CASES[case].tried} | {' | '.join(words)} |"


_UNSHOWN = """\
Here the target without the defence could not carry these tries out either (no such device, no such call in this
kernel), so that they prove nothing.
"""


def _about(about: dict[str, str]) -> str:
    told = [f"{name} {value}" for name, value in about.items() if name not in ("station", "tier")]
    return f"## The last run\n\nStation {about['station']}, {about['tier']} tier: {', '.join(told)}.\n"


def _head() -> str:
    return f"| case | what is tried | {' | '.join(TARGETS.values())} |\n|---|---|{'---|' * len(TARGETS)}"


def _row(case: str, cells: dict[tuple[str, str], dict[str, Any]], notes: list[str]) -> str:
    words = [_word(cells.get((case, target)), notes) for target in TARGETS]
    return f"| {case} | {CASES[case].tried} | {' | '.join(words)} |"


def _word(cell: dict[str, Any] | None, notes: list[str]) -> str:
    if cell is None or cell["outcome"] == "not run":
        return "-"
    if cell["outcome"] != "held":
        return "**open**" if "open" in cell else "**failed**"
    if not cell["guaranteed"]:
        return "told"
    if not cell.get("excepted"):
        return "held"
    notes.append(_excepted(cell))
    return f"held ({len(notes)})"


def _excepted(cell: dict[str, Any]) -> str:
    whys: dict[str, list[str]] = {}
    for what, why in cell["excepted"].items():
        whys.setdefault(why, []).append(f"`{what}`")
    told = "; ".join(f"{', '.join(sorted(whats))}: {why}" for why, whats in whys.items())
    return f"{cell['case']} on {TARGETS[cell['target']]}: {told}."


def _open(cell: dict[str, Any]) -> str:
    known = cell["open"]
    return f"- {cell['case']} on {TARGETS[cell['target']]}: {known['why']}. What closes it: {known['remedy']}."


def _later() -> list[str]:
    return [
        f"- {name}: {case.tried if case.nothing_yet else 'all but what follows is tried.'} It needs {case.later}."
        for name, case in CASES.items()
        if case.later
    ]


def _unshown(cells: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    by_case: dict[str, set[str]] = {}
    for cell in cells.values():
        by_case.setdefault(cell["case"], set()).update(cell.get("unshown", ()))
    return [f"- {case}: {', '.join(f'`{what}`' for what in sorted(whats))}" for case, whats in by_case.items() if whats]


def _section(title: str, lines: list[str], text: str = "") -> list[str]:
    return [f"## {title}\n", *([text] if text else []), *lines, ""] if lines else []
