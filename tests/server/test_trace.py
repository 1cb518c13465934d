"""`traceparent` (W3C Trace Context): taken over, in logs, and answered; spans where OpenTelemetry's SDK is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from station import spans

from .conftest import Api

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{PARENT}-01"


@pytest.mark.parametrize("header", [GOOD, f"00-{TRACE}-{PARENT}-00", f"42-{TRACE}-{PARENT}-01-what-comes-later"])
def test_a_trace_is_read(header: str) -> None:
    assert spans.parse(header) == spans.Trace(TRACE, PARENT, header[53:55])


@pytest.mark.parametrize(
    "header",
    [
        "", "00", GOOD[:-1], GOOD.upper(), f"{GOOD}-more", f" {GOOD}", f"{GOOD}\n", f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE[:-1]}g-{PARENT}-01", f"00-{TRACE}-{PARENT}-0\u0661",
    ],
)  # fmt: skip
def test_what_is_no_trace_is_passed_over(header: str) -> None:
    assert spans.parse(header) is None


async def test_an_answer_belongs_to_the_trace_of_its_request_also_where_it_failed(api: Api) -> None:
    for path, status in (("/station", 200), ("/sandboxes/none", 404), ("/nothing", 404)):
        answer = await api.call("GET", path, headers={"traceparent": GOOD})
        told = spans.parse(answer.headers["traceparent"])
        assert told is not None
        assert (answer.status_code, told.trace_id, told.flags) == (status, TRACE, "01")
        assert told.parent_id != PARENT


async def test_a_request_without_a_trace_gets_none(api: Api) -> None:
    assert "traceparent" not in (await api.call("GET", "/station")).headers
    assert "traceparent" not in (await api.call("GET", "/station", headers={"traceparent": "nonsense"})).headers


async def test_the_log_of_a_request_names_its_trace_and_no_other_does(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str | None] = []

    async def logged(*_: Any) -> Any:
        trace = spans.CURRENT.get()
        seen.append(trace.trace_id if trace is not None else None)
        logging.getLogger("station.test").warning("looked")
        return SimpleNamespace(records=[], damaged=[])

    monkeypatch.setattr(api.station.sandboxes, "list", logged)
    await api.call("GET", "/sandboxes", headers={"traceparent": GOOD})
    await api.call("GET", "/sandboxes")
    assert seen == [TRACE, None]


async def test_without_the_sdk_nothing_of_opentelemetry_is_asked(api: Api) -> None:
    assert not spans.is_on()
    uid = await api.open()
    assert (await api.call("POST", f"/sandboxes/{uid}/exec", {"argv": ["true"]})).status_code == 200


class Tracer:
    """What a tracer of OpenTelemetry is asked for here."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.made: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    @contextmanager
    def start_as_current_span(self, name: str, **more: Any) -> Iterator[None]:
        self.made.append(((*self.open, name), more))
        self.open.append(name)
        yield
        self.open.pop()


async def test_with_the_sdk_there_is_a_span_of_the_request_and_within_it_of_the_box_and_the_command(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = Tracer()
    monkeypatch.setattr(spans, "_tracer", lambda: tracer)
    opened = await api.call("POST", "/sandboxes", {"name": "a"}, headers={"traceparent": GOOD})
    await api.call("POST", f"/sandboxes/{opened.json()['id']}/exec", {"argv": ["true"]})
    open_, exec_ = "POST /api/v1/sandboxes", "POST /api/v1/sandboxes/{sid}/exec"
    assert [names for names, _ in tracer.made] == [(open_,), (open_, "create box"), (exec_,), (exec_, "exec")]
    assert tracer.made[1][1]["attributes"] == {"backend": "fake"}
    from opentelemetry import trace

    parent = trace.get_current_span(tracer.made[0][1]["context"]).get_span_context()
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, PARENT)
    assert tracer.made[2][1]["context"] is None
