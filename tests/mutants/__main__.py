"""`scripts/mutants [--json] [--only NAME]... [--list]`: all of the table, or those named."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from queue import SimpleQueue

from tests import engine
from tests.mutants import MUTANTS
from tests.mutants.mutant import Mutant, StaleError, chosen
from tests.mutants.tree import ROOT, BuildError, Tree, trees
from tests.mutants.verdict import Kind, Run, Verdict, of_control, of_mutant

AT_ONCE = 2
CONTROL_SECONDS = 600.0
MUTANT_SECONDS = 240.0
"""And four times what its tests take with all defences in place: without one, some wait for what never comes."""


@dataclass(frozen=True)
class Row:
    name: str
    gone: str
    verdict: str
    why: str
    seconds: float


class Job:
    """One run over the table: first the controls, then the mutants, the cheap ones first."""

    def __init__(self, copies: Sequence[Tree], *, engine_trouble: str | None, verbose: bool) -> None:
        self._free: SimpleQueue[Tree] = SimpleQueue()
        for copy in copies:
            self._free.put(copy)
        self._pool = ThreadPoolExecutor(len(copies))
        self._engine_trouble = engine_trouble
        self._verbose = verbose
        self._controls: dict[str, tuple[Run, float]] = {}
        """By file of tests, and how long it took."""

    def rows(self, mutants: Sequence[Mutant]) -> list[Row]:
        here = [mutant for mutant in mutants if not (mutant.engine and self._engine_trouble)]
        rows = [Row(m.name, m.gone, Kind.LEFT_OUT, self._engine_trouble or "", 0.0) for m in mutants if m not in here]
        try:
            self._control({test for mutant in here for test in mutant.tests})
            ordered = sorted(here, key=lambda mutant: (self._cost(mutant), mutant.name))
            for number, row in enumerate(self._pool.map(self._row, ordered), 1):
                say(f"[{number}/{len(ordered)}] {row.verdict:<9} {row.name} ({row.seconds:.1f} s) {row.why}")
                rows.append(row)
        finally:
            # Whoever interrupts it does not wait for what has not begun.
            self._pool.shutdown(cancel_futures=True)
        return rows

    def _control(self, tests: Iterable[str]) -> None:
        by_file: dict[str, list[str]] = {}
        for test in sorted(tests):
            by_file.setdefault(test.partition("::")[0], []).append(test)

        def one(file: str) -> tuple[str, Run, float]:
            return file, *self._timed(lambda tree: tree.test(by_file[file], seconds=CONTROL_SECONDS))

        for file, run, seconds in self._pool.map(one, by_file):
            trouble = of_control(by_file[file], run)
            say(f"control   {file} ({seconds:.1f} s) {trouble.why if trouble else 'green'}")
            self._controls[file] = run, seconds

    def _timed(self, work: Callable[[Tree], Run]) -> tuple[Run, float]:
        tree = self._free.get()
        begun = time.monotonic()
        try:
            return work(tree), time.monotonic() - begun
        finally:
            self._free.put(tree)

    def _cost(self, mutant: Mutant) -> float:
        return sum(self._controls[file][1] for file in {test.partition("::")[0] for test in mutant.tests})

    def _row(self, mutant: Mutant) -> Row:
        begun = time.monotonic()
        verdict = self._verdict(mutant)
        return Row(mutant.name, mutant.gone, verdict.kind, verdict.why, time.monotonic() - begun)

    def _verdict(self, mutant: Mutant) -> Verdict:
        for test in mutant.tests:
            trouble = of_control([test], self._controls[test.partition("::")[0]][0])
            if trouble is not None:
                return trouble

        def work(tree: Tree) -> Run:
            with tree.without(mutant):
                run = tree.test(mutant.tests, seconds=MUTANT_SECONDS + 4 * self._cost(mutant))
                if self._verbose:
                    say(tree.said())
                return run

        try:
            run, _ = self._timed(work)
        except (StaleError, BuildError) as error:
            return Verdict(Kind.BROKEN, str(error))
        return of_mutant(mutant.tests, run, by=mutant.by)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def table(rows: Sequence[Row]) -> str:
    wide = max(len(row.name) for row in rows)
    lines = [f"{row.verdict:<9} {row.name:<{wide}}  {row.gone}" for row in sorted(rows, key=lambda row: row.name)]
    counts = ", ".join(f"{sum(row.verdict == kind for row in rows)} {kind}" for kind in Kind)
    return "\n".join([*lines, "", f"{len(rows)} mutants: {counts}"])


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the rows as JSON on standard output")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this one; may be repeated")
    parser.add_argument("--list", action="store_true", help="names and sentences; nothing is run")
    parser.add_argument("--verbose", action="store_true", help="what pytest says of each mutant")
    return parser.parse_args(arguments)


def main() -> int:
    asked = options()
    try:
        mutants = chosen(MUTANTS, asked.only)
    except KeyError as error:
        say(f"scripts/mutants: there is no mutant {error}; --list names them")
        return 2
    if asked.list:
        print("\n".join(f"{mutant.name}: {mutant.gone}" for mutant in mutants))
        return 0
    stale = []
    for mutant in mutants:
        try:
            mutant.changed(ROOT)
        except StaleError as error:
            stale.append(f"{mutant.name}: {error}")
    if stale:
        say("\n".join(["scripts/mutants: the table does not fit the source any more:", *stale]))
        return 1
    return _run(mutants, asked)


def _run(mutants: Sequence[Mutant], asked: argparse.Namespace) -> int:
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copies go
    with ExitStack() as stack:
        trouble = engine.unavailable() if any(mutant.engine for mutant in mutants) else None
        if trouble is None and any(mutant.engine for mutant in mutants):
            # One for all: each run of pytest would start its own.
            found = stack.enter_context(engine.engine())
            os.environ[engine.GIVEN] = json.dumps(asdict(found))
        copies = stack.enter_context(trees(min(AT_ONCE, len(mutants))))
        rows = Job(copies, engine_trouble=trouble, verbose=asked.verbose).rows(mutants)
    print(json.dumps([asdict(row) for row in rows], indent=1) if asked.json else table(rows))
    say(f"scripts/mutants: {time.monotonic() - begun:.0f} s")
    return 1 if any(row.verdict in (Kind.SURVIVED, Kind.BROKEN) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
