"""What the reports of one run mean: whether each test that should notice has noticed, and for the right reason."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.mutants.reports import fits

ASSERTIONS = ("AssertionError", "Failed")
"""The second is what `pytest.raises` and `pytest.fail` end with."""


class Kind(StrEnum):
    KILLED = "killed"
    SURVIVED = "survived"
    BROKEN = "broken"
    """It shows nothing: it does not compile, is not collected, or fails in another way than the tests look for."""
    LEFT_OUT = "left out"
    """Its tests cannot run here."""


@dataclass(frozen=True)
class Verdict:
    kind: Kind
    why: str


@dataclass(frozen=True)
class Run:
    """The events of one run of pytest."""

    events: tuple[dict[str, Any], ...]
    ended: bool = True
    """False: it was ended from outside."""

    @classmethod
    def read(cls, file: Path, *, ended: bool = True) -> Run:
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        return cls(tuple(json.loads(line) for line in lines), ended)

    def of(self, test: str, event: str) -> list[dict[str, Any]]:
        return [found for found in self.events if found["event"] == event and fits(test, found["id"])]

    def uncollected(self) -> list[str]:
        return [found["why"] for found in self.events if found["event"] == "uncollected"]


def of_control(tests: Iterable[str], run: Run) -> Verdict | None:
    """Of the unmutated copy: `None` where each test is green, so that a red one will mean something."""
    for test in tests:
        if not run.of(test, "found"):
            return Verdict(Kind.BROKEN, f"there is no test {test}: {' '.join(run.uncollected())[-300:]}")
        ran = run.of(test, "ran")
        bad = [event for event in ran if event["outcome"] == "failed"]
        if bad:
            return Verdict(Kind.BROKEN, f"{test} is red with all defences in place: {bad[0]['why']}")
        if not any(event["outcome"] == "passed" for event in ran):
            why = next((event["why"] for event in ran), "left out by its marks")
            return Verdict(Kind.LEFT_OUT if run.ended else Kind.BROKEN, f"{test}: {why}")
    return None


def of_mutant(tests: Sequence[str], run: Run, *, by: Sequence[str] = ()) -> Verdict:
    """Killed where every test is red by what it looks for."""
    survived, broken = [], []
    for test in tests:
        ran = run.of(test, "ran")
        if any(_is_red(event, by) for event in ran):
            continue
        odd = [event for event in ran if event["outcome"] == "failed"]
        if ran and not odd and run.ended:
            survived.append(test)
        elif odd:
            broken.append(f"{test} ends in {odd[0]['when']} with {next(iter(odd[0]['raised']), '?')}: {odd[0]['why']}")
        else:
            broken.append(f"{test} {_absent(test, run)}")
    if broken:
        return Verdict(Kind.BROKEN, "; ".join(broken))
    if survived:
        return Verdict(Kind.SURVIVED, f"still green: {', '.join(survived)}")
    reds = [event for test in tests for event in run.of(test, "ran") if _is_red(event, by)]
    return Verdict(Kind.KILLED, f"{reds[0]['id'].partition('::')[2]}: {reds[0]['why']}")


def _absent(test: str, run: Run) -> str:
    if not run.ended:
        return "did not end"
    return "began, and pytest died" if run.of(test, "kept") else f"did not run: {run.uncollected()}"


def _is_red(event: dict[str, Any], by: Sequence[str]) -> bool:
    if event["outcome"] != "failed":
        return False
    if event["when"] == "teardown":
        return "teardown" in by and not set(ASSERTIONS).isdisjoint(event["raised"])
    return event["when"] == "call" and not {*ASSERTIONS, *by}.isdisjoint(event["raised"])
