from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from station.core.capabilities import Level
from station.core.endings import Ending, EndingKind
from station.core.errors import Conflict, InvalidInput, PathRefused, StationError, TooLarge
from station.core.globs import expression
from station.core.interpreters import INTERPRETERS, Interpreter
from station.core.spec import Spec
from station.core.wire import Content, RunRequest
from station.worker.pool import Pool
from station.worker.runs import Runs
from station.worker.watch import Watchdog

from .box import RealBackend, eventually


async def spec_of(request: RunRequest) -> Spec:
    return Spec("test", limits=request.limits)


@pytest.fixture
async def backend() -> AsyncIterator[RealBackend]:
    with tempfile.TemporaryDirectory(prefix="stn-") as directory:
        yield RealBackend(Path(directory))


@pytest.fixture
async def runs(backend: RealBackend) -> AsyncIterator[Runs]:
    pool = Pool({"test": backend}, station="me", size=1)
    made = Runs(pool, spec_of)
    yield made
    await made.aclose()
    await pool.aclose()
    assert all(box.guest.process.poll() is not None for box in backend.boxes_made)


def python(code: str, **fields: object) -> RunRequest:
    return RunRequest(code, **fields)  # type: ignore[arg-type]


async def test_code_runs_in_the_workspace_of_a_fresh_box(runs: Runs) -> None:
    result = await runs.run(python("import os, sys; print(os.listdir(), sys.argv); print('e', file=sys.stderr)"))
    assert result.ok
    assert result.stdout.to_bytes() == b"['main.py'] ['main.py']\n"
    assert result.stderr.to_bytes() == b"e\n"
    assert (result.ending, result.exit_code, result.isolation.backend) == (Ending.exited(0), 0, "test")
    assert result.duration_ms > 0
    assert not result.warm


async def test_args_env_stdin_and_files_arrive(runs: Runs) -> None:
    code = "import os, sys; print(sys.argv[1:], os.environ['X'], sys.stdin.read(), open('d/a').read())"
    request = python(
        code,
        args=["a b", "-c"],
        env={"X": "1\n2"},
        stdin=Content("in"),
        files={"d/a": Content("rel"), "/workspace/b%25": Content.of(b"\xff\x00")},
        artifacts=["b%25", "d/a"],
    )
    result = await runs.run(request)
    assert result.stdout.to_bytes() == b"['a b', '-c'] 1\n2 in rel\n"
    assert [artifact.content.to_bytes() for artifact in result.artifacts] == [b"\xff\x00", b"rel"]
    assert [artifact.path for artifact in result.artifacts] == ["b%25", "d/a"]


@pytest.mark.parametrize(("runtime", "code"), [("bash", "echo hello"), ("python", "print('hello')")])
async def test_each_runtime_says_hello(runs: Runs, runtime: str, code: str) -> None:
    result = await runs.run(RunRequest(code, runtime=runtime))
    assert (result.ok, result.stdout.to_bytes(), result.runtime) == (True, b"hello\n", runtime)


async def test_the_ending_is_the_programs_own(runs: Runs) -> None:
    assert (await runs.run(python("def"))).exit_code == 1
    assert (await runs.run(python("import sys; sys.exit(42)"))).ending == Ending.exited(42)
    killed = await runs.run(python("import os; os.kill(os.getpid(), 9)"))
    assert (killed.ending, killed.exit_code) == (Ending.signalled(9), 137)
    late = await runs.run(python("print('early', flush=True)\nwhile True: pass", timeout_seconds=1))
    assert (late.timed_out, late.exit_code, late.stdout.to_bytes()) == (True, 124, b"early\n")
    loud = await runs.run(python("while True: print('x' * 1000)", output_limit_bytes=50_000))
    assert loud.ending == Ending(EndingKind.OUTPUT_LIMIT)


