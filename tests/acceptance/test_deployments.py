"""Two deployments of one real station, over TCP: by the SDK, by the agent's tools, and over a `kill -9`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from station import Client, connect, errors
from station.cli.app import run_app
from tests.chaos.conftest import pid_of
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.mcp.driver import over_http

from .conftest import state_directory

pytestmark = [pytest.mark.root, pytest.mark.filterwarnings(REFUSED_SOCKET)]
# The port is another after a restart, the name that tokens carry is not.
SETTINGS = """
listen: 127.0.0.1:0
access: {url: "https://station.example"}
sandbox: {backend: bubblewrap, pool_size: 0, serves_others: true, minimum_isolation: process}
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with state_directory(SETTINGS) as home:
        with connect(home) as client:
            lacking = client.doctor().serves_others["bubblewrap"]
            if lacking:
                pytest.skip(f"bubblewrap may not serve others here: {lacking[0].why}")
        yield home


@pytest.fixture
def operator(home: Path) -> Iterator[Client]:
    with connect(home) as client:
        yield client
        for deployment in client.deployments.list():
            client.deployments.delete(deployment.name, force=True)


def url(home: Path) -> str:
    return str(json.loads((home / "listening.json").read_text())["url"])


def token(operator: Client, name: str, **more: Any) -> str:
    operator.deployments.create(name)
    return operator.deployments.token(name, **more).token


def test_two_deployments_and_an_operator_share_a_station_and_nothing_else(
    home: Path, operator: Client, ran: Callable[[str], None]
) -> None:
    ran("bubblewrap")
    key = operator.keys.create("laptop")
    with (
        connect(url=url(home), token=token(operator, "one")) as one,
        connect(url=url(home), token=token(operator, "two", ttl="1h")) as two,
        connect(url=url(home), token=key.key) as by_key,
        connect(url=url(home), token=(home / "operator.token").read_text().strip()) as by_token,
    ):
        boxes = [client.open("same") for client in (one, two, by_key)]
        assert [box.view.created for box in boxes] == [True] * 3
        for number, box in enumerate(boxes):
            box.exec(f"echo {number} > f").check()
        assert [box.files.read("f") for box in boxes] == [b"0\n", b"1\n", b"2\n"]
        assert by_token.get("same").files.read("f") == b"2\n", "key, token and socket are one operator"
        assert operator.get("same").id == boxes[2].id
        assert len(one.list()) == len(two.list()) == 1
        assert {view.deployment for view in operator.list(everybodys=True)} == {"one", "two", None}
        assert operator.get_by_id(boxes[0].id).files.read("f") == b"0\n"
        with pytest.raises(errors.SandboxNotFound):
            two.get_by_id(boxes[0].id)
        with pytest.raises(errors.Refused):
            two.stop()
        boxes[0].files.publish("f", key="shared")
        assert (one.files.read("shared"), [file.key for file in two.files.list()]) == (b"0\n", [])
        with pytest.raises(errors.FileNotFound):
            boxes[1].files.stage("shared", "g")
        boxes[0].files.stage("shared", "g")
        assert one.run("print(1)").check().stdout == "1\n"
        assert one.get("same").exec("cat g").stdout == "0\n"

        kept = boxes[0].start("sleep 1000")
        os.kill(pid_of(home), signal.SIGKILL)
        operator.info()  # starts the next station
    with connect(url=url(home), token=key.key) as by_key:
        operator.deployments.rotate("two")
        assert [view.name for view in by_key.list()] == ["same"]
        operator.keys.revoke(key.id)
        with pytest.raises(errors.Unauthenticated):
            by_key.list()
    with connect(url=url(home), token=operator.deployments.token("one").token) as one:
        assert one.get("same").processes.get(kept.id).view.state == "running"
        assert one.get("same").files.read("f") == b"0\n"
    operator.delete("same")


