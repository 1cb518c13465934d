"""`stn serve --listen`, with a real backend: what it prints, and where its token is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.observer import of_process, pids

SECRET = "stn_canary_0123456789abcdef"


class Serving:
    def __init__(self, home: Path) -> None:
        command = [sys.executable, "-m", "station", "--home", str(home), "serve", "--listen", "localhost:0", "--json"]
        self.home = home
        self.log = home.with_name("log")
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=os.environ | {"STN_TOKEN": SECRET, "STN_SANDBOX_ALLOW_HOST": "true"},
            )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().decode()
        self.told: dict[str, Any] = json.loads(self.line)
        self.client = httpx2.Client(
            base_url=self.told["url"] + "/api/v1",
            headers={"authorization": f"Bearer {SECRET}"},
            timeout=30,
            trust_env=False,
        )

    def end(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=30)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    made = Serving(tmp_path_factory.mktemp("serve") / "home")
    yield made
    made.end()
    assert made.process.returncode == 0


def environments_with(secret: str) -> set[int]:
    """Pids of the processes that were started with it."""
    return {pid for pid in pids() if secret.encode() in of_process(pid, "environ")}


def test_one_line_tells_how_it_is_reached(serving: Serving) -> None:
    assert set(serving.told) == {"url", "token_file", "socket", "pid", "version"}
    assert serving.told["pid"] == serving.process.pid
    assert serving.told["token_file"] is None
    assert serving.told["url"].startswith("http://127.0.0.1:")
    assert (serving.home / "station.sock").samefile(serving.told["socket"])


@pytest.mark.parametrize("backend", ["bubblewrap", "host"])
def test_the_token_is_in_no_box_no_argument_list_no_log_and_no_child(serving: Serving, backend: str, ran: Any) -> None:
    opened = serving.client.post("/sandboxes", json={"name": f"box-{backend}", "backend": backend})
    assert opened.is_success, opened.text
    uid = opened.json()["id"]
    done = serving.client.post(
        f"/sandboxes/{uid}/exec", json={"command": "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'"}
    )
    ran(backend)
    shown = done.json()["stdout"]["head"]["data"]
    assert "HOME=" in shown
    running = serving.client.post(f"/sandboxes/{uid}/processes", json={"argv": ["sleep", "1000"]}).json()
    try:
        if backend == "bubblewrap":
            assert SECRET not in shown
        # Of the machine only the station itself was started with it.
        assert environments_with(SECRET) <= {serving.process.pid}
        listed = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, check=True).stdout
        assert SECRET.encode() not in listed
        assert b"station --home" in listed
    finally:
        serving.client.post(f"/sandboxes/{uid}/processes/{running['id']}/signal", json={"signal": "KILL"})
        serving.client.delete(f"/sandboxes/{uid}")
    wrong = httpx2.get(
        serving.told["url"] + "/api/v1/station", headers={"authorization": f"Bearer {SECRET}x"}, trust_env=False
    )
    assert (wrong.status_code, SECRET in wrong.text) == (401, False)
    log = serving.log.read_text()
    assert "listening on http://127.0.0.1:" in log
    assert SECRET not in log + serving.line
    files = [path for path in serving.home.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_an_address_of_the_network_is_refused_in_a_sentence_and_as_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "station", "--home", str(tmp_path), "serve", "--listen", "0.0.0.0:0", "--json"]
    done = subprocess.run(command, capture_output=True, timeout=30)
    assert done.returncode == 125
    assert done.stderr.startswith(b"stn: listen: '0.0.0.0' is no loopback address")
    assert b"TLS proxy" in done.stderr
    assert json.loads(done.stdout)["code"] == "invalid_input"
    assert list(tmp_path.iterdir()) == []


def test_the_tools_answer_at_mcp_to_those_with_the_token(serving: Serving) -> None:
    url = serving.told["url"] + "/mcp"
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    headers = {"accept": "application/json, text/event-stream"}
    assert httpx2.post(url, json=message, headers=headers, trust_env=False).status_code == 401
    answer = serving.client.post(url, json=message, headers=headers)
    assert answer.status_code == 200, answer.text
    assert "protocolVersion" in answer.text
