"""The public names, and that the two halves of the SDK are one."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import station
from station.client._async import client as async_client
from station.client._async import files as async_files
from station.client._async import processes as async_processes
from station.client._async import sandbox as async_sandbox
from station.client._sync import client, files, processes, sandbox

ROOT = Path(__file__).parent.parent.parent
PAIRS = [
    (async_client.AsyncClient, client.Client),
    (async_sandbox.AsyncSandbox, sandbox.Sandbox),
    (async_processes.AsyncProcess, processes.Process),
    (async_processes.AsyncProcesses, processes.Processes),
    (async_files.AsyncFiles, files.Files),
]


def test_the_public_names_are_sorted_exist_and_are_known_to_type_checkers():
    assert station.__all__ == sorted(station.__all__)
    assert all(getattr(station, name) is not None for name in station.__all__)
    stub = ast.parse((ROOT / "src/station/__init__.pyi").read_text(encoding="utf-8"))
    typed = {alias.asname for node in ast.walk(stub) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {str(name) for name in typed} | {"__version__"} == set(station.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Sandbx"):
        station.Sandbx  # type: ignore[attr-defined] # noqa: B018


def test_the_sync_half_is_what_the_script_makes_of_the_async_half():
    done = subprocess.run([sys.executable, "scripts/unasync.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def plain(annotation: object) -> str:
    return re.sub(r"\bAsync(?=[A-Z])", "", str(annotation))


@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_halves_have_the_same_signatures(theirs: type, ours: type):
    names = {name for name in vars(theirs) if not name.startswith("_")}
    assert names == {name for name in vars(ours) if not name.startswith("_")}
    for name in names:
        left, right = getattr(theirs, name), getattr(ours, name)
        if callable(left):
            assert plain(inspect.signature(left)) == plain(inspect.signature(right)), name


@pytest.mark.parametrize(
    ("theirs", "ours"), [("arun", "run"), ("amap", "map"), ("aimap", "imap"), ("aconnect", "connect")]
)
def test_the_functions_have_the_same_signatures(theirs: str, ours: str):
    assert plain(inspect.signature(getattr(station, theirs))) == plain(inspect.signature(getattr(station, ours)))


@pytest.mark.parametrize("kind", [kind for pair in PAIRS for kind in pair], ids=lambda kind: kind.__name__)
def test_options_are_keywords(kind: type):
    for name, member in vars(kind).items():
        if name.startswith("_") or not callable(member):
            continue
        given = inspect.signature(member).parameters.values()
        free = [p.name for p in given if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty]
        assert free in ([], ["name"], ["path"], ["timeout_seconds"]), name
