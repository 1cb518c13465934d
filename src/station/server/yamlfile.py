"""Reads `station.yaml`. It may hold secrets: what is wrong is told by its place, and never quoted."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import yaml

from station.core.errors import InvalidInput

_QUOTED = re.compile(r"['\"].*['\"]", re.DOTALL)
"""From the first mark to the last: what stands between may have marks too."""
_NO_VALUE = "a value is not what its tag, or its form, says"


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice: one of the two would be lost silently."""

    names: Collection[str] = ()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                name = key.value if key.value in self.names else "a key"
                raise yaml.constructor.ConstructorError(None, None, f"{name} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise yaml.constructor.ConstructorError(None, None, _NO_VALUE, node.start_mark) from None


def read(raw: bytes, names: Collection[str], *, where: str) -> Any:
    """What the file says. Raises InvalidInput with the line and column of what is wrong, without what stands there;
    but a key of `names` that is given twice is named. `where` begins the sentence."""
    loader: type[_Loader] = type("Loader", (_Loader,), {"names": names})
    try:
        return yaml.load(raw.decode(), Loader=loader)  # noqa: S506 - a SafeLoader
    except UnicodeDecodeError as error:
        why = f"it is no UTF-8, from byte {error.start} on"
    except yaml.MarkedYAMLError as error:
        why = _QUOTED.sub("…", error.problem or "it is no YAML")
        if mark := error.problem_mark or error.context_mark:
            why = f"line {mark.line + 1}, column {mark.column + 1}: {why}"
    except yaml.reader.ReaderError as error:
        why = f"the character at {error.position} is none of YAML"
    except RecursionError:
        why = "it is nested too deeply"
    raise InvalidInput(f"{where}cannot be read: {why}", field="station.yaml")