async def test_as_much_output_is_kept_as_was_asked_for(runs: Runs) -> None:
    code = "print('h' * 600_000 + 'm' * 2_000_000 + 't' * 600_000, end='')"
    small = (await runs.run(python(code, output_kept_bytes=7))).stdout
    assert (small.head.data, small.omitted_bytes, small.tail and small.tail.data) == ("hhh", 3_199_993, "tttt")
    usual = (await runs.run(python(code))).stdout
    assert (len(usual.head.data), usual.omitted_bytes) == (512 * 1024, 3_200_000 - 1024 * 1024)
    whole = (await runs.run(python(code, output_kept_bytes=4_000_000))).stdout
    assert (len(whole.head.data), whole.omitted_bytes, whole.tail) == (3_200_000, 0, None)


async def test_a_second_run_finds_a_box_ready(runs: Runs) -> None:
    await runs.run(python("pass"))
    await eventually(lambda: len(runs._pool) == 2)
    assert (await runs.run(python("pass"))).warm


async def test_artifacts_are_found_by_name_and_by_pattern(runs: Runs) -> None:
    code = """
import os
for name in ("a.csv", "b.csv", "out/c.csv", "out/deep/d.csv", "out/deep/e.txt"):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    open(name, "w").write(name)
os.symlink("/etc/passwd", "leak"); os.mkfifo("pipe")
"""
    wanted = ["*.csv", "out/**/*.csv", "a.csv", "none", "*.png", "leak", "pipe", "out", "*.py"]
    result = await runs.run(python(code, artifacts=wanted))
    assert [artifact.path for artifact in result.artifacts] == ["a.csv", "b.csv", "out/c.csv", "out/deep/d.csv"]
    assert result.artifacts_missing == ["none", "*.png", "leak", "pipe", "out", "*.py"]
    assert all(artifact.content.to_bytes() == artifact.path.encode() for artifact in result.artifacts)


async def test_an_artifact_that_is_too_large_is_named(runs: Runs) -> None:
    with pytest.raises(TooLarge, match=r"big\.bin"):
        await runs.run(python("open('big.bin', 'wb').truncate(17 << 20)", artifacts=["*.bin"]))


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*.csv", ["a.csv", ".csv"], ["d/a.csv", "acsv"]),
        ("**/*.csv", ["a.csv", "d/a.csv", "d/e/a.csv"], ["a.txt"]),
        ("d/**", ["d/a", "d/e/f"], ["e/a"]),
        ("?[ab]", ["xa", "xb"], ["xc", "/a", "xab"]),
        ("[!a]", ["b"], ["a", "/"]),
        ("/workspace/*.c", ["x.c"], ["d/x.c"]),
        ("[z-a]*", [], ["z"]),
        ("a+b(*)", ["a+b(c)"], ["aab(c)"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], other: list[str]) -> None:
    matches = expression(pattern).fullmatch
    assert [name for name in matching if matches(name)] == matching
    assert [name for name in other if matches(name)] == []


