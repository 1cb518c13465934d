"""What somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or which names there are."""
    names = sorted(known)
    return near_name(name, names) or (f"; known are {', '.join(names)}" if names else "")


def near_name(name: str, names: Sequence[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    # `timeout` is meant as timeout_seconds, though other names have more letters in common.
    close = [known for known in names if name and known.startswith(f"{name}_")]
    close = close or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