async def test_a_deployments_tools_act_for_it_and_reach_its_sandboxes_alone(
    home: Path, operator: Client, ran: Callable[[str], None]
) -> None:
    ran("bubblewrap")
    first, second = token(operator, "one"), token(operator, "two")
    async with (
        over_http(home, token=first) as one,
        over_http(home, token=second) as two,
        over_http(home) as operators,
        over_http(home, token=second, query="?sandbox=named") as named,
    ):
        await one.write("f", "of one")
        opened = await one.open()
        for other in (two, operators, named):
            assert (await other.open())["sandbox_id"] != opened["sandbox_id"]
            refused = await other.read("f", sandbox_id=opened["sandbox_id"])
            assert refused.error["code"] == "sandbox_not_found"
        assert (await one.read("f", sandbox_id=opened["sandbox_id"]))["contents"] == "of one"
        assert (await two.run("print(1)"))["stdout"] == "1\n"
        views = operator.list(everybodys=True)
        assert {view.deployment for view in views} == {"one", "two", None}
        with connect(url=url(home), token=first) as same:
            assert [view.tool_id for view in same.list()] == [opened["sandbox_id"]]
            same.files.write("k", b"of one")
        staged = await one.call("sandbox_stage_file", {"file_key": "k", "destination": "k"})
        assert not staged.failed
        assert (await two.call("sandbox_stage_file", {"file_key": "k", "destination": "k"})).failed
        operator.deployments.rotate("one")
        with connect(url=url(home), token=first) as late, pytest.raises(errors.Unauthenticated):
            late.list()
        await operators.close()


@pytest.fixture
def stn(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """`stn` with these words, in this process: its code, what it printed, and what it said on standard error."""

    def run(*words: str, **env: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patched:
            for name, value in ({"STN_HOME": str(home)} | env).items():
                patched.setenv(name, value)
            code = run_app([*words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_keys_by_the_command_line(home: Path, operator: Client, stn: Callable[..., Any]) -> None:
    assert "no API keys" in stn("key", "list")[1]
    _, shown, told = stn("key", "create", "laptop", "--ttl", "7d")
    (key,) = operator.keys.list()
    assert shown.startswith(f"stn_{key.id}_")
    assert (key.id in told, shown.strip() in told) == (True, False)
    assert [word in stn("key", "list")[1] for word in (key.id, "laptop", "never", "until 2")] == [True] * 4
    files = ("files", "list", "--station", url(home), "--json")
    assert json.loads(stn(*files, STN_TOKEN=shown.strip())[1])["count"] == 0
    assert stn("key", "revoke", key.id)[:2] == (0, f"revoked: {key.id}\n")
    code, _, why = stn(*files, STN_TOKEN=shown.strip())
    assert (code, "does not hold" in why) == (125, True)
    assert "no key" in stn("key", "revoke", key.id)[2]


def test_deployments_by_the_command_line(home: Path, operator: Client, stn: Callable[..., Any]) -> None:
    assert stn("deployment", "create", "one")[0] == 0
    assert "already" in stn("deployment", "create", "one")[2]
    _, printed, told = stn("deployment", "token", "one", "--ttl", "1h")
    assert "https://station.example, until 2" in told
    identity = json.loads(stn("deployment", "token", "one", "--json")[1])
    assert (identity["url"], identity["expires_at"]) == ("https://station.example", None)
    with connect(url=url(home), token=printed.strip()) as one:
        one.open("x").close()
    (view,) = json.loads(stn("deployment", "list", "--json")[1])["deployments"]
    assert (view["name"], view["sandboxes"], view["generation"]) == ("one", 1, 1)
    assert view["id"] in stn("deployment", "list")[1]
    heads, row = stn("ls", "--all")[1].splitlines()
    assert (heads.split()[0], row.split()[:2]) == ("DEPLOYMENT", ["one", "x"])
    assert "no sandboxes" in stn("ls")[1]
    assert json.loads(stn("deployment", "rotate", "one", "--json")[1])["generation"] == 2
    code, _, why = stn("deployment", "delete", "one")
    assert (code, "--force" in why) == (125, True)
    assert stn("deployment", "delete", "one", "--force")[:2] == (0, "deleted: one\n")
    assert "no deployments" in stn("deployment", "list")[1]


def test_a_station_that_serves_nobody_else_makes_no_deployment() -> None:
    with state_directory("listen: 127.0.0.1:0\n") as home, connect(home) as client:
        with pytest.raises(errors.Refused, match=r"sandbox\.serves_others"):
            client.deployments.create("one")
        assert client.deployments.list() == []