async def test_a_missing_interpreter_is_refused_by_name_with_its_package(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(INTERPRETERS, "node", Interpreter("no-node-here", "main.js", "nodejs"))
    with pytest.raises(InvalidInput, match=r"no-node-here.*nodejs"):
        await runs.run(RunRequest("1", runtime="node"))


async def test_bad_files_are_refused_before_a_box_is_made(runs: Runs, backend: RealBackend) -> None:
    for files in ({"../x": Content("")}, {"/etc/x": Content("")}, {"main.py": Content("")}, {".": Content("")}):
        with pytest.raises((InvalidInput, PathRefused)):
            await runs.run(python("", files=files))
    with pytest.raises(InvalidInput):
        await runs.run(python("", id="bad id"))
    assert backend.boxes_made == []


async def test_a_retry_joins_while_it_runs_and_afterwards(runs: Runs, backend: RealBackend) -> None:
    request = python("import os; print(os.urandom(8).hex())", id="prc_1")
    first, second = await asyncio.gather(runs.run(request), runs.run(request))
    assert first == second == await runs.run(request)
    with pytest.raises(Conflict):
        await runs.run(python("other", id="prc_1"))


async def test_results_of_one_deployment_make_nobody_elses_forgotten(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("station.worker.runs.KEPT_RESULTS", 2)
    code = "import os; print(os.urandom(8).hex())"
    first = await runs.run(python(code, id="prc_1"), "dep_a")
    for number in range(4):
        await runs.run(python(code, id=f"prc_{number}"), "dep_b")
    assert await runs.run(python(code, id="prc_1"), "dep_a") == first
    assert [number for number in range(4) if ("dep_b", f"prc_{number}") in runs._by_id] == [2, 3], "its own"


async def test_a_run_without_an_id_ends_with_its_caller_and_with_its_deployment(runs: Runs) -> None:
    endless = python("import time\ntime.sleep(600)")
    control = asyncio.create_task(runs.run(endless))
    left, ended = (asyncio.create_task(runs.run(endless, "dep_a")) for _ in range(2))
    await eventually(lambda: sum(one.process is not None for one in runs.running()) == 3)
    left.cancel()
    await eventually(lambda: len(runs.running()) == 2)
    runs.cancel_all("dep_a")
    assert (await ended).ending.kind is EndingKind.CANCELLED
    assert [key[0] for key in runs._by_id] == ["local"], "nothing is kept of what nobody can join"
    control.cancel()
    await asyncio.wait([control])
    assert runs._by_id == {}


async def test_who_stops_waiting_can_join_again(runs: Runs) -> None:
    request = python("print('done')", id="prc_1")
    waiting = asyncio.ensure_future(runs.run(request))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (await runs.run(request)).stdout.to_bytes() == b"done\n"


async def test_a_cancelled_run_ends_cancelled_with_its_output_so_far(runs: Runs) -> None:
    request = python("print('begun', flush=True)\nimport time\ntime.sleep(600)", id="prc_cancelled")
    waiter = asyncio.create_task(runs.run(request))
    await eventually(lambda: any(one.output.streams[1].total for one in runs.running()))
    runs.cancel("prc_cancelled")
    result = await waiter
    assert (result.ending.kind, result.stdout.to_bytes()) == (EndingKind.CANCELLED, b"begun\n")
    runs.cancel("prc_cancelled")
    runs.cancel("prc_never_seen")


async def test_a_box_that_dies_under_a_run_makes_it_lost_and_no_exit_code(runs: Runs, backend: RealBackend) -> None:
    running = asyncio.ensure_future(runs.run(python("print('x', flush=True)\nwhile True: pass")))
    await eventually(lambda: any(one.output.streams[1].total for one in runs.running()))
    runs.running()[0].live.box.kill()  # type: ignore[attr-defined]
    result = await running
    assert (result.ending.kind, result.exit_code, result.ok) == (EndingKind.LOST, None, False)


async def test_thirty_runs_at_once_keep_their_results_apart(runs: Runs) -> None:
    results = await asyncio.gather(*(runs.run(RunRequest(f"echo {n}", runtime="bash")) for n in range(30)))
    assert [result.stdout.to_bytes() for result in results] == [f"{n}\n".encode() for n in range(30)]


async def test_the_watchdog_ends_a_command_of_a_box_over_its_limit() -> None:
    with tempfile.TemporaryDirectory(prefix="stn-") as directory:
        backend = RealBackend(Path(directory), memory=Level.WATCHED)
        pool = Pool({"test": backend}, station="me", size=0)
        runs = Runs(pool, spec_of)
        watchdog = Watchdog(runs.running)
        running = asyncio.ensure_future(runs.run(python("while True: pass")))
        await eventually(lambda: [each for each in runs.running() if each.process])
        await watchdog.look()
        assert not running.done()
        backend.boxes_made[0].used = 1 << 31
        await watchdog.look()
        result = await running
        assert (result.ending, result.exit_code) == (Ending(EndingKind.OOM), 137)
        await runs.aclose()
        await pool.aclose()


async def test_a_watchdog_runs_until_it_is_cancelled() -> None:
    looks: list[float] = []

    async def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Watchdog(list, interval_seconds=7, sleep=sleep).run()
    assert looks == [7, 7, 7]


async def test_errors_of_a_run_are_not_kept_for_its_retry(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    request = python("open('big', 'wb').truncate(17 << 20)", artifacts=["big"], id="prc_1")
    for _ in range(2):
        with pytest.raises(StationError):
            await runs.run(request)
