"""`${VAR}` and `${VAR:-default}` in strings of settings, and how a string says that it has none."""

from __future__ import annotations

import re
from collections.abc import Callable

_FOUND = re.compile(r"\$?\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


def filled(text: str, value_of: Callable[[str, str | None], str]) -> str:
    """`text` with each placeholder replaced by what `value_of` says to its name and default (`None`: it has none), and
    `$${VAR}` by `${VAR}`."""

    def one(found: re.Match[str]) -> str:
        return found[0][1:] if found[0].startswith("$$") else value_of(found["name"], found["default"])

    return _FOUND.sub(one, text)


def literal(text: str) -> str:
    """What `filled` makes `text` of, whatever that is: nothing in it is a placeholder."""
    return _FOUND.sub(lambda found: f"${found[0]}", text)


def is_name_alone(text: str) -> bool:
    """Whether it is one placeholder and nothing else, with a name as variables of an environment have it."""
    found = _FOUND.fullmatch(text)
    return found is not None and not text.startswith("$$") and found["name"].isupper()
