"""`stn` as people call it, on a real station."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from station.client._home import find_home

from .conftest import Stn, ended


@pytest.fixture(autouse=True)
def _noted(real: str, ran: Callable[[str], None]) -> None:
    ran(real)


@pytest.fixture(scope="module")
def box(real: str) -> str:
    subprocess.run([sys.executable, "-m", "station", "open", "box"], capture_output=True, check=True)
    return "box"


@pytest.mark.parametrize(
    ("line", "code"),
    [("true", 0), ("exit 7", 7), ("nosuch", 127), ("/etc/passwd", 126), ("kill -9 $$", 137), ("exit 125", 125)],
)
def test_exec_exits_as_the_command_did(stn: Stn, box: str, line: str, code: int):
    assert stn("exec", box, "--", line).returncode == code


def test_exec_out_of_time_is_124_and_says_so(stn: Stn, box: str):
    done = stn("exec", box, "--timeout", "1", "--", "sleep", "1000")
    assert (done.returncode, done.stdout) == (124, b"")
    assert b"--timeout" in done.stderr


def test_several_words_are_a_program_and_its_arguments_and_one_is_a_line(stn: Stn, box: str):
    assert stn("exec", box, "--", "printf", "%s|", "a b", "$HOME").stdout == b"a b|$HOME|"
    assert stn("exec", box, "--", "printf '%s|' a b").stdout == b"a|b|"


def test_input_goes_in_byte_for_byte_with_i_and_not_without(stn: Stn, box: str):
    data = bytes(range(256)) * 2000
    assert stn("exec", "-i", box, "--", "cat", input=data).stdout == data
    assert stn("exec", box, "--", "cat", input=data).stdout == b""


def test_exec_ends_though_nobody_closes_our_input(stn: Stn, box: str):
    reader, writer = os.pipe()
    try:
        assert stn("exec", "-i", box, "--", "echo done", stdin=reader).stdout == b"done\n"
    finally:
        os.close(reader)
        os.close(writer)


def test_ended_children_are_told(stn: Stn, box: str):
    assert b"--detach" in stn("exec", box, "--", "sleep 1000 & echo x").stderr


def test_ctrl_c_cancels_the_command_and_exits_with_130(box: str):
    command = [sys.executable, "-m", "station", "exec", box, "--", "echo begun; exec sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=20)
    assert running.returncode == 130


def test_a_detached_command_is_listed_followed_and_ended(stn: Stn, box: str):
    prc = stn("exec", box, "--detach", "--", "echo out; echo err >&2; exec sleep 1000").stdout.decode().strip()
    listed = json.loads(stn("ps", box, "--json").stdout)["processes"]
    assert {view["id"]: view["status"] for view in listed}[prc] == "running"
    assert stn("kill", box, prc).returncode == 0
    followed = stn("logs", "-f", box, prc[-8:])
    assert (followed.stdout, followed.stderr) == (b"out\n", b"err\n")


def test_a_missing_sandbox_or_process_is_a_failure_of_station_in_one_sentence(stn: Stn, box: str):
    done = stn("exec", "nobody", "--", "true")
    assert done.returncode == 125
    assert done.stderr.count(b"\n") == 1
    assert b"no sandbox 'nobody'; `stn ls` shows" in done.stderr
    assert stn("exec", "bix", "--", "true").stderr == b"stn: there is no sandbox 'bix'; did you mean 'box'?\n"
    done = stn("info", "nobody", "--json")
    assert json.loads(done.stdout)["code"] == "sandbox_not_found"
    assert stn("logs", box, "prc_00000000000000000000000000").returncode == 125


def test_run_takes_code_files_arguments_and_brings_artifacts_back(stn: Stn, tmp_path: Path):
    (tmp_path / "in").write_text("text")
    (tmp_path / "job.sh").write_text('cat data/in > out.txt; echo "$1 $WHO"; exit 3')
    words = ["run", "--file", "in=data/in", "--artifact", "out.txt=got/", "--env", "WHO=me", "job.sh", "--", "-x"]
    done = stn(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, b"-x me\n")
    assert (tmp_path / "got" / "out.txt").read_text() == "text"
    assert stn("run", "-", input=b"print(40 + 2)").stdout == b"42\n"


def test_run_json_is_the_answer_and_an_error_is_json_too(stn: Stn, real: str):
    answer = json.loads(stn("run", "--json", "-c", "print(1)").stdout)
    assert (answer["stdout"]["head"]["data"], answer["isolation"]["backend"]) == ("1\n", real)
    done = stn("run", "--json", "--runtime", "cobol", "-c", "x")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (125, "invalid_input")


def test_the_backend_host_is_never_taken_unasked_and_refused_where_the_operator_did_not_allow_it(stn: Stn):
    done = stn("run", "--backend", "host", "-c", "print(1)")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"`stn stop` first" in done.stderr


def test_an_image_is_refused_without_naming_what_does_not_exist(stn: Stn):
    done = stn("run", "--image", "debian", "-c", "print(1)")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"leave the image out" in done.stderr


def test_the_version_is_told_as_an_option_too(stn: Stn):
    assert stn("--version").stdout == stn("version").stdout != b""


def test_cp_copies_files_folders_and_streams(stn: Stn, box: str, tmp_path: Path):
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f").write_bytes(b"\x00\xff")
    assert stn("cp", str(tmp_path / "d"), f"{box}:new").returncode == 0
    assert stn("cp", f"{box}:new/e/f", "-").stdout == b"\x00\xff"
    assert stn("cp", "-", f"{box}:piped", input=b"in").returncode == 0
    assert stn("cp", str(tmp_path / "d" / "e" / "f"), f"{box}:/tmp").returncode == 0
    assert stn("cp", f"{box}:/tmp/f", str(tmp_path)).returncode == 0
    assert stn("cp", f"{box}:new", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "f").read_bytes() == (tmp_path / "back" / "e" / "f").read_bytes() == b"\x00\xff"
    assert stn("cp", "a", "b").returncode == stn("cp", f"{box}:a", f"{box}:b").returncode == 125


def test_ls_info_and_rm(stn: Stn, real: str):
    stn("open", "short lived").check_returncode()
    views = {view["name"]: view for view in json.loads(stn("ls", "--json").stdout)["sandboxes"]}
    assert views["short lived"]["isolation"]["backend"] == real
    assert b"short lived" in stn("ls").stdout
    assert b"generation" in stn("info", "short lived").stdout
    done = stn("rm", "short lived", "never there")
    assert (done.returncode, done.stderr) == (0, b"stn: there is no sandbox 'never there'\n")
    assert b"short lived" not in stn("ls").stdout


def test_doctor_tells_each_limit_of_each_backend(stn: Stn, real: str):
    answers = {answer["backend"]: answer for answer in json.loads(stn("doctor", "--json").stdout)["backends"]}
    assert answers[real]["available"]
    assert all(report["by"] for report in answers[real]["limits"].values())
    assert b"memory_mb" in stn("doctor").stdout


def test_a_station_that_cannot_start_is_explained_by_doctor(stn: Stn, tmp_path: Path):
    (tmp_path / "station.yaml").write_text("nonsense: 1\n")
    done = stn("--home", str(tmp_path), "doctor")
    assert done.returncode == 125
    assert b"nonsense" in done.stderr
    assert b"kernel: Linux" in done.stderr
    assert b"room for the state directory: " in done.stderr
    assert done.stderr.count(b"stn: ") == 1


def test_status_starts_nothing_and_stop_keeps_the_sandboxes(stn: Stn, box: str):
    assert stn("status").returncode == 0
    stn("exec", box, "--", "echo kept > kept").check_returncode()
    assert stn("stop").returncode == 0
    ended(find_home())
    assert stn("status").returncode == 1
    assert stn("stop").returncode == 0
    assert stn("exec", box, "--", "cat kept").stdout == b"kept\n"


def test_a_second_serve_exits_and_names_the_first(stn: Stn, box: str):
    pid = json.loads(stn("status", "--json").stdout)["pid"]
    done = stn("serve")
    assert done.returncode == 125
    assert str(pid).encode() in done.stderr


def test_a_reader_that_goes_away_ends_the_command_and_is_no_traceback(stn: Stn, box: str):
    line = f"{sys.executable} -m station exec {box} -- yes unread | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=50)
    assert (done.stdout, done.stderr) == (b"unread\n141\n", b"")
    views = json.loads(stn("ps", box, "--json").stdout)["processes"]
    assert [view["status"] for view in views if view["command"] == ["yes", "unread"]] == ["cancelled"]


def test_closed_descriptors_are_empty_ones(stn: Stn, box: str):
    for line, said in (
        (f"exec {box} -i -- cat <&-", b""),
        ("run -c 'print(1)' >&-", b""),
        (f"exec {box} -- 'echo seen; echo unseen >&2' <&- 2>&-", b"seen\n"),
    ):
        done = subprocess.run(["bash", "-c", f"{sys.executable} -m station {line}"], capture_output=True, timeout=50)
        assert (done.returncode, done.stdout, done.stderr) == (0, said, b""), line


def test_run_passes_on_16_mib_and_more_is_no_success(stn: Stn):
    code = "import sys; sys.stdout.write('x' * {})"
    assert len(stn("run", "-c", code.format(16 << 20)).stdout) == 16 << 20
    cut = stn("run", "-c", code.format((16 << 20) + 1))
    assert cut.returncode == 125
    assert b"1 bytes of output left out" in cut.stderr
    assert b"--artifact" in cut.stderr
    assert b"stn exec" in cut.stderr


def test_an_artifact_goes_to_our_output_too(stn: Stn, tmp_path: Path):
    words = ["run", "--artifact", "b.bin=-", "-c", "open('b.bin', 'wb').write(bytes([0, 255]))"]
    done = stn(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"\x00\xff")
    assert list(tmp_path.iterdir()) == []


def test_cp_finds_a_sandbox_whose_name_has_colons_and_a_file_whose_name_has_them(stn: Stn, box: str, tmp_path: Path):
    stn("open", "agent:01J:default").check_returncode()
    for target in ("agent:01J:default:a", "agent:01J:default:/workspace/d/f", f"{box}:c:d"):
        stn("cp", "-", target, input=target.encode()).check_returncode()
        assert stn("cp", target, "-").stdout == target.encode()
    assert stn("exec", "agent:01J:default", "--", "cat /workspace/d/f").returncode == 0
    assert stn("exec", box, "--", "cat c:d").returncode == 0
    absent = stn("cp", "no:such:f", "-")
    assert (absent.returncode, b"'no:such'" in absent.stderr) == (125, True)


def test_open_and_info_say_what_becomes_of_a_sandbox_and_its_commands(stn: Stn, box: str):
    assert b"temporary" not in stn("open", box).stdout
    shown = stn("info", box).stdout
    assert b"until it is deleted" in shown
    assert b"120 s" in shown
    stn("open", "passing", "--temporary", "--timeout", "1").check_returncode()
    shown = stn("info", "passing").stdout
    assert b"temporary: removed in" in shown
    assert b"1 s, where" in shown
    assert stn("exec", "passing", "--", "sleep 1000").returncode == 124
    clash = stn("open", "passing", "--timeout", "2")
    assert (clash.returncode, b"exists with" in clash.stderr) == (125, True)
