"""docs/survives.md says nothing that no test shows."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_what_is_said_to_survive_is_named_by_the_tests_that_show_it() -> None:
    page = (ROOT / "docs" / "survives.md").read_text(encoding="utf-8")
    table, _, listed = page.partition("## The tests")
    shown = {int(number) for number in re.findall(r"\[(\d+)\]", table)}
    tests = {
        int(number): (file, name) for number, file, name in re.findall(r"^(\d+)\. (\S+)::(\w+)$", listed, re.MULTILINE)
    }
    assert shown == set(tests)
    missing = [
        f"{file}::{name}"
        for file, name in tests.values()
        if not re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert missing == []
