"""What the fake has beyond the contract: faults on demand, its own clock, a small shell that says what it cannot."""

from __future__ import annotations

import asyncio
import runpy
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from station.backends.fake import FakeBackend, FakeBox, FakeProcess, FakeStore, Faults, ManualClock
from station.core.endings import Ending, EndingKind
from station.core.errors import BackendUnavailable, BoxLost, StorageFull, Unavailable
from station.core.spec import Spec
from station.guest.session import GuestSession

from .conftest import BOUND_SECONDS, Place, World
from .words import pattern, programs

SPEC = Spec(backend="fake")
ROOT = Path(__file__).parents[2]


@pytest.fixture
async def store() -> AsyncIterator[FakeStore]:
    async with FakeStore() as store:
        yield store


@pytest.fixture
def labels(store: FakeStore) -> World:
    return World("fake", Path("unused"), store)


def make(store: FakeStore, **more: object) -> FakeBackend:
    return FakeBackend(Path("unused"), station_id="contract", store=store, programs=programs(), **more)  # type: ignore[arg-type]


async def opened(backend: FakeBackend, world: World) -> Place:
    labels = world.labels()
    place = Place(backend, labels, await backend.create(SPEC, labels))
    place.session = await GuestSession.connect(place.open_stream, patience_seconds=0.2)
    return place


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 15, 100, 1000, 70_000, 150_000])
async def test_a_stream_cut_once_anywhere_loses_nothing(store: FakeStore, labels: World, cut: int) -> None:
    backend = make(store)
    place = await opened(backend, labels)
    place.backend.faults.cut_after_bytes = cut  # type: ignore[attr-defined]
    ran = await place.run(place.word("both", "100000"))
    assert (ran.stdout, ran.stderr) == (pattern(100_000), pattern(100_000))
    assert backend.faults.cut_after_bytes is None
    await place.session.aclose()


async def test_a_stream_that_is_cut_again_and_again_still_moves_on(store: FakeStore, labels: World) -> None:
    backend = make(store)
    place = await opened(backend, labels)
    backend.faults.cut_after_bytes, backend.faults.cut_each_time = 50_000, True
    assert (await place.run(place.word("count_to", "1", "300000"), ring_bytes=16_384)).stdout == pattern(300_000)
    await place.session.aclose()


async def test_a_corrupt_byte_in_a_file_is_noticed(store: FakeStore, labels: World) -> None:
    backend = make(store)
    place = await opened(backend, labels)
    await place.write("file", bytes(50_000))
    backend.faults.corrupt_byte_at = 20_000
    with pytest.raises(Exception, match="is not what the guest sent"):
        await place.read("file")
    assert await place.read("file") == bytes(50_000)
    await place.session.aclose()


async def test_a_refused_create_leaves_nothing(store: FakeStore, labels: World) -> None:
    backend = make(store, faults=Faults(create_refusals=1))
    with pytest.raises(BackendUnavailable):
        await backend.create(SPEC, labels.labels())
    assert store.live == {}
    await opened_and_closed(backend, labels)


async def opened_and_closed(backend: FakeBackend, world: World) -> None:
    place = await opened(backend, world)
    assert (await place.run(("true",))).code == 0
    await place.session.aclose()


async def test_a_lost_reply_of_create_leaves_a_box_that_recovery_finds(store: FakeStore, labels: World) -> None:
    backend, wanted = make(store, faults=Faults(lost_create_replies=1)), labels.labels()
    with pytest.raises(BoxLost):
        await backend.create(SPEC, wanted)
    ((found, ref),) = await labels.boxes()
    assert found == wanted
    await (await backend.adopt(ref)).destroy()
    assert await labels.boxes() == []


async def test_a_destroy_that_fails_changes_nothing(store: FakeStore, labels: World) -> None:
    backend = make(store)
    box = await backend.create(SPEC, labels.labels())
    backend.faults.destroy_failures = 2
    for _ in range(2):
        with pytest.raises(Unavailable):
            await box.destroy()
    assert len(await labels.boxes()) == 1
    await box.destroy()


