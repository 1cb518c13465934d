"""TC-12: the acceptance vectors of this part through the SDK, and the field's faults that only show end to end."""

from __future__ import annotations

import shutil
import time

import pytest

from station import Client, Sandbox, errors
from station.core.endings import EndingKind
from station.core.wire import RunRequest


@pytest.mark.parametrize(
    ("spelling", "absolute"),
    [
        ("a.txt", "/workspace/a.txt"),
        ("workspace/a.txt", "/workspace/a.txt"),
        ("/workspace/a.txt", "/workspace/a.txt"),
        ("/home/node/workspace/a.txt", "/workspace/a.txt"),
        ("/workspace/b/../a.txt", "/workspace/a.txt"),
        ("/tmp/x", "/tmp/x"),
        ("/home/node/deep/x", "/home/node/deep/x"),
    ],
)
def test_tc_12_1_a_spelling_names_its_file(anywhere: Sandbox, spelling: str, absolute: str) -> None:
    assert anywhere.files.write(spelling, spelling).entry.path == absolute
    assert anywhere.files.read_text(absolute) == spelling
    assert anywhere.files.stat(spelling).path == absolute


@pytest.mark.parametrize("spelling", ["/workspace", "workspace/", "workspace", "."])
def test_tc_12_1_the_workspace_has_four_spellings(anywhere: Sandbox, spelling: str) -> None:
    anywhere.files.write("only", b"x")
    assert anywhere.files.stat(spelling).path == "/workspace"
    assert [entry.path for entry in anywhere.files.list(spelling)] == ["/workspace/only"]


@pytest.mark.parametrize("path", ["/a.txt", "/", "../etc/passwd", "/workspace/../x", "out", "out/hostname", "up"])
def test_tc_12_1_what_is_outside_is_refused_by_reads_and_writes(anywhere: Sandbox, path: str) -> None:
    anywhere.exec("ln -s /etc out; ln -s ../../../../etc/passwd up; touch in").check()
    with pytest.raises(errors.PathRefused):
        anywhere.files.read(path)
    if path != "out":  # a write to the name of a link replaces the link
        with pytest.raises(errors.PathRefused):
            anywhere.files.write(f"{path}/new", b"x")
    assert anywhere.exec("cat in").stdout == ""


def test_tc_12_2_an_exit_code_and_two_streams(anywhere: Sandbox) -> None:
    result = anywhere.exec(["sh", "-c", "echo out; echo err >&2; exit 42"])
    assert (result.exit_code, result.stdout, result.stderr) == (42, "out\n", "err\n")


def test_tc_12_2_a_timeout_keeps_the_partial_output(anywhere: Sandbox) -> None:
    begun = time.monotonic()
    assert anywhere.exec(["sleep", "30"], timeout_seconds=2).timed_out
    assert 2 <= time.monotonic() - begun < 6
    result = anywhere.exec("echo partial; echo err >&2; exec sleep 30", timeout_seconds=1)
    assert (result.timed_out, result.exit_code) == (True, 124)
    assert (result.stdout, result.stderr) == ("partial\n", "err\n")
    assert result.duration_seconds >= 1


def test_tc_12_2_a_missing_program_is_127_at_once_and_one_that_may_not_run_126(anywhere: Sandbox) -> None:
    begun = time.monotonic()
    missing = anywhere.exec(["no-such-program"])
    assert time.monotonic() - begun < 2
    assert (missing.exit_code, missing.ending.kind) == (127, EndingKind.EXITED)
    assert "no-such-program" in (missing.ending.reason or "")
    assert anywhere.exec("no-such-program").exit_code == 127
    anywhere.files.write("data", b"no program", mode=0o644)
    assert anywhere.exec(["./data"]).exit_code == 126


def test_tc_12_3_parents_bytes_and_modes(anywhere: Sandbox) -> None:
    written = anywhere.files.write("a/b/c.txt", b"\xff\x00 bytes")
    assert (written.created, written.entry.size, written.entry.mode) == (True, 8, "644")
    assert anywhere.files.read("a/b/c.txt") == b"\xff\x00 bytes"
    anywhere.files.write("a/tool", "#!/bin/sh\necho ran\n", mode=0o755)
    assert anywhere.exec(["./a/tool"]).stdout == "ran\n"


