"""A station whose records and files are in NATS, as its operator sees it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from station import Client, connect, errors
from station.server.loading import load
from station.server.nats_child import binary
from station.store.nats.connection import NatsAccess, NatsConnection
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.observer import Observer
from tests.store.nats_bed import operators

from .conftest import state_directory, stn_of

T = TypeVar("T")

pytestmark = [pytest.mark.filterwarnings(REFUSED_SOCKET)]
PROOFS: dict[str, Callable[[Path], None]] = {}
"""By key of `store` and `nats:`."""
PLAIN = "store: nats\nsandbox: {backend: bubblewrap, pool_size: 0}\n"


def proves(*keys: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    def note(proof: Callable[[Path], None]) -> Callable[[Path], None]:
        PROOFS.update(dict.fromkeys(keys, proof))
        return proof

    return note


def settings(url: str, more: str = "") -> str:
    return f"{PLAIN}nats: {{url: '{url}', {more}}}\n"


def asked(url: str, work: Callable[[NatsConnection], Coroutine[Any, Any, T]], **access: str) -> T:
    async def ask() -> T:
        connection = await NatsConnection.open(lambda: NatsAccess((url,), **access))  # type: ignore[arg-type]
        try:
            return await work(connection)
        finally:
            await connection.aclose()

    return asyncio.run(ask())


def streams(url: str, **access: str) -> dict[str, int]:
    """By name how many messages each has."""

    async def told(connection: NatsConnection) -> dict[str, int]:
        found = (await connection.api("STREAM.LIST"))["streams"] or []
        return {one["config"]["name"]: one["state"]["messages"] for one in found}

    return asked(url, told, **access)


def server_of(home: Path) -> int:
    """The pid of the station's own nats-server."""
    return int(json.loads((home / "nats" / "server.pid").read_bytes())[0])


def gone(pid: int) -> None:
    """It has ended; a zombie has no descriptors."""
    Observer.until(lambda: not Path(f"/proc/{pid}/fd/0").exists(), "it lives", 30)


def work_on(client: Client) -> None:
    with client.open("there") as sandbox:
        sandbox.exec("echo kept > f").check()
        sandbox.files.publish("f", key="files/f")


@proves("store", "nats.server_binary")
def a_station_has_a_server_of_its_own_by_the_program_that_is_named(tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text(f'#!/bin/sh\necho used > {tmp_path}/mark\nexec {binary(None)} "$@"\n')
    program.chmod(0o755)
    with state_directory(f"{PLAIN}nats: {{server_binary: {program}}}\n") as home, connect(home) as client:
        work_on(client)
        assert (tmp_path / "mark").exists()
        assert not (home / "registry.db").exists()
        assert not (home / "files").exists()
        assert client.files.read("files/f") == b"kept\n"
    with state_directory(f"{PLAIN}nats: {{server_binary: /nowhere}}\n") as home, connect(home) as client:
        with pytest.raises(errors.StationUnreachable, match=r"no nats-server at /nowhere"):
            client.info()
    with state_directory("sandbox: {backend: bubblewrap, pool_size: 0}\n") as home, connect(home) as client:
        work_on(client)
        assert not (home / "nats").exists()
        assert (home / "registry.db").exists()


@proves("nats.url", "nats.user", "nats.password", "nats.bucket", "nats.files_bucket")
def a_station_uses_the_operators_servers_as_the_user_and_in_the_buckets_that_are_named(tmp_path: Path) -> None:
    users = "authorization { users: [{ user: me, password: pw }] }"
    with operators(tmp_path / "servers", users) as url:
        named = "user: me, password: pw, bucket: records, files_bucket: contents"
        with state_directory(settings(url, named)) as home, connect(home) as client:
            work_on(client)
            assert not (home / "nats").exists()
            assert streams(url, user="me", password="pw") == {"KV_records": 1, "OBJ_contents": 2}
        with state_directory(settings(url, "user: me, password: wrong")) as home, connect(home) as client:
            with pytest.raises(errors.StationUnreachable, match=r"(?i)authorization.*nats\.user"):
                client.info()


@proves("nats.token")
def a_station_shows_its_token(tmp_path: Path) -> None:
    with operators(tmp_path / "servers", "authorization { token: secret-of-ours }") as url:
        with state_directory(settings(url, "token: secret-of-ours")) as home, connect(home) as client:
            work_on(client)
            assert streams(url, token="secret-of-ours") == {"KV_sandbox_sessions": 1, "OBJ_sandbox-files": 2}
        with state_directory(settings(url)) as home, connect(home) as client:
            with pytest.raises(errors.StationUnreachable, match=r"(?i)authorization"):
                client.info()


@proves("nats.replicas")
def buckets_are_kept_on_as_many_servers_as_are_named(tmp_path: Path) -> None:
    with operators(tmp_path / "servers") as url:
        with state_directory(settings(url, "replicas: 3")) as home, connect(home) as client:
            with pytest.raises(errors.StationUnreachable, match=r"replicas > 1 not supported"):
                client.info()
        with state_directory(settings(url, "replicas: 1")) as home, connect(home) as client:
            work_on(client)


@pytest.mark.root
@pytest.mark.parametrize("proof", dict.fromkeys(PROOFS.values()), ids=lambda proof: proof.__name__)
def test_a_setting_of_the_store_changes_what_a_station_does(proof: Callable[[Path], None], tmp_path: Path) -> None:
    proof(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nats: {bucket: 'a.b'}", r"nats\.bucket"),
        ("nats: {user: me}", "user and password"),
        ("nats: {url: 'nats://x', user: me, password: p, token: t}", "only one"),
        ("nats: {token: t}", r"nats\.token belongs to nats\.url"),
        ("nats: {urll: x}", "did you mean 'url'"),
        ("store: postgres", "store"),
    ],
)
def test_settings_of_the_store_that_make_no_sense_are_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "station.yaml").write_text(text + "\n")
    with pytest.raises(errors.InvalidInput, match=said):
        load(tmp_path, {})


