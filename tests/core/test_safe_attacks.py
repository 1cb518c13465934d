"""What an attack's answer means, and which attacks are tried on a machine that people use."""

from __future__ import annotations

import pytest

from station.core import safe_attacks as safe
from station.core.attacks import CASES
from station.core.capabilities import Capabilities, Grade, Level, LimitReport
from station.core.safe_attacks import Outcome, Verdict

HELD = {"pids": LimitReport(Level.ENFORCED, "cgroup"), "memory_mb": LimitReport(Level.ENFORCED, "cgroup")}
WATCHED = {**HELD, "memory_mb": LimitReport(Level.WATCHED, "no cgroup of its own")}
BUBBLEWRAP = Capabilities("bubblewrap", available=True, grade=Grade.PROCESS, limits=HELD)
UNPRIVILEGED = Capabilities("bubblewrap", available=True, grade=Grade.PROCESS, limits=WATCHED)
DOCKER = Capabilities("docker", available=True, grade=Grade.CONTAINER, limits=HELD)
GVISOR = Capabilities("docker", available=True, grade=Grade.USER_KERNEL, limits=HELD)
HOST = Capabilities("host", available=True, grade=Grade.NONE)


@pytest.mark.parametrize(
    ("case", "where", "harms", "outcome", "word"),
    [
        ("K01", BUBBLEWRAP, [], Outcome.HELD, ""),
        ("K01", BUBBLEWRAP, ["mount: 0"], Outcome.HARM, "mount: 0"),
        ("K12", DOCKER, ["/bin/sh: EAGAIN"], Outcome.HARM, "/bin/sh"),
        ("K12", BUBBLEWRAP, ["/bin/sh: EAGAIN"], Outcome.NOT_GUARANTEED, "share the machine's own /usr"),
        ("K12", BUBBLEWRAP, [], Outcome.HELD, "though not guaranteed"),
        ("R02", BUBBLEWRAP, ["MiB written: 256"], Outcome.HARM, "256"),
        ("R02", UNPRIVILEGED, ["MiB written: 256"], Outcome.NOT_GUARANTEED, "no cgroup of its own"),
        ("R01", GVISOR, ["processes at once: 128"], Outcome.NOT_GUARANTEED, "as a whole"),
        ("K01", HOST, ["mount: 0"], Outcome.HARM, "mount: 0"),
        ("R01", HOST, ["processes at once: 128"], Outcome.HARM, "128"),
    ],
)
def test_what_got_somewhere_is_harm_where_it_is_guaranteed_or_nothing_isolates(
    case: str, where: Capabilities, harms: list[str], outcome: Outcome, word: str
) -> None:
    found = safe.judge(case, where, harms)
    assert found.outcome is outcome
    assert word in found.found
    assert found.tried.endswith(".")


def test_memory_is_tried_only_where_its_limit_is_guaranteed() -> None:
    assert safe.not_tried("R02", DOCKER) is None
    assert safe.not_tried("K01", HOST) is None
    for where in (UNPRIVILEGED, GVISOR, HOST):
        found = safe.not_tried("R02", where)
        assert found is not None
        assert found.outcome is Outcome.NOT_GUARANTEED


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([Outcome.HELD, Outcome.NOT_GUARANTEED], 0),
        ([Outcome.HELD, Outcome.NOT_RUN], 125),
        ([Outcome.HARM, Outcome.NOT_RUN], 1),
        ([], 125),
    ],
)
def test_what_could_not_be_tried_is_never_success(outcomes: list[Outcome], code: int) -> None:
    assert safe.exit_code([Verdict("x", "x", "K01", "", outcome) for outcome in outcomes]) == code


def test_the_target_of_docker_with_gvisor_is_gvisor() -> None:
    assert [safe.target_of(where) for where in (BUBBLEWRAP, DOCKER, GVISOR, HOST)] == [
        "bubblewrap", "docker", "gvisor", "host",
    ]  # fmt: skip


def test_each_case_is_tried_or_named_as_left_out() -> None:
    assert len(set(safe.SAFE)) == len(safe.SAFE)
    assert {*safe.SAFE, *safe.LEFT_OUT} == {case for case, known in CASES.items() if not known.nothing_yet}
    assert {"K06", "R03", "R04", "R12", "R14"} <= set(safe.LEFT_OUT), "the clock, full disks, other processes"


def test_words_in_angle_brackets_are_facts_of_the_machine() -> None:
    facts = {safe.ADDRESSES: ["10.0.0.1", "10.0.0.2"], safe.PORT: ["80"]}
    assert safe.words_of(("find", safe.ADDRESSES, safe.PORT), facts) == ["find", "10.0.0.1", "10.0.0.2", "80"]
