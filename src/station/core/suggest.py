"""What somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

# What lessens isolation is no guess, only the mending of a slip.
_DELICATE = frozenset({"allow_host", "STN_SANDBOX_ALLOW_HOST"})
_SLIP = 0.9


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or which names there are."""
    names = sorted(known)
    return near_name(name, names) or (f"; known are {', '.join(names)}" if names else "")


def near_name(name: str, names: Sequence[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    # `timeout` is meant as timeout_seconds, though other names have more letters in common.
    close = [known for known in names if name and known.startswith(f"{name}_")]
    close = close or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    close = [known for known in close if known not in _DELICATE or _likeness(name, known) > _SLIP]
    return f"; did you mean {close[0]!r}?" if close else ""


def slip_of(name: str, known: Iterable[str], *, least: float = 0.8) -> str | None:
    """The one that `name` is but for a slip of the fingers; the first word, which all have, proves nothing.

    `least`: how alike the rest must be, 1 being equal. `None`: it is like none of them.
    """
    rest = name.partition("_")[2]
    likeness, close = max(((_likeness(rest, one.partition("_")[2]), one) for one in known), default=(0.0, ""))
    return close if likeness >= (_SLIP if close in _DELICATE else least) else None


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
