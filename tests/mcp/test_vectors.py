"""TC-12, vectors 1 to 6, 11 and the spellings of 12, through the tools; what a backend does, on every one."""

from __future__ import annotations

import base64
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from station import Client
from tests.acceptance.conftest import Stn, state_directory
from tests.mcp.driver import Tools, in_memory, over_stdio


async def test_tc_12_1_each_spelling_of_a_path_is_one_file(anywhere: Tools) -> None:
    for path in ("a.txt", "workspace/a.txt", "/workspace/a.txt", "./x/../a.txt", "/workspace//a.txt"):
        assert (await anywhere.write(path, path))["path"] == path
        assert (await anywhere.read("a.txt"))["contents"] == path
        assert (await anywhere.read(path))["path"] == path
        assert [entry["path"] for entry in (await anywhere.list())["entries"]] == ["a.txt"]
        assert (await anywhere.exec("cat a.txt"))["stdout"] == path
        assert (await anywhere.delete(path))["deleted"] == path
        assert (await anywhere.list())["entries"] == []


async def test_tc_12_1_each_spelling_of_the_workspace_is_the_workspace(anywhere: Tools) -> None:
    for path in ("/workspace", "workspace/", "workspace", "", "."):
        await anywhere.write("a.txt", "x")
        assert [entry["path"] for entry in (await anywhere.list(path=path))["entries"]] == ["a.txt"]
        assert (await anywhere.read(path)).error["code"] in ("not_a_regular_file", "invalid_input")
        assert (await anywhere.delete(path, recursive=True)).failed


async def test_tc_12_1_tmp_and_home_are_themselves(tools: Tools) -> None:
    for path in ("/tmp/x", "/home/node/x"):
        assert (await tools.write(path, "there"))["path"] == path
        assert (await tools.exec(["cat", path]))["stdout"] == "there"
        assert (await tools.read(path))["contents"] == "there"
        found = [entry["path"] for entry in (await tools.list(path=path.rpartition("/")[0]))["entries"]]
        assert path in found


async def test_tc_12_1_a_path_that_leads_outside_is_refused(anywhere: Tools) -> None:
    for path in ("/a.txt", "/", "../etc/passwd", "/workspace/../x", "/etc/passwd", "out/etc/passwd"):
        await anywhere.exec("ln -sfn / out")
        for answer in (
            await anywhere.read(path),
            await anywhere.write(path, "x"),
            await anywhere.list(path=path),
            await anywhere.delete(path, recursive=True),
        ):
            assert answer.error["code"] == "path_refused", answer.text


async def test_tc_12_1_a_link_to_the_outside_shows_nothing_and_writing_replaces_the_link(anywhere: Tools) -> None:
    await anywhere.exec("ln -s /etc/passwd link")
    assert (await anywhere.read("link")).error["code"] in ("path_refused", "not_a_regular_file")
    await anywhere.write("link", "x")
    assert (await anywhere.read("link"))["contents"] == "x"
    assert "root:" in Path("/etc/passwd").read_text()


async def test_tc_12_2_exit_codes_and_streams_are_the_programs_own(anywhere: Tools) -> None:
    ended = await anywhere.exec(["sh", "-c", "echo out; echo err >&2; exit 42"])
    assert (ended["exit_code"], ended["stdout"], ended["stderr"]) == (42, "out\n", "err\n")
    assert not ended.raw.is_error
    assert (await anywhere.exec(["no-such-program"]))["exit_code"] == 127
    assert (await anywhere.exec("no-such-program"))["exit_code"] == 127
    assert (await anywhere.exec("kill -9 $$"))["exit_code"] == 137


async def test_tc_12_2_out_of_time_keeps_what_was_written(anywhere: Tools) -> None:
    ended = await anywhere.exec(["sh", "-c", "echo before; sleep 30"], timeout_seconds=1)
    assert (ended["timed_out"], ended["exit_code"], ended["stdout"]) == (True, 124, "before\n")
    assert 1000 <= ended["duration_ms"] < 10_000
    assert "timeout_seconds" in ended["hint"]


