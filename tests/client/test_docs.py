"""Every program of docs_src runs, and the pages show them as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from station import connect
from tests.client.conftest import ended

ROOT = Path(__file__).parent.parent.parent
SHOWN = {
    "README.md": ["ten_lines.py"],
    "docs/adapters.md": ["workspaces.py", "containers.py"],
    "docs/sdk.md": ["many.py", "follow.py", "files.py", "in_asyncio.py"],
}
SAID = {
    "ten_lines.py": ["45", "hello from /workspace/hello.py", "running as prc_"],
    "many.py": ["exit code 0, '42'", "exit code 3", "timed_out, exit code 124"],
    "follow.py": ["step 1\nstep 2\nstep 3\n", "ended: exited 0", "stdout 0 typed"],
    "files.py": ["'/workspace/data/table.csv'", "a,b\n1,2\n", "path_refused"],
    "workspaces.py": ["completed 0 45", "invalid_input 400", "['job/sum.py']"],
    "in_asyncio.py": ["['0', '1', '4', '9', '16']", "Linux"],
}


@pytest.mark.parametrize("name", SAID)
def test_an_example_says_what_it_should(real: str, name: str):
    done = subprocess.run([sys.executable, str(ROOT / "docs_src" / name)], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert [part for part in SAID[name] if part not in done.stdout] == []


def test_the_demo_holds_what_it_claims_where_no_station_ran_before(tmp_path: Path):
    """It starts its own, with the variables that scripts/demo exports."""
    said = re.findall(r"^export (\w+)=(\S+)$", (ROOT / "scripts" / "demo").read_text(encoding="utf-8"), re.MULTILINE)
    assert said, "the demo looks for a variable of the shell"
    env = {**os.environ, "STN_HOME": str(tmp_path / "home"), **dict(said)}
    program = [sys.executable, str(ROOT / "docs_src" / "demo.py")]
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=55, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        with connect(tmp_path / "home") as client:
            assert f"It ran on {client.info().default_backend}" in done.stdout
    finally:
        with connect(tmp_path / "home") as client:
            client.delete("demo")
            client.stop()
        ended(tmp_path / "home")


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_shows_its_examples_as_they_are(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    missing = [name for name in SHOWN[page] if (ROOT / "docs_src" / name).read_text(encoding="utf-8") not in text]
    assert missing == []
