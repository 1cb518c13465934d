"""What every test shares: the event loop, the tiers, the lists of backends and clients that really ran, and a check for
leaks.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from station import Client, connect
from tests import engine as engines
from tests import machine
from tests.attacks import program
from tests.attacks.table import Table
from tests.docker import podman as podmans
from tests.docker import registry as registries
from tests.engine import Engine, EngineError, unavailable
from tests.observer import Observer, of_process

RAN: pytest.StashKey[Counter[tuple[str, str]]] = pytest.StashKey()
LEFT_OUT: pytest.StashKey[Counter[str]] = pytest.StashKey()
TABLE: pytest.StashKey[Table] = pytest.StashKey()
ENGINE: pytest.StashKey[tuple[ExitStack, Engine]] = pytest.StashKey()

# Of what a run must have used all that it expects.
KINDS = ("backend", "client")
UNSETTLED = 9
"""The exit code, none of pytest's own, of a run that has not, or that left something behind: trying a test again alone
tells nothing about that."""

CONTRACT_COLUMNS = {
    "bubblewrap": "bubblewrap", "docker": "docker (runc)", "gvisor": "gVisor", "host": "host", "fake": "fake",
}  # fmt: skip
# In the contract suite the backend is the first parameter; what has none is about the fake alone.
_CONTRACT = re.compile(rf"tests/contract/test_(?P<area>\w+)\.py::\w+(\[(?P<backend>{'|'.join(CONTRACT_COLUMNS)})\b)?")

# Why a marked test cannot run here, or None where it can.
CONDITIONS: dict[str, Callable[[], str | None]] = {
    "full": lambda: None if os.environ.get("STN_TEST_FULL") else "full tier only (scripts/test --full)",
    "root": lambda: None if os.geteuid() == 0 else "needs to be root",
    "docker": unavailable,
    "registry": registries.unavailable,
    "podman": podmans.unavailable,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    for kind in KINDS:
        parser.addoption(f"--expect-{kind}s", default="", help="comma-separated; the run fails unless each of them ran")
    parser.addoption("--attack-table", default="", help="a file: what the attacks have shown, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    # Whoever runs us in the background has it ignored, and so would all that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[RAN] = Counter()
    config.stash[LEFT_OUT] = Counter()
    config.stash[TABLE] = Table()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what cannot run here; the summary names how many and why, so that nothing is missing in silence."""
    verdicts = {name: condition() for name, condition in CONDITIONS.items()}
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        reasons = [reason for name, reason in verdicts.items() if reason and item.get_closest_marker(name)]
        config.stash[LEFT_OUT].update(reasons[:1])
        (left_out if reasons else kept).append(item)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compiles the attack program and starts the engine, where a test needs them: before the first test, as both may
    take longer than a test may."""
    config = session.config
    if not config.option.collectonly and any(item.nodeid.startswith("tests/attacks/") for item in session.items):
        program.compiled()
    wanted = any(item.get_closest_marker("docker") for item in session.items)
    if not wanted or config.option.collectonly or unavailable():
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled(), ExitStack() as stack:
        found = stack.enter_context(engines.engine())
        config.stash[ENGINE] = (stack.pop_all(), found)


def pytest_unconfigure(config: pytest.Config) -> None:
    if ENGINE in config.stash:
        config.stash[ENGINE][0].close()
        del config.stash[ENGINE]


@pytest.fixture(scope="session")
def engine(pytestconfig: pytest.Config) -> Engine:
    """The engine of this run, with the images of scripts/image. For tests with the mark `docker`."""
    return pytestconfig.stash[ENGINE][1]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def client(home: Path) -> Iterator[Client]:
    """To the station of `home`, which each folder of tests has as it needs it."""
    with connect(home) as made:
        yield made


@pytest.fixture
def observer(home: Path) -> Observer:
    return Observer(home)


@pytest.fixture(scope="session")
def ran(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Call it with a backend's name once that backend has really made a box and run something in it."""

    return lambda backend: pytestconfig.stash[RAN].update([("backend", backend)])


