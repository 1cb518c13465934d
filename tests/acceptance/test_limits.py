"""A limit that is named changes what happens, or is refused with the way to accept that it does not; answers tell."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from station import Client, Sandbox, errors
from station.core.capabilities import Level, LimitReport
from station.core.endings import EndingKind

from .conftest import Stn

BACKENDS = ["bubblewrap", "host"]
NAMES = {"memory_mb", "cpus", "pids", "open_files", "workspace_mb", "tmp_mb", "shm_mb", "max_file_size_bytes"}


@pytest.fixture(params=BACKENDS)
def limited(request: pytest.FixtureRequest, client: Client, ran: Callable[[str], None]) -> Callable[..., Any]:
    """Opens a sandbox with one limit; where the backend cannot keep it, the refusal names the way out, and the sandbox
    comes with `best_effort`. Answers it, and the report of the limit."""
    backend = request.param

    @contextmanager
    def opened(**limits: float) -> Iterator[tuple[Sandbox, LimitReport]]:
        (name,) = limits
        try:
            client.open("limited", backend=backend, limits=limits).close()
            refusal = None
        except errors.CannotEnforce as error:
            refusal = error
        best_effort = refusal is not None
        if refusal is not None:
            assert (refusal.status, refusal.detail["limit"], refusal.detail["backend"]) == (422, name, backend)
            assert f"limits.{name}" in refusal.message
            assert "best_effort: true" in refusal.message
            assert client.list() == []
        with client.open("limited", backend=backend, limits=limits, best_effort=best_effort) as sandbox:
            report = sandbox.info().isolation.limits[name]
            assert (report.level is Level.ENFORCED) == (not best_effort)
            assert report.value == limits[name]
            assert report.by
            try:
                yield sandbox, report
            finally:
                sandbox.delete()
        ran(backend)

    return opened


def test_memory_mb(limited: Any) -> None:
    with limited(memory_mb=64) as (sandbox, report):
        result = sandbox.exec(["python3", "-c", "x = bytearray(200 << 20); print(len(x))"])
        if report.level is Level.ENFORCED:
            assert (result.ending.kind, result.exit_code) == (EndingKind.OOM, 137)
        assert sandbox.exec("echo alive").stdout == "alive\n"


def test_cpus(limited: Any) -> None:
    burn = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
    with limited(cpus=0.25) as (sandbox, report):
        usage = sandbox.exec(["python3", "-c", burn]).check().usage
        if report.level is Level.ENFORCED:
            assert usage.user_seconds + usage.system_seconds < 0.75


def test_pids(limited: Any) -> None:
    forks = """
import os, signal
made = 0
try:
    while made < 100:
        if os.fork() == 0: signal.pause()
        made += 1