@pytest.mark.parametrize("moment", ["start", "output", "exit"])
async def test_a_box_killed_at_a_moment_is_lost_for_every_wait(store: FakeStore, labels: World, moment: str) -> None:
    backend = make(store)
    place = await opened(backend, labels)
    backend.faults.kill_box_at = moment  # type: ignore[assignment]
    with pytest.raises(BoxLost):
        await place.run(("echo", "hello"))
    assert moment in await place.box.ended()
    await place.session.aclose()


@pytest.mark.parametrize("moment", ["create", "connect", "hello"])
async def test_a_box_killed_early_cannot_be_connected_to(store: FakeStore, labels: World, moment: str) -> None:
    backend = make(store, faults=Faults(kill_box_at=moment))  # type: ignore[arg-type]
    box = await backend.create(SPEC, labels.labels())
    with pytest.raises(BoxLost):
        await GuestSession.connect(box.connect, patience_seconds=0.1)
    assert moment in await box.ended()


async def test_a_box_can_be_killed_from_outside(store: FakeStore, labels: World) -> None:
    place = await opened(make(store), labels)
    assert isinstance(place.box, FakeBox)
    process = place.start(("sleep", "1000"))
    await process.pid()
    place.box.kill("the machine lost power")
    with pytest.raises(BoxLost):
        await process.exit()
    assert await place.box.ended() == "the machine lost power"
    await place.session.aclose()


async def test_a_full_disk_refuses_writes_and_keeps_what_is_there(store: FakeStore, labels: World) -> None:
    backend = make(store)
    place = await opened(backend, labels)
    await place.write("old", b"old")
    backend.faults.disk_full = True
    with pytest.raises(StorageFull):
        await place.write("new", b"new")
    with pytest.raises(StorageFull):
        await place.write("old", b"other")
    assert await place.read("old") == b"old"
    ran = await place.run(place.shell("echo x > new"))
    assert (ran.code, b"No space" in ran.stderr) == (1, True)
    backend.faults.disk_full = False
    await place.write("new", b"new")
    await place.session.aclose()


# --- the clock -------------------------------------------------------------------------------------------------------


async def test_an_hour_passes_at_once_on_a_manual_clock(store: FakeStore, labels: World) -> None:
    clock = ManualClock()
    place = await opened(make(store, clock=clock), labels)
    process = place.start(place.shell("echo before; sleep 3600; echo after"))
    await process.pid()
    await clock.advance(3599)
    assert not process.ended
    await clock.advance(1)
    async with asyncio.timeout(BOUND_SECONDS):
        ended = await process.exit()
    assert (ended.to_ending(), ended.wall_us) == (Ending.exited(0), 3_600_000_000)
    await place.session.aclose()


async def test_timeouts_and_graces_go_by_the_manual_clock(store: FakeStore, labels: World) -> None:
    clock = ManualClock()
    place = await opened(make(store, clock=clock), labels)
    process = place.start(place.word("stubborn"), timeout_seconds=60.0, grace_seconds=10.0)
    await process.pid()
    await clock.advance(65)
    assert not process.ended
    await clock.advance(5)
    async with asyncio.timeout(BOUND_SECONDS):
        ended = await process.exit()
    assert (ended.to_ending().kind, ended.wall_us) == (EndingKind.TIMED_OUT, 70_000_000)
    await place.session.aclose()


async def test_delayed_frames_come_when_the_clock_says_so(store: FakeStore, labels: World) -> None:
    clock = ManualClock()
    backend = make(store, clock=clock)
    place = await opened(backend, labels)
    backend.faults.delay_seconds = 3.0
    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as group:
        answer = group.create_task(place.session.ping())
        await clock.advance(2.9)
        assert not answer.done()
        await clock.advance(0.1)
    await place.session.aclose()


# --- programs and the shell ------------------------------------------------------------------------------------------


@pytest.fixture
async def fake(store: FakeStore, labels: World) -> AsyncIterator[Place]:
    place = await opened(make(store), labels)
    yield place
    await place.session.aclose()


