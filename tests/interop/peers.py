"""Clients of other projects as programs of their own, told step by step what to do (programs/lines.py)."""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parent.parent.parent
CLIENTS = ROOT / ".clients"
HERE = Path(__file__).parent
SECONDS = 20
LEGACY, STATELESS = "2025-11-25", "2026-07-28"

Target = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """One client: how its program is started, and what to expect of it."""

    command: tuple[str | Path, ...]
    revision: str
    """Of the protocol that it has to end up with."""


def _python(environment: str, program: str, *words: str) -> tuple[str | Path, ...]:
    return (CLIENTS / environment / "bin" / "python", HERE / "programs" / program, *words)


def _node(program: str) -> tuple[str | Path, ...]:
    return (CLIENTS / "node" / "bin" / "node", HERE / "node" / program)


KINDS = {
    "mcp1": Kind(_python("mcp1", "with_mcp1.py"), LEGACY),
    "mcp2": Kind((sys.executable, HERE / "programs" / "with_mcp2.py"), STATELESS),
    "mcp2-legacy": Kind((sys.executable, HERE / "programs" / "with_mcp2.py", "legacy"), LEGACY),
    "typescript1": Kind(_node("with_sdk1.mjs"), LEGACY),
    "typescript2": Kind(_node("with_sdk2.mjs"), STATELESS),
    "fastmcp": Kind(_python("fastmcp", "with_fastmcp.py"), STATELESS),
    "pydantic-ai": Kind(_python("pydantic-ai", "with_pydantic_ai.py"), STATELESS),
}


class Refused(Exception):
    """The client's package raised; the text is its error."""


class Cancelled(Exception):
    """The step was given up."""


class Step:
    """One step under way."""

    def __init__(self, peer: Peer, number: int) -> None:
        self.number = number
        self.progress: list[str] = []
        self._peer = peer
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()

    def put(self, line: dict[str, Any]) -> None:
        self._lines.put(line)

    def progress_with(self, text: str) -> None:
        """Returns once a progress notification has this text, which must be before the result."""
        while text not in "".join(self.progress):
            line = self._take()
            assert "progress" in line, line
            self.progress.append(line["progress"])

    def result(self) -> Any:
        """Raises Refused or Cancelled."""
        while "progress" in (line := self._take()):
            self.progress.append(line["progress"])
        if "failed" in line:
            raise Refused(line["failed"])
        if "cancelled" in line:
            raise Cancelled
        return line["result"]

    def cancel(self) -> None:
        self._peer.start("cancel", call=self.number).result()

    def _take(self) -> dict[str, Any]:
        try:
            return self._lines.get(timeout=SECONDS)
        except queue.Empty:
            raise AssertionError(f"no answer in {SECONDS} s; its stderr: {self._peer.stderr()}") from None


class Peer:
    """A running client, connected to one server."""

    def __init__(self, kind: Kind, target: Target, *, fails: bool = False) -> None:
        missing = [str(word) for word in kind.command[:1] if not Path(word).exists()]
        assert not missing, f"{missing} is not there: run scripts/clients"
        self.kind = kind
        self._fails = fails
        self._steps: dict[int, Step] = {}
        self._numbers = itertools.count(1)
        with ExitStack() as stack:
            self._stderr = stack.enter_context(tempfile.TemporaryFile())
            env = os.environ | {"STN_INTEROP_TARGET": json.dumps(target), "STN_INTEROP_NPM": str(CLIENTS / "npm")}
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                list(map(str, kind.command)), stdin=pipe, stdout=pipe, stderr=self._stderr, env=env
            )
            self._stack = stack.pop_all()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Ends its input, which ends it."""
        assert self._process.stdin
        assert self._process.stdout
        with self._stack:
            self._process.stdin.close()
            try:
                self._process.wait(timeout=SECONDS)
            finally:
                self._process.kill()
                self._process.wait()
                self._reader.join()
                self._process.stdout.close()
            if error is None:
                assert (self._process.returncode != 0) is self._fails, self.stderr()

    def start(self, op: str, **details: Any) -> Step:
        assert self._process.stdin
        step = Step(self, next(self._numbers))
        self._steps[step.number] = step
        self._process.stdin.write(json.dumps({"id": step.number, "op": op, **details}).encode() + b"\n")
        self._process.stdin.flush()
        return step

    def do(self, op: str, **details: Any) -> Any:
        return self.start(op, **details).result()

    def start_call(self, tool: str, **arguments: Any) -> Step:
        return self.start("call", tool=tool, arguments=arguments)

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured answer of a call that must succeed."""
        found = self.start_call(tool, **arguments).result()
        assert not found["is_error"], found
        answer: dict[str, Any] = found["structured"]
        return answer

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-4000:]

    def _read(self) -> None:
        assert self._process.stdout
        for text in self._process.stdout:
            line = json.loads(text)
            self._steps[line["id"]].put(line)
        for step in list(self._steps.values()):
            step.put({"failed": "the program ended"})