async def test_tc_12_3_files_come_back_as_they_went(anywhere: Tools) -> None:
    written = await anywhere.write("a/b/c.txt", "äöü\n")
    assert (written["size_bytes"], written["created"]) == (7, True)
    read = await anywhere.read("a/b/c.txt")
    assert read["contents"] == read["content"] == "äöü\n"
    assert (await anywhere.write("a/b/c.txt", ""))["created"] is False
    assert (await anywhere.read("a/b/c.txt"))["contents"] == ""

    await anywhere.write("raw", content_b64=base64.b64encode(b"\xff\x00").decode())
    read = await anywhere.read("raw")
    assert (read["encoding"], read["size_bytes"]) == ("base64", 2)
    assert base64.b64decode(read["contents_b64"]) == b"\xff\x00"
    assert "contents" not in read.value

    await anywhere.write("run.sh", "#!/bin/sh\necho ran", mode="0755")
    assert (await anywhere.exec(["./run.sh"]))["stdout"] == "ran\n"
    assert {e["path"]: e["mode"] for e in (await anywhere.list())["entries"]}["run.sh"] == "755"
    kept = await anywhere.write("run.sh", "x", overwrite=False)
    assert kept.error["code"] == "already_exists"
    assert (await anywhere.read("run.sh"))["contents"].endswith("echo ran")


async def test_tc_12_4_a_part_is_an_exact_prefix_of_whole_characters(anywhere: Tools) -> None:
    for most in (1, 4, 5, 6, 7, 10):
        text = "abcd€fgh🙂"
        await anywhere.write("a.txt", text)
        part = await anywhere.read("a.txt", max_bytes=most)
        assert part["truncated"] is True
        assert text.startswith(part["contents"])
        assert part["size_bytes"] == len(part["contents"].encode()) <= most
        assert part["total_size_bytes"] == len(text.encode())
        # Read on and on, it is the file.
        whole = part["contents"]
        while part["truncated"]:
            part = await anywhere.read("a.txt", max_bytes=max(most, 4), offset=part["next_offset"])
            whole += part["contents"]
        assert whole == text


async def test_tc_12_5_a_folder_needs_recursive_and_the_workspace_stays(anywhere: Tools) -> None:
    await anywhere.write("d/x", "1")
    refused = await anywhere.delete("d")
    assert refused.failed
    assert "recursive=true" in refused.text
    for root in (".", "/workspace", ""):
        refused = await anywhere.delete(root, recursive=True)
        assert re.search("cannot delete (the )?workspace root", refused.text)
    assert (await anywhere.delete("d", recursive=True))["removed"] == 2
    again = await anywhere.delete("d", recursive=True)
    assert (again["ok"], again["removed"]) == (True, 0)


async def test_tc_12_6_open_twice_is_one_and_after_close_another(anywhere: Tools) -> None:
    one, two = await anywhere.open(), await anywhere.open()
    assert (one["created"], two["created"]) == (True, False)
    assert one["sandbox_id"] == two["sandbox_id"]
    assert re.fullmatch("ses_[0-9A-HJKMNP-TV-Z]{26}", one["sandbox_id"])
    assert one["workdir"] == "/workspace"
    assert (await anywhere.close(sandbox_id=one["sandbox_id"]))["already_closed"] is False
    three = await anywhere.open()
    assert three["created"] is True
    assert three["sandbox_id"] != one["sandbox_id"]
    assert (await anywhere.exec("true", sandbox_id=one["sandbox_id"])).error["code"] == "sandbox_not_found"
    assert (await anywhere.list())["entries"] == []


async def test_tc_12_6_keys_are_sandboxes_of_their_own(tools: Tools) -> None:
    default, a, b = await tools.open(), await tools.open(session_key="a"), await tools.open(name="b")
    assert len({answer["sandbox_id"] for answer in (default, a, b)}) == 3
    await tools.write("x", "of a", sandbox_id=a["sandbox_id"])
    assert (await tools.read("x")).error["code"] == "file_not_found"
    assert (await tools.read("x", sandbox_id=b["sandbox_id"])).error["code"] == "file_not_found"
    assert (await tools.open(session_key="a"))["sandbox_id"] == a["sandbox_id"]


async def test_tc_12_6_two_processes_have_sandboxes_of_their_own(home: Path) -> None:
    async with over_stdio(home) as one, in_memory(home) as two:
        first, second = await one.open(), await two.open()
        assert first["sandbox_id"] != second["sandbox_id"]
        assert (await two.exec("true", sandbox_id=first["sandbox_id"])).error["code"] == "sandbox_not_found"
        await one.close()


async def test_tc_12_6_a_named_default_sandbox_is_the_users(home: Path, client: Client, stn: Stn) -> None:
    client.open("shared")
    async with over_stdio(home, "--sandbox", "shared") as tools:
        answer = await tools.open()
        assert answer["created"] is False
        assert "removed_after_idle_seconds" not in answer.value
        other = await tools.open(session_key="other")
        assert other["removed_after_idle_seconds"] == 1800
        await tools.write("from-tools", "x")
        await tools.close(sandbox_id=other["sandbox_id"])
    assert stn("exec", "shared", "cat from-tools").stdout == b"x"
    async with in_memory(home, "shared") as tools:
        assert (await tools.open())["sandbox_id"] == answer["sandbox_id"]


