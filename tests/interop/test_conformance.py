"""The conformance suite of the protocol's authors, over HTTP. It was written for a server with tools, prompts and
resources of its own; conformance.yml tells for every scenario that fails why it has to.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from .peers import CLIENTS, HERE, Target
from .proxy import adding

SUITE = CLIENTS / "npm" / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
EXPECTED = HERE / "conformance.yml"


@pytest.fixture(scope="module")
def proxied(http: Target) -> Iterator[str]:
    port = urlsplit(http["url"]).port
    assert port
    with adding(http["token"], port) as port:
        yield f"http://127.0.0.1:{port}/mcp"


def test_the_suite_passes_but_for_what_is_explained(proxied: str, tmp_path: Path, client_ran: Callable[[str], None]):
    assert SUITE.exists(), "run scripts/clients"
    words = ["server", "--url", proxied, "--suite", "all", "--output-dir", str(tmp_path)]
    node = str(CLIENTS / "node" / "bin" / "node")
    done = subprocess.run(
        [node, str(SUITE), *words, "--expected-failures", str(EXPECTED)], capture_output=True, text=True, timeout=50
    )
    summary = done.stdout.partition("=== SUMMARY ===")[2]
    assert done.returncode == 0, summary + done.stderr
    passed = re.findall(r"^✓ ([a-z0-9-]+):", summary, re.MULTILINE)
    # That the suite ran at all, and met what it knows of us.
    assert {"server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection"} <= set(passed)
    client_ran("conformance")


def test_each_expected_failure_is_explained():
    text = EXPECTED.read_text(encoding="utf-8")
    explained = re.findall(r"^  - (\S+) +# .{10,}$", text, re.MULTILINE)
    assert explained == yaml.safe_load(text)["server"]
    assert len(explained) == len(set(explained))
