"""Connections that break, stations of another version, errors on the wire."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import station
from station import errors
from station.client._home import find_home

from .stub import Stub, serving


def test_the_home_is_what_is_given_else_the_variable_else_the_state_directory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/c")
    monkeypatch.setenv("STN_HOME", "/b")
    assert find_home("/a") == Path("/a")
    assert find_home() == Path("/b")
    monkeypatch.setenv("STN_HOME", "")
    assert find_home() == Path("/c/station")
    monkeypatch.setenv("XDG_STATE_HOME", "")
    assert find_home() == Path("~/.local/state/station").expanduser()


def test_exec_after_a_broken_connection_sends_the_same_id_again(stub: Stub):
    with station.Sandbox.open("a") as sandbox:
        stub.break_next = 2
        result = sandbox.exec("true")
    assert result.ok
    assert len(stub.ids) == 3
    assert len(set(stub.ids)) == 1
    assert stub.ids[0].startswith("prc_")


def test_run_after_a_broken_connection_sends_the_same_id_again(stub: Stub):
    stub.break_next = 1
    assert station.run("print()").ok
    assert len(stub.ids) == 2
    assert len(set(stub.ids)) == 1


def test_a_connection_that_breaks_each_time_is_a_failure_of_station_and_no_exit_code(stub: Stub):
    stub.break_next = 100
    with pytest.raises(errors.StationUnreachable, match="not known whether it was done"):
        station.run("print()")


def test_two_execs_have_two_ids(stub: Stub):
    with station.Sandbox.open("a") as sandbox:
        sandbox.exec("true")
        sandbox.exec(["true"])
    assert len(set(stub.ids)) == 2


def test_the_error_of_the_station_is_raised_with_its_class_and_detail(stub: Stub):
    with pytest.raises(errors.CannotEnforce, match="no such limit") as raised:
        station.Sandbox.open("a", backend="nowhere")
    assert raised.value.detail == {"limit": "memory_mb"}


def test_an_answer_that_explains_nothing_is_an_internal_error(stub: Stub):
    with pytest.raises(errors.InternalError, match="500"):
        station.run("crash")


def test_a_station_of_another_version_is_refused_with_the_way_out(stub: Stub):
    stub.version = "0.0.1"
    with pytest.raises(errors.Conflict, match="stn stop"):
        station.run("print()")


def test_without_a_station_and_without_starting_one_it_says_where_it_looked(home: Path):
    with station.connect(home, start=False) as client, pytest.raises(errors.StationUnreachable, match=str(home)):
        client.list()
    assert not home.exists()


def test_a_home_longer_than_a_socket_address_works(tmp_path: Path):
    home = tmp_path / ("h" * 100) / ("i" * 100)
    stub = Stub()
    with serving(stub, home):
        assert station.run("x", home=home).stdout == "x"


def test_a_station_that_starts_again_is_found_by_the_same_client(home: Path):
    stub = Stub()
    with station.connect(home, start=False) as client:
        with serving(stub, home):
            client.run("1")
        with serving(stub, home):
            assert client.run("2").stdout == "2"


def test_a_station_that_dies_under_the_health_check_is_passed_over_for_the_next(home: Path):
    stub = Stub()
    home.mkdir()
    path = home / "station.sock"
    with socket.socket(socket.AF_UNIX) as dying, ThreadPoolExecutor(1) as thread:
        dying.bind(str(path))
        dying.listen()
        with station.connect(home, start=False) as client:
            waiting = thread.submit(client.run, "x")
            dying.accept()[0].close()  # whether anybody listens
            health, _ = dying.accept()
            assert health.recv(1) == b"G"  # what is left unread makes a reset of the close
            path.unlink()
            with serving(stub, home):
                health.close()
                dying.close()
                assert waiting.result(10).stdout == "x"
    assert (stub.seen["healthz"], len(stub.ids)) == (1, 1)


def test_health_checks_that_break_are_counted_and_nothing_is_sent_meanwhile(stub: Stub, tmp_path: Path):
    stub.break_health = 2
    assert station.run("x", mount=tmp_path).ok
    assert (stub.seen["healthz"], len(stub.ids)) == (3, 1)
    stub.break_health = 100
    with pytest.raises(errors.StationUnreachable, match="does not answer"):
        station.run("x")
    assert (stub.seen["healthz"], len(stub.ids)) == (9, 1)


async def test_a_health_check_that_breaks_is_tried_again_by_tasks_too(stub: Stub):
    stub.break_health = 1
    assert (await station.arun("x")).ok
    assert stub.seen["healthz"] == 2


def test_a_station_that_keeps_silent_is_waited_for_once(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("station.client._sync.connection._HEALTH_SECONDS", 0.05)
    home.mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(home / "station.sock"))
        silent.listen()
        with pytest.raises(errors.StationUnreachable, match="does not answer"):
            station.run("x", home=home)
        silent.settimeout(0)
        for _ in ("whether it listens", "the health check"):
            silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_a_call_that_must_not_be_replayed_is_sent_once_whatever_broke_before(stub: Stub, tmp_path: Path):
    stub.break_health = 1
    stub.break_next = 1
    with pytest.raises(errors.StationUnreachable, match="not known whether it was done"):
        station.run("x", mount=tmp_path)
    assert len(stub.ids) == 1


def test_the_proxy_of_the_environment_is_not_asked(stub: Stub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert station.run("x").ok


def test_many_threads_share_one_sandbox_object(stub: Stub):
    stub.barrier = asyncio.Barrier(40)
    results: list[bool] = []
    with station.Sandbox.open("a") as sandbox:
        threads = [threading.Thread(target=lambda: results.append(sandbox.exec("wait for all").ok)) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [True] * 40


async def test_a_cancelled_exec_cancels_the_command(stub: Stub):
    stub.barrier = asyncio.Barrier(2)
    async with await station.AsyncSandbox.open("a") as sandbox:
        waiting = asyncio.ensure_future(sandbox.exec("wait for all"))
        await asyncio.to_thread(stub.asked.wait, 5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert stub.seen["signal"] == 1


async def test_async_runs_in_a_running_loop(stub: Stub):
    assert (await station.arun("x")).stdout == "x"


async def test_the_sync_half_works_inside_a_running_loop_as_in_a_notebook(stub: Stub):
    assert station.run("x").stdout == "x"
