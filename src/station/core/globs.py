"""Patterns of file names, as artifacts are asked for and brought back by."""

from __future__ import annotations

import re

from .paths import WORKSPACE

_MAGIC = re.compile(r"[*?\[]")


def is_pattern(name: str) -> bool:
    """Whether it may mean other files than the one of that name."""
    return _MAGIC.search(name) is not None


def expression(pattern: str) -> re.Pattern[str]:
    """Of a glob: `*` and `?` stay within a directory, `**` crosses them, `[...]` is one of a set."""
    if pattern.startswith(f"{WORKSPACE}/"):
        pattern = pattern[len(WORKSPACE) + 1 :]
    pattern = pattern.removeprefix("./")
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            parts.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            parts.append(".*")
            at += 2
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) != -1:
            inner = pattern[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            inner = f"^{inner[1:]}" if inner[0] in "!^" else inner
            parts.append(f"(?!/)[{inner}]")
            at = end + 1
        else:
            parts.append({"*": "[^/]*", "?": "[^/]"}.get(pattern[at], re.escape(pattern[at])))
            at += 1
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:  # a set that is none, such as [z-a]: then it is just characters
        return re.compile(re.escape(pattern), re.DOTALL)
