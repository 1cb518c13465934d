"""The API over a station with fake boxes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from typing import Any
from urllib.parse import quote

import pytest

from station.core.ids import new_id, uid_of

from .conftest import Api, Machine, until


async def test_a_sandbox_is_opened_used_and_deleted(api: Api, ran: Any) -> None:
    made = await api.call("POST", "/sandboxes", {"name": "a"})
    assert made.status_code == 201
    view = made.json()
    assert (view["id"], view["state"], view["generation"], view["created"]) == (
        uid_of("local", "a"),
        "running",
        1,
        True,
    )
    assert view["isolation"]["backend"] == "fake"
    again = await api.call("POST", "/sandboxes", {"name": "a"})
    assert (again.status_code, again.json()["created"]) == (200, False)
    done = (await api.call("POST", f"/sandboxes/{view['id']}/exec", {"argv": ["echo", "hi"]})).json()
    assert (done["exit_code"], done["stdout"]["head"]["data"], done["status"]) == (0, "hi\n", "completed")
    assert (await api.call("DELETE", f"/sandboxes/{view['id']}")).status_code == 204
    assert (await api.call("DELETE", f"/sandboxes/{view['id']}")).status_code == 204
    assert (await api.call("GET", f"/sandboxes/{view['id']}")).status_code == 404
    assert (await api.call("POST", f"/sandboxes/{view['id']}/exec", {"argv": ["true"]})).status_code == 404
    ran("fake")


async def test_fifty_racing_opens_make_one_box(api: Api, machine: Machine) -> None:
    answers = await asyncio.gather(*(api.call("POST", "/sandboxes", {"name": "a"}) for _ in range(50)))
    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
    assert len(machine.store.live) == 1


BAD: list[tuple[str, str, Any, str, str]] = [
    ("POST", "/sandboxes", {"nmae": "a"}, "nmae", "did you mean 'name'"),
    ("POST", "/sandboxes", {"name": "a", "limits": {"memry_mb": 5}}, "limits.memry_mb", "did you mean 'memory_mb'"),
    ("POST", "/sandboxes", {"name": "a", "limits": {"memory_mb": 0}}, "limits.memory_mb", "above zero"),
    ("POST", "/sandboxes", {"name": "a", "limits": {"cpus": -1}}, "limits.cpus", "above zero"),
    ("POST", "/sandboxes", {"name": "a", "limits": {"memory_mb": "x"}}, "limits.memory_mb", "valid integer"),
    ("POST", "/sandboxes", {"name": ""}, "name", "1 to 256 bytes"),
    ("POST", "/sandboxes", {"name": "a\nb"}, "name", "control"),
    ("POST", "/sandboxes", {"name": "x" * 300}, "name", "this one has 300"),
    ("POST", "/sandboxes", {"name": "a", "mount": {"source": "rel"}}, "mount", "absolute"),
    ("POST", "/sandboxes", {"name": "a", "mount": {"sorce": "/x"}}, "mount.sorce", "did you mean 'source'"),
    ("POST", "/sandboxes", {"name": "a", "backend": "dokcer"}, "backend", "fake"),
    ("POST", "/sandboxes", {"name": "a", "network": "host"}, "network", "nobody's to ask for"),
    ("POST", "/sandboxes", {"name": "a", "network": "container:x"}, "network", "nobody's to ask for"),
    ("POST", "/sandboxes", {"name": "a", "labels": {"station.id": "x"}}, "labels", "unknown"),
    ("POST", "/sandboxes", {"name": "a", "privileged": True}, "privileged", "unknown"),
    ("POST", "/sandboxes", {"name": "a", "binds": ["/:/host"]}, "binds", "unknown"),
    ("POST", "/runs", {"code": "", "network": "host"}, "network", "nobody's to ask for"),
    ("POST", "/sandboxes", [], "", "object"),
    ("POST", "/runs", {"code": "", "runtim": "python"}, "runtim", "did you mean 'runtime'"),
    ("POST", "/runs", {"code": "", "runtime": "perl"}, "runtime", "python"),
    ("POST", "/runs", {}, "code", "required"),
    ("POST", "/sandboxes?nam=x", {"name": "a"}, "nam", "unknown parameter"),
]


@pytest.mark.parametrize(("method", "path", "body", "field", "sentence"), BAD, ids=lambda value: str(value)[:60])
async def test_bad_input_names_the_field_and_does_nothing(
    api: Api, machine: Machine, method: str, path: str, body: Any, field: str, sentence: str
) -> None:
    answer = await api.call(method, path, body)
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert (error["error"], error["code"]) == ("InvalidInput", "invalid_input")
    assert (error["detail"]["field"], error["retryable"]) == (field, False)
    assert sentence in error["message"]
    assert machine.store.live == {}


BAD_EXEC: list[tuple[Any, str, str]] = [
    ({"comand": "true"}, "comand", "did you mean 'command'"),
    ({}, "command", "either command"),
    ({"command": "a", "argv": ["a"]}, "command", "either command"),
    ({"argv": []}, "argv", "program"),
    ({"command": "a\0b"}, "command", "NUL"),
    ({"command": "a", "timeout_seconds": 0}, "timeout_seconds", "between 1 and 3600"),
    ({"command": "a", "timeout_seconds": 4000}, "timeout_seconds", "between 1 and 3600"),
    ({"command": "a", "env": {"A=B": "c"}}, "env", "'='"),
    ({"command": "a", "output_limit_bytes": -1}, "output_limit_bytes", "above zero"),
    ({"command": "a", "stdin": {"data": "!", "encoding": "base64"}}, "data", "base64"),
    ({"command": "a", "stdin": {"data": "!", "encodin": "base64"}}, "stdin.encodin", "did you mean 'encoding'"),
    ({"command": "a", "id": "../x"}, "id", ""),
]


@pytest.mark.parametrize(("body", "field", "sentence"), BAD_EXEC, ids=lambda value: str(value)[:60])
async def test_a_bad_command_names_the_field(api: Api, body: Any, field: str, sentence: str) -> None:
    uid = await api.open()
    answer = await api.call("POST", f"/sandboxes/{uid}/exec", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["detail"]["field"] == field
    assert sentence in answer.json()["message"]


@pytest.mark.parametrize("raw", [b"{", b"\xff", b'{"command": "\\ud800"}', b"nonsense"])
async def test_a_body_that_is_no_json_is_said_to_be_none(api: Api, raw: bytes) -> None:
    uid = await api.open()
    answer = await api.call("POST", f"/sandboxes/{uid}/exec", content=raw)
    assert answer.status_code == 400
    assert "JSON" in answer.json()["message"]


BAD_PATHS: list[tuple[str, int, str]] = [
    ("path=..%2F..%2Fetc%2Fpasswd", 400, "outside"),
    ("path=%2Fetc%2Fpasswd", 400, "outside"),
    ("path=a%00b", 400, "NUL"),
    ("path=" + "a%2F" * 2500, 400, "4096"),
    ("path=" + "a" * 300, 400, "255"),
    ("path=", 400, "missing"),
    ("", 400, "missing"),
    ("path=a&path=b", 400, "twice"),
    ("pth=a", 400, "did you mean 'path'"),
    ("path=" + "a" * 40_000, 413, "32768"),
    ("path=missing", 404, "missing"),
]


@pytest.mark.parametrize(("query", "status", "sentence"), BAD_PATHS, ids=lambda value: str(value)[:40])
async def test_a_bad_path_is_refused_by_a_sentence(api: Api, query: str, status: int, sentence: str) -> None:
    uid = await api.open()
    answer = await api.call("GET", f"/sandboxes/{uid}/files/stat?{query}")
    assert answer.status_code == status, answer.text
    assert sentence in answer.json()["message"]


@pytest.mark.parametrize(
    ("query", "field"),
    [("offset=-1", "offset"), ("length=x", "length"), ("offset=1e3", "offset"), ("digest=md5", "digest")],
)
async def test_a_bad_parameter_is_named(api: Api, query: str, field: str) -> None:
    uid = await api.open()
    answer = await api.call("GET", f"/sandboxes/{uid}/files?path=a&{query}")
    assert (answer.status_code, answer.json()["detail"]["field"]) == (400, field)


@pytest.mark.parametrize("mode", ["4755", "8", "rwx", "77777"])
async def test_a_mode_is_permission_bits(api: Api, mode: str) -> None:
    uid = await api.open()
    answer = await api.call("PUT", f"/sandboxes/{uid}/files?path=a&mode={mode}", content=b"x")
    assert (answer.status_code, answer.json()["detail"]["field"]) == (400, "mode")


async def test_an_unknown_path_or_method_is_told_in_the_same_shape(api: Api) -> None:
    missing = await api.client.get("/nowhere")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    wrong = await api.call("PATCH", "/sandboxes")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    odd = await api.call("GET", "/sandboxes/..%2F..%2Fetc")
    assert odd.status_code == 404


async def test_a_body_over_its_bound_is_too_large(api: Api) -> None:
    answer = await api.call("POST", "/sandboxes", content=b" " * (1 << 20) + b"{}")
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_a_fault_of_ours_is_told_without_a_traceback(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("secret of the inside")

    monkeypatch.setattr(api.station.sandboxes, "list", broken)
    answer = await api.call("GET", "/sandboxes")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text


async def test_files_travel_whole_with_their_digests(api: Api) -> None:
    uid = await api.open()
    data = os.urandom(200_000)
    files = f"/sandboxes/{uid}/files"
    put = await api.call(
        "PUT", f"{files}?path=d/x&mode=600&digest=append", content=data + hashlib.sha256(data).digest()
    )
    assert (put.status_code, put.json()["created"]) == (201, True)
    assert put.json()["sha256"] == hashlib.sha256(data).hexdigest()
    got = await api.call("GET", f"{files}?path=d/x&digest=append")
    assert got.content == data + hashlib.sha256(data).digest()
    assert json.loads(got.headers["x-station-entry"])["mode"] == "600"
    part = await api.call("GET", f"{files}?path=d/x&offset=5&length=7")
    assert (part.content, part.headers["x-total-size"], part.headers["content-length"]) == (data[5:12], "200000", "7")
    assert (await api.call("DELETE", f"{files}?path=d&recursive=true")).json() == {"removed": 2}


@pytest.mark.parametrize("tail", [b"", b"x" * 32])
async def test_a_body_that_was_cut_or_altered_changes_nothing(api: Api, tail: bytes) -> None:
    uid = await api.open()
    files = f"/sandboxes/{uid}/files"
    assert (await api.call("PUT", f"{files}?path=x", content=b"old")).status_code == 201
    cut = await api.call("PUT", f"{files}?path=x&digest=append", content=b"new content, and more of it" + tail)
    assert (cut.status_code, cut.json()["detail"]["field"]) == (400, "digest")
    assert (await api.call("GET", f"{files}?path=x")).content == b"old"


async def test_a_name_is_any_bytes(api: Api) -> None:
    uid = await api.open()
    name = b"\xff\xfe %+\n\xc3\xa4"
    files = f"/sandboxes/{uid}/files"
    put = await api.call("PUT", f"{files}?path={quote(name)}", content=b"1")
    assert put.status_code == 201, put.text
    listed = (await api.call("GET", f"{files}/list?path=.")).json()
    assert [entry["path"] for entry in listed["entries"]] == ["/workspace/%FF%FE %25+%0A\u00e4"]
    assert (await api.call("GET", f"{files}?path={quote(name)}")).content == b"1"


async def test_folders_are_made_renamed_copied_and_packed(api: Api) -> None:
    uid = await api.open()
    files = f"/sandboxes/{uid}/files"
    assert (await api.call("POST", f"{files}/mkdir?path=a/b")).json() == {"created": True}
    await api.call("PUT", f"{files}?path=a/b/c", content=b"c")
    assert (await api.call("POST", f"{files}/rename?path=a/b&to=a/d")).status_code == 204
    assert (await api.call("POST", f"{files}/copy?path=a&to=e")).status_code == 204
    archive = await api.call("GET", f"{files}/archive?path=e")
    assert archive.status_code == 200
    assert (await api.call("PUT", f"{files}/archive?path=f", content=archive.content)).json()["entries"] == 2
    assert (await api.call("GET", f"{files}?path=f/d/c")).content == b"c"
    assert (await api.call("GET", f"{files}/archive?path=none")).status_code == 404


async def test_a_process_is_started_fed_followed_and_found_again(api: Api) -> None:
    uid = await api.open()
    processes = f"/sandboxes/{uid}/processes"
    started = await api.call("POST", processes, {"argv": ["cat"], "stdin_open": True})
    assert started.status_code == 201, started.text
    one = f"{processes}/{started.json()['id']}"
    assert (await api.call("POST", f"{one}/stdin", content=b"abc")).json() == {"taken": 3}
    assert (await api.call("POST", f"{one}/stdin?eof=true", content=b"d")).json() == {"taken": 1}
    lines = (await api.call("GET", f"{one}/output?follow=true")).text.splitlines()
    events = [json.loads(line) for line in lines]
    assert "".join(event["content"]["data"] for event in events if event["event"] == "data") == "abcd"
    assert events[-1]["event"] == "end"
    rest = (await api.call("GET", f"{one}/output?after_stdout=2")).text.splitlines()
    assert json.loads(rest[0])["content"]["data"] == "cd"
    view = (await api.call("GET", f"{one}?wait=5&output=true")).json()
    assert (view["state"], view["stdout"]["total_bytes"]) == ("ended", 4)
    assert [item["id"] for item in (await api.call("GET", processes)).json()["processes"]] == [view["id"]]
    assert (await api.call("POST", f"{one}/signal", {"signal": "TERM"})).status_code == 409
    assert (await api.call("GET", f"{processes}/prc_none/output")).status_code == 404


async def test_an_id_sent_again_joins_the_process(api: Api) -> None:
    uid = await api.open()
    body = {"argv": ["echo", "once"], "id": new_id("prc", 1.0)}
    first = (await api.call("POST", f"/sandboxes/{uid}/exec", body)).json()
    again = (await api.call("POST", f"/sandboxes/{uid}/exec", body)).json()
    assert (again["started_at"], again["stdout"]) == (first["started_at"], first["stdout"])
    assert len((await api.call("GET", f"/sandboxes/{uid}/processes")).json()["processes"]) == 1


async def test_a_run_answers_and_leaves_no_box(api: Api, machine: Machine) -> None:
    answer = await api.call("POST", "/runs", {"code": "echo hello", "runtime": "bash"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["stdout"]["head"]["data"] == "hello\n"

    async def gone() -> bool:
        return not machine.store.live

    await until(gone)


async def test_the_station_tells_of_itself(api: Api) -> None:
    await api.open()
    view = (await api.call("GET", "/station")).json()
    assert (view["sandboxes"], view["live_boxes"], view["default_backend"], view["pid"]) == (1, 1, "fake", os.getpid())
    told = (await api.call("GET", "/doctor")).json()
    assert [item["backend"] for item in told["backends"]] == ["fake"]
    assert {check["id"] for check in told["checks"]} >= {"kernel", "seccomp", "disk", "clock"}
    assert "grade" in [missing["layer"] for missing in told["serves_others"]["fake"]]
    assert (await api.client.get("/healthz")).json()["status"] == "ok"


async def test_a_damaged_record_is_shown_as_failed_and_the_rest_serve(api: Api) -> None:
    bad, good = await api.open("bad"), await api.open("good")
    registry: Any = api.station._registry
    await registry._db.run(
        lambda db: db.execute("UPDATE sandboxes SET document = '{' WHERE uid = ?", (bad,)).fetchall()
    )
    views = {view["id"]: view for view in (await api.call("GET", "/sandboxes")).json()["sandboxes"]}
    assert (views[bad]["state"], views[good]["state"]) == ("failed", "running")
    assert "quarantined" in views[bad]["reason"]
    refused = await api.call("POST", "/sandboxes", {"name": "bad"})
    assert (refused.status_code, refused.json()["code"]) == (409, "sandbox_failed")
    assert (await api.call("POST", f"/sandboxes/{good}/exec", {"argv": ["true"]})).json()["exit_code"] == 0
    assert (await api.call("DELETE", f"/sandboxes/{bad}")).status_code == 204
    assert (await api.call("POST", "/sandboxes", {"name": "bad"})).status_code == 201


async def test_a_named_limit_that_cannot_be_kept_is_refused_unless_best_effort(api: Api) -> None:
    named = {"name": "a", "limits": {"memory_mb": 64}}
    refused = await api.call("POST", "/sandboxes", named)
    assert (refused.status_code, refused.json()["code"]) == (422, "cannot_enforce")
    assert (await api.call("POST", "/sandboxes", {**named, "best_effort": True})).status_code == 201
