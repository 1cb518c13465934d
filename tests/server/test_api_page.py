"""The examples of docs/api.md run as they stand there, over TCP and over the unix socket, and say what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .offered import Offered, offered

__all__ = ["offered"]

PAGE = Path(__file__).parent.parent.parent / "docs" / "api.md"
BLOCK = re.compile(r"^```sh\n(?P<commands>.*?)^```\n(?:\n```json\n(?P<said>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
MARK = "@@@ the next example @@@"


def examples() -> list[tuple[str, str]]:
    """Commands, and what they are shown to say; empty where that is not shown."""
    return [(found["commands"], found["said"] or "") for found in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]


def says(shown: str, text: str) -> bool:
    """Whether `text` is what is shown, where `…` stands for anything, and blanks for nothing."""
    parts = ["".join(part.split()) for part in shown.split("…")]
    return re.fullmatch(".*".join(map(re.escape, parts)), "".join(text.split()), re.DOTALL) is not None


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("way", ["TCP", "the unix socket"])
def test_the_examples_of_the_page_run(offered: Offered, tmp_path: Path, way: str) -> None:
    on_socket, on_tcp, *rest = examples()
    assert "--unix-socket" in on_socket[0]
    assert "Authorization" in on_tcp[0]
    assert len(rest) >= 6
    used = [on_tcp if way == "TCP" else on_socket, *rest]
    script = "\n".join(["set -euo pipefail", *(f"echo '{MARK}'\n{commands}" for commands, _ in used)])
    env = {
        **os.environ,
        "STN_HOME": str(offered.home),
        "URL": offered.url if way == "TCP" else "http://station",
        "TOKEN": offered.token,
    }
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    texts = done.stdout.split(f"{MARK}\n")[1:]
    wrong = [(shown, text) for (_, shown), text in zip(used, texts, strict=True) if shown and not says(shown, text)]
    assert wrong == []


def test_another_answer_than_the_page_shows_would_be_noticed() -> None:
    assert says('{"a": 1, …}', '{"a":1,"b":2}')
    assert not says('{"a": 1, …}', '{"a":2,"b":2}')
    assert not says('{"a": 1}', '{"a":1,"b":2}')
