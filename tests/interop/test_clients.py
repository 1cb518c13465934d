"""The same facts for every client of other projects that is driven here, unmodified, over both transports.

What their packages have no interface for: `mcp` 1.x to give up on a call (its program sends the notification by hand),
`pydantic-ai` to tell which call a progress notification belongs to.
"""

from __future__ import annotations

import base64
import uuid
from pathlib import Path

import pytest

from station import connect, errors
from tests.observer import Observer, command_line, pids

from .peers import Cancelled, Peer

full = pytest.mark.full
PEERS = [
    "mcp1-stdio",
    "mcp1-http",
    "mcp2-stdio",
    "mcp2-http",
    "typescript1-stdio",
    "typescript1-http",
    "typescript2-http",
    "fastmcp-http",
    "pydantic-ai-stdio",
    pytest.param("typescript2-stdio", marks=full),
    pytest.param("fastmcp-stdio", marks=full),
    pytest.param("pydantic-ai-http", marks=full),
    pytest.param("mcp2-legacy-stdio", marks=full),
    pytest.param("mcp2-legacy-http", marks=full),
]
TOOLS = "run open exec start output kill fs_write fs_read fs_list fs_delete close"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All of them, but where a test names its own."""
    if "peer" not in {mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")}:
        metafunc.parametrize("peer", PEERS, indirect=True, scope="module")


def test_it_lists_the_tools_with_their_schemas(peer: Peer):
    tools = {tool["name"]: tool for tool in peer.do("tools")}
    assert {f"sandbox_{name}" for name in TOOLS.split()} <= tools.keys()
    for tool in tools.values():
        assert tool["input"]["type"] == "object"
        assert tool["output"]["type"] == "object"
    assert "command" in tools["sandbox_exec"]["input"]["properties"]
    assert "exit_code" in tools["sandbox_exec"]["output"]["properties"]


def test_opening_by_name_gives_the_same_sandbox_again(peer: Peer):
    name = f"again-{uuid.uuid4()}"
    first = peer.call("sandbox_open", session_key=name)
    second = peer.call("sandbox_open", session_key=name)
    assert (first["created"], second["created"]) == (True, False)
    assert first["sandbox_id"] == second["sandbox_id"]
    peer.call("sandbox_close", sandbox_id=first["sandbox_id"])


@pytest.mark.parametrize(
    "command", ["echo $((6 * 7)); echo no >&2; exit 3", ["sh", "-c", "echo 42; echo no >&2; exit 3"]]
)
def test_a_command_ends_with_its_output_and_its_exit_code(peer: Peer, sandbox_id: str, command: str | list[str]):
    answer = peer.call("sandbox_exec", sandbox_id=sandbox_id, command=command)
    assert (answer["exit_code"], answer["stdout"], answer["stderr"]) == (3, "42\n", "no\n")


def test_a_result_can_be_read_as_text_too(peer: Peer, sandbox_id: str):
    found = peer.start_call("sandbox_exec", sandbox_id=sandbox_id, command="echo for the model").result()
    assert "for the model" in found["text"]


@pytest.mark.parametrize("spelling", ["content", "contents", "text"])
def test_text_comes_back_as_it_was_written(peer: Peer, sandbox_id: str, spelling: str):
    text = "één\n\tzwei\r\n三\0"
    peer.call("sandbox_fs_write", sandbox_id=sandbox_id, path="notes/a.txt", **{spelling: text})
    read = peer.call("sandbox_fs_read", sandbox_id=sandbox_id, path="/workspace/notes/a.txt")
    assert (read["content"], read["contents"]) == (text, text)


@pytest.mark.parametrize("spelling", ["content_b64", "contents_b64", "content_base64"])
def test_bytes_come_back_as_they_were_written(peer: Peer, sandbox_id: str, spelling: str):
    coded = base64.b64encode(bytes(range(256)) * 100).decode()
    peer.call("sandbox_fs_write", sandbox_id=sandbox_id, path="data.bin", **{spelling: coded})
    read = peer.call("sandbox_fs_read", sandbox_id=sandbox_id, path="workspace/data.bin")
    assert read["contents_b64"] == coded


# Quotes and line ends take two bytes each in JSON, and a client may refuse a large message: httpx2 has a limit of 1 MiB
# for one that comes on a stream, as it does to older clients, and after progress.
MUCH = 'yes \'"""\' | head -c 300000 | tee many >&2; cat many'


def test_as_much_as_an_answer_may_hold_comes_through(peer: Peer, sandbox_id: str):
    answer = peer.call("sandbox_exec", sandbox_id=sandbox_id, command=MUCH)
    assert (answer["stdout_bytes"], answer["stderr_bytes"]) == (300_000, 300_000)
    assert min(len(answer["stdout"]), len(answer["stderr"])) > 50_000
    read = peer.call("sandbox_fs_read", sandbox_id=sandbox_id, path="many")
    assert read["total_size_bytes"] == 300_000
    assert len(read["contents"]) > 50_000


