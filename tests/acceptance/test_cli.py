"""Every option of `stn run`, `open` and `exec` does something, and every `--json` has one schema."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from station.cli.app import app
from station.core.codec import from_plain, to_plain
from station.core.wire import Diagnosis, ProcessView, RunResult, SandboxView

from .conftest import Stn, state_directory, stn_of

Done = "subprocess.CompletedProcess[bytes]"


@pytest.fixture(scope="module")
def box(home: Path) -> str:
    stn_of(home)("open", "box").check_returncode()
    return "box"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of a user who is not root: boxes of a station of root are not root either."""
    with tempfile.TemporaryDirectory(prefix="stn-folder-") as made:
        folder = Path(made)
        (folder / "in.txt").write_text("local\n")
        (folder / "job.sh").write_text('echo "$@"\n')
        if os.geteuid() == 0:
            os.chown(folder, 4321, 4321)
            folder.chmod(0o755)
        yield folder


# option: the words, and what shows that they were heeded (a part of the output, or the exit code). FOLDER is a folder.
RUN: dict[str, tuple[list[str], str | int]] = {
    "-c": (["-c", "print(6 * 7)"], "42"),
    "FILE": (["FOLDER/job.sh", "--", "one", "two"], "one two"),
    "--runtime": (["--runtime", "bash", "-c", "echo $BASH_VERSION"], "5."),
    "--file": (["--file", "FOLDER/in.txt=there/x", "-c", "print(open('there/x').read())"], "local"),
    "--artifact": (["--artifact", "out.txt=FOLDER/back", "-c", "open('out.txt','w').write('x')"], "out.txt → "),
    "--env": (["--env", "WHO=me", "-c", "import os; print(os.environ['WHO'])"], "me"),
    "--timeout": (["--timeout", "1", "-c", "while True: pass"], 124),
    "--network": (["--network", "public", "-c", "1"], "network"),
    "--backend": (["--backend", "host", "--json", "-c", "1"], '"backend": "host"'),
    "--image": (["--image", "python:3.12", "-c", "1"], "docker"),
    "--mount": (["--mount", "FOLDER", "-c", "print(open('in.txt').read())"], "local"),
    "--memory-mb": (["--memory-mb", "64", "-c", "bytearray(200 << 20)"], 137),
    "--cpus": (["--cpus", "0.5", "--json", "-c", "1"], '"value": 0.5'),
    "--pids": (["--pids", "33", "--json", "-c", "1"], '"value": 33'),
    "--json": (["--json", "-c", "1"], '"exit_code": 0'),
}
OPEN: dict[str, tuple[list[str], str | int]] = {
    "NAME": (["o-name"], "o-name: made"),
    "--runtime": (["o-runtime", "--runtime", "ruby"], 125),
    "--backend": (["o-backend", "--backend", "host"], "host"),
    "--image": (["o-image", "--image", "python:3.12"], "docker"),
    "--network": (["o-network", "--network", "example.com"], "network"),
    "--mount": (["o-mount", "--mount", "FOLDER:ro", "--json"], '"read_only": true'),
    "--memory-mb": (["o-memory", "--memory-mb", "77", "--json"], '"value": 77'),
    "--cpus": (["o-cpus", "--cpus", "0.7", "--json"], '"value": 0.7'),
    "--pids": (["o-pids", "--pids", "44", "--json"], '"value": 44'),
    "--timeout": (["o-timeout", "--timeout", "7", "--json"], '"timeout_seconds": 7'),
    "--temporary": (["o-temporary", "--temporary"], "temporary: removed in 30 min unless it is used"),
    "--json": (["o-json", "--json"], '"created": true'),
}
EXEC: dict[str, tuple[list[str], str | int]] = {
    "NAME": (["box", "--", "echo", "$HOME"], "$HOME"),
    "CMD": (["box", "--", "echo $HOME"], "/home/node"),
    "-i": (["box", "-i", "--", "cat"], "typed"),
    "--cwd": (["box", "--cwd", "/tmp", "--", "pwd"], "/tmp"),
    "--env": (["box", "--env", "A=b c", "--", 'echo "$A"'], "b c"),
    "--timeout": (["box", "--timeout", "1", "--", "sleep 1000"], 124),
    "--detach": (["box", "--detach", "--", "true"], "prc_"),
    "--json": (["box", "--json", "--", "exit 9"], '"exit_code": 9'),
}
TABLE = {"run": RUN, "open": OPEN, "exec": EXEC}
ROWS = [(verb, name, *row) for verb, rows in TABLE.items() for name, row in rows.items()]


