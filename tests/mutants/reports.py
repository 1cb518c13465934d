"""A plug-in of pytest: runs the wanted tests of the given files alone, and tells a file how each one went.

One line of JSON an event, written at once, so that a run which never ends has told what came before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator

import pytest

FILE, WANTED = "STN_MUTANTS_REPORTS", "STN_MUTANTS_WANTED"


def fits(wanted: str, nodeid: str) -> bool:
    return nodeid == wanted or nodeid.startswith(f"{wanted}[")


def names_of(error: BaseException) -> Iterator[str]:
    """What was raised, within groups too, with the classes it is one of. A test that ran out of its own time is told
    from one that failed."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from names_of(inner)
    elif isinstance(error, pytest.fail.Exception) and str(error).startswith("Timeout"):
        yield "Timeout"
    else:
        yield from (kind.__name__ for kind in type(error).__mro__ if issubclass(kind, BaseException))


def _tell(event: str, nodeid: str, **more: object) -> None:
    with open(os.environ[FILE], "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "id": nodeid, **more}) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanted = os.environ[WANTED].split("\n")
    items[:] = [item for item in items if any(fits(one, item.nodeid) for one in wanted)]
    for item in items:
        _tell("found", item.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _tell("uncollected", report.nodeid, why=str(report.longrepr)[-500:])


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        _tell("kept", item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" or not report.passed:
        raised = list(names_of(call.excinfo.value)) if call.excinfo else []
        why = str(call.excinfo.value).strip().partition("\n")[0][:200] if call.excinfo else ""
        _tell("ran", item.nodeid, when=report.when, outcome=report.outcome, raised=raised, why=why)
    return report
