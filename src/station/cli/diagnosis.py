"""The answer of `stn doctor` as text. Words say what colours say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from station.core.display import escape

from .text import table

if TYPE_CHECKING:
    from station.core.audit import Check
    from station.core.capabilities import Capabilities
    from station.core.tenancy import Missing
    from station.core.wire import Diagnosis

_COLOURS = {"ok": "32", "warning": "33", "red": "31", "unknown": "35"}
_WIDTH = max(map(len, _COLOURS))


def report(found: Diagnosis, *, colours: bool = False) -> str:
    """Backends, then the audit, then who may be served."""
    parts = [*(_backend(answer) for answer in found.backends), audit_lines(found.checks, colours=colours)]
    return "\n\n".join([*parts, _others(found)])


def _backend(answer: Capabilities) -> str:
    if not answer.available:
        lines = [f"{answer.backend}: does not work here: {escape(answer.reason or 'no reason was given')}"]
        return "\n".join([*lines, *([f"  to change that: {escape(answer.remedy)}"] if answer.remedy else [])])
    head = f"{answer.backend}: works; isolation {answer.grade}, network {answer.network}"
    images = "yes" if answer.images else "no"
    facts = f"  guest uid {answer.guest_uid}; children end by {answer.containment}; images: {images}"
    rows = [
        (
            name,
            limit.level.replace("_", " "),
            "-" if limit.value is None else f"{limit.value:g}",
            limit.by,
            limit.remedy or "",
        )
        for name, limit in answer.limits.items()
    ]
    limits = [table(("LIMIT", "HERE", "VALUE", "BY, OR WHY NOT", "WHAT WOULD HELP"), rows, indent="  ")] if rows else []
    return "\n".join([head, facts, *limits, *(f"  {escape(line)}" for line in answer.notes)])


def audit_lines(checks: Sequence[Check], *, colours: bool = False) -> str:
    """A line for each check, and one more where something would help."""
    lines = ["this machine and its engines:"]
    for check in checks:
        needed = " (required to serve others)" if check.missing else ""
        lines.append(f"  {_word(check, colours)}  {escape(check.title)}: {escape(check.found)}{needed}")
        lines += [f"  {'':{_WIDTH}}    to change that: {escape(check.remedy)}"] if check.remedy else []
    if any(name.startswith("DAGGER_") for name in os.environ):
        lines.append("  DAGGER_* is set and not used: code runs on the backends above")
    return "\n".join(lines)


def _word(check: Check, colours: bool) -> str:
    word = f"{check.status.upper() if check.status == 'red' else check.status.value:{_WIDTH}}"
    return f"\x1b[{_COLOURS[check.status]}m{word}\x1b[0m" if colours else word


def _others(found: Diagnosis) -> str:
    declared = "is set: what is missing is refused" if found.refuses else "is not set: nothing is refused"
    wanted = f"isolation {found.minimum_isolation} or stronger"
    lines = [f"code of others, with {wanted} (sandbox.serves_others {declared}):"]
    for name, missing in found.serves_others.items():
        lines.append(f"  {escape(name)}: {_missing(missing)}")
        for one in missing:
            lines.append(f"    {escape(one.why)}")
            lines += [f"      to change that: {escape(one.remedy)}"] if one.remedy else []
    return "\n".join(lines)


def _missing(missing: Sequence[Missing]) -> str:
    return f"may not run it; missing: {', '.join(one.layer for one in missing)}" if missing else "may run it"
