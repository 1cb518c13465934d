"""One backend attacked from within by the program, and looked at from outside."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from station.core import safe_attacks as safe
from station.core.attacks import Line
from station.core.endings import EndingKind
from station.core.errors import StationError
from station.core.safe_attacks import Step, Verdict
from station.core.spec import Limits

if TYPE_CHECKING:
    from station.client._sync.client import Client
    from station.client._sync.processes import Process
    from station.client._sync.sandbox import Sandbox
    from station.client.results import ExecResult
    from station.core.capabilities import Capabilities

PROGRAM, LINK = "attack-program", "attack-link"
_GATEWAYS = ("10.0.2.2", "172.17.0.1", "192.168.0.1")
_SECONDS = 30.0


class Outside:
    """What attacks look for on this machine, and what is seen of them here. Needs no root."""

    def __init__(self, home: Path) -> None:
        self.token = f"stn-attack-{secrets.token_hex(6)}"
        self._secret = self.token.encode()
        self._home = home
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._listener = self._held.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listener.setblocking(False)
        try:
            self.canary = self._put(self._home.parent)
        except OSError:  # who may not write there keeps it within
            self.canary = self._put(self._home)
        self._held.callback(self.canary.unlink, missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _put(self, folder: Path) -> Path:
        descriptor, name = tempfile.mkstemp(prefix=".stn-canary-", dir=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self._secret)
        return Path(name)

    def facts(self, pids: int) -> dict[str, Sequence[str]]:
        """For the words of a step. `pids`: how many processes a sandbox may have."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            free_port = free.getsockname()[1]
        return {
            safe.PORT: [str(self._listener.getsockname()[1])],
            safe.FREE_PORT: [str(free_port)],
            safe.ADDRESSES: [*_own_addresses(), *_GATEWAYS],
            safe.CANARY: [str(self.canary)],
            safe.TOKEN: [self.token],
            safe.KEY: [str(0x53540000 + secrets.randbelow(0xFFFF))],
            safe.PIDS: [str(pids)],
            safe.CROWD: [str(pids + 64)],
            safe.MIB: [str(4 * safe.MEMORY_MB)],
        }

    def connected(self) -> list[str]:
        """Whether anybody has come to the port here."""
        with suppress(BlockingIOError):
            self._listener.accept()[0].close()
            return ["a connection came to this machine's port"]
        return []

    def changed(self) -> list[str]:
        """Whether the file beside the state directory is another than before."""
        try:
            same = self.canary.read_bytes() == self._secret
        except OSError:
            same = False
        return [] if same else [f"{self.canary} was changed"]

    def read_by(self, sandbox: Sandbox) -> list[str]:
        """Whether the file tools of a sandbox lead to it."""
        ways = {"its path": str(self.canary), "..": "../" * 30 + str(self.canary), "a link": LINK}
        found = []
        for name, path in ways.items():
            with suppress(StationError):
                if sandbox.files.read(path) == self._secret:
                    found.append(f"the file tools read it by {name}")
            with suppress(StationError):
                sandbox.files.write(path, b"changed")
        return found

    def left(self) -> list[str]:
        """Processes here that an attack has left behind."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with suppress(OSError):
                    if self._secret in Path("/proc", entry, "cmdline").read_bytes():
                        found.append(f"process {entry} runs on")
        return found


def _own_addresses() -> list[str]:
    """The address by which this machine would leave; nothing is sent."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return [str(probe.getsockname()[0])]
    return []


class _CouldNotRunError(Exception):
    """The program said nothing."""


