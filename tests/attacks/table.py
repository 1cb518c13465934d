"""The attack table: on which targets each case is guaranteed to come to nothing, and what the last run has shown.

A case that is not guaranteed on a target is only reported there: its test asserts that what Station says is true.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from station.core.attacks import ALL, EXCEPT, OPEN, Open, guaranteed

# hardening 4.1: these on an engine in the fast tier too; the others there in the full tier.
FAST = frozenset(
    "R01 R02 R05 R06 R07 R08 R09 R15 R16 R17 K01 K02 K03 K05 K08 K09 N01 N02 N03 N04 N05 "
    "F01 F02 F03 F04 F05 F11 S01 S02".split()
)

Outcome = Literal["held", "harm", "error", "not run"]
_IDS = re.compile(r"(?<=_)[rknfs]\d\d(?=_)")


def cases_of(test: str) -> list[str]:
    """The ids in a test's name: `test_hd_r08_r10_a_daemon_…` is about two."""
    return [found.upper() for found in _IDS.findall(test)] if test.startswith("test_hd_") else []


@dataclass
class Cell:
    """One case on one target."""

    case: str
    target: str
    guaranteed: bool
    tests: int = 0
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Before or after the attack: they say nothing of it."""
    skipped: list[str] = field(default_factory=list)
    tries: list[dict[str, Any]] = field(default_factory=list)
    """What the program of the case says it has tried."""
    unshown: list[str] = field(default_factory=list)
    """Tries that the unhardened control could not carry out either: this machine proves nothing about them."""

    @property
    def open(self) -> Open | None:
        """Why it is told as harm and known; None where nothing is known to be open, or it came to nothing."""
        return OPEN.get((self.case, self.target)) if self.failed else None

    @property
    def excepted(self) -> dict[str, str]:
        known = EXCEPT.get((self.case, self.target), {})
        return {one["what"]: known[one["what"]] for one in self.tries if one["harm"] and one["what"] in known}

    @property
    def outcome(self) -> Outcome:
        if self.failed:
            return "harm"
        if self.errors:
            return "error"
        return "held" if self.tests > len(self.skipped) else "not run"


class Table:
    def __init__(self) -> None:
        self._cells: dict[tuple[str, str], Cell] = {}

    def cell(self, case: str, target: str) -> Cell:
        return self._cells.setdefault((case, target), Cell(case, target, guaranteed(case, target)))

    def cells(self) -> list[Cell]:
        return [self._cells[key] for key in sorted(self._cells)]

    def plain(self) -> list[dict[str, Any]]:
        """For another process, which merges it."""
        return [asdict(cell) for cell in self.cells()]

    def merge(self, plain: list[dict[str, Any]]) -> None:
        for told in plain:
            cell = self.cell(told["case"], told["target"])
            cell.tests += told["tests"]
            for name in ("failed", "errors", "skipped", "tries", "unshown"):
                getattr(cell, name).extend(told[name])

    def lines(self) -> list[str]:
        """A case a line, a target a column."""
        rows: dict[str, dict[str, Cell]] = defaultdict(dict)
        for cell in self.cells():
            rows[cell.case][cell.target] = cell
        targets = [name for name in ALL if any(name in row for row in rows.values())]
        lines = ["case  " + "".join(f"{name:14}" for name in targets)]
        for case, row in rows.items():
            lines.append(f"{case:6}" + "".join(f"{_word(row.get(name)):14}" for name in targets).rstrip())
        for cell in self.cells():
            lines += [f"{cell.case} on {cell.target}: {what}: {why}" for what, why in cell.excepted.items()]
        return lines

    def write(self, path: Path, about: dict[str, str]) -> None:
        """For the page of the documentation (scripts/pages.py): `about` the machine, then a cell a line."""
        lines = ",\n".join(json.dumps(_told(cell), ensure_ascii=False) for cell in self.cells())
        head = json.dumps(about, indent=1, ensure_ascii=False)
        path.write_text(f'{{"about": {head},\n"cells": [\n{lines}\n]}}\n', encoding="utf-8")


def _told(cell: Cell) -> dict[str, Any]:
    told: dict[str, Any] = {"case": cell.case, "target": cell.target, "outcome": cell.outcome}
    told |= {"guaranteed": cell.guaranteed, "tests": cell.tests - len(cell.skipped), "tries": len(cell.tries)}
    if cell.excepted:
        told["excepted"] = cell.excepted
    if cell.unshown:
        told["unshown"] = sorted(set(cell.unshown))
    if cell.failed or cell.errors:
        told["failed"] = sorted({*cell.failed, *cell.errors})
    if cell.open:
        told["open"] = asdict(cell.open)
    return told


def _word(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    if cell.outcome == "held":
        return ("held, but" if cell.excepted else "held") if cell.guaranteed else "told truly"
    return "HARM" if cell.outcome == "harm" else cell.outcome
