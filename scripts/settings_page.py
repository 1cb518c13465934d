"""docs/settings.md: docs_src/settings.md with the table of all keys in it, from the classes of the settings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le

from station.core.spec import DEFAULT_LIMITS
from station.server.environment import ALIASES
from station.server.settings import TOLD, Settings, variables

SOURCE = Path(__file__).resolve().parent.parent / "docs_src" / "settings.md"
NOTE = (
    "<!-- Written by scripts/pages.py from docs_src/settings.md and src/station/server/settings.py: change those. -->"
)
TABLE = "<!-- the table of all keys -->"
ABOUT = re.compile(r"\n## (?P<title>[^\n]+)\n\n<!-- more about (?P<keys>[^\n]+) -->\n")
"""Below the heading of a section: the keys whose rows lead to it."""
_HUGE = 1_000_000
"""Bounds from here on tell nobody anything."""


def page() -> str:
    title, _, text = SOURCE.read_text(encoding="utf-8").partition("\n")
    more = {key: found["title"] for found in ABOUT.finditer(text) for key in found["keys"].split()}
    named = {".".join(place): name for name, place in variables()}
    rows = [row for key, item, hint, doc in _keys(Settings) if (row := _row(key, named[key], item, hint, doc, more))]
    if unknown := sorted(set(more) - set(named)):
        raise SystemExit(f"{SOURCE.name} has more about {', '.join(unknown)}, which are no keys")
    table = "\n".join(["| key | variable | default | what it does |", "|---|---|---|---|", *rows])
    text = ABOUT.sub(lambda found: f"\n## {found['title']}\n", text)
    return f"{title}\n\n{NOTE}\n{text.replace(TABLE, table)}"


def _keys(cls: type, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any, str]]:
    """Every key with its field, its type and what is said of it; plain ones before sections."""
    hints = typing.get_type_hints(cls, include_extras=True)
    docs = _docs(cls)
    sections = []
    for item in dataclasses.fields(cls):
        if item.name in TOLD or item.name == "home":
            continue
        key = f"{prefix}{item.name}"
        if dataclasses.is_dataclass(hint := hints[item.name]):
            sections.append((hint, f"{key}."))
        elif not (doc := docs.get(item.name)):
            raise SystemExit(f"nothing is said of the setting {key}")
        else:
            yield key, item, hint, doc
    for hint, below in sections:
        yield from _keys(typing.cast(type, hint), below)


def _docs(cls: type) -> dict[str, str]:
    """What stands below each field, in one line."""
    (made,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(made, ast.ClassDef)
    found = {}
    for field, after in zip(made.body, made.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(after.value.value).split())
    return found


def _row(key: str, variable: str, item: dataclasses.Field[Any], hint: Any, doc: str, more: Mapping[str, str]) -> str:
    also = [f"`{name}`" for name, alias in ALIASES.items() if alias.variable == variable]
    text = f"{doc} {_bounds(hint)}".strip()
    if key in more:
        text += f" [More below](#{re.sub(r'[^a-z0-9 -]', '', more[key].lower()).replace(' ', '-')})"
    names = ", ".join([f"`{variable}`", *also])
    return f"| `{key}` | {names} | {_default(key, item)} | {text.replace('|', chr(92) + '|').rstrip('.')} |"


def _default(key: str, item: dataclasses.Field[Any]) -> str:
    if key.startswith("sandbox.limits."):
        built_in = getattr(DEFAULT_LIMITS, item.name)
        return "unset" if built_in is None else f"unset: {built_in:g}"
    value = item.default
    if value in (None, "", ()):
        return "unset"
    return str(value).lower() if isinstance(value, bool) else _number(value)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bounds(hint: Any) -> str:
    """`Annotated[int, Ge(1), Le(64)] | None` too."""
    kinds = [hint, *typing.get_args(hint)]
    known = [each for kind in kinds for each in getattr(kind, "__metadata__", ())]
    least = next((each.ge for each in known if isinstance(each, Ge)), None)
    above = next((each.gt for each in known if isinstance(each, Gt)), None)
    most = next((each.le for each in known if isinstance(each, Le) and float(str(each.le)) < _HUGE * 100), None)
    if least is not None and most is not None:
        return f"{_number(least)} to {_number(most)}."
    if above is not None:
        return f"Above {_number(above)}."
    return ""


if __name__ == "__main__":
    print(page())
