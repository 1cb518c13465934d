"""Every key of docs/settings.md changes what a station does."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from station import Client, Limits, Sandbox, connect, errors
from station.core.capabilities import Level
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.observer import Observer, owner
from tests.server.test_tls import certify

from .conftest import state_directory, stn_of
from .test_docker import PROOFS as DOCKER_PROOFS
from .test_nats import PROOFS as NATS_PROOFS
from .test_registry import PROOFS as REGISTRY_PROOFS

pytestmark = pytest.mark.filterwarnings(REFUSED_SOCKET)
PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
PROOFS: dict[str, Callable[[], None]] = {}
"""By key. `idle_minutes` needs the 15 s of a housekeeping: test_lifecycle.py has it, in the full tier."""


def proves(*keys: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def note(proof: Callable[[], None]) -> Callable[[], None]:
        PROOFS.update(dict.fromkeys(keys, proof))
        return proof

    return note


@proves("log_megabytes")
def a_log_begins_anew_at_its_size() -> None:
    with state_directory("log_megabytes: 1\nsandbox: {pool_size: 0}\n") as home, connect(home) as client:
        with client.open("noisy", limits={"tmp_mb": 1}) as sandbox:
            sandbox.exec("head -c 2M /dev/zero > /tmp/fill")
            long = "/".join(["/tmp", *["d" * 250] * 15])
            for _ in range(300):
                with pytest.raises(errors.StorageFull):
                    sandbox.files.write(long, b"x" * 4096)
        assert 0 < (home / "station.log").stat().st_size < 1 << 20
        assert (home / "station.log.1").stat().st_size <= 1 << 20


@proves("log_format")
def a_log_is_lines_of_json_where_that_is_wanted() -> None:
    with state_directory("log_format: json\n") as home, connect(home) as client:
        client.info()
        lines = [json.loads(line) for line in (home / "station.log").read_text().splitlines()]
        assert {"time", "level", "logger", "message"} <= set(lines[0])
        assert "reconciled" in lines[0]["message"]
    with state_directory() as home, connect(home) as client:
        client.info()
        with pytest.raises(json.JSONDecodeError):
            json.loads((home / "station.log").read_text().splitlines()[0])


@proves("listen")
def a_station_answers_on_tcp_to_those_with_the_token() -> None:
    with state_directory() as home, connect(home) as client:
        client.info()
        assert json.loads((home / "listening.json").read_text())["url"] is None
    with state_directory("listen: 127.0.0.1:0\n") as home, connect(home) as client:
        pid = client.info().pid
        url = json.loads((home / "listening.json").read_text())["url"] + "/api/v1/station"
        assert httpx2.get(url, trust_env=False).status_code == 401
        headers = {"authorization": f"Bearer {(home / 'operator.token').read_text().strip()}"}
        assert httpx2.get(url, headers=headers, trust_env=False).json()["pid"] == pid


@proves("access.opens_per_second", "access.opens_burst", "access.requests_per_second")
def what_a_token_may_ask_is_bounded() -> None:
    text = "listen: 127.0.0.1:0\naccess: {opens_per_second: 0.01, opens_burst: 2}\nsandbox: {pool_size: 0}\n"
    with state_directory(text) as home, connect(home) as client:
        with connect(url=_url(home, client), token=_operators(home)) as remote:
            for _ in range(2):
                remote.open("a").close()
            with pytest.raises(errors.LimitReached, match=r"access\.opens_per_second is 0\.01, and at most 2"):
                remote.open("a")
            assert remote.get("a").exec("true").ok
        client.open("a").close()
    text = "listen: 127.0.0.1:0\naccess: {requests_per_second: 0.5}\n"
    with state_directory(text) as home, connect(home) as client:
        with connect(url=_url(home, client), token=_operators(home)) as remote:
            remote.list()
            with pytest.raises(errors.LimitReached, match=r"access\.requests_per_second"):
                remote.list()
        client.list()


@proves("access.url", "access.max_sandboxes")
def deployments_are_bounded_and_their_tokens_hold_at_the_url() -> None:
    text = "listen: 127.0.0.1:0\n{}sandbox: {{backend: bubblewrap, serves_others: true, minimum_isolation: process}}\n"
    with state_directory(text.format("access: {url: 'https://a.example', max_sandboxes: 1}\n")) as home:
        with connect(home) as client:
            client.deployments.create("one")
            made = client.deployments.token("one")
            assert made.url == "https://a.example"
            with connect(url=_url(home, client), token=made.token) as remote:
                assert remote.list() == []
                if not client.doctor().serves_others["bubblewrap"]:
                    remote.open("a").close()
                    with pytest.raises(errors.LimitReached, match=r"access\.max_sandboxes is 1"):
                        remote.open("b")
            client.stop()
            (home / "station.yaml").write_text(text.format(""))
            with connect(url=_url(home, client), token=made.token) as remote, pytest.raises(errors.Unauthenticated):
                remote.list()
            assert client.deployments.token("one").url == _url(home, client)


def _url(home: Path, client: Client) -> str:
    client.info()
    return str(json.loads((home / "listening.json").read_text())["url"])


def _operators(home: Path) -> str:
    return (home / "operator.token").read_text().strip()


@proves("tls.certificate", "tls.key", "hosts", "listen_behind_proxy")
def tcp_is_guarded_by_tls_here_or_in_front() -> None:
    def asked(home: Path, host: str, **options: Any) -> int:
        told = json.loads((home / "listening.json").read_text())["url"]
        headers = {"authorization": f"Bearer {(home / 'operator.token').read_text().strip()}", "host": host}
        url = f"{told.partition(':')[0]}://127.0.0.1:{told.rpartition(':')[2]}/api/v1/station"
        return httpx2.get(url, headers=headers, trust_env=False, timeout=30, **options).status_code

    with state_directory("listen: 0.0.0.0:0\n") as home, connect(home) as client:
        with pytest.raises(errors.StationUnreachable, match="needs TLS"):
            client.info()
        (home / "station.yaml").write_text("listen: 0.0.0.0:0\nlisten_behind_proxy: true\nhosts: [a.example]\n")
        client.info()
        assert (asked(home, "a.example"), asked(home, "b.example")) == (200, 421)
        client.stop()
        pem, key = certify(home / "tls", "b.example")
        (home / "station.yaml").write_text(f"listen: 0.0.0.0:0\ntls: {{certificate: {pem}, key: {key}}}\n")
        client.info()
        trusted = ssl.create_default_context(cafile=pem)
        assert (asked(home, "b.example", verify=trusted), asked(home, "a.example", verify=trusted)) == (200, 421)


@proves("files.max_file_bytes", "files.max_bytes")
def stored_files_are_bounded() -> None:
    with state_directory("files: {max_file_bytes: 10, max_bytes: 15}\n") as home, connect(home) as client:
        with pytest.raises(errors.TooLarge, match=r"files\.max_file_bytes"):
            client.files.write("a", b"x" * 11)
        client.files.write("a", b"x" * 10)
        with pytest.raises(errors.StorageFull, match=r"files\.max_bytes"):
            client.files.write("b", b"y" * 6)
        client.files.write("b", b"y" * 5)


@proves("sandbox.enabled")
def sandboxes_are_switched_off() -> None:
    with state_directory() as home, connect(home) as client:
        client.open("there").close()
        client.stop()
        (home / "station.yaml").write_text("sandbox: {enabled: false}\n")
        for call in (
            lambda: client.open("new"),
            lambda: client.open("there"),
            lambda: client.get("there").exec("true"),
            lambda: client.run("1"),
        ):
            with pytest.raises(errors.Refused, match=r"sandbox\.enabled"):
                call()
        assert [view.name for view in client.list()] == ["there"]
        client.delete("there")
        assert client.list() == []


@proves("sandbox.code_mode_enabled")
def only_runs_are_served() -> None:
    with state_directory() as home, connect(home) as client:
        client.open("there").close()
        client.stop()
        (home / "station.yaml").write_text("sandbox: {code_mode_enabled: false}\n")
        there = client.get("there")
        for call in (lambda: client.open("new"), lambda: client.open("there"), lambda: there.exec("true")):
            with pytest.raises(errors.Refused, match=r"sandbox\.code_mode_enabled"):
                call()
        assert client.run("print(1)").check().stdout == "1\n"
        client.delete("there")


@proves("sandbox.serves_others", "sandbox.minimum_isolation")
def code_of_others_runs_where_no_layer_is_missing() -> None:
    with state_directory("sandbox: {backend: bubblewrap, pool_size: 0}\n") as home, connect(home) as client:
        with client.open("there") as sandbox:
            sandbox.files.write("note", b"kept")
            running = sandbox.start("sleep 1000")
        client.stop()
        file = home / "station.yaml"
        file.write_text("sandbox: {backend: bubblewrap, pool_size: 0, serves_others: true}\n")
        there = client.get("there")
        for call in (lambda: client.open("new"), lambda: there.exec("true"), lambda: client.run("1")):
            with pytest.raises(errors.Refused, match=r"minimum_isolation is container"):
                call()
        assert there.processes.get(running.id).view.state == "running"
        assert there.files.read("note") == b"kept"
        client.delete("there")
        client.stop()
        file.write_text(file.read_text().replace("true", "true, minimum_isolation: process"))
        told = client.doctor()
        here = next(answer for answer in told.backends if answer.backend == "bubblewrap")
        lacking = [name for name in ("memory_mb", "pids") if here.limits[name].level is not Level.ENFORCED]
        lacking += ["guest_uid"] if here.guest_uid == "shared" else []
        assert sorted(one.layer for one in told.serves_others["bubblewrap"]) == sorted(lacking)
        if lacking:
            with pytest.raises(errors.Refused, match=lacking[0]):
                client.run("print(1)")
        else:
            assert client.run("print(1)").check().stdout == "1\n"


@proves("sandbox.backend", "sandbox.allow_host")
def the_backend_is_the_operators() -> None:
    with state_directory("sandbox: {backend: host, allow_host: true}\n") as home, connect(home) as client:
        result = client.run("print(1)")
        assert result.isolation is not None
        assert (result.isolation.backend, client.info().default_backend) == ("host", "host")
    with state_directory("sandbox: {backend: host}\n") as home, connect(home) as client:
        with pytest.raises(errors.StationUnreachable, match="allow_host"):
            client.run("print(1)")


@proves("sandbox.pool_size")
def boxes_are_made_ahead_or_not() -> None:
    with state_directory("sandbox: {pool_size: 0}\n") as home, connect(home) as client:
        assert [client.run("print(1)").check().warm for _ in range(3)] == [False] * 3
        assert client.info().pool_boxes == 0
    with state_directory("sandbox: {pool_size: 3}\n") as home, connect(home) as client:
        assert not client.run("print(1)").check().warm
        Observer.until(lambda: client.info().pool_boxes >= 3, "the shelf was not filled", 20)
        assert client.run("print(1)").check().warm


@proves("sandbox.max_processes")
def commands_at_once_are_bounded() -> None:
    with state_directory("sandbox: {max_processes: 2, pool_size: 0}\n") as home, connect(home) as client:
        with client.open("busy") as sandbox:
            running = [sandbox.start("read x", stdin_open=True) for _ in range(2)]
            with pytest.raises(errors.LimitReached, match="2 commands"):
                sandbox.exec("true")
            for process in running:
                process.kill()
                process.wait(20)
            assert sandbox.exec("true").ok


@proves("sandbox.max_sandboxes")
def sandboxes_at_once_are_bounded() -> None:
    with state_directory("sandbox: {max_sandboxes: 2, pool_size: 0}\n") as home, connect(home) as client:
        for name in ("a", "b", "a"):
            client.open(name).close()
        with pytest.raises(errors.LimitReached, match=r"sandbox\.max_sandboxes is 2"):
            client.open("c")
        assert client.run("print(1)").ok
        client.delete("a")
        client.open("c").close()
        assert [view.name for view in client.list()] == ["b", "c"]


@proves("sandbox.max_history", "sandbox.output_kept_bytes")
def what_is_kept_of_commands_is_bounded() -> None:
    def kept(sandbox: Sandbox) -> list[str]:
        return [process.command[0] for process in sandbox.processes.list()]

    with state_directory("sandbox: {max_history: 2, output_kept_bytes: 9, pool_size: 0}\n") as home:
        with connect(home) as client, client.open("box") as sandbox:
            for number in range(3):
                sandbox.exec(f"echo 01234567{number}9")
            result = sandbox.exec("echo 0123456739")
            assert (result.stdout_bytes, result.stdout_omitted_bytes) == (b"0123" + b"6739\n", 2)
            assert kept(sandbox) == ["echo 0123456729", "echo 0123456739"]
            client.stop()
        (home / "station.yaml").write_text("sandbox: {max_history: 1, pool_size: 0}\n")
        with connect(home) as client:
            assert kept(client.get("box")) == ["echo 0123456739"]


@proves("sandbox.timeout_seconds", "sandbox.max_stdout_bytes")
def time_limits_and_shown_bytes_are_the_operators() -> None:
    text = "sandbox: {timeout_seconds: 1, max_stdout_bytes: 7, pool_size: 0}\n"
    with state_directory(text) as home, connect(home) as client:
        assert client.info().max_stdout_bytes == 7
        assert client.run("while True: pass").timed_out
        with client.open("plain") as plain, client.open("own", timeout_seconds=30) as own:
            assert plain.exec("sleep 1000").timed_out
            assert plain.exec("sleep 1000", on_output=lambda chunk: None).timed_out
            assert own.exec("sleep 1.2").ok
            assert plain.exec("sleep 1.2", timeout_seconds=30).ok


@proves("sandbox.idle_timeout_minutes", "sandbox.cleanup_interval_minutes")
def temporary_sandboxes_are_removed() -> None:
    text = "sandbox: {idle_timeout_minutes: 0.02, cleanup_interval_minutes: 0.02, pool_size: 0}\n"
    with state_directory(text) as home, connect(home) as client:
        client.open("kept").close()
        with client.open("passing", temporary=True) as passing:
            running = passing.start("sleep 1000")
            next(iter(Observer(home).processes(passing)))
        Observer.until(lambda: [view.name for view in client.list()] == ["kept"], "it was not removed", 20)
        with pytest.raises(errors.ProcessNotFound):
            running.info()
        assert not list(home.glob(f"**/{passing.id[:26]}*"))
    text = "sandbox: {idle_timeout_minutes: 0.02, cleanup_interval_minutes: 600, pool_size: 0}\n"
    with state_directory(text) as home, connect(home) as client:
        with client.open("passing", temporary=True) as passing:
            passing.exec("sleep 2").check()
        assert [view.name for view in client.list()] == ["passing"]


@proves("sandbox.spare_uid")
def boxes_run_as_the_spare_user() -> None:
    with state_directory("sandbox: {spare_uid: 54321, allow_host: true}\n") as home, connect(home) as client:
        for backend in ("bubblewrap", "host"):
            with client.open(backend, backend=backend) as sandbox:
                running = sandbox.start("echo up; exec sleep 1000")
                next(iter(running.output()))
                found = {owner(pid) for pid in Observer(home).processes(sandbox)}
                assert 54321 in found
                assert os.stat(home / "station.sock").st_uid == os.geteuid()
                running.kill()


PARTS = {
    "memory_mb": 128,
    "cpus": 0.5,
    "pids": 40,
    "open_files": 60,
    "tmp_mb": 8,
    "shm_mb": 9,
    "max_file_size_bytes": 1_000_000,
}


@proves(*(f"sandbox.limits.{name}" for name in PARTS))
def limits_of_the_operator_hold_where_the_caller_names_none() -> None:
    text = json.dumps({"sandbox": {"limits": PARTS, "pool_size": 0}})
    with state_directory(text) as home, connect(home) as client:
        with client.open("limited") as sandbox:
            reports = sandbox.info().isolation.limits
            assert {name: reports[name].value for name in PARTS} == PARTS
            assert {reports[name].level for name in PARTS} == {Level.ENFORCED}
            shown = sandbox.exec("ulimit -n; df -m --output=size /tmp /dev/shm | tail -n +2; ulimit -f").stdout.split()
            assert shown == ["60", "8", "9", str(1_000_000 // 1024)]
            assert sandbox.exec(["python3", "-c", "bytearray(256 << 20)"]).exit_code == 137
            sandbox.delete()
        with client.open("own", limits={"open_files": 70}) as sandbox:
            assert sandbox.exec("ulimit -n").stdout == "70\n"
            assert sandbox.info().isolation.limits["tmp_mb"].value == 8


@proves("sandbox.limits.workspace_mb")
def a_limit_of_the_operator_that_cannot_be_kept_is_refused() -> None:
    with state_directory("sandbox: {limits: {workspace_mb: 8}, pool_size: 0}\n") as home, connect(home) as client:
        with pytest.raises(errors.CannotEnforce, match="workspace_mb"):
            client.open("kept")
        with client.open("kept", best_effort=True) as sandbox:
            assert sandbox.info().isolation.limits["workspace_mb"].value == 8
        code = "try: open('f', 'wb').write(b'x' * (20 << 20))\nexcept OSError as error: print(error.errno)"
        assert client.run(code).stdout == "28\n"
        assert client.run(code, limits=Limits(workspace_mb=40)).stdout == ""


@pytest.mark.root
@pytest.mark.parametrize("proof", dict.fromkeys(PROOFS.values()), ids=lambda proof: proof.__name__)
def test_a_setting_changes_what_a_station_does(proof: Callable[[], None]) -> None:
    proof()


def test_every_key_of_the_page_is_proven() -> None:
    keys = set(re.findall(r"^\| `([a-z_.]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(keys) > 10
    assert keys - {"idle_minutes"} == set(PROOFS) | set(DOCKER_PROOFS) | set(REGISTRY_PROOFS) | set(NATS_PROOFS)


def test_the_environment_goes_before_the_file() -> None:
    with state_directory("sandbox: {max_processes: 2, pool_size: 5}\n") as home:
        stn = stn_of(home, env={"STN_SANDBOX_MAX_PROCESSES": "1", "STN_SANDBOX_POOL_SIZE": ""})
        stn("open", "box").check_returncode()
        stn("exec", "box", "-d", "--", "sleep 1000").check_returncode()
        done = stn("exec", "box", "--", "true")
        assert (done.returncode, b"1 commands" in done.stderr) == (125, True)


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("STN_SANDBOX_POOL_SIZ", "1", "did you mean 'STN_SANDBOX_POOL_SIZE'?"),
        ("STN_SANDBOX_POOL_SIZE", "-1", "sandbox.pool_size"),
        ("STN_IDLE_MINUTES", "soon", "idle_minutes"),
    ],
)
def test_a_bad_variable_starts_nothing_and_is_named(name: str, value: str, hint: str) -> None:
    with state_directory("") as home:
        done = stn_of(home, env={name: value})("run", "-c", "1")
        assert (done.returncode, hint in done.stderr.decode()) == (125, True)


def test_the_folder_of_a_caller_sets_up_the_station_that_is_served_there_and_no_other(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("export STN_SANDBOX_ENABLED=false  # here\nOTHER='x'\n")
    (tmp_path / ".env").chmod(0o600)
    (tmp_path / "other.yaml").write_text("sandbox: {pool_size: 0}\nlisten: 127.0.0.1:0\n")
    with state_directory("listen: 0.0.0.0:0\n") as home:
        command = [sys.executable, "-m", "station", "--home", str(home), "serve", "--json", "--config", "other.yaml"]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as served:
            assert served.stdout is not None
            assert json.loads(served.stdout.readline())["url"].startswith("http://127.0.0.1:")
            with connect(home, start=False) as client, pytest.raises(errors.Refused, match=r"sandbox\.enabled"):
                client.run("print(1)")
            served.terminate()
        (home / "station.yaml").write_text("sandbox: {pool_size: 0}\n")
        # Whoever comes next would get what this folder says.
        assert stn_of(home)("run", "-c", "print(1)", cwd=tmp_path).stdout == b"1\n"
        (tmp_path / ".env").chmod(0o666)
        refused = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=50)
        assert (refused.returncode, b"chmod go-w" in refused.stderr) == (125, True)


def test_two_state_directories_are_two_stations() -> None:
    with state_directory("") as one, state_directory("") as two:
        with connect(one) as first, connect(two) as second:
            first.open("same").exec("echo 1 > f").check()
            second.open("same").exec("echo 2 > f").check()
            assert first.get("same").files.read("f") == b"1\n"
            assert {first.info().pid} != {second.info().pid}
            assert isinstance(first, Client)