@pytest.mark.parametrize(("verb", "name", "words", "shows"), ROWS, ids=[f"{row[0]} {row[1]}" for row in ROWS])
def test_an_option_does_something(
    stn: Stn, box: str, folder: Path, verb: str, name: str, words: list[str], shows: str | int
) -> None:
    done = stn(verb, *[word.replace("FOLDER", str(folder)) for word in words], input=b"typed")
    said = done.stdout.decode() + done.stderr.decode()
    assert "Traceback" not in said
    if done.returncode == 125 and name in ("--memory-mb", "--cpus", "--pids"):
        assert "cannot be enforced" in said, "a limit that does not hold here is refused"
    elif isinstance(shows, int):
        assert done.returncode == shows, said
    else:
        assert shows in said
    if name == "--artifact":
        assert (folder / "back").read_text() == "x"


def test_without_their_option_they_do_not(stn: Stn, box: str) -> None:
    """The control of the table: the same words without the option."""
    assert stn("run", "-c", "import os; print(os.environ.get('WHO'))").stdout == b"None\n"
    assert stn("exec", box, "--", "cat", input=b"typed").stdout == b""
    assert stn("exec", box, "--", "pwd").stdout == b"/workspace\n"
    assert stn("run", "-c", "print(len(bytearray(200 << 20)))").stdout == b"209715200\n"


def test_best_effort_accepts_a_named_limit_that_cannot_be_kept() -> None:
    """Named by the operator here: each limit that has an option is held where the station is root."""
    with state_directory("sandbox: {limits: {workspace_mb: 100}, allow_host: true}\n") as home:
        stn = stn_of(home)
        run = ["run", "--backend", "host", "-c", "print('ran')"]
        for words in (["open", "o-best"], run):
            refused = stn(*words)
            assert (refused.returncode, b"--best-effort" in refused.stderr) == (125, True)
            assert stn(words[0], "--best-effort", *words[1:]).returncode == 0


@pytest.mark.parametrize(("verb", "rows"), TABLE.items(), ids=TABLE)
def test_no_option_is_left_out_of_the_table(verb: str, rows: dict[str, Any]) -> None:
    group = typer.main.get_command(app)
    parameters = group.commands[verb].params  # type: ignore[attr-defined]
    names = {p.opts[0] for p in parameters if isinstance(p, click.Option) or p.param_type_name == "option"}
    names -= {"--help", "--raw", "--best-effort"}  # which have tests of their own
    assert names <= set(rows)


@pytest.mark.parametrize(
    "words",
    [["run", "-c", "print('\\x1b]0;title\\x07shown')"], ["exec", "box", "--", "printf '\\033]0;title\\007shown'"]],
)
@pytest.mark.parametrize("raw", [False, True])
def test_raw_passes_what_drives_a_terminal_and_its_lack_does_not(
    home: Path, box: str, words: list[str], raw: bool
) -> None:
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "station", words[0], *(["--raw"] if raw else []), *words[1:]]
        subprocess.run(
            command, stdout=theirs, stderr=subprocess.DEVNULL, env=os.environ | {"STN_HOME": str(home)}, check=True
        )
        shown = os.read(ours, 65536)
    finally:
        os.close(theirs)
        os.close(ours)
    assert b"shown" in shown
    assert (b"\x1b]0;" in shown) == raw


def one(kind: type) -> Callable[[Any], object]:
    """Reads it as that class of the wire, all of it: nothing is missing and nothing is besides."""

    def read(data: Any) -> object:
        found: Any = from_plain(kind, data)
        assert set(to_plain(found)) == set(data)
        return found

    return read


def many(key: str, kind: type) -> Callable[[Any], object]:
    def read(data: Any) -> object:
        assert set(data) == {key}
        return [one(kind)(item) for item in data[key]]

    return read