async def test_a_mounted_folder_is_the_default_sandboxs_alone(home: Path, ran: Callable[[str], None]) -> None:
    ran("bubblewrap")
    with tempfile.TemporaryDirectory(prefix="stn-mount-", dir="/var/tmp") as place:
        folder = Path(place)
        folder.chmod(0o755)
        folder.joinpath("mine.txt").write_text("mine")
        folder.joinpath(".bashrc").touch()
        if os.geteuid() == 0:
            for path in (folder, folder / "mine.txt", folder / ".bashrc"):
                os.chown(path, 1000, 1000)
        async with in_memory(home, backend="bubblewrap", mount=place) as tools:
            assert (await tools.exec("cat mine.txt && echo new > made.txt"))["stdout"] == "mine"
            # What git would run is read-only, and trying again is of no use.
            for refused in (await tools.write(".bashrc", "evil"), await tools.delete(".bashrc")):
                assert (refused.error["code"], refused.error["retryable"]) == ("refused", False)
            other = await tools.open(session_key="other")
            assert (await tools.list(sandbox_id=other["sandbox_id"]))["entries"] == []
            assert (await tools.run("import os; print(os.listdir('.'))"))["stdout"] == "['main.py']\n"
            await tools.close()
        assert (folder / "made.txt").read_text() == "new\n"
        assert (folder / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("runtime", "code"),
    [
        ("python", "print('hello')"),
        ("node", "console.log('hello')"),
        ("bash", "echo hello"),
        (None, "print('hello')"),
    ],
)
async def test_tc_12_11_hello_in_each_runtime(anywhere: Tools, runtime: str | None, code: str) -> None:
    done = await anywhere.run(code, runtime=runtime)
    assert (done["ok"], done["stdout"], done["exit_code"]) == (True, "hello\n", 0), done.value
    assert done["runtime"] == (runtime or "python")
    assert done["limits"] == {"timeout_seconds": 120.0, "max_stdout_bytes": 200_000}


async def test_tc_12_11_files_arguments_environment_and_artifacts(anywhere: Tools) -> None:
    code = """
import os, sys
print(open('a.txt').read(), open('d/b.bin', 'rb').read(), sys.argv[1:], os.environ['KEY'], sys.stdin.read())
os.makedirs('out'); open('out/r.txt', 'w').write('result')
"""
    done = await anywhere.run(
        code,
        files={"a.txt": "text"},
        files_b64={"/workspace/d/b.bin": base64.b64encode(b"\xff\0").decode()},
        args=["one", "two words"],
        env={"KEY": "value"},
        stdin="typed",
        artifacts=["out/*", "nothing"],
    )
    assert done["stdout"] == "text b'\\xff\\x00' ['one', 'two words'] value typed\n", done.text
    [made] = done["artifacts"]
    assert (made["path"], made["size_bytes"]) == ("out/r.txt", 6)
    assert base64.b64decode(made["content_base64"]) == b"result"
    assert done["artifacts_missing"] == ["nothing"]


async def test_tc_12_11_a_program_that_fails_says_so_with_its_exit_code(anywhere: Tools) -> None:
    wrong = await anywhere.run("print('x'")
    assert (wrong["ok"], wrong["exit_code"]) == (False, 1)
    assert "SyntaxError" in wrong["stderr"]
    assert wrong["error"]
    late = await anywhere.run("print('before', flush=True); import time; time.sleep(60)", timeout_seconds=1)
    assert (late["ok"], late["timed_out"], late["exit_code"], late["stdout"]) == (False, True, 124, "before\n")
    assert late["limits"]["timeout_seconds"] == 1


async def test_tc_12_11_a_refused_runtime_is_an_error_without_an_exit_code(anywhere: Tools) -> None:
    refused = await anywhere.run("say 1", runtime="perl")
    assert "perl" in refused.text
    assert "exit_code" not in str(refused.value)


async def test_tc_12_11_nothing_stays_between_two_runs(anywhere: Tools) -> None:
    await anywhere.run("open('x', 'w').write('x')")
    assert (await anywhere.run("import os; print(os.listdir('.'))"))["stdout"] == "['main.py']\n"


@pytest.fixture(scope="module")
def capped() -> Iterator[Path]:
    with state_directory("sandbox:\n  allow_host: true\n  max_stdout_bytes: 100\n") as home:
        yield home


@pytest.fixture(params=["bubblewrap", "host"])
async def few(request: pytest.FixtureRequest, capped: Path, ran: Callable[[str], None]) -> AsyncIterator[Tools]:
    ran(request.param)
    async with in_memory(capped, backend=request.param) as tools:
        yield tools


