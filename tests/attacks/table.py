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

ALL = ("bubblewrap", "docker", "gvisor", "host")
CONFINED = ("bubblewrap", "docker", "gvisor")
OWN_LIMITS = ("bubblewrap", "docker")
"""hardening 4: `runc, bubblewrap`."""
ENGINE = ("docker", "gvisor")

# hardening 4, column "guaranteed on". Where parts of a case differ, the larger set: the test asks for the level itself.
GUARANTEED: dict[str, tuple[str, ...]] = {
    "R01": OWN_LIMITS, "R02": OWN_LIMITS, "R03": CONFINED, "R04": ALL, "R05": ALL, "R06": CONFINED, "R07": ALL,
    "R08": ALL, "R09": ALL, "R10": ALL, "R11": OWN_LIMITS, "R12": ALL, "R13": ENGINE, "R14": CONFINED, "R15": ALL,
    "R16": ALL, "R17": ALL, "R18": ALL, "R19": ALL,
    "K01": CONFINED, "K02": CONFINED, "K03": CONFINED, "K04": CONFINED, "K05": CONFINED, "K06": CONFINED,
    "K07": CONFINED, "K08": CONFINED, "K09": CONFINED, "K10": CONFINED, "K11": CONFINED, "K12": ENGINE,
    "K13": CONFINED, "K14": CONFINED, "K15": ALL, "K16": CONFINED,
    "N01": CONFINED, "N02": CONFINED, "N03": CONFINED, "N04": CONFINED, "N05": CONFINED, "N06": CONFINED,
    "N07": CONFINED, "N08": CONFINED, "N09": CONFINED,
    **{f"F{number:02}": ALL for number in range(1, 16)},
    "S01": CONFINED, "S02": ALL, "S03": ALL, "S04": ALL, "S05": ALL,
}  # fmt: skip

_OWN = "gVisor's own, not the machine's"
_SHOWN = "shown by gVisor to every user; the guest has nothing secret there (S01)"
# What gets somewhere on a target and is no harm there, and why.
EXCEPT: dict[tuple[str, str], dict[str, str]] = {
    ("K03", "gvisor"): {"/proc/1/environ": _SHOWN, "/proc/1/maps": _SHOWN, "list /proc/1/fd": _SHOWN},
    ("K10", "gvisor"): {"/dev/fuse": _OWN, "/dev/net/tun": _OWN},
    ("N04", "gvisor"): {"ping socket": "on gVisor's own network, which has loopback alone"},
}

# What gets somewhere and should not: open, and told as harm in the table.
OPEN: dict[tuple[str, str], str] = {
    ("R12", "docker"): "all boxes are one user of the machine, so one can take all its inotify instances",
    ("R03", "gvisor"): "System V shared memory is bounded by memory_mb alone",
    ("R19", "gvisor"): "a tree 10,000 levels deep cannot be removed: too many files are open",
    ("F01", "gvisor"): "the tree test has no control there yet",
    ("F06", "gvisor"): "a dangling link is refused as leading out instead of as missing",
    ("F10", "gvisor"): "GNU stat does not work in this release of gVisor, so modes are not seen",
}

# hardening 4.1: these on an engine in the fast tier too; the others there in the full tier.
FAST = frozenset(
    "R01 R02 R05 R06 R07 R08 R09 R15 R16 R17 K01 K02 K03 K05 K08 K09 N01 N02 N03 N04 N05 "
    "F01 F02 F03 F04 F05 F11 S01 S02".split()
)

Outcome = Literal["held", "harm", "error", "not run"]
_IDS = re.compile(r"(?<=_)[rknfs]\d\d(?=_)")


def guaranteed(case: str, target: str) -> bool:
    return target in GUARANTEED.get(case, ())


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

    def write(self, path: Path) -> None:
        """For the page of the documentation."""
        found = [{**asdict(cell), "excepted": cell.excepted, "outcome": cell.outcome} for cell in self.cells()]
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _word(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    if cell.outcome == "held":
        return ("held, but" if cell.excepted else "held") if cell.guaranteed else "told truly"
    return "HARM" if cell.outcome == "harm" else cell.outcome