ERROR_KEYS = {"error", "code", "message", "retryable", "detail"}
JSON: list[tuple[list[str], Callable[[Any], object]]] = [
    (["run", "--json", "-c", "print(1)"], one(RunResult)),
    (["run", "--json", "-c", "import sys; sys.exit(3)"], one(RunResult)),
    (["run", "--json", "--timeout", "1", "-c", "while True: pass"], one(RunResult)),
    (["open", "--json", "box"], one(SandboxView)),
    (["open", "--json", "j-new"], one(SandboxView)),
    (["info", "--json", "box"], one(SandboxView)),
    (["ls", "--json"], many("sandboxes", SandboxView)),
    (["exec", "--json", "box", "--", "exit 3"], one(ProcessView)),
    (["exec", "--json", "box", "--", "kill -9 $$"], one(ProcessView)),
    (["exec", "--json", "--detach", "box", "--", "true"], one(ProcessView)),
    (["ps", "--json", "box"], many("processes", ProcessView)),
    (["doctor", "--json"], one(Diagnosis)),
    (["version", "--json"], lambda data: data["version"]),
]


@pytest.mark.parametrize(("words", "read"), JSON, ids=[" ".join(words)[:40] for words, _ in JSON])
def test_a_json_answer_is_one_value_of_one_schema(
    stn: Stn, box: str, words: list[str], read: Callable[[Any], object]
) -> None:
    done = stn(*words)
    assert read(json.loads(done.stdout))


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--json", "--runtime", "cobol", "-c", "1"],
        ["open", "--json", "--backend", "nowhere", "x"],
        ["exec", "--json", "nobody", "--", "true"],
        ["exec", "--json", "box", "--cwd", "/nowhere", "--", "true"],
        ["info", "--json", "nobody"],
        ["ps", "--json", "nobody"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_an_error_under_json_is_one_value_with_the_keys_of_the_api(stn: Stn, box: str, words: list[str]) -> None:
    done = stn(*words)
    assert done.returncode == 125
    assert set(json.loads(done.stdout)) == ERROR_KEYS
    assert done.stderr.startswith(b"stn: ")


def test_every_command_that_acts_tells_what_it_did_under_json(stn: Stn, tmp_path: Path) -> None:
    def told(*words: str) -> Any:
        done = stn(*words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    told("open", "acts", "--json")
    process = told("exec", "acts", "--json", "--detach", "--", "echo out; sleep 600")["id"]
    assert told("kill", "acts", process, "--json") == {"process": process, "signal": None}
    logs = told("logs", "acts", process, "-f", "--json")
    one(ProcessView)(logs)
    assert (logs["status"], logs["stdout"]["head"]["data"]) == ("cancelled", "out\n")
    (tmp_path / "a").write_text("x")
    copied = told("cp", str(tmp_path / "a"), "acts:a", "--json")
    assert copied == {"source": str(tmp_path / "a"), "target": "acts:a"}
    assert told("rm", "acts", "acts-not", "--json") == {"deleted": ["acts"], "absent": ["acts-not"]}
    assert told("stop", "--json")["stopped"] is True
    assert told("stop", "--json")["stopped"] is False


def test_status_has_the_same_keys_with_and_without_a_station() -> None:
    with state_directory("") as home:
        stn = stn_of(home)
        without = stn("status", "--json")
        assert (without.returncode, json.loads(without.stdout)["running"]) == (1, False)
        assert not (home / "registry.db").exists(), "looking starts nothing"
        stn("open", "x").check_returncode()
        runs = stn("status", "--json")
        assert (runs.returncode, json.loads(runs.stdout)["running"]) == (0, True)
        assert set(json.loads(runs.stdout)) == set(json.loads(without.stdout))


def test_help_names_every_command_and_loads_no_heavy_module() -> None:
    look = "import sys; from station.cli.app import run_app; code = run_app(['--help']); "
    look += "print(code, [m for m in ('httpx2','pydantic','starlette','uvicorn','yaml','rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("0 []\n")
    for verb in "run open exec ls info cp logs rm ps kill serve status stop doctor".split():
        assert f"\n  {verb} " in done.stdout