async def test_tc_12_11_a_cap_of_100_shows_100_characters_and_the_marker(few: Tools) -> None:
    ran = await few.run("import sys; print('x' * 500, end=''); sys.stderr.write('y' * 500)")
    assert ran["stdout"] == "x" * 100 + "\n... [truncated]"
    assert ran["stderr"] == "y" * 100 + "\n... [truncated]"
    assert (ran["stdout_truncated"], ran["limits"]["max_stdout_bytes"]) == (True, 100)
    exact = await few.run("print('x' * 100, end='')")
    assert (exact["stdout"], exact["stdout_truncated"]) == ("x" * 100, False)

    done = await few.exec("printf 'é%.0s' $(seq 500)")
    assert done["stdout"] == "é" * 50 + "\n... [truncated]"
    assert (done["truncated"], done["stdout_bytes"]) == (True, 1000)
    rest = await few.output(done["process_id"], stdout_offset=100)
    assert rest["stdout"] == "é" * 50
    assert rest["stdout_next"] == 200
    assert rest["more"] is True


TWICE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("sandbox_exec", {"command": "echo hi; exit 3"}, {"cmd": "echo hi; exit 3"}),
    ("sandbox_exec", {"command": ["sh", "-c", "exit 3"]}, {"cmd": ["sh", "-c", "exit 3"]}),
    ("sandbox_exec", {"command": "pwd", "cwd": "sub"}, {"cmd": "pwd", "workdir": "sub"}),
    ("sandbox_exec", {"command": "pwd", "cwd": "/tmp"}, {"cmd": ["pwd"], "workdir": "/tmp"}),
    ("sandbox_open", {"session_key": "k"}, {"name": "k"}),
]


@pytest.mark.parametrize(("name", "listed", "other"), TWICE, ids=str)
async def test_tc_12_12_both_spellings_do_the_same(
    tools: Tools, name: str, listed: dict[str, Any], other: dict[str, Any]
) -> None:
    """All of them: test_parse.py."""
    await tools.exec("mkdir sub")
    one, two = await tools.call(name, listed), await tools.call(name, other)
    assert not one.failed, one.text
    varies = ("duration_ms", "process_id", "created")
    assert {k: v for k, v in one.value.items() if k not in varies} == {
        k: v for k, v in two.value.items() if k not in varies
    }


async def test_tc_12_12_each_spelling_of_a_content_is_the_content(tools: Tools) -> None:
    for key in ("content", "contents", "text", "content_b64", "contents_b64", "content_base64"):
        value = "YWJj" if "64" in key else "abc"
        assert (await tools.call("sandbox_fs_write", {"path": "f", key: value}))["size_bytes"] == 3
        assert (await tools.read("f"))["contents"] == "abc"


async def test_tc_12_12_content_says_how_it_is_coded(tools: Tools) -> None:
    await tools.write("f", "YWJj", encoding="base64")
    assert (await tools.read("f"))["contents"] == "abc"
    await tools.write("f", "YWJj", encoding="utf-8")
    assert (await tools.read("f"))["contents"] == "YWJj"
    read = await tools.read("f", encoding="base64")
    assert base64.b64decode(read["contents_b64"]) == b"YWJj"


async def test_tc_12_12_without_an_id_it_is_the_default_sandbox_opened_at_need(anywhere: Tools) -> None:
    done = await anywhere.exec("echo x > f")
    opened = await anywhere.open()
    assert opened["created"] is False
    assert done["sandbox_id"] == opened["sandbox_id"]
    assert (await anywhere.read("f", sandbox_id=opened["sandbox_id"]))["contents"] == "x\n"


async def test_tc_12_12_a_list_has_lower_case_keys_and_is_sorted(anywhere: Tools) -> None:
    await anywhere.exec("mkdir -p b/c; echo 1 > b/c/f; echo 22 > a; ln -s a l; chmod 640 a")
    flat = (await anywhere.list())["entries"]
    assert [(e["path"], e["type"]) for e in flat] == [("a", "file"), ("b", "dir"), ("l", "symlink")]
    assert (flat[0]["size"], flat[0]["mode"]) == (3, "640")
    assert set(flat[0]) == {"path", "type", "size", "mode", "mtime_unix"}
    deep = await anywhere.list(recursive=True)
    assert [e["path"] for e in deep["entries"]] == ["a", "b", "b/c", "b/c/f", "l"]
    assert (await anywhere.list(path="nothing")).error["code"] == "file_not_found"
    pages, cursor = [], None
    while True:
        page = await anywhere.list(recursive=True, limit=2, cursor=cursor)
        pages += [e["path"] for e in page["entries"]]
        cursor = page.value.get("next_cursor")
        assert page["truncated"] is (cursor is not None)
        if cursor is None:
            break
    assert pages == ["a", "b", "b/c", "b/c/f", "l"]
