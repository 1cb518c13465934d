"""The attacks that are safe on a machine that people use, and what each means where it got somewhere or nowhere.

Safe is what does no harm to the machine even where the sandbox holds nothing: the program asks for what no kernel does,
opens without writing, and makes few processes that end with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .attacks import CASES, guaranteed
from .capabilities import Capabilities, Grade, Level, LimitReport

PORT, FREE_PORT, ADDRESSES, CANARY = "<port>", "<free port>", "<addresses>", "<canary>"
TOKEN, KEY, PIDS, CROWD, MIB = "<token>", "<key>", "<pids>", "<crowd>", "<MiB>"
MEMORY_MB = 64
"""What the sandbox may have that touches four times as much."""
PIDS_LIMIT = 64
"""Of the sandboxes, where it can be kept: a small crowd is beyond it."""


@dataclass(frozen=True)
class Step:
    """One case, as the program is called; words in angle brackets stand for facts of the machine."""

    case: str
    words: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    """What another sandbox does first."""
    beside: tuple[str, ...] = ()
    """What another sandbox does first and holds meanwhile."""
    after: tuple[str, ...] = ()
    """What that one does at the end."""


PLAIN = (
    Step("K01", ("mild",)), Step("K02"), Step("K03"), Step("K04", ("mild",)), Step("K05"),
    Step("K07", ("find", TOKEN), before=("put", TOKEN), after=("remove", TOKEN)),
    Step("K08"), Step("K09", (PORT,)), Step("K10"), Step("K12", ("find",), beside=("hold",)), Step("K13"),
    Step("K14", ("mild",)), Step("K16", ("find", TOKEN, KEY), beside=("put", TOKEN, KEY)),
    Step("N01"), Step("N02", (ADDRESSES,)), Step("N03", (FREE_PORT,), beside=("listen", FREE_PORT)),
    Step("N04", ("mild",)), Step("N05"), Step("F02", (CANARY,)), Step("R01", (CROWD, PIDS)), Step("R11", (CROWD, PIDS)),
)  # fmt: skip
"""Those that the program judges by itself. The order is that of the table."""
MEMORY = Step("R02", (MIB,))
DEAF = Step("R09", (TOKEN,))
HIDDEN = Step("R10", (TOKEN,))
LEFT = Step("R08", (TOKEN, "hold"))
SAFE = tuple(step.case for step in (*PLAIN, MEMORY, DEAF, HIDDEN, LEFT))
LEFT_OUT = tuple(case for case, known in CASES.items() if case not in SAFE and not known.nothing_yet)
"""Of the cases that the whole suite has."""

_SHOWN = 5
_MILDLY = {
    "K01": "Code asks to mount, unmount and change its root, of what is not there, and opens mounts as files.",
    "K04": "Code asks the kernel for what root alone may do: modules, BPF, tracing, ports, handles.",
    "R01": "A command makes more processes than it may have, and ends them.",
    "R11": "More children end than there may be processes, and nobody waits for them.",
}
"""What is tried here, where the whole suite goes further."""
LIMIT_OF = {"R01": "pids", "R11": "pids", "R02": "memory_mb"}
"""The limit that a case is about."""
_WHY_NOT = {
    ("K12", "bubblewrap"): "all its sandboxes share the machine's own /usr",
    ("R01", "gvisor"): "gVisor bounds processes for the sandbox as a whole, from outside",
    ("R11", "gvisor"): "gVisor bounds processes for the sandbox as a whole, from outside",
    ("R02", "gvisor"): "gVisor may end the sandbox as a whole",
}


class Outcome(StrEnum):
    HELD = "held"
    HARM = "harm"
    """It got somewhere."""
    NOT_GUARANTEED = "not guaranteed"
    """It may get somewhere here, and Station says so beforehand."""
    NOT_RUN = "could not run"


@dataclass(frozen=True)
class Verdict:
    """What one attack has shown on one backend."""

    backend: str
    target: str
    """The way of confining code: the backend, `gvisor` for docker with it."""
    case: str
    tried: str
    outcome: Outcome
    found: str = ""
    """What got somewhere, why it is not guaranteed, or why it could not be tried; empty where that is all."""


def target_of(capabilities: Capabilities) -> str:
    """What the table of attacks calls that backend."""
    gvisor = capabilities.backend == "docker" and capabilities.grade is Grade.USER_KERNEL
    return "gvisor" if gvisor else capabilities.backend


def words_of(words: Sequence[str], facts: Mapping[str, Sequence[str]]) -> list[str]:
    """The program's arguments."""
    return [each for word in words for each in facts.get(word, (word,))]


def why_not(case: str, target: str, limits: Mapping[str, LimitReport]) -> str | None:
    """Why nobody promises that the case comes to nothing there; `None`: it is guaranteed."""
    if not guaranteed(case, target):
        if target == "host":
            return "the backend host isolates nothing"
        known = f"it is guaranteed on {', '.join(CASES[case].guaranteed)} alone"
        return _WHY_NOT.get((case, target), known)
    if case in LIMIT_OF:
        report = limits.get(LIMIT_OF[case])
        if report is None or report.level is not Level.ENFORCED:
            return f"nothing holds the limit {LIMIT_OF[case]} here" + (f": {report.by}" if report else "")
    return None


def judge(case: str, capabilities: Capabilities, harms: Sequence[str]) -> Verdict:
    """What it means that `harms` got somewhere. Where nothing isolates, each of them is harm, promised or not."""
    target = target_of(capabilities)
    reason = why_not(case, target, capabilities.limits)
    what = ", ".join([*harms[:_SHOWN], *([f"and {len(harms) - _SHOWN} more"] if len(harms) > _SHOWN else [])])
    if not harms:
        return _verdict(case, capabilities, Outcome.HELD, f"though not guaranteed: {reason}" if reason else "")
    if reason is None or capabilities.grade is Grade.NONE:
        return _verdict(case, capabilities, Outcome.HARM, what)
    return _verdict(case, capabilities, Outcome.NOT_GUARANTEED, f"{reason} ({what})")


def not_tried(case: str, capabilities: Capabilities) -> Verdict | None:
    """Of a case that is safe only where it is guaranteed, and is not here; `None`: it may be tried."""
    if case != MEMORY.case:
        return None
    reason = why_not(case, target_of(capabilities), capabilities.limits)
    return None if reason is None else _verdict(case, capabilities, Outcome.NOT_GUARANTEED, f"not tried: {reason}")


def failed(case: str, capabilities: Capabilities, why: str) -> Verdict:
    """It says nothing of the attack."""
    return _verdict(case, capabilities, Outcome.NOT_RUN, why)


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """0: all that is guaranteed held. 1: harm. 125: nothing was harmed, and something could not be tried."""
    outcomes = {verdict.outcome for verdict in verdicts}
    if Outcome.HARM in outcomes:
        return 1
    return 125 if Outcome.NOT_RUN in outcomes or not verdicts else 0


def _verdict(case: str, capabilities: Capabilities, outcome: Outcome, found: str) -> Verdict:
    tried = _MILDLY.get(case, CASES[case].tried)
    return Verdict(capabilities.backend, target_of(capabilities), case, tried, outcome, found)
