"""`sandbox_stage_file` and `sandbox_publish_file`: files come and go by key, and none of another caller's."""

from __future__ import annotations

from pathlib import Path
from random import Random

from station import Client
from tests.mcp.driver import Tools, in_memory

DATA = Random(2).randbytes(3_000_000)


async def test_a_file_comes_by_its_key_and_goes_out_without_passing_through_the_model(
    anywhere: Tools, client: Client
) -> None:
    client.files.write("files/readings.csv", DATA)
    staged = await anywhere.call("sandbox_stage_file", {"file_key": "files/readings.csv", "destination": "in/r.csv"})
    assert (staged["ok"], staged["path"], staged["size_bytes"]) == (True, "in/r.csv", len(DATA))
    made = "sha256sum in/r.csv | cut -c1-64 > sum.txt; rm -r in"
    assert (await anywhere.exec(made))["exit_code"] == 0
    published = await anywhere.call("sandbox_publish_file", {"source": "sum.txt"})
    assert published["file_key"].startswith("files/f_")
    assert client.files.read(published["file_key"]).decode().strip() == staged["checksum"]
    assert (published["size_bytes"], published["content_type"]) == (65, "text/plain")
    assert client.files.info(published["file_key"]).metadata["sandbox_id"] == published["sandbox_id"]


async def test_each_fault_is_one_error_that_says_what_to_change(tools: Tools, client: Client) -> None:
    client.files.write("there", b"x")
    stage, publish = "sandbox_stage_file", "sandbox_publish_file"
    missing = await tools.call(stage, {"file_key": "f_none", "destination": "x"})
    assert "file not found: files/f_none" in missing.text
    outside = await tools.call(stage, {"file_key": "there", "destination": "../x"})
    assert (outside.error["code"], "path traversal not allowed" in outside.text) == ("path_refused", True)
    for source, code in (("none", "file_not_found"), ("/etc/passwd", "path_refused"), (".", "not_a_regular_file")):
        assert (await tools.call(publish, {"source": source})).error["code"] == code
    # No path is refused for two dots in a name.
    assert (await tools.call(stage, {"file_key": "there", "destination": "a..b.csv"}))["ok"]


async def test_hd_a11_an_agent_reaches_no_file_of_another_agents_sandbox(
    tools: Tools, home: Path, client: Client
) -> None:
    async with in_memory(home, backend="bubblewrap") as other:
        await other.write("secret", "theirs")
        theirs = (await other.exec("true"))["sandbox_id"]
        key = f"sessions/{theirs}/secret"
        assert (await other.call("sandbox_publish_file", {"source": "secret", "file_key": key}))["ok"]
        await tools.write("evil", "evil")
        read = await tools.call("sandbox_stage_file", {"file_key": key, "destination": "x"})
        assert read.error["code"] == "file_not_found"
        written = await tools.call("sandbox_publish_file", {"source": "evil", "file_key": key})
        assert written.error["code"] == "refused"
        client.files.write("files/report.pdf", b"the user's")
        over = await tools.call("sandbox_publish_file", {"source": "evil", "file_key": "files/report.pdf"})
        assert over.error["code"] == "already_exists"
        assert client.files.read(key) == b"theirs"
        assert client.files.read("files/report.pdf") == b"the user's"
