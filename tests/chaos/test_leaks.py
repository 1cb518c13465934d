"""200 runs and 200 execs (2,000 in the full tier, and fewer on docker) leave no process, descriptor, control group,
mount or file."""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest

from station import Client
from tests.observer import Observer

from .conftest import FULL, IN_FULL_ON_DOCKER, pid_of

pytestmark = pytest.mark.timeout(600)

COUNT = 2000 if FULL else 200
ON_ENGINE = {"execs": 1000, "runs": 200}
"""Each run is a container."""


def count_of(what: str, backend: str | None) -> int:
    return COUNT if backend is None else ON_ENGINE[what]


@dataclass(frozen=True)
class Facts:
    processes: int
    descriptors: int
    cgroups: int
    mounts: int
    files: int

    def within(self, before: Facts) -> bool:
        """Nothing more than before; less is the pruning of old output."""
        return all(now <= then for now, then in zip(astuple(self), astuple(before), strict=True))


def facts(observer: Observer, home: Path) -> Facts:
    return Facts(
        processes=len(observer.all_guests()),
        descriptors=len(os.listdir(f"/proc/{pid_of(home)}/fd")),
        cgroups=len(observer.cgroups()),
        mounts=observer.mounts(),
        files=len(observer.files()),
    )


@pytest.mark.parametrize("backend", [None, IN_FULL_ON_DOCKER], indirect=True)
def test_hd_d19_runs_leave_nothing(client: Client, home: Path, observer: Observer, backend: str | None) -> None:
    count = count_of("runs", backend)
    client.map(["print(1)"] * 32, concurrency=8, progress=False)
    settled: Facts | None = None

    def idle() -> bool:
        nonlocal settled
        before, settled = settled, facts(observer, home)
        return before == settled and client.info().pool_boxes > 0

    observer.until(idle, "the pool did not settle", 20)
    baseline = settled
    assert baseline is not None
    results = client.map([f"print({i})" for i in range(count)], concurrency=8, progress=False)
    assert [result.stdout for result in results] == [f"{i}\n" for i in range(count)]
    observer.until(lambda: facts(observer, home).within(baseline), f"more is left than {baseline}", 20)


@pytest.mark.parametrize("backend", [None, IN_FULL_ON_DOCKER], indirect=True)
def test_hd_d19_execs_leave_nothing(client: Client, home: Path, observer: Observer, backend: str | None) -> None:
    with client.open("many") as sandbox:
        for _ in range(120):
            sandbox.exec("echo warm")
        inside = observer.processes(sandbox)
        baseline = facts(observer, home)
        for number in range(count_of("execs", backend)):
            assert sandbox.exec(f"echo {number}; sleep 100 & exit 0").stdout == f"{number}\n"
        observer.until(lambda: observer.processes(sandbox) == inside, "processes are left in the box")
        observer.until(lambda: facts(observer, home).within(baseline), f"more is left than {baseline}", 20)
        sandbox.delete()
    observer.until(lambda: not observer.guests(sandbox.id), "the box is left")