except OSError: pass
print(made)
"""
    with limited(pids=32) as (sandbox, report):
        made = int(sandbox.exec(["python3", "-c", forks]).stdout)
        if report.level is Level.ENFORCED:
            assert 16 <= made <= 32
        else:
            assert made == 100


def test_open_files(limited: Any) -> None:
    with limited(open_files=50) as (sandbox, report):
        found = sandbox.exec(["python3", "-c", "held = [open('/dev/null') for _ in range(200)]"])
        if report.level is Level.ENFORCED:
            assert "Too many open files" in found.stderr
            assert sandbox.exec("ulimit -n").stdout == "50\n"


@pytest.mark.parametrize(("limit", "where"), [("tmp_mb", "/tmp"), ("shm_mb", "/dev/shm")])
def test_tmp_mb_and_shm_mb(limited: Any, limit: str, where: str) -> None:
    with limited(**{limit: 8}) as (sandbox, report):
        if report.level is Level.ENFORCED:
            result = sandbox.exec(f"head -c 20M /dev/zero > {where}/fill; stat -c %s {where}/fill")
            assert "No space left" in result.stderr
            assert 7 << 20 <= int(result.stdout) <= 8 << 20
            if where == "/tmp":
                with pytest.raises(errors.StorageFull):
                    sandbox.files.write("/tmp/more", b"x" * (1 << 20))
            sandbox.exec(f"rm {where}/fill").check()
            sandbox.exec(f"head -c 4M /dev/zero > {where}/fill").check()


def test_workspace_mb_of_a_kept_sandbox(limited: Any) -> None:
    with limited(workspace_mb=8) as (sandbox, report):
        result = sandbox.exec("head -c 20M /dev/zero > fill; stat -c %s fill")
        if report.level is Level.ENFORCED:
            assert int(result.stdout) <= 8 << 20
        else:
            assert int(result.stdout) == 20 << 20, "what is not enforced is said so"


def test_max_file_size_bytes(limited: Any) -> None:
    with limited(max_file_size_bytes=1_000_000) as (sandbox, report):
        result = sandbox.exec("head -c 3000000 /dev/zero > big; stat -c %s big")
        if report.level is Level.ENFORCED:
            assert int(result.stdout) <= 1_000_000
            with pytest.raises(errors.StationError) as refused:
                sandbox.files.write("uploaded", b"x" * 1_000_001)
            assert "uploaded" in refused.value.message
            assert not sandbox.files.exists("uploaded")
            sandbox.files.write("fits", b"x" * 1_000_000)


@pytest.mark.parametrize("limit", ["workspace_mb", "tmp_mb"])
def test_the_files_of_a_run_have_a_size(client: Client, limit: str) -> None:
    where = {"workspace_mb": "/workspace", "tmp_mb": "/tmp"}[limit]
    code = f"try: open('{where}/fill', 'wb').write(b'x' * (20 << 20))\nexcept OSError as error: print(error.errno)"
    result = client.run(code, backend="bubblewrap", limits={limit: 8})
    assert result.stdout == "28\n"
    assert result.isolation is not None
    report = result.isolation.limits[limit]
    assert (report.level, report.value) == (Level.ENFORCED, 8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_answer_tells_each_limit_its_value_and_by_what(client: Client, backend: str) -> None:
    result = client.run("print(1)", backend=backend)
    assert result.isolation is not None
    with client.open("told", backend=backend) as sandbox:
        for isolation in (result.isolation, sandbox.isolation, sandbox.info().isolation):
            assert set(isolation.limits) == NAMES
            assert all(report.by for report in isolation.limits.values())
            values = {name: report.value for name, report in isolation.limits.items()}
            assert (values["memory_mb"], values["cpus"], values["pids"], values["open_files"]) == (1024, 1, 256, 1024)
            assert (values["workspace_mb"], values["tmp_mb"], values["shm_mb"]) == (2048, 256, 64)
            assert (isolation.backend, isolation.image) == (backend, "host:/usr")
        sandbox.delete()


def test_the_host_backend_promises_nothing(client: Client) -> None:
    result = client.run("print(1)", backend="host")
    assert result.isolation is not None
    assert (result.isolation.grade, result.isolation.network) == ("none", "unrestricted")


@pytest.mark.parametrize("network", ["public", "example.com", "example.com,10.0.0.0/8"])
def test_another_network_than_none_is_refused_and_never_given_silently(client: Client, stn: Stn, network: str) -> None:
    for call in (lambda: client.open("never", network=network), lambda: client.run("1", network=network)):
        with pytest.raises(errors.CannotEnforce, match="network") as refused:
            call()
        assert refused.value.status == 422
        assert repr(network) in refused.value.message
    body = json.loads(stn("run", "--json", "--network", network, "-c", "1").stdout)
    assert (body["code"], body["retryable"]) == ("cannot_enforce", False)
    assert client.list() == []


def test_none_is_what_one_gets_and_may_ask_for(client: Client) -> None:
    # Asks for a route alone: no packet is sent, here or on the control.
    look = (
        "import socket\ntry: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9)); print('yes')\n"
        "except OSError as error: print('no', error.errno)"
    )
    control = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
    assert control in ("yes\n", "no 101\n"), "the machine itself may have no route"
    for where in ({}, {"network": "none"}):
        result = client.run(look, **where)  # type: ignore[arg-type]
        assert result.stdout.startswith("no ")
        assert result.isolation is not None
        assert result.isolation.network == "none"


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_image_is_refused_and_docker_named(client: Client, stn: Stn, backend: str) -> None:
    for call in (
        lambda: client.open("never", image="python:3.12", backend=backend),
        lambda: client.run("1", image="python:3.12", backend=backend),
    ):
        with pytest.raises(errors.CannotEnforce, match="docker") as refused:
            call()
        assert (refused.value.status, refused.value.detail["alternative"]) == (422, "docker")
    assert client.list() == []