def test_files_are_listed_and_deleted(peer: Peer, sandbox_id: str):
    peer.call("sandbox_fs_write", sandbox_id=sandbox_id, path="there/one", content="1")
    there = {"sandbox_id": sandbox_id, "path": "there"}
    assert [entry["type"] for entry in peer.call("sandbox_fs_list", **there)["entries"]] == ["file"]
    assert peer.call("sandbox_fs_delete", **there, recursive=True)["ok"] is True
    assert "there" not in [entry["path"] for entry in peer.call("sandbox_fs_list", sandbox_id=sandbox_id)["entries"]]


def test_code_runs_in_a_box_of_its_own(peer: Peer):
    answer = peer.call("sandbox_run", code="import os; print(6 * 7, os.getcwd())", runtime="python")
    assert (answer["ok"], answer["exit_code"], answer["stdout"]) == (True, 0, "42 /workspace\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sandbox_id": "ses_01AAAAAAAAAAAAAAAAAAAAAAAA", "command": "true"}, "sandbox_open"),
        ({"command": 7}, "command"),
        ({}, "command"),
    ],
    ids=["an unknown sandbox", "a wrong type", "nothing"],
)
def test_a_mistake_is_an_error_of_the_tool_and_the_session_goes_on(
    peer: Peer, sandbox_id: str, arguments: dict[str, object], said: str
):
    found = peer.start_call("sandbox_exec", **arguments).result()
    assert found["is_error"]
    assert said in found["text"]
    assert peer.call("sandbox_exec", sandbox_id=sandbox_id, command="echo on")["stdout"] == "on\n"


def test_output_arrives_as_progress_and_giving_up_on_a_call_ends_that_command_alone(
    peer: Peer, sandbox_id: str, home: Path
):
    mark = f"300.{uuid.uuid4().int % 10**9}"
    line = f"echo half; until [ -e go ]; do sleep 0.02; done; rm go; echo whole; {MUCH}"
    stays = peer.start_call("sandbox_exec", sandbox_id=sandbox_id, command=line)
    goes = peer.start_call("sandbox_exec", sandbox_id=sandbox_id, command=f"echo begun; sleep {mark} & sleep {mark}")
    stays.progress_with("half")
    goes.progress_with("begun")
    assert runs(mark)
    goes.cancel()
    with pytest.raises(Cancelled):
        goes.result()
    Observer.until(lambda: not runs(mark), "the command goes on", 10)
    # As somebody else sees it, all the rest goes on.
    with connect(home) as client:
        client.get_by_id(sandbox_id).files.write("go", "")
    found = stays.result()
    assert not found["is_error"], found["text"][:1000]
    answer = found["structured"]
    assert answer["stdout"].startswith('half\nwhole\n"""\n')
    assert answer["stdout_bytes"] > 300_000


def runs(mark: str) -> bool:
    return any(mark in command_line(pid) for pid in pids())


def test_calls_run_side_by_side(peer: Peer, sandbox_id: str):
    # Each waits for all the others.
    line = "mkdir -p meet; touch meet/{0}; until [ $(ls meet | wc -l) = 5 ]; do sleep 0.02; done; echo {0}"
    steps = [
        peer.start_call("sandbox_exec", sandbox_id=sandbox_id, command=line.format(number), timeout_seconds=15)
        for number in range(5)
    ]
    assert [step.result()["structured"]["stdout"] for step in steps] == [f"{number}\n" for number in range(5)]
    peer.call("sandbox_fs_delete", sandbox_id=sandbox_id, path="meet", recursive=True)


def test_the_documentation_is_a_resource(peer: Peer):
    assert "station://docs/sandbox" in peer.do("resources")
    assert "sandbox_exec" in peer.do("read", uri="station://docs/sandbox")


def test_a_background_process_is_followed_and_killed(peer: Peer, sandbox_id: str):
    started = peer.call("sandbox_start", sandbox_id=sandbox_id, command="echo up; sleep 300")
    named = {"sandbox_id": sandbox_id, "process_id": started["process_id"]}
    seen = ""
    while "up" not in seen:
        seen += peer.call("sandbox_output", **named, wait_seconds=0.2)["stdout"]
    peer.call("sandbox_kill", **named)
    assert peer.call("sandbox_output", **named, wait_seconds=5)["running"] is False


def test_what_is_closed_is_gone(peer: Peer, home: Path):
    opened = peer.call("sandbox_open", session_key=f"closed-{uuid.uuid4()}")["sandbox_id"]
    with connect(home) as client:
        client.get_by_id(opened)
        assert peer.call("sandbox_close", sandbox_id=opened)["ok"] is True
        with pytest.raises(errors.SandboxNotFound):
            client.get_by_id(opened)
    assert peer.start_call("sandbox_exec", sandbox_id=opened, command="true").result()["is_error"]
    assert peer.call("sandbox_close", sandbox_id=opened)["already_closed"] is True


@pytest.mark.parametrize("peer", ["pydantic-ai-stdio"], indirect=True)
def test_a_model_that_makes_up_arguments_from_the_schema_succeeds(peer: Peer):
    found = peer.do("made_up", tool="sandbox_open")
    assert not found["is_error"]
    assert found["structured"]["sandbox_id"]
