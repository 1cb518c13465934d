"""The mutation job itself: its table fits the source, and a test that has noticed is told from one that merely fell."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, reports
from tests.mutants.__main__ import main
from tests.mutants.keeper import below
from tests.mutants.mutant import Edit, Mutant, StaleError, chosen
from tests.mutants.tree import ROOT
from tests.mutants.verdict import Kind, Run, of_control, of_mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source(mutant: Mutant) -> None:
    for file, text in mutant.changed(ROOT).items():
        assert text != (ROOT / file).read_text("utf-8")
        if file.endswith(".py"):
            ast.parse(text)


def functions(file: str) -> set[str]:
    """Those that pytest finds there: defined, or imported under their names."""
    found: set[str] = set()
    for node in ast.parse((ROOT / file).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_of_a_mutant_are_there(mutant: Mutant) -> None:
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions(file), test


def test_names_are_unique_and_sentences_tell_what_happens() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", mutant.name) and len(mutant.gone) > 15 for mutant in MUTANTS)


@pytest.mark.parametrize(("text", "instead"), [("two", "x"), ("none", "x"), ("one", "one")])
def test_a_text_that_does_not_stand_there_once_is_refused(text: str, instead: str) -> None:
    with pytest.raises(StaleError):
        Edit("file", text, instead).applied("one two two")


def test_two_edits_of_one_file_are_both_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one two")
    edits = (Edit("file", "one", "1"), Edit("file", "two", "2"))
    assert Mutant("m", "", edits, ()).changed(tmp_path) == {"file": "1 2"}


def test_an_unknown_name_is_a_mistake_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mutants", "--only", "no-such-mutant"])
    assert main() == 2
    assert [mutant.name for mutant in chosen(MUTANTS, [MUTANTS[3].name])] == [MUTANTS[3].name]
    assert chosen(MUTANTS, []) == list(MUTANTS)


PROJECT = """
import asyncio, os, pytest

class Gone(Exception): ...

@pytest.fixture
def broken():
    raise AssertionError("in the setup")

@pytest.fixture
def left():
    yield
    assert False, "something is left"

def test_green(): ...
def test_asserts(): assert 1 == 2
def test_expects():
    with pytest.raises(ValueError): ...
def test_falls(): raise Gone("otherwise")
def test_imports(): import no_such_module
def test_setup(broken): ...
def test_teardown(left): ...
def test_hangs(): pytest.fail("Timeout (>60.0s) from pytest-timeout.")
def test_group(): raise BaseExceptionGroup("both", [Gone("a"), AssertionError("b")])
def test_skips(): pytest.skip("not here")
@pytest.mark.parametrize("n", [1, 2])
def test_many(n): assert n == 1
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("project"), PROJECT)


def run_of(folder: Path, source: str) -> Run:
    (folder / "test_it.py").write_text(source)
    names = re.findall(r"def (test_\w+)", source)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), reports.FILE: str(folder / "reports")}
    environ[reports.WANTED] = "\n".join(f"test_it.py::{name}" for name in names)
    command = [sys.executable, "-m", "pytest", "-q", "-p", reports.__name__, "-p", "no:cacheprovider", "test_it.py"]
    subprocess.run(command, cwd=folder, env=environ, capture_output=True)
    return Run.read(folder / "reports")


@pytest.mark.parametrize(
    ("name", "by", "kind"),
    [
        ("green", (), Kind.SURVIVED),
        ("asserts", (), Kind.KILLED),
        ("expects", (), Kind.KILLED),
        ("falls", (), Kind.BROKEN),
        ("falls", ("Gone",), Kind.KILLED),
        ("imports", (), Kind.BROKEN),
        ("setup", (), Kind.BROKEN),
        ("setup", ("teardown",), Kind.BROKEN),
        ("teardown", (), Kind.BROKEN),
        ("teardown", ("teardown",), Kind.KILLED),
        ("hangs", (), Kind.BROKEN),
        ("hangs", ("Timeout",), Kind.KILLED),
        ("group", (), Kind.KILLED),
        ("many", (), Kind.KILLED),
        ("many[2]", (), Kind.KILLED),
        ("many[1]", (), Kind.SURVIVED),
        ("none", (), Kind.BROKEN),
    ],
)
def test_a_mutant_is_killed_by_what_its_tests_look_for_alone(
    run: Run, name: str, by: tuple[str, ...], kind: Kind
) -> None:
    assert of_mutant([f"test_it.py::test_{name}"], run, by=by).kind is kind


def test_every_named_test_must_notice(run: Run) -> None:
    both = ["test_it.py::test_asserts", "test_it.py::test_green"]
    assert of_mutant(both, run).kind is Kind.SURVIVED
    assert of_mutant([both[0], "test_it.py::test_expects"], run).kind is Kind.KILLED


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("green", None),
        ("asserts", Kind.BROKEN),
        ("skips", Kind.LEFT_OUT),
        ("none", Kind.BROKEN),
        ("setup", Kind.BROKEN),
    ],
)
def test_a_control_must_be_green(run: Run, name: str, kind: Kind | None) -> None:
    found = of_control([f"test_it.py::test_{name}"], run)
    assert (found.kind if found else None) is kind


def test_a_file_that_cannot_be_collected_kills_nothing(tmp_path: Path) -> None:
    found = of_mutant(["test_it.py::test_asserts"], run_of(tmp_path, "import no_such_module\n" + PROJECT))
    assert found.kind is Kind.BROKEN
    assert "no_such_module" in found.why


def test_a_run_that_never_ends_tells_what_came_before(run: Run) -> None:
    cut = Run(run.events, ended=False)
    assert of_mutant(["test_it.py::test_asserts"], cut).kind is Kind.KILLED
    assert of_mutant(["test_it.py::test_green"], cut).kind is Kind.BROKEN


DAEMON = "setsid sh -c 'echo $$; exec sleep 1000' & wait $!"


def test_nothing_outlives_the_keeper(tmp_path: Path) -> None:
    """A daemon that is nobody's child any more, while its keeper is told to end. The control: it runs until then."""
    command = [sys.executable, "-m", "tests.mutants.keeper", "bash", "-c", f"({DAEMON}) & echo; wait"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout
        daemon = int(next(line for line in keeper.stdout if line.strip()))
        assert daemon in below(keeper.pid)
        keeper.terminate()
        assert keeper.wait(20) == 143
    assert not Path(f"/proc/{daemon}").exists()


def test_the_keeper_ends_as_its_command_does() -> None:
    command = [sys.executable, "-m", "tests.mutants.keeper", "sh", "-c", "exit 7"]
    assert subprocess.run(command, cwd=ROOT).returncode == 7
