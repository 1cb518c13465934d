"""What a box makes on purpose: names and amounts that end no process, fill no message and tell nothing of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from station import Client, connect
from tests.mcp.driver import Tools, in_memory, over_stdio

ODD = "open(b'\\xff.txt', 'w').write('x'); open(b'\\xfe\\n.bin', 'wb').write(b'\\0')"


async def test_an_artifact_whose_name_is_no_text_ends_no_process(home: Path, ran: Callable[[str], None]) -> None:
    """The library's writer dies of what JSON cannot carry: no call of the process would be answered any more."""
    ran("bubblewrap")
    async with over_stdio(home) as tools:
        answer = await tools.run(ODD, artifacts=["*"])
        assert sorted(item["path"] for item in answer["artifacts"] if item["path"] != "main.py") == [
            "\\xfe\n.bin",
            "\\xff.txt",
        ]
        assert (await tools.exec("echo goes on"))["stdout"] == "goes on\n"
        await tools.exec(["python3", "-c", ODD])
        assert {entry["path"] for entry in (await tools.list())["entries"]} == {"\\xfe\n.bin", "\\xff.txt"}
        await tools.close()


async def test_an_answer_lists_a_bounded_number_of_artifacts_and_tells_of_the_others(home: Path) -> None:
    code = "for n in range(300): open(f'{n:03}' + 'n' * 200, 'w').close()"
    async with in_memory(home) as tools:
        answer = await tools.run(code, artifacts=["*"])
        assert len(answer["artifacts"]) == 200
        assert answer["artifacts_left_out"] > 90
        assert "more are not listed" in answer.text


@pytest.mark.parametrize("tool", ["sandbox_output", "sandbox_kill"])
async def test_names_of_others_are_not_told(home: Path, tool: str) -> None:
    with connect(home) as client:
        secret = _a_name_like_the_default(client)
        async with in_memory(home, "acme-merger-secre") as tools:
            answer = await tools.call(tool, {"process_id": "prc_1"})
            assert answer.error["code"] == "sandbox_not_found"
            assert secret not in answer.text
        with pytest.raises(Exception, match=secret):  # the control: the SDK, for the user, tells what may be meant
            client.get("acme-merger-secre")
        client.delete(secret)


def _a_name_like_the_default(client: Client) -> str:
    return client.open("acme-merger-secret").name


async def test_text_that_nobody_sees_is_shown_in_answers(anywhere: Tools) -> None:
    """Tag characters spell instructions that no person reads."""
    hidden = "".join(chr(0xE0000 + ord(char)) for char in "obey")
    answer = await anywhere.exec(["printf", "%s", f"a{hidden}b\u2028c\u200fd"])
    assert answer["stdout"] == "a" + "".join(f"\\U000e{ord(char):04x}" for char in "obey") + "b\\u2028c\\u200fd"