@pytest.mark.parametrize(
    ("line", "code", "stdout"),
    [
        ("echo a  'b  c' \"d  $WORD\"", 0, "a b  c d  word\n"),
        ("false || echo or; true && echo and", 0, "or\nand\n"),
        ("false && echo no", 1, ""),
        ("exit 3; echo no", 3, ""),
        ("nothing; echo $?", 0, "127\n"),
        ("X=1; echo ${X}2; export X; env | cat", 2, None),
        ("cd /tmp && pwd; cd; pwd", 0, "/tmp\n/home/node\n"),
        ("echo one > f; echo two >> f; cat f; cat < f", 0, "one\ntwo\none\ntwo\n"),
        ("nothing 2>/dev/null; { echo; }", 2, None),
        ("echo gone >/dev/null; echo err 1>&2; echo ok # not this", 0, "ok\n"),
        ("cat nowhere 2>&1", 1, "cat: nowhere: No such file or directory\n"),
        ("set -e; false; echo no", 1, ""),
        ("exec echo last; echo no", 0, "last\n"),
        ("echo a\\\n b", 0, "a b\n"),
        ('echo "it\'s \\"fine\\" \\$HOME"', 0, 'it\'s "fine" $HOME\n'),
        ("printf '%s-%d\\n' a 1 b 2; printf '\\303\\251\\n'", 0, "a-1\nb-2\né\n"),
        ("env -i A=b env", 0, "A=b\n"),
        ("A=b env -i env", 0, ""),
    ],
)
async def test_the_small_shell_runs_simple_lines(fake: Place, line: str, code: int, stdout: str | None) -> None:
    ran = await fake.run(fake.shell(line), env={"WORD": "word"})
    assert ran.code == code, ran.stderr
    if stdout is not None:
        assert ran.stdout.decode() == stdout


@pytest.mark.parametrize(
    "line", ["a | b", "x=$(y)", "for i in 1; do :; done", "cat <<E\nE", "echo *", "if a; then b; fi"]
)
async def test_the_small_shell_refuses_the_rest_before_anything_runs(fake: Place, line: str) -> None:
    ran = await fake.run(fake.shell(f"echo began; {line}"))
    assert (ran.code, ran.stdout) == (2, b"")
    assert b"register a program" in ran.stderr


async def test_python_is_not_there_unless_the_user_brings_it(fake: Place) -> None:
    assert (await fake.run(("python3", "-c", "print(1)"))).code == 127
    assert isinstance(fake.backend, FakeBackend)

    async def python3(process: FakeProcess) -> int:
        await process.out(f"would run {process.argv[2]!r} in {process.cwd}\n")
        return 5

    fake.backend.programs["python3"] = python3
    ran = await fake.run(("python3", "-c", "print(1)"))
    assert (ran.code, ran.stdout) == (5, b"would run 'print(1)' in /workspace\n")


async def test_a_program_that_raises_ends_with_1_and_its_traceback(fake: Place) -> None:
    assert isinstance(fake.backend, FakeBackend)

    async def broken(process: FakeProcess) -> int:
        raise KeyError("what")

    fake.backend.programs["broken"] = broken
    ran = await fake.run(("broken",))
    assert ran.code == 1
    assert ran.stderr.endswith(b"KeyError: 'what'\n")


async def test_a_program_that_shrugs_off_its_end_is_ended_by_sigkill(fake: Place) -> None:
    assert isinstance(fake.backend, FakeBackend)

    async def stayer(process: FakeProcess) -> int:
        await process.out("ready\n")
        for _ in range(3):
            try:
                await process.sleep(1e6)
            except asyncio.CancelledError:
                await process.err("no\n")
        return 0

    fake.backend.programs["stayer"] = stayer
    process = fake.start(("stayer",))
    async with asyncio.timeout(BOUND_SECONDS):
        await process.pid()
        process.signal(signal.SIGKILL)
        assert (await process.exit()).to_ending() == Ending.signalled(signal.SIGKILL)


async def test_the_example_of_the_page_runs_and_is_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    source = ROOT / "docs_src" / "fake_example.py"
    assert source.read_text(encoding="utf-8") in (ROOT / "docs" / "fake.md").read_text(encoding="utf-8")
    await runpy.run_path(str(source))["main"]()
    assert capsys.readouterr().out.endswith("result: 42\n")
