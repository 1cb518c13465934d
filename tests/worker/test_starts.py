"""What is true before a command begins, and what nobody else may see of it."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from station.core.records import ProcessState
from tests.observer import command_line, pids

from .box import UID, RealBox, Station, eventually
from .test_processes import pieces, sh, until

CANARY = f"canary-{secrets.token_hex(8)}"


async def test_nothing_is_started_that_is_not_written_down(one: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a station that dies in between could not tell whether it ran, and a retry would run it again."""
    session, seen = one.live.session, []
    start = session.start

    def watched(*words: Any, **named: Any) -> Any:
        record = one.journal.get(UID, "prc_1")
        seen.append(record.state if record is not None else None)
        return start(*words, **named)

    monkeypatch.setattr(session, "start", watched)
    assert (await one.processes.exec(one.live, sh("true", id="prc_1"))).exit_code == 0
    assert seen == [ProcessState.ACCEPTED]


def _arguments_with(text: str) -> list[int]:
    return [pid for pid in pids() if text in command_line(pid)]


@contextmanager
def _careless() -> Iterator[int]:
    with subprocess.Popen(["sh", "-c", "read go", CANARY], stdin=subprocess.PIPE) as child:
        yield child.pid


async def test_no_value_of_a_variable_stands_in_an_argument_list(one: Station, box: RealBox) -> None:
    """HD-S03: every user of the machine may read those. The control: one that does stand there is found."""
    with _careless() as child:
        await eventually(lambda: _arguments_with(CANARY) == [child])
    request = sh("echo up; read go; echo $SECRET", env={"SECRET": CANARY}, stdin_open=True, id="prc_1")
    await one.processes.start(one.live, request)
    await until(one, "prc_1", b"up\n")
    assert _arguments_with(CANARY) == []
    await one.processes.write_stdin(UID, "prc_1", pieces(b"go\n"))
    await until(one, "prc_1", CANARY.encode())