def test_tc_12_4_a_part_of_a_file_is_its_exact_bytes(anywhere: Sandbox) -> None:
    anywhere.files.write("f", bytes(range(256)) * 1000)
    assert anywhere.files.read("f", length=300) == (bytes(range(256)) * 2)[:300]
    assert anywhere.files.read("f", offset=255_990, length=100) == bytes(range(246, 256))
    assert anywhere.files.read("f", offset=300_000) == b""


def test_tc_12_5_removing(anywhere: Sandbox) -> None:
    anywhere.files.write("d/e/f", b"x")
    with pytest.raises(errors.StationError, match="recursive"):
        anywhere.files.remove("d")
    assert anywhere.files.remove("d", recursive=True) == 3
    for root in (".", "/workspace", "/home/node"):
        with pytest.raises(errors.StationError, match=r"root|home"):
            anywhere.files.remove(root, recursive=True)
    assert anywhere.exec("echo alive").stdout == "alive\n"


HELLO = {"python": "print('hello')", "node": "console.log('hello')", "bash": "echo hello"}
PROGRAMS = {"python": "/usr/bin/python3", "node": "/usr/bin/node", "bash": "/usr/bin/bash"}


@pytest.mark.parametrize("backend", ["bubblewrap", "host"])
@pytest.mark.parametrize("runtime", HELLO)
def test_tc_12_11_hello_in_each_runtime_or_the_package_that_is_missing(
    client: Client, runtime: str, backend: str
) -> None:
    if shutil.which(PROGRAMS[runtime]):
        result = client.run(HELLO[runtime], runtime=runtime, backend=backend)
        assert (result.check().stdout, result.runtime) == ("hello\n", runtime)
        assert result.isolation is not None
        assert (result.isolation.backend, result.isolation.image) == (backend, "host:/usr")
    else:
        with pytest.raises(errors.InvalidInput, match=r"nodejs|python3|bash"):
            client.run(HELLO[runtime], runtime=runtime, backend=backend)


@pytest.mark.parametrize("backend", ["bubblewrap", "host"])
def test_tc_12_11_files_arguments_and_variables_come_in(client: Client, backend: str) -> None:
    files: dict[str, str | bytes] = {
        "in.txt": "relative",
        "/workspace/deep/abs.txt": "absolute",
        "workspace/b": b"\xff\0",
    }
    script = 'cat in.txt deep/abs.txt; od -An -tx1 b; echo "$1|$2|$WHO"; pwd; cat'
    result = client.run(
        script, runtime="bash", args=["a b", "-x"], env={"WHO": "me\nyou"}, files=files, stdin="typed", backend=backend
    )
    lines = result.check().stdout.split("\n")
    assert lines[:3] == ["relativeabsolute ff 00", "a b|-x|me", "you"]
    assert lines[3].endswith("/workspace")
    assert lines[4] == "typed"


SYNTAX = [("python", "print(", 1), ("bash", "if", 2), ("node", "(", 1)]


@pytest.mark.parametrize("backend", ["bubblewrap", "host"])
@pytest.mark.parametrize(("runtime", "code", "exit_code"), SYNTAX)
def test_tc_12_11_a_syntax_error_is_not_ok_with_its_true_code(
    client: Client, runtime: str, code: str, exit_code: int, backend: str
) -> None:
    result = client.run(code, runtime=runtime, backend=backend)
    assert (result.ok, result.exit_code, result.stdout) == (False, exit_code, "")
    assert "rror" in result.stderr


def test_tc_12_11_output_beyond_its_cap_is_cut_with_exact_offsets(client: Client) -> None:
    result = client.run("import sys\nsys.stdout.write('a' * 600_000 + 'm' * 500_000 + 'z' * 600_000)")
    kept = 512 * 1024
    assert result.stdout_view.total_bytes == 1_700_000
    assert result.stdout_omitted_bytes == 1_700_000 - 2 * kept
    assert result.stdout_bytes == b"a" * kept + b"z" * kept
    assert f"\n... [{1_700_000 - 2 * kept} bytes omitted] ...\n" in result.stdout
    limited = client.run("while True: print('x' * 99)", output_limit_bytes=1000)
    assert (limited.ok, limited.ending.kind) == (False, EndingKind.OUTPUT_LIMIT)
    assert limited.stdout.startswith("x" * 99 + "\n")


