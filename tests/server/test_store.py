"""The file store over HTTP, and the ways between it and a sandbox."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from station.server.settings import FileSettings

from .conftest import Api, Machine

DATA = bytes(range(256)) * 1000
CHECKSUM = hashlib.sha256(DATA).hexdigest()
MINUTES = 60.0


def form(data: bytes = DATA, *, name: str | None = "report.csv", **fields: str) -> dict[str, Any]:
    return {"data": fields, "files": {"file": (name, data)}}


async def test_a_form_stores_a_file_and_answers_its_key(api: Api) -> None:
    answer = await api.call("POST", "/files", **form())
    assert answer.status_code == 201
    told = answer.json()
    key = told["file_key"]
    assert key.startswith("files/f_")
    assert told == {"file_key": key, "size_bytes": len(DATA), "content_type": "text/csv", "checksum": CHECKSUM}
    found = await api.call("GET", f"/files/{key}")
    assert found.content == DATA
    assert found.headers["x-checksum"] == CHECKSUM
    assert found.headers["content-length"] == str(len(DATA))
    assert 'filename="report.csv"' in found.headers["content-disposition"]
    head = await api.call("HEAD", f"/files/{key}")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(DATA))


async def test_a_key_may_be_chosen_and_have_slashes_and_a_time_to_live(api: Api, machine: Machine) -> None:
    answer = await api.call("POST", "/files", **form(key="/data/2026/x y.csv", ttl="2h"))
    assert answer.json()["file_key"] == "files/data/2026/x y.csv"
    for path in ("files/data/2026/x%20y.csv", "data/2026/x%20y.csv", "/data/2026/x%20y.csv"):
        assert (await api.call("GET", f"/files/{path}")).content == DATA
    told = (await api.call("GET", "/files/data/2026/x%20y.csv?info=true")).json()
    assert told["expires_at"] - told["created_at"] == pytest.approx(2 * 3600, abs=5)
    assert told["metadata"] == {"original_filename": "report.csv"}
    machine.later += 3 * 3600
    assert (await api.call("GET", "/files/data/2026/x%20y.csv")).status_code == 404
    await api.station.housekeeping()
    assert (await api.station.store.room()).used_bytes == 0


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"data": {"key": "a"}, "files": {"other": ("n", b"x")}}, "file"),
        (form(unknown="x"), "unknown"),
        (form(ttl="soon"), "ttl"),
        (form(key="../x"), "key"),
        (form(key="a\nb"), "key"),
    ],
    ids=["no file", "unknown field", "ttl", "traversal", "control character"],
)
async def test_a_form_that_cannot_be_stored_is_refused_by_field(api: Api, sent: dict[str, Any], field: str) -> None:
    answer = await api.call("POST", "/files", **sent)
    assert (answer.status_code, answer.json()["detail"]["field"]) == (400, field)
    assert (await api.call("GET", "/files")).json()["count"] == 0


@pytest.mark.parametrize("cut", [3, 20, 300])
async def test_a_form_that_is_cut_stores_nothing(api: Api, cut: int) -> None:
    request = api.client.build_request("POST", "/api/v1/files", **form())
    whole = request.read()
    answer = await api.call(
        "POST",
        "/files",
        content=whole[:-cut],
        headers=dict(request.headers) | {"content-length": str(len(whole) - cut)},
    )
    assert answer.status_code == 400
    assert (await api.call("GET", "/files")).json()["count"] == 0


async def test_a_raw_body_is_stored_and_checked(api: Api) -> None:
    sealed = DATA + hashlib.sha256(DATA).digest()
    assert (await api.call("PUT", "/files/a?digest=append", content=sealed)).status_code == 201
    assert (await api.call("GET", "/files/a")).content == DATA
    damaged = await api.call("PUT", "/files/a?digest=append", content=DATA + b"\0" * 32)
    assert (damaged.status_code, damaged.json()["code"]) == (400, "invalid_input")
    assert (await api.call("GET", "/files/a")).content == DATA
    told = (await api.call("PUT", "/files/b.yaml", content=b"plain")).json()
    assert (told["key"], told["size"], told["content_type"]) == ("files/b.yaml", 5, "application/yaml")


async def test_a_list_goes_by_prefix_and_in_pages(api: Api) -> None:
    for key in ("a", "b/1", "b/2", "runs/r/output/x"):
        await api.call("PUT", f"/files/{key}", content=key.encode())
    listed = (await api.call("GET", "/files")).json()
    assert [file["key"] for file in listed["files"]] == ["files/a", "files/b/1", "files/b/2", "runs/r/output/x"]
    assert listed["count"] == 4
    below = (await api.call("GET", "/files?prefix=files/b/")).json()
    assert [file["key"] for file in below["files"]] == ["files/b/1", "files/b/2"]
    first = (await api.call("GET", "/files?limit=3")).json()
    rest = (await api.call("GET", "/files", params={"after": first["next"]})).json()
    assert [file["key"] for file in rest["files"]] == ["runs/r/output/x"]
    assert rest["files"][0]["expires_at"] is not None


async def test_a_delete_says_what_is_gone_and_404_where_nothing_was(api: Api) -> None:
    await api.call("PUT", "/files/a", content=b"x")
    assert (await api.call("DELETE", "/files/a")).json() == {"deleted": "files/a"}
    for method in ("DELETE", "GET", "HEAD"):
        assert (await api.call(method, "/files/a")).status_code == 404
    assert (await api.call("GET", "/files/a")).json()["message"] == "file not found: files/a"


async def test_a_name_that_a_header_cannot_hold_is_coded(api: Api) -> None:
    await api.call("POST", "/files", **form(name='ü"\\%🎉.csv', key="odd"))
    shown = (await api.call("GET", "/files/odd")).headers["content-disposition"]
    assert shown.isascii()
    assert "filename*=UTF-8''" in shown
    assert not {"\r", "\n"} & set(shown)


async def test_a_content_type_that_is_none_is_refused(api: Api) -> None:
    answer = await api.call("PUT", "/files/a", content=b"x", params={"content_type": "text/html\r\nSet-Cookie: a=b"})
    assert (answer.status_code, answer.json()["detail"]["field"]) == (400, "content_type")


async def test_bounds_are_the_operators(machine: Machine) -> None:
    machine.settings = replace(machine.settings, files=FileSettings(max_file_bytes=10, max_bytes=15))
    async with machine.api() as api:
        too_large = await api.call("PUT", "/files/a", content=b"x" * 11)
        assert (too_large.status_code, too_large.json()["code"]) == (413, "too_large")
        assert (await api.call("PUT", "/files/a", content=b"x" * 10)).status_code == 201
        full = await api.call("PUT", "/files/b", content=b"y" * 6)
        assert (full.status_code, full.json()["code"]) == (507, "storage_full")
        assert (await api.call("PUT", "/files/b", content=b"y" * 5)).status_code == 201


async def test_an_upload_in_pieces(api: Api) -> None:
    wanted = {"size": len(DATA), "checksum": CHECKSUM, "filename": "big.json", "key": "big"}
    upload = (await api.call("POST", "/uploads", wanted)).json()
    path, half = f"/uploads/{upload['id']}", len(DATA) // 2

    async def send(offset: int, piece: bytes) -> Any:
        sealed = piece + hashlib.sha256(piece).digest()
        return await api.call("PUT", f"{path}?offset={offset}", content=sealed)

    assert (await send(0, DATA[:half])).json()["offset"] == half
    again = await send(0, DATA[:half])
    assert (again.status_code, again.json()["detail"]["offset"]) == (409, half)
    assert (await api.call("POST", f"{path}/finish")).status_code == 409
    assert (await api.call("GET", path)).json()["offset"] == half
    assert (await send(half, DATA[half:])).is_success
    stored = await api.call("POST", f"{path}/finish")
    assert (stored.status_code, stored.json()["content_type"]) == (201, "application/json")
    assert (await api.call("GET", "/files/big")).content == DATA
    assert (await api.call("GET", path)).status_code == 404


@pytest.mark.parametrize("wanted", [{}, {"size": -1, "checksum": CHECKSUM}, {"size": 1, "checksum": "x"}, {"sise": 1}])
async def test_an_upload_that_says_too_little_is_refused(api: Api, wanted: dict[str, Any]) -> None:
    assert (await api.call("POST", "/uploads", wanted)).status_code == 400


async def test_a_file_is_staged_and_published_without_passing_through_the_client(api: Api) -> None:
    uid = await api.open()
    await api.call("PUT", "/files/in.csv", content=DATA)
    staged = await api.call("POST", f"/sandboxes/{uid}/stage", {"key": "in.csv", "destination": "data/deep/in.csv"})
    assert staged.status_code == 201
    assert staged.json() == {
        "path": "/workspace/data/deep/in.csv", "size": len(DATA), "checksum": CHECKSUM, "created": True,
    }  # fmt: skip
    read = await api.call("GET", f"/sandboxes/{uid}/files?path=data/deep/in.csv")
    assert read.content == DATA
    published = await api.call("POST", f"/sandboxes/{uid}/publish", {"source": "data/deep/in.csv"})
    told = published.json()
    assert (published.status_code, told["checksum"], told["content_type"]) == (201, CHECKSUM, "text/csv")
    assert told["key"].startswith("files/f_")
    assert told["metadata"]["original_path"] == "/workspace/data/deep/in.csv"
    assert told["metadata"]["sandbox_id"].startswith("ses_")
    assert (await api.call("GET", f"/files/{told['key']}")).content == DATA


@pytest.mark.parametrize(
    ("verb", "body", "status"),
    [
        ("stage", {"key": "missing", "destination": "x"}, 404),
        ("stage", {"key": "in", "destination": "../x"}, 400),
        ("stage", {"key": "../in", "destination": "x"}, 400),
        ("stage", {"key": "in", "destination": "x", "mode": "999"}, 400),
        ("stage", {"key": "in"}, 400),
        ("publish", {"source": "missing"}, 404),
        ("publish", {"source": "/etc/passwd"}, 400),
        ("publish", {"source": "folder"}, 409),
        ("publish", {"source": "f", "ttl": "x"}, 400),
        ("publish", {"source": "f", "key": "a//b"}, 400),
    ],
)
async def test_what_cannot_be_staged_or_published_changes_nothing(
    api: Api, verb: str, body: dict[str, Any], status: int
) -> None:
    uid = await api.open()
    await api.call("PUT", "/files/in", content=b"x")
    await api.call("PUT", f"/sandboxes/{uid}/files?path=f", content=b"f")
    await api.call("POST", f"/sandboxes/{uid}/files/mkdir?path=folder")
    answer = await api.call("POST", f"/sandboxes/{uid}/{verb}", body)
    assert answer.status_code == status, answer.text
    assert (await api.call("GET", "/files")).json()["count"] == 1
    listed = (await api.call("GET", f"/sandboxes/{uid}/files/list")).json()["entries"]
    assert [entry["path"] for entry in listed] == ["/workspace/f", "/workspace/folder"]


async def test_what_belongs_to_a_sandbox_goes_with_it(api: Api) -> None:
    view = (await api.call("POST", "/sandboxes", {"name": "a"})).json()
    kept = "files/kept"
    other = (await api.call("POST", "/sandboxes", {"name": "other"})).json()["tool_id"]
    for key in (f"sessions/{view['tool_id']}/x", f"sessions/{view['id']}/y", f"sessions/{other}/z", kept):
        await api.call("PUT", f"/files/{key}", content=b"x")
    await api.call("DELETE", f"/sandboxes/{view['id']}")
    left = (await api.call("GET", "/files")).json()["files"]
    assert [file["key"] for file in left] == [kept, f"sessions/{other}/z"]


async def test_files_outlive_a_restart(machine: Machine) -> None:
    async with machine.api() as api:
        await api.call("PUT", "/files/a", content=DATA)
    async with machine.api() as api:
        assert (await api.call("GET", "/files/a")).content == DATA


async def test_below_sessions_stands_a_sandbox_that_lives(api: Api) -> None:
    view = (await api.call("POST", "/sandboxes", {"name": "a"})).json()
    await api.call("DELETE", f"/sandboxes/{view['id']}")
    for name in (view["tool_id"], view["id"], "ses_" + "0" * 26, "nobody"):
        stored = await api.call("PUT", f"/files/sessions/{name}/x", content=b"x")
        begun = await api.call("POST", "/uploads", {"key": f"sessions/{name}/x", "size": 1, "checksum": CHECKSUM})
        assert (stored.status_code, begun.status_code) == (404, 404), name


async def test_hd_a11_code_of_an_agent_reaches_no_file_of_another_sandbox(api: Api) -> None:
    ours = (await api.call("POST", "/sandboxes", {"name": "ours"})).json()
    theirs = (await api.call("POST", "/sandboxes", {"name": "theirs"})).json()
    secret = f"sessions/{theirs['tool_id']}/secret"
    await api.call("PUT", f"/files/{secret}", content=b"theirs")
    await api.call("PUT", "/files/report.pdf", content=b"the user's")
    await api.call("PUT", f"/sandboxes/{ours['id']}/files?path=f", content=b"evil")

    async def ask(verb: str, **body: Any) -> int:
        return (await api.call("POST", f"/sandboxes/{ours['id']}/{verb}", body)).status_code

    assert await ask("stage", key=secret, destination="x", own=True) == 404
    assert await ask("publish", source="f", key=secret, own=True) == 403
    assert await ask("publish", source="f", key="runs/r/output/x", own=True) == 403
    assert await ask("publish", source="f", key="report.pdf", own=True) == 409
    # The control: who is not an agent's code may all that.
    assert await ask("stage", key=secret, destination="x") == 201
    # And its own it may, again too.
    for key in ("mine.txt", f"sessions/{ours['tool_id']}/mine"):
        assert await ask("publish", source="f", key=key, own=True) == 201
        assert await ask("publish", source="f", key=key, own=True) == 201
        assert await ask("stage", key=key, destination="back", own=True) in (200, 201)
    assert (await api.call("GET", f"/files/{secret}")).content == b"theirs"
    assert (await api.call("GET", "/files/report.pdf")).content == b"the user's"


@pytest.mark.parametrize("raw", ["%ff", "%c2%9b31m", "x" * 300])
async def test_a_name_of_any_bytes_is_kept_as_one_that_can_be_shown(api: Api, raw: str) -> None:
    stored = await api.call("PUT", f"/files/odd?filename={raw}.txt", content=b"x")
    assert stored.status_code == 201
    found = await api.call("GET", "/files/odd")
    assert (found.status_code, found.content) == (200, b"x")
    assert stored.json()["metadata"]["original_filename"].isprintable()


async def test_a_cursor_that_is_no_key_is_refused(api: Api) -> None:
    assert (await api.call("GET", "/files?after=%ff")).status_code == 400


async def test_a_form_with_headers_or_a_boundary_without_end_is_refused(api: Api) -> None:
    kind = {"content-type": "multipart/form-data; boundary=b"}
    endless = b'--b\r\nContent-Disposition: form-data; name="file"; x=' + b"y" * 20_000
    assert (await api.call("POST", "/files", content=endless, headers=kind)).status_code == 400
    long = {"content-type": "multipart/form-data; boundary=" + "b" * 300}
    assert (await api.call("POST", "/files", content=b"--b", headers=long)).status_code == 400


async def test_what_is_no_form_is_a_body_of_another_kind(api: Api) -> None:
    answer = await api.call("POST", "/files", content=b"x", headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media")
