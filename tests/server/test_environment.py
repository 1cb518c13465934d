"""Where settings come from: `.env` files, the reference's names, another settings file."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from station.core.errors import InvalidInput, Refused
from station.server.environment import gather, parse, with_aliases
from station.server.loading import is_changed, load

from .served import Served

SECRET = "hunter2secret"


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / ".env"
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)
    return file


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("STN_A=1", "1"),
        ("export STN_A=1\n", "1"),
        (" export  STN_A = a b  # why\n", "a b"),
        ("# x\n\nSTN_A=a#b", "a#b"),
        ("STN_A=", ""),
        ("STN_A= # nothing", ""),
        ("STN_A='a # $X \\n'  # why", "a # $X \\n"),
        ('STN_A="a\\n\\"b\\" \\\\ \\$X \\q"\r\n', 'a\n"b" \\ $X \\q'),
        ("STN_A='a\nb'\nB=2", "a\nb"),
        ('STN_A="-----\nkey=\n-----"', "-----\nkey=\n-----"),
        ("STN_A=1\nSTN_A=2", "2"),
        ("STN_A=é=${X}", "é=${X}"),
    ],
)
def test_a_line_is_read_as_most_programs_read_it(text: str, value: str) -> None:
    assert parse(text.encode(), where="")["STN_A"] == value


def test_only_what_is_ours_is_taken_from_a_file() -> None:
    found = parse(b"DATABASE_URL=x\nPATH=/x\nSTATION_LISTEN=x\nSTN_CODE_KEY=k\nstn_b=1\n", where="")
    assert found == {"STN_CODE_KEY": "k"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"A=1\n{SECRET}\n", 2),
        (f"A='1\n2'\n\nSTN_A='{SECRET}\n", 4),
        (f'STN_A="{SECRET}" {SECRET}\n', 1),
        (f"STN-A={SECRET}", 1),
        (f"export {SECRET}", 1),
    ],
)
def test_a_broken_line_is_told_by_its_number_and_never_quoted(text: str, line: int) -> None:
    with pytest.raises(InvalidInput, match=rf"x: line {line} is not NAME=VALUE") as error:
        parse(text.encode(), where="x: ")
    assert SECRET not in "".join(traceback.format_exception(error.value)) + str(error.value.detail)


@pytest.mark.parametrize("name", ["STN_HOME", "STN_FAIL"])
def test_what_all_commands_go_by_is_not_for_a_file_that_one_reads(name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"line 2: {name} is for all commands"):
        parse(f"A=1\n{name}=/x\n".encode(), where="")


def test_the_process_goes_before_the_first_file_and_that_before_the_second(tmp_path: Path) -> None:
    first = write(tmp_path / "a", "STN_A=first\nSTN_B=first\nSTN_D=\n")
    second = write(tmp_path / "b", "STN_A=second\nSTN_B=second\nSTN_C=second\nSTN_D=second\n")
    found = gather({"STN_A": "process", "STN_B": "", "PATH": "/bin"}, second.parent, first.parent)
    assert found.values == {
        "STN_A": "process", "STN_B": "first", "STN_C": "second", "STN_D": "second", "PATH": "/bin",
    }  # fmt: skip
    assert "second" not in repr(found)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    file = write(tmp_path, f"STN_A={SECRET}\n", mode)
    with pytest.raises(Refused, match=r"others may write.*chmod go-w") as error:
        gather({}, tmp_path)
    assert SECRET not in str(error.value)
    file.chmod(0o644)
    assert gather({}, tmp_path).values == {"STN_A": SECRET}


@pytest.mark.parametrize(
    "name",
    [
        "STN_TOKEN",
        "STN_NATS_BIN",
        "STN_SANDBOX_ALLOW_HOST",
        "STN_SANDBOX_DOCKER_SECCOMP",
        "STN_SANDBOX_REGISTRY_CONFIG",
    ],
)
def test_a_project_says_neither_what_runs_nor_who_the_operator_is(tmp_path: Path, name: str) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    write(project, f"STN_LISTEN=127.0.0.1:0\n{name}={SECRET}\n")
    with pytest.raises(Refused, match=rf"{name} is not taken from the working directory.*{home}/\.env") as error:
        gather({name: "mine"}, home, project)
    assert SECRET not in str(error.value)
    # The operator does: outside, and in the state directory, also where that is the working one.
    (project / ".env").rename(write(home, ""))
    (tmp_path / "link").symlink_to(home)
    for directory in (project, home, tmp_path / "link", None):
        assert gather({}, home, directory).values[name] == SECRET
    write(project, f"{name}=\n")
    assert gather({name: "mine"}, home, project).values[name] == "mine"


@pytest.mark.full
def test_a_station_starts_nothing_that_its_working_directory_names(tmp_path: Path) -> None:
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)

    def served(**env: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "station", "serve", "--home", str(tmp_path / "home")]
        environment = os.environ | {"STN_STORE": "nats"} | env
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)

    write(tmp_path, f"STN_NATS_BIN={program}\n")
    done = served()
    assert (done.returncode, "STN_NATS_BIN is not taken" in done.stderr) == (125, True)
    assert not (tmp_path / "ran").exists()
    (tmp_path / ".env").unlink()
    assert served(STN_NATS_BIN=str(program)).returncode != 0
    assert (tmp_path / "ran").exists(), "the control: the operator's word is taken"


@pytest.mark.root
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "STN_A=1\n")
    os.chown(file, 12345, 12345)
    with pytest.raises(Refused, match="uid 12345"):
        gather({}, tmp_path)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".env", 0o600)
    with pytest.raises(InvalidInput, match="no regular file"):
        gather({}, tmp_path)


def test_the_names_of_the_reference_are_read_where_ours_are_unset(tmp_path: Path) -> None:
    theirs = {"STATION_SANDBOX_ENABLED": "false", "STATION_SANDBOX_CODE_MODE_ENABLED": "false", "STATION_NAME": "x"}
    settings = load(tmp_path, theirs)
    assert (settings.sandbox.enabled, settings.sandbox.code_mode_enabled) == (False, False)
    assert load(tmp_path, theirs | {"STN_SANDBOX_ENABLED": "true"}).sandbox.enabled
    assert load(tmp_path, {"STATION_SANDBOX_ENABLED": ""}).sandbox.enabled
    (tmp_path / "station.yaml").write_text("sandbox: {enabled: true}\n")
    assert not load(tmp_path, theirs).sandbox.enabled


def test_a_name_that_says_it_otherwise_is_put_into_our_words() -> None:
    known = ["STN_STORE", "STN_NATS_URL"]
    theirs = {"WORKFLOW_NATS_ENABLED": "True", "WORKFLOW_NATS_URL": "nats://127.0.0.1:4222"}
    assert with_aliases(theirs, known) == {
        **theirs, "STN_STORE": "nats", "STN_NATS_URL": "nats://127.0.0.1:4222",
    }  # fmt: skip
    assert "STN_STORE" not in with_aliases({"WORKFLOW_NATS_ENABLED": "false"}, known)
    assert with_aliases({"WORKFLOW_NATS_URL": "x"}, []) == {"WORKFLOW_NATS_URL": "x"}


def test_another_settings_file_is_read_in_place_of_the_usual_one(tmp_path: Path) -> None:
    (tmp_path / "station.yaml").write_text("idle_minutes: 3\n")
    other = tmp_path / "other.yaml"
    other.write_text("log_megabytes: 2\n")
    settings = load(tmp_path, {}, config=other)
    assert (settings.idle_minutes, settings.log_megabytes) == (10.0, 2)
    assert not is_changed(settings)
    other.write_text("log_megabytes: 3\n")
    assert is_changed(settings)
    with pytest.raises(InvalidInput, match=r"none\.yaml cannot be read"):
        load(tmp_path, {}, config=tmp_path / "none.yaml")


def test_a_changed_file_of_variables_is_seen(tmp_path: Path) -> None:
    write(tmp_path, "STN_IDLE_MINUTES=3\n")
    found = gather({}, tmp_path)
    settings = load(tmp_path, found.values, sources=found.sources)
    assert settings.idle_minutes == 3
    assert not is_changed(settings)
    write(tmp_path, "STN_IDLE_MINUTES=4\n")
    assert is_changed(settings)


async def test_a_station_reads_the_file_of_its_state_directory(serve: Callable[..., Served], tmp_path: Path) -> None:
    token = "0123456789abcdef"
    write(tmp_path / "home", f"STN_LISTEN=127.0.0.1:0\nSTN_TOKEN={token}\n")
    served = serve(STN_SANDBOX_POOL_SIZE="0")
    assert served.ready, served.wait()
    assert served.told["token_file"] is None
    async with served.tcp(authorization=f"Bearer {token}") as tcp:
        assert (await tcp.get("/api/v1/station")).status_code == 200
    code, words = served.end()
    assert code == 0
    assert token not in words