def test_tc_12_11_an_unknown_runtime_is_an_error_without_an_exit_code(client: Client) -> None:
    with pytest.raises(errors.InvalidInput, match=r"'perl'.*python, node, bash") as caught:
        client.run("1", runtime="perl")
    assert caught.value.detail["allowed"] == ["python", "node", "bash"]
    with pytest.raises(errors.InvalidInput):
        RunRequest("1", runtime="")


def test_artifacts_come_out_by_name_and_by_pattern(client: Client) -> None:
    code = "import os\nos.makedirs('out/deep')\nfor n in ('a.csv','out/b.csv','out/deep/c.csv'): open(n,'w').write(n)"
    result = client.run(code, artifacts=["a.csv", "out/*.csv", "**/c.csv", "missing.txt", "*.none"])
    assert dict(result.artifacts) == {n: n.encode() for n in ("a.csv", "out/b.csv", "out/deep/c.csv")}
    assert result.artifacts_missing == ("missing.txt", "*.none")


def test_fb_b28_a_run_sees_nothing_of_the_one_before(client: Client) -> None:
    plant = "import os, subprocess\nopen('/tmp/mark','w'); open('mark','w'); open('/home/node/mark','w')"
    look = "import os\nprint(sorted(os.listdir('.')), os.path.exists('/tmp/mark'), os.path.exists('/home/node/mark'))"
    for _ in range(4):
        client.run(plant).check()
        assert client.run(look).check().stdout == "['main.py'] False False\n"


def test_fb_b4_b13_b14_output_and_files_are_the_bytes_that_were_written(anywhere: Sandbox) -> None:
    assert anywhere.exec(r"printf 'a\n\n\nb'").stdout_bytes == b"a\n\n\nb"
    png = b"\x89PNG\r\n\x1a\n\x00\xff"
    anywhere.files.write("x.docx", png)
    assert anywhere.files.read("x.docx") == png
    assert anywhere.exec(["cat", "x.docx"]).stdout_bytes == png


def test_fb_b38_b61_what_a_shell_takes_is_not_judged_before(anywhere: Sandbox) -> None:
    """Awk and sed that `bash -n` of others refused, here-documents, and quotes in a written script."""
    assert (
        anywhere.exec("awk 'BEGIN { if (1 > 0) { print \"a\\tb\" } }' | sed -e 's/[^a-z]*$//;s/\\t/{/'").stdout
        == "a{b\n"
    )
    assert anywhere.exec("cat <<'E'\n$HOME `x` \\\nE").stdout == "$HOME `x` \\\n"
    script = '#!/bin/sh\nprintf \'%s|\' "it\'s" \'a\\nb\' "\\"q\\""\n'
    anywhere.files.write("s.sh", script, mode=0o755)
    assert anywhere.files.read_text("s.sh") == script
    assert anywhere.exec("./s.sh").stdout == 'it\'s|a\\nb|"q"|'


def test_fb_b40_b41_a_shell_that_ends_itself_harms_no_later_command(anywhere: Sandbox) -> None:
    assert anywhere.exec("set -e; false; echo never").exit_code == 1
    assert anywhere.exec("kill -9 $$").ending.kind is EndingKind.SIGNALLED
    anywhere.files.write("/home/node/.bashrc", "exit 9\n")
    anywhere.files.write("/home/node/.profile", "exit 9\n")
    assert anywhere.exec("echo next").stdout == "next\n"


def test_fb_b49_a_command_that_ended_unwatched_keeps_its_code_and_output(anywhere: Sandbox, client: Client) -> None:
    process = anywhere.start("echo kept; exit 5")
    with client.get(anywhere.name) as later:
        found = later.processes.get(process.id).wait(20)
    assert (found.exit_code, found.stdout) == (5, "kept\n")


def test_a_command_that_ends_takes_its_children_and_says_so(anywhere: Sandbox) -> None:
    result = anywhere.exec("sleep 1000 & sleep 1000 & echo done")
    assert (result.stdout, result.ended_children) == ("done\n", 2)