@pytest.fixture(scope="session")
def client_ran(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Call it with the name of another project's client once that has really been served."""
    return lambda client: pytestconfig.stash[RAN].update([("client", client)])


def pytest_testnodedown(node: object, error: object) -> None:
    """A process that ran a part of the tests tells what it used."""
    config: pytest.Config = node.config  # type: ignore[attr-defined]
    told = getattr(node, "workeroutput", {})
    config.stash[RAN].update({tuple(key): count for key, count in told.get("ran", [])})
    config.stash[TABLE].merge(told.get("attacks", []))
    # Every process has collected all of them.
    config.stash[LEFT_OUT] = Counter(dict(told.get("left_out", [])))


def _missing(config: pytest.Config) -> list[tuple[str, str]]:
    expected = [(kind, name) for kind in KINDS for name in config.getoption(f"--expect-{kind}s").split(",") if name]
    return [what for what in expected if not config.stash[RAN][what]]


def _left(config: pytest.Config) -> bool:
    """Whether something failed behind a test, as the look for what is left does."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    return reporter is not None and any(report.when == "teardown" for report in reporter.stats.get("error", ()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["ran"] = list(session.config.stash[RAN].items())
        told["attacks"] = session.config.stash[TABLE].plain()
        told["left_out"] = list(session.config.stash[LEFT_OUT].items())
    elif exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and (
        _missing(session.config) or _left(session.config)
    ):
        session.exitstatus = UNSETTLED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    out = terminalreporter
    for reason, count in sorted(config.stash[LEFT_OUT].items()):
        out.write_line(f"left out: {count} tests: {reason}")
    table = config.stash[TABLE]
    if table.cells():
        out.section("attacks")
        for line in table.lines():
            out.write_line(line)
    if path := config.getoption("--attack-table"):
        table.write(Path(path), machine.about(config.stash[ENGINE][1] if ENGINE in config.stash else None))
    if rows := contract_table(out.stats):
        out.section("the contract suite: tests passed, by backend")
        for line in rows:
            out.write_line(line)
    if ENGINE in config.stash:
        for name, trouble in config.stash[ENGINE][1].runtimes.items():
            out.write_line(f"runtime {name}: {trouble or 'works'}")
    for (kind, name), count in sorted(config.stash[RAN].items()):
        out.write_line(f"{kind} {name}: used by {count} tests")
    for kind, name in _missing(config):
        out.write_line(f"FAILED: the {kind} '{name}' was expected and did not run", red=True)


def contract_table(stats: Mapping[str, Sequence[object]]) -> list[str]:
    """A file of the contract suite a line, a backend a column; `-`: none ran there. Empty where the suite did not."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for verdict in ("passed", "failed", "error"):
        for report in stats.get(verdict, ()):
            if found := _CONTRACT.match(getattr(report, "nodeid", "")):
                for area in (found["area"], "all"):
                    counts[area][f"{found['backend'] or 'fake'} {verdict}"] += 1
    if not counts:
        return []
    lines = [f"{'area':10}" + "".join(f"{name:>14}" for name in CONTRACT_COLUMNS.values())]
    rows = (*sorted(set(counts) - {"all"}), "all")
    return lines + [
        f"{row:10}" + "".join(f"{_passed(counts[row], name):>14}" for name in CONTRACT_COLUMNS) for row in rows
    ]


def _passed(counts: Counter[str], backend: str) -> str:
    bad = counts[f"{backend} failed"] + counts[f"{backend} error"]
    return (str(counts[f"{backend} passed"] or "-")) + (f" ({bad} failed)" if bad else "")


@pytest.fixture
def network(engine: Engine) -> Iterator[str]:
    """One of the engine's that reaches nothing."""
    name = f"stn-test-{uuid.uuid4().hex[:12]}"
    try:
        engine.docker("network", "create", "--internal", name)
    except EngineError as error:
        pytest.skip(f"this engine can make no network: {error}")
    yield name
    engine.docker("network", "rm", name)


@pytest.fixture(scope="module", autouse=True)
def nothing_leaks() -> Iterator[None]:
    """A module leaves no descriptor and no child process behind. Start long-lived things in module fixtures."""
    fds, children = _descriptors(), _children()
    yield
    gc.collect()
    left = [what for fd, what in _descriptors().items() if fds.get(fd) != what]
    left += [f"process {pid}: {name}" for pid, name in _children().items() if pid not in children]
    assert not left, f"left behind: {left}"


def _descriptors() -> dict[int, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own descriptor
            found[int(entry.name)] = str(entry.readlink())
    return found


def _children() -> dict[int, str]:
    pids = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    return {int(pid): of_process(int(pid), "comm").decode().strip() for pid in pids}
