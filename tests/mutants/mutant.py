"""One defence, how it is taken away, and who must notice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class StaleError(Exception):
    """A mutant no longer fits the source: whoever changed the defence brings its mutant up to date."""


@dataclass(frozen=True)
class Edit:
    file: str
    """From the top of the repository."""
    text: str
    """As it stands there, exactly once."""
    instead: str

    def applied(self, source: str) -> str:
        """Raises StaleError where the text is not there, or there more than once."""
        count = source.count(self.text)
        if count != 1:
            raise StaleError(
                f"{self.file}: this text must stand there once and stands there {count} times:\n{self.text}"
            )
        if self.instead == self.text:
            raise StaleError(f"{self.file}: the replacement changes nothing:\n{self.text}")
        return source.replace(self.text, self.instead)


@dataclass(frozen=True)
class Mutant:
    name: str
    gone: str
    """What is taken away, as a sentence of what then happens."""
    edits: tuple[Edit, ...]
    """Of a defence in two layers both go: each alone would hide the loss of the other."""
    tests: tuple[str, ...]
    """Each must turn red: `file::function`, or with one of its parameters in brackets."""
    by: tuple[str, ...] = ()
    """What a test may end with besides a failed assertion, by the exception's name: where the harm is that something
    never comes, or comes as an error. `Timeout`: the bound of the test itself. `teardown`: an assertion of its
    fixtures, which look for what is left."""
    engine: bool = False
    """Whether its tests need a Docker engine."""

    @property
    def compiles(self) -> bool:
        """Whether the guest must be built again."""
        return any(edit.file.startswith("guest/") for edit in self.edits)

    def changed(self, root: Path) -> dict[str, str]:
        """By file, the source without the defence. Raises StaleError."""
        found: dict[str, str] = {}
        for edit in self.edits:
            source = found.get(edit.file)
            found[edit.file] = edit.applied((root / edit.file).read_text("utf-8") if source is None else source)
        return found


def chosen(mutants: Iterable[Mutant], names: Iterable[str]) -> list[Mutant]:
    """Those of these names, all without one. Raises KeyError for a name that there is not."""
    by_name = {mutant.name: mutant for mutant in mutants}
    return [by_name[name] for name in names] or list(by_name.values())