def test_the_names_of_the_reference_program_are_read(tmp_path: Path) -> None:
    read = load(tmp_path, {"WORKFLOW_NATS_ENABLED": "true", "WORKFLOW_NATS_URL": "nats://a:4222"})
    assert (read.store, read.nats.url) == ("nats", ("nats://a:4222",))
    ours = load(tmp_path, {"WORKFLOW_NATS_URL": "nats://a:4222", "STN_NATS_URL": "nats://b:4222,nats://c:4222"})
    assert (ours.store, ours.nats.url) == ("sqlite", ("nats://b:4222", "nats://c:4222"))


def test_sandboxes_files_and_commands_outlive_station_and_server_in_whatever_order_they_are_killed() -> None:
    with state_directory(PLAIN) as home, connect(home) as client:
        work_on(client)
        running = client.get("there").start("echo begun; exec sleep 1000")
        next(iter(running.output()))
        for strike in ("server", "station", "both", "stop"):
            station = client.info().pid
            if strike in ("server", "both"):
                os.kill(server_of(home), signal.SIGKILL)
            if strike in ("station", "both"):
                os.kill(station, signal.SIGKILL)
                gone(station)
            if strike == "stop":
                client.stop()
            there = client.get("there")
            assert there.exec("cat f").stdout == "kept\n"
            assert there.processes.get(running.id).view.state == "running"
            assert client.files.read("files/f") == b"kept\n"
            there.files.stage("files/f", "staged")
            assert there.files.read("staged") == b"kept\n"
            client.open(f"new after {strike}").close()
        assert len(client.list()) == 5
        assert len((home / "nats" / "server.log").read_text()) > 0
        server = server_of(home)
        client.stop()
        gone(server)


def test_the_log_has_the_lines_of_the_seed_with_the_true_number() -> None:
    first = "[INFO] Session store: Initialized with NATS KV (bucket: sandbox_sessions)"
    with state_directory(PLAIN) as home:
        with connect(home) as client:
            for name in ("a", "b", "c", "gone"):
                client.open(name).close()
            client.delete("gone")
            client.stop()
        log = (home / "station.log").read_text()
        assert first in log
        assert "[INFO] Recovered 0 sandbox sessions from NATS KV" in log
        words = [sys.executable, "-m", "station", "serve", "--json"]
        environment = os.environ | {"STN_HOME": str(home)}
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as serve:
            assert serve.stdout is not None
            assert serve.stdout.readline()
            serve.terminate()
            told = serve.communicate()[1]
        lines = [line.partition(": ")[2] for line in told.splitlines() if "[INFO]" in line]
        assert lines == [first, "[INFO] Recovered 3 sandbox sessions from NATS KV"]


def test_records_of_the_reference_program_are_imported_once(tmp_path: Path) -> None:
    session = "ses_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    good = {
        "session_id": session,
        "key": {"Namespace": "workflow", "ID": "run-1", "Key": "default"},
        "image": "ubuntu:22.04",
        "workdir": "/workspace",
        "backend": "docker",
        "created_at": "2026-01-02T03:04:05Z",
        "last_used_at": "2026-01-02T03:05:05.25Z",
    }
    bad = {**good, "backend": "dagger", "key": {**good["key"], "ID": "run-2"}}  # type: ignore[dict-item]

    async def write(connection: NatsConnection) -> None:
        stream = "KV_sandbox-sessions"
        await connection.make_stream(stream, {"subjects": ["$KV.sandbox-sessions.>"], "max_msgs_per_subject": 1})
        for name, data in (
            ("session.workflow.run-1.default", json.dumps(good).encode()),
            ("session.workflow.run-2.default", json.dumps(bad).encode()),
            ("session.workflow.run-3.default", b"no json"),
            ("idx.session_id." + session, b"session.workflow.run-1.default"),
        ):
            await connection.publish(stream, f"$KV.sandbox-sessions.{name}", data)

    with operators(tmp_path / "servers") as url:
        asked(url, write)
        with state_directory(settings(url)) as home, connect(home) as client:
            (found,) = client.list()
            assert (found.name, found.id) == ("workflow:run-1:default", found.id)
            assert "another program's" in (found.reason or "")
            log = (home / "station.log").read_text()
            assert "1 sandboxes were imported from the bucket sandbox-sessions" in log
            assert "run-2.default: ValueError: the backend 'dagger' is unknown" in log
            assert "run-3.default: JSONDecodeError" in log
            client.delete(found.name)
            client.stop()
            assert client.list() == [], "it is not imported again"
            assert streams(url)["KV_sandbox-sessions"] == 4


def test_a_station_without_the_client_of_nats_says_what_brings_it(tmp_path: Path) -> None:
    (tmp_path / "nats.py").write_text("raise ModuleNotFoundError(\"No module named 'nats'\", name='nats')\n")
    with state_directory(PLAIN) as home:
        done = stn_of(home, env={"PYTHONPATH": str(tmp_path)})("serve")
        assert done.returncode == 125
        assert "pip install 'station-sandbox[nats]'" in done.stderr.decode()
        (home / "station.yaml").write_text("sandbox: {pool_size: 0, backend: bubblewrap}\n")
        stn_of(home, env={"PYTHONPATH": str(tmp_path)})("open", "without").check_returncode()
