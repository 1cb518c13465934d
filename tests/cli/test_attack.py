"""`stn doctor --attack` on real backends: what it shows, that it can show harm, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import station
from station.cli import attack
from station.cli.siege import Outside
from station.core.attacks import Line
from station.core.capabilities import Capabilities, Grade
from station.core.errors import BackendUnavailable
from station.core.safe_attacks import PLAIN, SAFE
from tests.attacks import program
from tests.backends.test_as_other_users import NOBODY, ROOT, interpreter
from tests.engine import Engine
from tests.observer import Observer

pytestmark = pytest.mark.timeout(150)
PROGRAM = ROOT / "src" / "station" / "_attacks" / f"stn-attack-{os.uname().machine}"
KEYS = {"backend", "target", "case", "tried", "outcome", "found"}


@contextmanager
def at_home(text: str = "{}") -> Iterator[dict[str, str]]:
    """The environment for commands that share a station with these settings; at the end nothing is left."""
    with tempfile.TemporaryDirectory(prefix="stn-attacked-") as directory:
        home = Path(directory) / "home"
        home.mkdir()
        (home / "station.yaml").write_text(text, encoding="utf-8")
        try:
            yield {**os.environ, "STN_HOME": str(home)}
            with station.connect(home) as client:
                assert [view.name for view in client.list()] == []
            assert [path.name for path in Path(directory).iterdir()] == ["home"], "a canary is left"
            assert [path.name for path in home.glob(".stn-canary-*")] == []
            look = Observer(home)
            assert set(look.boxes("")) <= look.pool_boxes()
        finally:
            with station.connect(home) as client:
                client.stop()


def _stn(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "station", "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=140, env=env)


def _outcomes(answer: str) -> dict[str, str]:
    found = json.loads(answer)
    assert set(found) == {"exit_code", "attacks", "left_out"}
    assert all(set(one) == KEYS for one in found["attacks"])
    return {one["case"]: one["outcome"] for one in found["attacks"]}


def test_on_bubblewrap_all_that_is_guaranteed_holds(ran: Callable[[str], None]) -> None:
    with at_home() as env:
        done = _stn(env, "--attack", "--backend", "bubblewrap", "--json")
        found = _outcomes(done.stdout)
        assert tuple(found) == SAFE
        assert set(found.values()) <= {"held", "not guaranteed"}, done.stdout
        assert found["K12"] == "not guaranteed", "which shows that the program looks"
        assert done.returncode == json.loads(done.stdout)["exit_code"] == 0
        assert done.stderr == ""
        ran("bubblewrap")


def test_the_table_has_a_line_for_each_case_and_the_host_is_attacked_only_where_it_is_named() -> None:
    with at_home('{"sandbox": {"allow_host": true}}') as env:
        done = _stn({**env, "DOCKER_HOST": "unix:///nonexistent/docker.sock"}, "--attack")
        assert done.returncode == 0
        lines = [line.split() for line in done.stdout.splitlines()]
        assert [words[0] for words in lines if len(words) > 1 and words[0] in SAFE] == list(SAFE)
        assert "left out" in done.stdout
        assert "bubblewrap: isolation process" in done.stdout
        assert "\x1b" not in done.stdout + done.stderr


def test_where_nothing_isolates_it_shows_harm_and_says_what_that_means(ran: Callable[[str], None]) -> None:
    with at_home('{"sandbox": {"allow_host": true}}') as env:
        done = _stn(env, "--attack", "--backend", "host", "--json")
        found = _outcomes(done.stdout)
        harm = {case for case, outcome in found.items() if outcome == "harm"}
        assert harm >= {"K09", "K12", "K16", "N01", "N02", "N03", "N05"}
        assert found["R10"] == "held", "processes are ended there too"
        assert done.returncode == 1
        assert "the backend host isolates nothing" in done.stderr
        ran("host")


@pytest.mark.docker
@pytest.mark.parametrize("runtime", ["runc", pytest.param("runsc", marks=pytest.mark.full)])
def test_on_docker_all_that_is_guaranteed_holds(engine: Engine, runtime: str, ran: Callable[[str], None]) -> None:
    if not engine.works(runtime):
        pytest.skip(f"this engine has no working {runtime}")
    target = {"runc": "docker", "runsc": "gvisor"}[runtime]
    # An engine that has others than the station's own image.
    settings = {"docker_runtime": runtime, "docker_image": "station-test/none", "pool_size": 0}
    words = ("--attack", "--backend", "docker")
    with at_home(json.dumps({"sandbox": settings})) as env:
        unnamed = _stn({**env, "DOCKER_HOST": engine.url}, *words)
        assert unnamed.returncode == 125
        assert "no image station-test/none" in unnamed.stdout
        assert "--image" in unnamed.stdout
        # A distroless image: the program needs neither a shell nor a library.
        done = _stn({**env, "DOCKER_HOST": engine.url}, *words, "--image", "station-test/static", "--json")
        found = _outcomes(done.stdout)
        assert {one["target"] for one in json.loads(done.stdout)["attacks"]} == {target}
        assert set(found.values()) <= {"held", "not guaranteed"}, done.stdout
        assert done.returncode == 0
        ran(target)
        own = (Path(env["STN_HOME"]) / "station_id").read_text().strip()
        assert engine.docker("ps", "--all", "--quiet", "--filter", f"label=station.station={own}") == ""


@pytest.mark.root
def test_a_user_without_root_has_the_same_and_sees_the_file_outside_where_nothing_isolates() -> None:
    python = interpreter()
    if python is None or not all(os.stat(path).st_mode & 1 for path in (ROOT, *ROOT.parents)):
        pytest.skip("no Python of this version, or not this directory, is open to other users")
    paths = [str(ROOT / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
    with tempfile.TemporaryDirectory(prefix="stn-attacked-") as directory:
        os.chown(directory, NOBODY, NOBODY)
        env = {
            "PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1", "STN_HOME": f"{directory}/home", "STN_SANDBOX_ALLOW_HOST": "true",
        }  # fmt: skip
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", python, "-m", "station"]

        def stn(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([*command, *words], env=env, cwd="/", capture_output=True, text=True, timeout=140)

        try:
            done = stn("doctor", "--attack", "--json")
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr
            assert set(_outcomes(done.stdout).values()) <= {"held", "not guaranteed"}
            done = stn("doctor", "--attack", "--backend", "host", "--json")
            assert done.returncode == 1
            assert _outcomes(done.stdout)["F02"] == "harm"
            assert [path.name for path in Path(directory).iterdir()] == ["home"]
        finally:
            stn("stop")


def test_ctrl_c_leaves_no_sandbox_behind() -> None:
    with at_home() as env, station.connect(env["STN_HOME"]) as client:
        client.info()
        command = [sys.executable, "-m", "station", "doctor", "--attack", "--backend", "bubblewrap"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as running:
            while len(client.list()) < 2:
                assert running.poll() is None, "it ended before it had two sandboxes"
            running.send_signal(signal.SIGINT)
            out, _ = running.communicate(timeout=30)
        assert running.returncode == 130
        assert out == b""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--attack", "--backend", "bubblewrop"], "bubblewrap"),
        (["--attack", "--backend", "host"], "allow_host"),
        (["--backend", "bubblewrap"], "--attack"),
        (["--attack", "--backend", "docker"], "docker does not work here"),
    ],
)
def test_what_cannot_be_attacked_is_said_in_one_sentence(words: list[str], said: str) -> None:
    with at_home() as env:
        done = _stn({**env, "DOCKER_HOST": "unix:///nonexistent/docker.sock"}, *words)
        assert (done.returncode, done.stdout) == (125, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_where_no_backend_works_nothing_is_shown() -> None:
    broken = Capabilities("bubblewrap", available=False, grade=Grade.PROCESS, reason="no user namespaces")
    client = SimpleNamespace(doctor=lambda: SimpleNamespace(backends=[broken]))
    with pytest.raises(BackendUnavailable, match="no backend that isolates works here"):
        attack._choose(cast("Any", client), [])


def test_a_program_that_was_not_built_has_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"run `python guest/build\.py --attacks"):
        attack._program("x86_64", directory=tmp_path)


def test_a_sandbox_that_cannot_be_opened_is_no_success() -> None:
    with at_home('{"sandbox": {"enabled": false}}') as env:
        done = _stn(env, "--attack", "--backend", "bubblewrap")
        assert done.returncode == 125
        assert "bubblewrap: could not be attacked" in done.stdout


def test_what_gets_outside_is_seen_there(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with Outside(home) as outside:
        assert outside.connected() + outside.changed() + outside.left() == []
        (port,) = outside.facts(1)["<port>"]
        socket.create_connection(("127.0.0.1", int(port))).close()
        assert outside.connected() != []
        command = [sys.executable, "-c", "input(print('up', flush=True))", outside.token]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as left:
            assert left.stdout is not None
            assert left.stdout.readline() == b"up\n"
            assert outside.left() == [f"process {left.pid} runs on"]
        assert outside.left() == []
        assert outside.canary.parent == tmp_path
        outside.canary.write_bytes(b"changed")
        assert outside.changed() != []
    assert list(tmp_path.iterdir()) == [home]


@pytest.mark.root
def test_the_mild_attacks_get_somewhere_on_an_unhardened_target_and_change_nothing_there(tmp_path: Path) -> None:
    look = "cat /proc/self/mountinfo /sys/class/net/lo/flags"
    mild = [step.case for step in PLAIN if step.words == ("mild",)]
    assert mild == ["K01", "K04", "K14", "N04"]
    script = f'{look} >before; for case in {" ".join(mild)}; do "$0" $case mild; done; {look} >after'
    argv = ["unshare", "--pid", "--fork", "--mount-proc", "--mount", "--net", "--kill-child", "sh", "-c", script]
    done = subprocess.run(
        [*argv, str(program.compiled())], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True
    )
    lines = [Line.read(line) for line in done.stdout.splitlines()]
    assert [line.case for line in lines if line.harm] == mild
    assert {one["what"] for one in lines[1].tries}.isdisjoint({"reboot", "swapon", "swapoff", "kexec_load"})
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes() != b""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "before"]


def test_the_program_of_the_package_says_what_that_of_the_suite_says(tmp_path: Path) -> None:
    for case in ("K05", "N03"):
        said = [
            subprocess.run([path, case], cwd=tmp_path, capture_output=True, text=True).stdout
            for path in (PROGRAM, program.compiled())
        ]
        assert said[0] == said[1] != ""
