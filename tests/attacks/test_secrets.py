"""HD-S01 to S05: nothing of the platform is readable inside, no secret is written down or shown, and an environment is
what the caller gave."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from station import Client, Sandbox
from station.core.errors import InvalidInput
from tests.observer import Observer, command_line, engine_of, pids

from .conftest import Probe
from .targets import Target

CANARY = "canary-3f1c-not-for-the-sandbox"
"""In the environment of every station here."""
GIVEN = "canary-77ab-for-one-process-alone"
WITHIN = ("/workspace", "/home", "/tmp", "/etc", "/run", "/var", "/dev/shm", "/.stn")
SEARCH = """
import json, os, sys
words = [word.encode() for word in json.load(sys.stdin)]
found = [0] * len(words)
for place in sys.argv[1:]:
    for top, _, files in os.walk(place):
        for name in files:
            path = os.path.join(top, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 1 << 26:
                    data = open(path, 'rb').read()
                    found = [old + (word in data) for old, word in zip(found, words)]
            except OSError: pass
print(json.dumps(found))
"""


@pytest.fixture(scope="module", autouse=True)
def canary() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STN_TEST_CANARY", CANARY)
        yield


def test_hd_s01_no_variable_of_the_station_is_readable_anywhere_inside(
    confined: Sandbox, target: Target, attack: Probe, control: Probe
) -> None:
    search = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c -e '[c]anary' -e 'STN_[H]OME'"
    found = subprocess.run(search, shell=True, capture_output=True, text=True, check=True).stdout
    assert found.strip() != "0", "the control finds it outside"
    assert confined.exec(search).stdout.strip() == "0"
    assert control("read_init").startswith("succeeded")
    if not target.own_kernel:  # that of gVisor shows it to all: what it may show was searched above
        assert attack(confined, "read_init") == "refused: nothing of PID 1 can be read"


def _answers(home: Path, *paths: str) -> bytes:
    """What the station's API says, as it says it."""
    got = b""
    for path in paths:
        connection = http.client.HTTPConnection("station")
        connection.sock = socket.socket(socket.AF_UNIX)
        with contextlib.closing(connection):
            connection.sock.connect(str(home / "station.sock"))
            connection.request("GET", f"/api/v1/{path}")
            answer = connection.getresponse()
            assert answer.status == 200, path
            got += answer.read()
    return got


def _kept(home: Path) -> bytes:
    """All that the station has written down, its logs too."""
    got = b""
    for path in home.rglob("*"):
        with contextlib.suppress(OSError):
            got += path.read_bytes() if path.is_file() else b""
    return got


def _of_the_engine(observer: Observer, sandbox: Sandbox) -> bytes:
    """What inspection shows of the box, its logs and its own layer."""
    engine = engine_of(observer)
    (box,) = observer.boxes(sandbox.id)
    mounts = json.loads(engine.docker("inspect", "-f", "{{json .Mounts}}", box))
    volumes = [mount["Name"] for mount in mounts if mount["Type"] == "volume"]
    told = engine.docker("inspect", box) + engine.docker("volume", "inspect", *volumes)
    told += engine.docker("logs", box, check=False)
    export = ["docker", "--host", engine.url, "export", box]
    return told.encode() + subprocess.run(export, capture_output=True, check=True).stdout


@pytest.mark.timeout(180)
def test_hd_s02_no_secret_is_written_down_or_shown(
    anywhere: Sandbox, target: Target, observer: Observer, station_home: Path
) -> None:
    """The controls: what is meant to be found in each of these places is found by the same search."""
    open_word = f"open-{uuid.uuid4()}"
    anywhere.exec(f"echo {open_word} > note")
    assert anywhere.exec('echo "$TOKEN" | wc -c', env={"TOKEN": GIVEN}).stdout.strip() == str(len(GIVEN) + 1)
    running = anywhere.start('read x; echo "$TOKEN" > /dev/null', env={"TOKEN": GIVEN}, stdin_open=True)

    words = json.dumps([open_word, CANARY, GIVEN])
    search = ["python3", "-c", SEARCH, *(WITHIN if target.name != "host" else (".",))]
    found = json.loads(anywhere.exec(search, stdin=words.encode(), timeout_seconds=100).stdout)
    assert found[0] > 0
    assert found[1:] == [0, 0]

    own = f"sandboxes/{anywhere.id}"
    places = {
        "answers": _answers(station_home, "sandboxes", own, f"{own}/processes", f"{own}/processes/{running.id}"),
        "state": _kept(station_home),
        "engine": _of_the_engine(observer, anywhere) if target.engine else anywhere.id.encode(),
    }
    for place, text in places.items():
        assert anywhere.id.encode() in text, place
        assert CANARY.encode() not in text, place
        assert GIVEN.encode() not in text, place
    running.write(b"x\n")
    assert running.wait().exit_code == 0
    assert GIVEN.encode() not in _kept(station_home)


@contextlib.contextmanager
def watched(*words: str) -> Iterator[set[str]]:
    """Those of the words that the list of processes of this machine shows meanwhile."""
    seen: set[str] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            lines = [command_line(pid) for pid in pids()]
            seen.update(word for word in words for line in lines if word in line)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def test_hd_s03_no_secret_is_in_the_list_of_processes(client: Client, anywhere: Sandbox, target: Target) -> None:
    """While a sandbox is made and while a command runs. The control: an argument is seen."""
    argument = f"seen-{uuid.uuid4()}"
    with watched(CANARY, GIVEN, argument) as seen:
        with client.open(f"second-{uuid.uuid4()}", **target.where) as made:
            for sandbox in (made, anywhere):
                for _ in range(5):
                    result = sandbox.exec('read x; sleep 0.05; [ -n "$TOKEN" ]', env={"TOKEN": GIVEN}, stdin=b"x\n")
                    assert result.ok
            made.delete()
        with subprocess.Popen(["sh", "-c", "read x", argument], stdin=subprocess.PIPE) as shown:
            Observer.until(lambda: argument in seen, "the control is not seen")
            shown.kill()
    assert seen == {argument}


def test_hd_s04_the_environment_is_exactly_what_was_given_beside_the_layout(anywhere: Sandbox) -> None:
    result = anywhere.exec(["env", "-0"], env={"MULTI": "a\nb\n", "EMPTY": "", "LD_X": "é", "BASH_FUNC": "() { :;}"})
    got = dict(line.split("=", 1) for line in result.stdout.split("\0") if line)
    assert (got["MULTI"], got["EMPTY"], got["LD_X"], got["BASH_FUNC"]) == ("a\nb\n", "", "é", "() { :;}")
    assert {key for key in got if key.startswith(("STN_", "STATION_"))} == set()
    assert {"HOME", "PATH", "LANG"} <= set(got)


@pytest.mark.parametrize("env", [{"": "x"}, {"=x": "y"}, {"A\nB": "x"}, {"A\0": "x"}, {"A": "x\0"}, {"A": "x" * 2**20}])
def test_hd_s04_a_variable_that_cannot_be_is_refused(anywhere: Sandbox, env: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        anywhere.exec("true", env=env)


def test_hd_s04_start_up_files_and_variables_of_a_shell_do_not_run(anywhere: Sandbox) -> None:
    anywhere.files.write("/home/node/.bashrc", b"echo from-bashrc")
    anywhere.files.write("/home/node/.profile", b"echo from-profile")
    assert anywhere.exec("echo plain").stdout == "plain\n"


def test_hd_s05_a_crash_leaves_no_core(anywhere: Sandbox) -> None:
    result = anywhere.exec("ulimit -c; python3 -c 'import os; os.kill(os.getpid(), 11)'; ls -A; ls -A /tmp | grep core")
    assert result.stdout.splitlines()[0] == "0"
    assert "core" not in result.stdout
