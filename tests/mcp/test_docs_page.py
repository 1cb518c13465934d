"""docs/mcp.md: every snippet is what its client can read, and what it starts is what there is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from station import Client
from station.cli.app import app

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:7777/mcp"
READ: dict[str, Callable[[str], Any]] = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def entries(value: Any) -> Iterator[dict[str, Any]]:
    """What looks like one server, wherever its client wants it."""
    if isinstance(value, dict):
        if {"command", "cmd", "url", "httpUrl", "serverUrl", "uri"} & value.keys():
            yield value
        else:
            for inner in value.values():
                yield from entries(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from entries(inner)


def address(entry: dict[str, Any]) -> str | None:
    found = [entry[key] for key in ("url", "httpUrl", "serverUrl", "uri") if key in entry]
    return found[0] if found else None


def command(entry: dict[str, Any]) -> list[str]:
    program: str | list[str] = entry["cmd"] if "cmd" in entry else entry["command"]
    return [program, *entry["args"]] if isinstance(program, str) else program


SERVERS = [entry for name, read in READ.items() for text in blocks(name) for entry in entries(read(text))]
IN_SHELL = [match.split() for text in blocks("sh") for match in re.findall(r"\bstn mcp\b.*", text)]
COMMANDS = [*IN_SHELL, *[command(entry) for entry in SERVERS if not address(entry)]]


def test_every_snippet_says_how_to_reach_one_server():
    snippets = [(text, read(text)) for name, read in READ.items() for text in blocks(name)]
    assert len(snippets) > 20
    assert [text for text, value in snippets if len(list(entries(value))) != 1] == []


@pytest.mark.parametrize("words", sorted({tuple(words) for words in COMMANDS}), ids=" ".join)
def test_the_command_line_is_one_that_stn_takes(words: tuple[str, ...]):
    name, face, *options = words
    assert (name, face) == ("stn", "mcp")
    group = typer.main.get_command(app)
    found = group.get_command(typer.Context(group), face)  # type: ignore[attr-defined]
    with found.make_context("stn mcp", options):  # it raises what a user would be told
        pass


def test_over_http_there_is_one_address_and_a_token():
    served = [entry for entry in SERVERS if address(entry)]
    assert {address(entry) for entry in served} == {ADDRESS}
    for entry in served:
        headers = entry.get("headers") or entry.get("requestOptions", {}).get("headers")
        token = headers["Authorization"].removeprefix("Bearer ") if headers else entry["bearer_token_env_var"]
        assert "STN_TOKEN" in token or "station-token" in token or token == "stn_op_..."
    assert all(ADDRESS in line for text in blocks("sh") for line in re.findall(r".*://.*", text))


def test_a_client_that_takes_both_has_both():
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))
    stdio_only = {"Claude Desktop", "JetBrains AI Assistant"}
    clients = {name: text for name, text in sections.items() if re.search(r"^```(json|toml|yaml)$", text, re.MULTILINE)}
    assert len(clients) >= 14
    assert {name for name, text in clients.items() if ADDRESS not in text} == stdio_only


@pytest.mark.parametrize("text", blocks("python"), ids=lambda text: re.findall(r"^from (\w+)", text, re.MULTILINE)[-1])
def test_an_example_in_python_is_python(text: str):
    compile(text, "docs/mcp.md", "exec")


def test_the_page_shows_the_example_as_it_is():
    assert (ROOT / "docs_src" / "agent_tools.py").read_text(encoding="utf-8") in blocks("python")


@pytest.fixture
def env(home: Path, tmp_path: Path) -> dict[str, str]:
    """`stn` on the path, as the page asks for. Clients hand on little else, so it knows its state directory itself."""
    program = tmp_path / "stn"
    program.write_text(f'#!/bin/sh\nSTN_HOME={home} exec {sys.executable} -m station "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_the_example_does_its_task(env: dict[str, str]):
    program = [sys.executable, str(ROOT / "docs_src" / "agent_tools.py")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=50, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    said = ["13 tools", "exit code 0 ['readings.csv', 'report.txt', 'warmest.py']", "warmest: wed, mean: 20.52"]
    assert done.stdout.splitlines() == said


def test_the_example_over_http_finds_the_tools(env: dict[str, str], home: Path, client: Client):
    client.info()  # so the station is there, and listens
    url = json.loads((home / "listening.json").read_text())["url"]
    token = (home / "operator.token").read_text().strip()
    (text,) = [text for text in blocks("python") if "streamable_http_client" in text]
    code = text.replace(ADDRESS, f"{url}/mcp")
    program = [sys.executable, "-c", code]
    done = subprocess.run(program, capture_output=True, text=True, timeout=50, env={**env, "STN_TOKEN": token})
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")
