"""What is asked by those who look after a station: /healthz, /readyz, /metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from station.server import traffic
from station.worker.meter import Durations

from .conftest import Api, Machine
from .served import Served

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def samples(api: Api) -> Samples:
    answer = await api.client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is told twice"
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found[f"station_{name}", frozenset(labels.items())]


async def test_what_a_station_has_is_counted_when_it_is_asked(api: Api) -> None:
    uid = await api.open()
    await api.open("b")
    await api.call("DELETE", f"/sandboxes/{uid}?keep_files=true")
    await api.call("PUT", "/files/a", content=b"12345")
    await api.call("PUT", "/files/b", content=b"12345")
    found = await samples(api)
    assert value(found, "sandboxes", state="running") == 1
    assert value(found, "sandboxes", state="suspended") == 1
    assert value(found, "sandboxes", state="failed") == 0
    assert value(found, "live_boxes") == 1
    assert (value(found, "stored_files"), value(found, "stored_bytes")) == (2, 5)
    assert value(found, "requests_under_way") == 1


async def test_what_has_happened_is_counted_by_how_it_ended(api: Api, machine: Machine) -> None:
    uid = await api.open()
    for command, times in (("true", 2), ("false", 1)):
        for _ in range(times):
            await api.call("POST", f"/sandboxes/{uid}/exec", {"argv": [command]})
    started = (await api.call("POST", f"/sandboxes/{uid}/processes", {"argv": ["sleep", "100"]})).json()
    assert value(await samples(api), "running_processes") == 1
    await api.call("POST", f"/sandboxes/{uid}/processes/{started['id']}/signal", {"cancel": True})
    await api.call("GET", f"/sandboxes/{uid}/processes/{started['id']}?wait=20")
    await api.call("POST", "/runs", {"code": "exit 3", "runtime": "bash"})
    machine.faults.create_refusals = 1
    assert (await api.call("POST", "/sandboxes", {"name": "c"})).status_code >= 500
    found = await samples(api)
    assert value(found, "commands_ended_total", ending="exited") == 3
    assert value(found, "commands_ended_total", ending="cancelled") == 1
    assert value(found, "run_seconds_count", backend="fake", outcome="exited") == 1
    assert value(found, "box_create_seconds_count", backend="fake", outcome="made") == 2
    assert value(found, "box_create_seconds_count", backend="fake", outcome="failed") == 1
    assert value(found, "box_create_seconds_sum", backend="fake", outcome="made") > 0


async def test_requests_are_counted_by_their_route_and_never_by_what_stands_in_it(api: Api) -> None:
    uid = await api.open("a-name-of-mine")
    await api.call("GET", f"/sandboxes/{uid}")
    await api.call("GET", "/sandboxes/none")
    await api.call("POST", f"/sandboxes/{uid}/exec", {"command": "echo of-mine"})
    await api.call("PUT", "/files/a/key/of/mine", content=b"x")
    await api.call("BREW", "/sandboxes")
    await api.call("GET", "/nowhere-of-mine")
    found = await samples(api)
    one = "/api/v1/sandboxes/{sid}"
    assert value(found, "http_requests_total", method="GET", route=one, status="2xx") == 1
    assert value(found, "http_requests_total", method="GET", route=one, status="4xx") == 1
    assert value(found, "http_requests_total", method="PUT", route="/api/v1/files/{key:path}", status="2xx") == 1
    assert value(found, "http_requests_total", method="OTHER", route="/api/v1/sandboxes", status="4xx") == 1
    assert value(found, "http_requests_total", method="OTHER", route="unknown", status="4xx") == 1
    labels = {part for _, pairs in found for pair in pairs for part in pair}
    assert [label for label in labels if "mine" in label or uid in label or "BREW" in label] == []
    names = {name for _, pairs in found for name, _ in pairs}
    assert names == {"state", "ending", "backend", "outcome", "le", "method", "route", "status"}


async def test_the_page_names_what_is_counted_and_nothing_else(api: Api) -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(station_\w+)`", page))
    text = (await api.client.get("/metrics")).text
    assert told == set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


async def test_a_fault_of_ours_is_counted_as_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(api.station.sandboxes, "list", broken)
        assert (await api.call("GET", "/sandboxes")).status_code == 500
    found = await samples(api)
    assert value(found, "http_requests_total", method="GET", route="/api/v1/sandboxes", status="5xx") == 1


def test_durations_are_told_apart_by_bounds_that_belong_to_what_is_below_them() -> None:
    durations = Durations()
    for seconds in (0.0, 0.005, 0.0051, 5000.0):
        durations.note(seconds)
    assert (durations.counts[0], durations.counts[1], durations.counts[-1], sum(durations.counts)) == (2, 1, 1, 4)
    assert durations.seconds == pytest.approx(5000.0101)


async def test_a_loop_that_was_kept_busy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "LOOK_SECONDS", 0.0)
    seen = traffic.Traffic()
    watching = asyncio.create_task(seen.watch_loop())
    async with asyncio.timeout(30):
        while sum(seen.lag.counts) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
    watching.cancel()
    assert seen.lag.seconds >= 0


async def test_a_station_that_can_work_is_ready(api: Api) -> None:
    answer = await api.client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


async def look_again(api: Api, machine: Machine) -> tuple[int, str]:
    machine.later += 2
    answer = await api.client.get("/readyz")
    return answer.status_code, answer.json().get("message", "")


async def test_a_station_that_cannot_write_is_not_ready_until_it_can(api: Api, machine: Machine) -> None:
    in_the_way = machine.home / "ready"
    await look_again(api, machine)
    in_the_way.unlink()
    in_the_way.mkdir()
    status, sentence = await look_again(api, machine)
    assert (status, "cannot be written" in sentence) == (503, True)
    in_the_way.rmdir()
    assert await look_again(api, machine) == (200, "")
    assert [file.name for file in machine.home.glob(".stn-*")] == []


async def test_a_station_whose_registry_fails_is_not_ready(api: Api, machine: Machine) -> None:
    registry: Any = api.station._registry
    await registry._db.run(lambda db: db.execute("ALTER TABLE sandboxes RENAME TO elsewhere"))
    status, sentence = await look_again(api, machine)
    assert (status, "the registry" in sentence) == (503, True)
    await registry._db.run(lambda db: db.execute("ALTER TABLE elsewhere RENAME TO sandboxes"))
    assert await look_again(api, machine) == (200, "")


async def test_it_is_looked_at_once_a_second_however_often_it_is_asked(
    api: Api, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    get = api.station._registry.get

    async def counted(uid: str) -> Any:
        looks.append(uid)
        return await get(uid)

    monkeypatch.setattr(api.station._registry, "get", counted)
    machine.later += 2
    await asyncio.gather(*(api.client.get("/readyz") for _ in range(20)))
    assert len(looks) == 1
    machine.later += 2
    await api.client.get("/readyz")
    assert len(looks) == 2


async def test_the_operator_alone_is_told_why_and_what_is_counted(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve(home=tmp_path / "home", STN_LISTEN="127.0.0.1:0")
    (tmp_path / "home" / "ready").mkdir()
    async with served.tcp() as operator, served.tcp(authorization="Bearer none-of-ours") as stranger:
        told, untold = await operator.get("/readyz"), await stranger.get("/readyz")
        assert (told.status_code, untold.status_code) == (503, 503)
        assert (told.headers["retry-after"], untold.json()["message"]) == ("1", "the station is not ready")
        assert "cannot be written" in told.json()["message"]
        assert (await stranger.get("/metrics")).status_code == 401
        assert re.search(r"^station_live_boxes 0\.0$", (await operator.get("/metrics")).text, re.MULTILINE)
