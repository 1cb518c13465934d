"""The size budgets of the project. Lowering one is free; raising one needs a note in docs/decisions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "station"
GENERATED = SOURCE / "client" / "_sync"

FILE_LINES = 400
FUNCTION_LINES = 50
FUNCTION_LINES_P90 = 25
SHARE_OVER_FUNCTION_LINES = 0.015
POSITIONAL_ARGUMENTS = 5
# Top-level loops and boundaries: they outlive any error of what they drive, and log it. "file::function".
BROAD_EXCEPT = {"mcp/server.py::answer"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if GENERATED not in path.parents]
TREES = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def functions() -> Iterator[tuple[str, Function]]:
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{name}::{node.name}", node


def length(node: Function) -> int:
    docstring = ast.get_docstring(node, clean=False)
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    return lines - (docstring.count("\n") + 1 if docstring else 0)


def broad_excepts() -> Iterator[str]:
    for where, function in functions():
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "BaseException"
                if not {"Exception", "BaseException"}.isdisjoint(caught.strip("()").split(", ")):
                    yield where


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_file_is_short(path: Path) -> None:
    assert sum(1 for line in path.read_text(encoding="utf-8").splitlines() if line.strip()) <= FILE_LINES


def test_functions_are_short() -> None:
    lengths = sorted((length(node), where) for where, node in functions())
    too_long = [item for item in lengths if item[0] > FUNCTION_LINES]
    assert len(too_long) <= SHARE_OVER_FUNCTION_LINES * len(lengths), too_long
    assert lengths[int(0.9 * len(lengths))][0] <= FUNCTION_LINES_P90, lengths[int(0.9 * len(lengths)) :]


def test_no_function_takes_many_positional_arguments() -> None:
    counts = {where: len(node.args.posonlyargs + node.args.args) for where, node in functions()}
    assert {where: count for where, count in counts.items() if count > POSITIONAL_ARGUMENTS} == {}


def test_only_top_level_loops_catch_everything() -> None:
    assert set(broad_excepts()) == BROAD_EXCEPT
