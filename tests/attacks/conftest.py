"""A station for each target, a fresh sandbox for each attack, and the unhardened target on which each must succeed."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import yaml

from station import Client, Sandbox, connect
from station.core.attacks import OPEN, Line
from tests.conftest import TABLE
from tests.observer import Observer

from . import program, targets
from .table import FAST, cases_of
from .targets import Target

PROBES = Path(__file__).with_name("probes.py")
Probe = Callable[..., str]
Attack = Callable[..., Line]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of `confined` runs on every confining target, one of `anywhere` on the host too, any other on bubblewrap.
    On gVisor the fast tier has the attacks on the kernel alone."""
    if "target" not in metafunc.fixturenames:
        return
    if not {"anywhere", "confined", "target"} & set(inspect.signature(metafunc.function).parameters):
        found = [pytest.param(targets.BUBBLEWRAP, id="bubblewrap")]
    else:
        programs = metafunc.module.__name__.endswith(("test_programs", "test_network"))
        fast = programs or not FAST.isdisjoint(cases_of(metafunc.function.__name__))
        found = targets.confined(fast_docker=fast, fast_gvisor=programs)
        if "anywhere" in metafunc.fixturenames:
            found.append(pytest.param(targets.HOST, id="host"))
    metafunc.parametrize("target", found, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is known to be open fails no run, and stands as harm in the table."""
    for item in items:
        params = getattr(item, "callspec", None) and item.callspec.params  # type: ignore[attr-defined]
        if params and "target" in params:
            for case in [params["case"]] if "case" in params else cases_of(item.name):
                known = OPEN.get((case, params["target"].name))
                if known and known.test in item.name:
                    item.add_marker(pytest.mark.xfail(reason=known.why, strict=False))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Writes down what each test shows of the cases in its name, or in its parameter `case`."""
    report = yield
    params = getattr(item, "callspec", None) and item.callspec.params  # type: ignore[attr-defined]
    if params and "target" in params and (report.when == "call" or not report.passed):
        cases = [params["case"]] if "case" in params else cases_of(item.name)
        for case in cases:
            cell = item.config.stash[TABLE].cell(case, params["target"].name)
            cell.tests += report.when == "call" or report.skipped
            if report.failed or (report.skipped and hasattr(report, "wasxfail")):
                (cell.failed if report.when == "call" else cell.errors).append(item.name)
            elif report.skipped:
                cell.skipped.append(item.name)
    return report


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.param
    return found


@pytest.fixture(scope="module")
def stations(request: pytest.FixtureRequest) -> Iterator[Callable[[Target], Path]]:
    """The state directory of a station that a target needs; targets of the same settings share one."""
    homes: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="stn-attacks-", ignore_cleanup_errors=True) as directory:

        def home(target: Target) -> Path:
            text = yaml.safe_dump({"sandbox": dict(target.settings)})
            if text not in homes:
                if target.engine:  # a station is started with this process's environment
                    os.environ["DOCKER_HOST"] = request.getfixturevalue("engine").url
                homes[text] = Path(directory) / str(len(homes))
                homes[text].mkdir()
                (homes[text] / "station.yaml").write_text(text, encoding="utf-8")
            return homes[text]

        before = os.environ.get("DOCKER_HOST")
        yield home
        for made in homes.values():
            with connect(made) as client:
                client.stop()
        os.environ.pop("DOCKER_HOST", None)
        if before is not None:
            os.environ["DOCKER_HOST"] = before


@pytest.fixture
def station_home(target: Target, stations: Callable[[Target], Path]) -> Path:
    return stations(target)


@pytest.fixture
def client(station_home: Path) -> Iterator[Client]:
    with connect(station_home) as made:
        yield made


@pytest.fixture
def observer(target: Target, station_home: Path, request: pytest.FixtureRequest) -> Observer:
    if not target.engine:
        return Observer(station_home)
    from tests.observer import EngineObserver

    return EngineObserver(station_home, request.getfixturevalue("engine"), own_kernel=target.own_kernel)


@pytest.fixture
def confined(client: Client, target: Target, observer: Observer, ran: Callable[[str], None]) -> Iterator[Sandbox]:
    """A sandbox of a confining target; afterwards it still answers, and nothing runs in it that did not before."""
    yield from _checked(client, target, observer, ran)


@pytest.fixture
def anywhere(client: Client, target: Target, observer: Observer, ran: Callable[[str], None]) -> Iterator[Sandbox]:
    """A sandbox of each target, the host too."""
    yield from _checked(client, target, observer, ran)


def _checked(client: Client, target: Target, observer: Observer, ran: Callable[[str], None]) -> Iterator[Sandbox]:
    ran(target.name)
    with client.open(f"attack-{uuid.uuid4()}", **target.where) as sandbox:
        idle = observer.processes(sandbox)
        yield sandbox
        assert sandbox.exec("echo ok").stdout == "ok\n"
        observer.until(lambda: observer.processes(sandbox) <= idle, "a process of the attack is left")
        sandbox.delete()


@pytest.fixture
def second(confined: Sandbox, client: Client, target: Target) -> Iterator[Sandbox]:
    """Another sandbox beside `confined`, of the same target."""
    with client.open(f"second-{uuid.uuid4()}", **target.where) as sandbox:
        yield sandbox
        sandbox.delete()


@pytest.fixture
def attack() -> Probe:
    """Runs a probe in a sandbox; answers its one line."""

    def run(sandbox: Sandbox, name: str, *args: str) -> str:
        sandbox.files.write("probes.py", PROBES.read_bytes())
        return sandbox.exec(["python3", "probes.py", name, *args], timeout_seconds=30).stdout.strip()

    return run


@pytest.fixture
def control(tmp_path: Path) -> Probe:
    """Runs a probe on an unhardened target: a plain process in a PID namespace where root can make one, and in a user
    namespace of its own elsewhere. Answers its one line."""

    def run(name: str, *args: str) -> str:
        prefix = ["unshare", "--pid", "--fork", "--mount-proc"]
        if os.geteuid() != 0:
            prefix += ["--user", "--map-root-user", "--mount"]
        done = subprocess.run(
            [*prefix, sys.executable, PROBES, name, *args], cwd=tmp_path, capture_output=True, text=True, timeout=30
        )
        return done.stdout.strip()[-2000:]

    return run


@pytest.fixture(scope="session")
def binary() -> Path:
    """The attack program."""
    return program.compiled()


@pytest.fixture
def strike(binary: Path, target: Target, pytestconfig: pytest.Config) -> Attack:
    """Runs a case of the attack program in a sandbox, and notes for the table what it has tried."""

    def run(sandbox: Sandbox, case: str, *arguments: str) -> Line:
        line = program.run(sandbox, binary, case, *arguments)
        pytestconfig.stash[TABLE].cell(case, target.name).tries.extend(line.tries)
        return line

    return run


@pytest.fixture
def unhardened(binary: Path, target: Target, tmp_path: Path, pytestconfig: pytest.Config) -> Attack:
    """Runs a case on the control, where it must succeed; what did not even there is noted."""

    def run(case: str, *arguments: str) -> Line:
        line = program.control(binary, tmp_path, case, *arguments)
        cell = pytestconfig.stash[TABLE].cell(case, target.name)
        cell.unshown = [one["what"] for one in line.tries if not one["harm"]]
        assert line.harm, f"the control proves nothing: {line.tries}"
        return line

    return run