class Siege:
    """The attacks on one backend, in sandboxes that are gone afterwards however this ends."""

    def __init__(
        self,
        client: Client,
        capabilities: Capabilities,
        program: bytes,
        outside: Outside,
        *,
        image: str | None = None,
    ) -> None:
        """`image`: of its boxes, where the backend has images. `None`: the station's."""
        self._client, self._capabilities = client, capabilities
        self._program, self._outside = program, outside
        self._image = image if capabilities.images else None
        self._target = safe.target_of(capabilities)
        self._facts: Mapping[str, Sequence[str]] = {}

    def verdicts(self) -> Iterator[Verdict]:
        """One for each of `safe_attacks.SAFE`, as they are there: all of them `could not run` where no sandbox can be
        opened. Raises StationError where one could not be deleted."""
        with ExitStack() as stack:
            try:
                one, other = (stack.enter_context(self._sandbox(pids=safe.PIDS_LIMIT)) for _ in range(2))
            except StationError as error:
                yield from (safe.failed(case, self._capabilities, error.message) for case in safe.SAFE)
                return
            limit = one.isolation.limits.get("pids")
            self._facts = self._outside.facts(int((limit and limit.value) or safe.PIDS_LIMIT))
            for case, work in self._attacks(one, other):
                yield self._verdict(case, work)

    def _attacks(self, one: Sandbox, other: Sandbox) -> Iterator[tuple[str, Callable[[], list[str]]]]:
        for step in safe.PLAIN:
            yield step.case, partial(self._plain, step, one, other)
        yield safe.MEMORY.case, self._memory
        yield safe.DEAF.case, partial(self._deaf, one)
        yield safe.HIDDEN.case, partial(self._hidden, one)
        yield safe.LEFT.case, partial(self._left, other)

    def _verdict(self, case: str, attack: Callable[[], list[str]]) -> Verdict:
        if refused := safe.not_tried(case, self._capabilities):
            return refused
        try:
            return safe.judge(case, self._capabilities, attack())
        except (StationError, _CouldNotRunError) as error:
            return safe.failed(case, self._capabilities, str(error))

    @contextmanager
    def _sandbox(self, **limits: int) -> Iterator[Sandbox]:
        name = f"attack-{secrets.token_hex(8)}"
        with ExitStack() as stack:
            stack.callback(self._client.delete, name)  # before it is there: an interrupt may come in between
            sandbox = self._client.open(
                name,
                backend=self._capabilities.backend,
                image=self._image,
                limits=Limits(**limits),
                best_effort=True,
                temporary=True,
            )
            sandbox.files.write(PROGRAM, self._program, mode=0o755)
            yield sandbox

    def _argv(self, step: Step, words: Sequence[str]) -> list[str]:
        return [f"./{PROGRAM}", step.case, *safe.words_of(words, self._facts)]

    def _exec(self, sandbox: Sandbox, step: Step, words: Sequence[str], seconds: float = _SECONDS) -> ExecResult:
        return sandbox.exec(self._argv(step, words), timeout_seconds=seconds, end_when_left=True)

    def _run(self, sandbox: Sandbox, step: Step, words: Sequence[str]) -> list[str]:
        """What got somewhere."""
        result = self._exec(sandbox, step, words)
        return _line(result.stdout, result).harmful_on(self._target)

    def _plain(self, step: Step, one: Sandbox, other: Sandbox) -> list[str]:
        harms: list[str] = []
        with ExitStack() as stack:
            if step.before:
                harms += self._run(other, step, step.before)
            if step.after:
                stack.callback(self._exec, other, step, step.after)
            if step.beside:
                stack.enter_context(self._held(other, step))
            harms += self._run(one, step, step.words)
        if step.case == "K09":
            harms += self._outside.connected()
        if step.case == "F02":
            harms += self._outside.read_by(one) + self._outside.changed()
        return harms

    @contextmanager
    def _held(self, sandbox: Sandbox, step: Step) -> Iterator[None]:
        process = sandbox.start(self._argv(step, step.beside), stdin_open=True, timeout_seconds=_SECONDS)
        _line(_said(process))
        yield
        process.close_stdin()
        process.wait()

    def _memory(self) -> list[str]:
        with self._sandbox(memory_mb=safe.MEMORY_MB) as hungry:
            result = self._exec(hungry, safe.MEMORY, safe.MEMORY.words)
        if result.ending.kind is EndingKind.LOST:
            return [f"the sandbox itself ended: {result.ending.reason}"]
        ended = result.ending.kind in (EndingKind.OOM, EndingKind.SIGNALLED)
        return [] if ended else _line(result.stdout, result).harmful()

    def _deaf(self, sandbox: Sandbox) -> list[str]:
        result = self._exec(sandbox, safe.DEAF, safe.DEAF.words, 1.0)
        _line(result.stdout, result)
        return [*([] if result.timed_out else [f"it ended as {result.ending.kind.value}"]), *self._outside.left()]

    def _hidden(self, sandbox: Sandbox) -> list[str]:
        result = self._exec(sandbox, safe.HIDDEN, safe.HIDDEN.words)
        self._daemon(_line(result.stdout, result))
        return [*([] if result.ended_children else ["it was not ended with its command"]), *self._outside.left()]

    def _left(self, sandbox: Sandbox) -> list[str]:
        """By a command that goes on, when its sandbox is deleted."""
        argv = self._argv(safe.LEFT, safe.LEFT.words)
        self._daemon(_line(_said(sandbox.start(argv, stdin_open=True, timeout_seconds=_SECONDS))))
        sandbox.delete()
        return self._outside.left()

    @staticmethod
    def _daemon(line: Line) -> None:
        if line.value("daemon") < 0:
            raise _CouldNotRunError("the daemon did not begin")


def _said(process: Process) -> str:
    """The one line of a program that goes on."""
    said = b""
    for chunk in process.output():
        said += chunk.data
        if said.endswith(b"\n"):
            break
    return said.decode(errors="replace")


def _line(text: str, result: ExecResult | None = None) -> Line:
    try:
        return Line.read(text)
    except (ValueError, KeyError) as error:
        why = f"it ended as {result.ending.kind.value}: {result.stderr.strip()[-300:]}" if result else "it said nothing"
        raise _CouldNotRunError(f"the attack program did not run: {why}") from error
