"""The attack table itself: no case without a test, and a page that tells harm as harm."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from station.core.attacks import ALL, CASES, CONFINED, EXCEPT, OPEN, Line, guaranteed
from tests.conftest import CONDITIONS

from . import targets
from .table import FAST, Cell, Table, cases_of

pytestmark = pytest.mark.timeout(180)  # collecting takes a while where processors are busy

ROOT = Path(__file__).resolve().parents[2]
_TEST = re.compile(r"::(?P<name>test_hd_\w*)\[(?P<parameters>.*)\]$")


@pytest.fixture(scope="module")
def tested() -> set[tuple[str, str]]:
    """Every case and target that a test of this folder is about, in the full tier."""
    command = [sys.executable, "-m", "pytest", "tests/attacks", "--collect-only", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "STN_TEST_FULL": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    return {pair for line in done.stdout.splitlines() for pair in _pairs(line)}


def _pairs(line: str) -> Iterator[tuple[str, str]]:
    if found := _TEST.search(line):
        parameters = found["parameters"].split("-")
        cases = cases_of(found["name"]) or [word for word in parameters if word in CASES]
        yield from ((case, word) for word in parameters if word in ALL for case in cases)


def test_every_case_has_a_test_wherever_it_is_guaranteed(tested: set[tuple[str, str]]) -> None:
    """On the confining targets also where it is not: there the test is about what Station says."""
    here = {"bubblewrap", "host"} | {param.values[0].name for param in targets.confined()}
    if CONDITIONS["docker"]():
        here -= {"docker", "gvisor"}
    if CONDITIONS["root"]():
        pytest.skip("some controls need root: their tests are left out, and the summary says so")
    wanted = {
        (name, target)
        for name, case in CASES.items()
        if not case.nothing_yet
        for target in {*case.guaranteed, *CONFINED} & here
    }
    assert sorted(wanted - tested) == []
    assert {name for name, case in CASES.items() if case.later} == {"R18", "K15", "N06", "N07", "N08", "N09", "F13"}


def test_every_name_in_the_table_is_a_case() -> None:
    assert {case for case, _ in (*OPEN, *EXCEPT)} | FAST <= set(CASES)
    assert {target for _, target in (*OPEN, *EXCEPT)} <= set(ALL)
    assert all(re.fullmatch(r"[A-Z].*\.", case.tried) and set(case.guaranteed) <= set(ALL) for case in CASES.values())
    assert not guaranteed("K01", "host")
    assert not guaranteed("X99", "docker")


def test_a_try_that_got_somewhere_is_harm_unless_the_table_says_why_not() -> None:
    tries = [{"what": what, "errno": None, "result": 0, "harm": True} for what in ("/dev/fuse", "/dev/mem")]
    line = Line.read(json.dumps({"id": "K10", "tries": tries, "harm": True}))
    assert line.harmful_on("gvisor") == ["/dev/mem: 0"]
    assert line.harmful_on("docker") == ["/dev/fuse: 0", "/dev/mem: 0"]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import isolation  # type: ignore[import-not-found,unused-ignore]

    assert isinstance(isolation, ModuleType)
    return isolation


def test_the_page_tells_harm_as_harm(pages: ModuleType, tmp_path: Path) -> None:
    table = Table()
    held = {"tests": 1, "failed": [], "errors": [], "skipped": [], "tries": [], "unshown": []}
    failed, told = {**held, "failed": ["test_x"]}, {"what": "/dev/fuse", "errno": None, "result": 0, "harm": True}
    table.merge(
        [
            {"case": "K01", "target": "bubblewrap", **held},
            {"case": "K01", "target": "docker", **failed},
            {"case": "K10", "target": "gvisor", **held, "tries": [told]},
            {"case": "R12", "target": "docker", **failed},
            {"case": "K12", "target": "bubblewrap", **held},
        ]
    )
    table.write(tmp_path / "table.json", {"station": "1", "tier": "fast", "kernel": "6"})
    rows = {
        line[2:5]: line.split(" | ")[2:] for line in pages.page(tmp_path / "table.json").splitlines() if "|" in line
    }
    assert rows["K01"] == ["held", "**failed**", "-", "- |"]
    assert rows["K10"][2] == "held (1)"
    assert rows["R12"][1] == "**open**"
    assert rows["K12"][0] == "told"
    assert "What closes it" in pages.page(tmp_path / "table.json")


def test_without_a_run_on_record_the_page_claims_none(pages: ModuleType, tmp_path: Path) -> None:
    told = pages.page(tmp_path / "none.json")
    assert "held" not in told.partition("## The last run")[2]
    assert "| K01 |" in told
    assert "| K15 |" not in told


def test_a_test_that_could_not_run_says_nothing_of_its_case() -> None:
    cell = Cell("K01", "docker", guaranteed=True, tests=1, errors=["test_x"])
    assert cell.outcome == "error"
    assert Cell("K01", "docker", guaranteed=True, tests=1, skipped=["test_x"]).outcome == "not run"
