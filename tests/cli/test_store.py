"""`stn files` and the SDK's file store, over a station of their own, by socket and by TCP."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from station import Client, connect, errors
from tests.acceptance.conftest import state_directory
from tests.chaos.conftest import pid_of
from tests.chaos.test_kill import REFUSED_SOCKET

DATA = random.Random(7).randbytes(2_400_000)
Stn = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with state_directory("listen: 127.0.0.1:0\n") as home:
        yield home


@pytest.fixture
def stn(home: Path, tmp_path: Path) -> Stn:
    def run(*words: str, typed: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "station", "files", *words]
        environment = os.environ | {"STN_HOME": str(home)} | env
        return subprocess.run(command, capture_output=True, input=typed, timeout=50, env=environment, cwd=tmp_path)

    return run


@pytest.fixture
def remote(home: Path, client: Client) -> dict[str, str]:
    client.info()
    told = json.loads((home / "listening.json").read_text())
    return {"url": told["url"], "token": (home / "operator.token").read_text().strip()}


def test_a_file_goes_there_and_back_in_the_seeds_words(stn: Stn, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(DATA)
    up = stn("upload", "data.csv")
    found = re.fullmatch(rb"Uploaded: (files/f_[0-9A-Z]{26}) \(2\.3 MB\)\n", up.stdout)
    assert found, up
    key = found[1].decode()
    down = stn("download", key.removeprefix("files/"), "-o", "result.csv")
    assert down.stdout == b"Downloaded: result.csv (2.3 MB)\n"
    assert (tmp_path / "result.csv").read_bytes() == DATA
    listed = stn("list").stdout.decode()
    assert re.match(r"Found \d+ file\(s\):\n", listed)
    assert re.search(rf"{key} +2\.3 MB +text/csv +\d{{4}}-\d\d-\d\dT.*Z +never", listed)
    told = stn("info", key).stdout.decode()
    assert hashlib.sha256(DATA).hexdigest() in told
    assert "original_filename: data.csv" in told
    assert stn("delete", key, typed=b"n\n").stdout == b"Cancelled\n"
    assert stn("delete", key, "-f").stdout == f"Deleted: {key}\n".encode()
    gone = stn("download", key)
    assert gone.returncode == 125
    assert b"file not found" in gone.stderr


def test_standard_streams_and_json_have_one_form(stn: Stn) -> None:
    stored = json.loads(stn("upload", "-", "--key", "piped", "--ttl", "7d", "--json", typed=b"a\0b").stdout)
    assert (stored["key"], stored["size"]) == ("files/piped", 3)
    assert stored["expires_at"] - stored["created_at"] == pytest.approx(7 * 86400, abs=60)
    assert stn("download", "piped", "-o", "-").stdout == b"a\0b"
    assert json.loads(stn("info", "piped", "--json").stdout) == stored
    listing = json.loads(stn("list", "--prefix", "files/pip", "--json").stdout)
    assert listing == {"files": [stored], "count": 1}
    assert json.loads(stn("delete", "piped", "-f", "--json").stdout) == {"deleted": "files/piped"}
    assert stn("list", "--prefix", "files/pip").stdout == b"No files found\n"


def test_a_name_that_nobody_gave_overwrites_nothing_and_leads_nowhere(stn: Stn, tmp_path: Path, client: Client) -> None:
    client.files.write("a/evil", b"stored")
    assert stn("download", "a/evil").returncode == 0
    assert (tmp_path / "evil").read_bytes() == b"stored"
    (tmp_path / "evil").write_bytes(b"mine")
    refused = stn("download", "a/evil")
    assert (refused.returncode, (tmp_path / "evil").read_bytes()) == (125, b"mine")
    assert b"-o" in refused.stderr
    assert stn("download", "a/evil", "-o", "evil").returncode == 0
    assert (tmp_path / "evil").read_bytes() == b"stored"
    assert [path.name for path in tmp_path.iterdir()] == ["evil"]


def test_a_station_on_tcp_is_reached_with_its_token_alone(stn: Stn, remote: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"over tcp")
    there = {"STN_TOKEN": remote["token"], "STN_HOME": str(tmp_path / "nowhere")}
    assert stn("upload", "x", "--key", "tcp", "--station", remote["url"], **there).returncode == 0
    assert stn("download", "tcp", "-o", "-", "--station", remote["url"], **there).stdout == b"over tcp"
    wrong = stn("list", "--station", remote["url"], STN_TOKEN="not-the-token-at-all")
    assert wrong.returncode == 125
    assert b"STN_TOKEN" in wrong.stderr
    bare = stn("list", "--station", remote["url"].removeprefix("http://"), **there)
    assert f": {remote['url']}".encode() in bare.stderr
    unset = stn("list", "--station", remote["url"], STN_TOKEN="")
    assert b"STN_TOKEN" in unset.stderr
    assert not (tmp_path / "nowhere").exists(), "no station is started for one that is elsewhere"


@pytest.mark.parametrize(
    "url", ["http://station.example:7311", "ftp://127.0.0.1", "127.0.0.1:1", "http://u:p@127.0.0.1", "https://h:99999"]
)
def test_an_address_that_would_not_do_is_refused_before_anything_is_sent(stn: Stn, url: str) -> None:
    refused = stn("list", "--station", url, STN_TOKEN="some-secret-token")
    assert refused.returncode == 125
    assert b"some-secret-token" not in refused.stderr


def test_a_large_file_goes_in_pieces_with_progress(client: Client, tmp_path: Path) -> None:
    data = random.Random(9).randbytes(9_000_000)
    (tmp_path / "big").write_bytes(data)
    seen: list[int] = []
    stored = client.files.upload(tmp_path / "big", key="big", progress=lambda done, total: seen.append(done))
    assert seen == [4 << 20, 8 << 20, len(data)]
    assert client.files.read("big") == data
    target = tmp_path / "back"
    assert client.files.download("big", target) == stored
    assert target.read_bytes() == data


def test_staging_and_publishing_by_the_sdk(client: Client) -> None:
    client.files.write("in.csv", DATA)
    with client.open("staged") as sandbox:
        staged = sandbox.files.stage("in.csv", "data/100% in.csv", mode=0o755)
        assert (staged.size, staged.created) == (len(DATA), True)
        out = sandbox.exec("sha256sum 'data/100% in.csv'; [ -x 'data/100% in.csv' ] && echo executable").stdout
        assert out.split() == [hashlib.sha256(DATA).hexdigest(), "data/100%", "in.csv", "executable"]
        sandbox.exec("echo made inside > 'out put.txt'").check()
        published = sandbox.files.publish("out put.txt", ttl="1h")
        assert client.files.read(published.key) == b"made inside\n"
        with pytest.raises(errors.FileNotFound, match="file not found: files/none"):
            sandbox.files.stage("none", "x")
        with pytest.raises(errors.PathRefused):
            sandbox.files.publish("/etc/passwd")
        sandbox.delete()


def test_hd_f13_a_file_that_is_rewritten_while_it_is_published_is_stored_as_it_was_read_or_not_at_all(
    client: Client,
) -> None:
    with client.open("rewritten") as sandbox:
        line = (
            "while :; do head -c 8000000 /dev/zero | tr '\\0' a > f; head -c 8000000 /dev/zero | tr '\\0' b > f; done"
        )
        writer = sandbox.start(line)
        stored = 0
        for _ in range(20):
            try:
                published = sandbox.files.publish("f", key="racing")
            except (errors.Conflict, errors.FileNotFound):
                continue
            stored += 1
            content = client.files.read("racing")
            assert hashlib.sha256(content).hexdigest() == published.checksum
            assert len(content) == published.size
        writer.kill()
        writer.wait(20)
        assert stored
        sandbox.exec("echo still > f").check()
        assert client.files.read(sandbox.files.publish("f").key) == b"still\n"
        sandbox.delete()


def test_a_file_goes_into_a_sandbox_and_out_of_it_by_the_command_line(stn: Stn, client: Client) -> None:
    client.files.write("for/you.csv", b"a,b\n1,2\n")
    with client.open("handed") as sandbox:
        assert stn("stage", "for/you.csv", "handed:in/").stdout == b"Staged: handed:/workspace/in/you.csv (8 B)\n"
        assert sandbox.exec("cat in/you.csv").stdout == "a,b\n1,2\n"
        staged = json.loads(stn("stage", "for/you.csv", "handed:x", "--json").stdout)
        assert (staged["path"], staged["size"], staged["created"]) == ("/workspace/x", 8, True)
        told = stn("publish", "handed:in/you.csv", "--key", "back", "--ttl", "7d")
        assert told.stdout == b"Published: files/back (8 B)\n"
        assert client.files.read("back") == b"a,b\n1,2\n"
        assert client.files.info("back").expires_at is not None
        sandbox.delete()
    for words, what in (
        (("stage", "none", "handed:x"), b"sandbox"),
        (("stage", "for/you.csv", "/etc/x"), b"NAME:PATH"),
        (("publish", "file"), b"NAME:PATH"),
    ):
        refused = stn(*words)
        assert (refused.returncode, what in refused.stderr) == (125, True), refused


def test_nobody_is_asked_about_what_is_not_there(stn: Stn) -> None:
    gone = stn("delete", "nothing-here", typed=b"n\n")
    assert gone.returncode == 125
    assert b"file not found: files/nothing-here" in gone.stderr
    assert b"[y/N]" not in gone.stderr


def test_a_place_is_found_by_its_beginning(stn: Stn, client: Client) -> None:
    client.files.write("runs/r1/output/a", b"x")
    assert "runs/r1/output/a" in stn("list", "--prefix", "run").stdout.decode()
    assert stn("list", "--prefix", "ru-nothing").stdout == b"No files found\n"


@pytest.mark.filterwarnings(REFUSED_SOCKET)
def test_an_upload_goes_on_after_the_station_was_killed(home: Path, tmp_path: Path) -> None:
    data = random.Random(3).randbytes(12_000_000)
    (tmp_path / "big").write_bytes(data)
    with connect(home) as client:
        client.info()
        killed: list[int] = []

        def strike(done: int, total: int | None) -> None:
            if not killed:
                killed.append(pid_of(home))
                os.kill(killed[0], signal.SIGKILL)

        client.files.upload(tmp_path / "big", key="survivor", progress=strike)
        assert client.files.read("survivor") == data
        assert client.info().pid != killed[0]
