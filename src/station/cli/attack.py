"""`stn doctor --attack`: the attacks that are safe on a machine that people use, and the table of what they show."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from station.core.display import escape
from station.core.errors import BackendUnavailable, InvalidInput
from station.core.suggest import suggestion

from .shared import connect, note, print_json

if TYPE_CHECKING:
    from station.client._sync.client import Client
    from station.core.capabilities import Capabilities
    from station.core.safe_attacks import Verdict

AttackOption = Annotated[
    bool, typer.Option("--attack", help="Attack each backend from within, with what can harm nothing here.")
]
AttackedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--backend", metavar="B", help="With --attack: this one; may be repeated. [default: all that isolate]"
    ),
]
AttackedImageOption = Annotated[
    str | None,
    typer.Option("--image", metavar="IMAGE", help="With --attack: for backends with images. [default: the station's]"),
]
_PROGRAMS = Path(__file__).resolve().parents[1] / "_attacks"
_HOST = (
    "the backend host isolates nothing: the attacks run on this machine as the user of its boxes, and HARM shows what "
    "any code there may do; those that could hurt the machine are left out"
)


def attack(backends: Sequence[str], image: str | None = None, *, asked: bool, as_json: bool) -> int:
    """The exit code: 0 all that is guaranteed held, 1 an attack got somewhere, 125 something could not be tried."""
    from station.core import safe_attacks as safe

    if not asked:
        raise InvalidInput("--backend and --image go with --attack", field="attack")
    program = _program()
    with connect() as client:
        chosen = _choose(client, backends)
        verdicts = _attacked(client, chosen, program, image)
    code = safe.exit_code(verdicts)
    if as_json:
        print_json({"exit_code": code, "attacks": verdicts, "left_out": safe.LEFT_OUT})
        return code
    for capabilities in chosen:
        print(_table(capabilities, [each for each in verdicts if each.backend == capabilities.backend]) + "\n")
    print(_summary(verdicts, code))
    return code


def _program(machine: str | None = None, *, directory: Path = _PROGRAMS) -> bytes:
    """Raises BackendUnavailable, with a remedy, where it is not there."""
    path = directory / f"stn-attack-{machine or platform.machine()}"
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        remedy = "python guest/build.py --attacks src/station/_attacks"
        raise BackendUnavailable(
            f"the attack program {path.name} is not here; in a checkout run `{remedy}`", remedy=remedy
        ) from error


def _choose(client: Client, wanted: Sequence[str]) -> list[Capabilities]:
    """Those named, else all that work here and isolate. Raises BackendUnavailable where there is none to attack."""
    from station.core.capabilities import Grade

    answers = {answer.backend: answer for answer in client.doctor().backends}
    for name in wanted:
        if name not in answers:
            client.check(backend=name)  # the station has the sentence for it, as where it does not allow the backend
            raise InvalidInput(f"`stn doctor` shows no backend {name!r}{suggestion(name, answers)}", field="backend")
    chosen = [answers[name] for name in dict.fromkeys(wanted)]
    chosen = chosen or [each for each in answers.values() if each.available and each.grade is not Grade.NONE]
    missing = next((each for each in chosen if not each.available), None)
    if missing is not None:
        reason = f"the backend {missing.backend} does not work here: {missing.reason or 'no reason was given'}"
        raise BackendUnavailable(reason, remedy=missing.remedy)
    if not chosen:
        raise BackendUnavailable("no backend that isolates works here; `stn doctor` says why", remedy="stn doctor")
    if any(each.grade is Grade.NONE for each in chosen):
        note(_HOST)
    return chosen


def _attacked(client: Client, chosen: Sequence[Capabilities], program: bytes, image: str | None) -> list[Verdict]:
    from station.client._progress import Bar
    from station.core.safe_attacks import SAFE

    from .siege import Outside, Siege

    verdicts: list[Verdict] = []
    with Bar("attacking", len(SAFE) * len(chosen), shown=None) as bar:
        for capabilities in chosen:
            with Outside(Path(client.home)) as outside:
                for verdict in Siege(client, capabilities, program, outside, image=image).verdicts():
                    verdicts.append(verdict)
                    bar.advance()
    return verdicts


def _table(capabilities: Capabilities, verdicts: Sequence[Verdict]) -> str:
    from station.core.safe_attacks import Outcome, target_of

    target = target_of(capabilities)
    name = capabilities.backend + (f" ({target})" if target != capabilities.backend else "")
    if all(verdict.outcome is Outcome.NOT_RUN for verdict in verdicts):
        hint = " (--image names one that is there)" if capabilities.images else ""
        return f"{name}: could not be attacked: {escape(verdicts[0].found)}{hint}"
    lines = [f"{name}: isolation {capabilities.grade}", f"  CASE  {'WHAT HAPPENED':15}  WHAT WAS TRIED"]
    for verdict in verdicts:
        word = "HARM" if verdict.outcome is Outcome.HARM else verdict.outcome.value
        lines.append(f"  {verdict.case:4}  {word:15}  {verdict.tried}")
        lines += [f"        {escape(verdict.found)}"] if verdict.found else []
    return "\n".join(lines)


def _summary(verdicts: Sequence[Verdict], code: int) -> str:
    from station.core.safe_attacks import LEFT_OUT, Outcome

    counts = {outcome: sum(verdict.outcome is outcome for verdict in verdicts) for outcome in Outcome}
    told = [f"{count} {outcome.value}" for outcome, count in counts.items() if count]
    verdict = {
        0: "all that is guaranteed here held",
        1: "HARM: an attack got somewhere. SECURITY.md says how to report it, where the backend is to isolate",
    }.get(code, "some attacks could not be tried, so nothing is shown of them")
    return f"{verdict}\n{', '.join(told)}\nleft out, as they could hurt a machine or take long: {', '.join(LEFT_OUT)}"
