"""The description of the API, and a station that answers as it says."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from station.core.errors import StationError, StationUnreachable
from station.core.principals import Action
from station.server.access.guard import action_at
from station.server.api.openapi import errors_of
from station.server.api.operations import OPERATIONS

from . import described
from .conftest import Api
from .offered import Offered, offered

__all__ = ["offered"]

ROOT = Path(__file__).parent.parent.parent
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method", "allow_header_conformance", "ignored_auth",
)  # fmt: skip
"""All that judge answers; not those by which whatever the schema lets through must be taken, and no more."""
OURS = ("stop_station", "delete_sandbox")
"""What would end the run itself."""


def test_each_operation_has_an_id_of_its_own_and_links_that_lead_to_one() -> None:
    by_id = {operation.id: operation for operation in OPERATIONS}
    assert len(by_id) == len(OPERATIONS)
    assert len({(operation.method, operation.path) for operation in OPERATIONS}) == len(OPERATIONS)
    for operation in OPERATIONS:
        for link in operation.links:
            assert [name for name in link.to if f"{{{link.parameter}" not in by_id[name].path] == []


def test_the_guard_lets_in_without_a_token_where_the_description_says_so() -> None:
    assert {each.path for each in OPERATIONS if each.to_all} == {"/healthz", "/readyz"}
    assert [each.id for each in OPERATIONS if each.to_all != (action_at(each.path) is Action.ASK)] == []


def test_every_schema_is_one() -> None:
    for schema in described.description()["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_a_description_needs_no_other_document() -> None:
    refs = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(described.description())))
    known = {f"#/components/schemas/{name}" for name in described.description()["components"]["schemas"]}
    assert refs <= known
    assert len(refs) > 20


def test_what_stands_under_a_field_is_its_description() -> None:
    fields = described.description()["components"]["schemas"]["SandboxView"]["properties"]
    assert fields["remove_at"]["description"].startswith("When it will be removed with its files")


def _tree(root: type[StationError]) -> set[type[StationError]]:
    return {root}.union(*(_tree(child) for child in root.__subclasses__() if child.__module__ == root.__module__))


def test_every_error_that_travels_is_described() -> None:
    told = {kind for operation in OPERATIONS for kinds in errors_of(operation).values() for kind in kinds}
    # A method that a path does not take is no operation; the SDK alone finds no station.
    assert {kind.code for kind in _tree(StationError) - told} <= {
        "internal",
        "method_not_allowed",
        "station_unreachable",
    }
    assert StationUnreachable not in told


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/healthz", 418), ("POST", "/api/v1/sandboxes", 302), ("DELETE", "/api/v1/files/a/b", 204)],
)
def test_an_answer_that_is_not_described_would_be_noticed(method: str, path: str, status: int) -> None:
    assert described.fault(method, path, status) is not None


async def test_the_description_is_served_as_it_is_made(api: Api) -> None:
    answer = await api.call("GET", "/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == described.description()


async def test_head_tells_what_get_would_and_holds_nothing_open(api: Api) -> None:
    uid = await api.open()
    files = f"/sandboxes/{uid}/files"
    await api.call("PUT", f"{files}?path=d/x", content=b"12345")
    started = (await api.call("POST", f"/sandboxes/{uid}/processes", {"argv": ["cat"], "stdin_open": True})).json()
    for path in (
        "/station",
        f"{files}/archive?path=d",
        f"/sandboxes/{uid}/processes/{started['id']}/output?follow=true",
    ):
        answer = await api.call("HEAD", path)
        assert (answer.status_code, answer.content) == (200, b"")
    answer = await api.call("HEAD", f"{files}?path=d/x")
    assert (answer.status_code, answer.headers["content-length"], answer.headers["x-total-size"]) == (200, "5", "5")
    assert (await api.call("HEAD", f"{files}?path=none")).status_code == 404


async def test_a_path_says_which_methods_it_takes(api: Api) -> None:
    wrong = await api.call("PATCH", "/sandboxes")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD, POST")
    # A name that is an operation of its own is no sandbox.
    wrong = await api.call("GET", "/sandboxes/check")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert (await api.call("GET", "/sandboxes/")).status_code == 404


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 201),
        ("application/x-www-form-urlencoded", 201),
        ("text/plain", 201),
        ("", 201),
        ("multipart/form-data; boundary=x", 415),
        (" Multipart/Mixed", 415),
    ],
)
async def test_json_is_read_whatever_it_is_called_except_as_a_form_in_parts(api: Api, kind: str, status: int) -> None:
    answer = await api.call("POST", "/sandboxes", content=b'{"name": "a"}', headers={"content-type": kind})
    assert answer.status_code == status


def fuzz(offered: Offered, folder: Path, *words: str, of: str = "") -> subprocess.CompletedProcess[str]:
    """Runs schemathesis against it. `of`: a file with another description than the station's own."""
    (folder / "schemathesis.toml").write_text(
        f'[parameters]\n"path.sid" = "{offered.sandbox}"\n"query.path" = "a/b"\n', encoding="utf-8"
    )
    place = [of, "--url", offered.url] if of else [f"{offered.url}/api/v1/openapi.json"]
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", *place,
        "--header", f"Authorization: Bearer {offered.token}", "--checks", ",".join(CHECKS),
        *(word for name in OURS for word in ("--exclude-operation-id", name)),
        "--generation-database", "none", "--no-color", "--no-shrink", "--continue-on-failure", "--warnings", "off",
        "--request-timeout", "30", *words,
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.server.fuzz_hooks"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def assert_as_described(offered: Offered, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    tested = re.search(r"(\d+) generated, \1 passed", done.stdout)
    assert tested is not None, done.stdout[-2000:]
    assert int(tested[1]) > len(OPERATIONS)
    assert "Traceback" not in offered.log.read_text(encoding="utf-8")


def test_a_station_answers_as_it_is_described(offered: Offered, tmp_path: Path) -> None:
    assert_as_described(offered, fuzz(offered, tmp_path, "--phases", "fuzzing", "--max-examples", "2", "--seed", "1"))


def test_a_station_that_answers_otherwise_would_be_found_out(offered: Offered, tmp_path: Path) -> None:
    wrong = copy.deepcopy(described.description())
    answers = wrong["paths"]["/healthz"]["get"]["responses"]
    answers["200"]["content"]["application/json"]["schema"]["properties"]["pid"] = {"type": "string"}
    del answers["429"], answers["500"]
    (tmp_path / "wrong.json").write_text(json.dumps(wrong), encoding="utf-8")
    words = ("--include-operation-id", "get_health", "--phases", "fuzzing", "--max-examples", "1", "--seed", "1")
    done = fuzz(offered, tmp_path, *words, of="wrong.json")
    assert (done.returncode, "Response violates schema" in done.stdout) == (1, True), done.stdout[-3000:]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_station_answers_as_it_is_described_whatever_is_tried(offered: Offered, tmp_path: Path) -> None:
    assert_as_described(
        offered, fuzz(offered, tmp_path, "--phases", "coverage,fuzzing,stateful", "--max-examples", "60")
    )
