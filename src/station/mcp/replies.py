"""From what happened to an answer: structured content, and text for a model. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Literal

from station.client.results import Chunk, ExecResult, Output, RunResult
from station.core.display import plain
from station.core.wire import ProcessView

from . import hints, texts
from .answers import Artifact, ExecAnswer, OutputAnswer, RunAnswer, RunLimits
from .call import Image, Reply, image_type
from .inputs import ExecInput, RunInput

_SHOWN_ARTIFACT_BYTES = 20_000
_LISTED_ARTIFACTS = 200
_TOO_LARGE = "too large for an answer; make it smaller, or keep a sandbox open and read it in parts"


@dataclass(frozen=True)
class Shown:
    """One output stream as an answer shows it."""

    text: str
    truncated: bool
    size: int
    """Bytes of the stream that `text` stands for."""

    @classmethod
    def of(cls, head: bytes, most: int, total: int) -> Shown:
        """The first `most` bytes of a stream of `total`; `head` is what there is of it."""
        if total <= most and total <= len(head):
            return cls(plain(head.decode(errors="replace")), False, total)
        kept = texts.whole_characters(head[:most])
        return cls(plain(kept.decode(errors="replace")) + texts.CUT, True, len(kept))


def exec_reply(wanted: ExecInput, sandbox_id: str, network: str, result: ExecResult, most: int) -> Reply:
    """With at most `most` bytes of each stream."""
    stdout, stderr = _streams(result, most)
    answer = ExecAnswer(
        exit_code=result.exit_code,
        stdout=stdout.text,
        stderr=stderr.text,
        duration_ms=round(result.duration_seconds * 1000, 1),
        timed_out=result.timed_out,
        truncated=stdout.truncated or stderr.truncated,
        stdout_truncated=stdout.truncated,
        stderr_truncated=stderr.truncated,
        stdout_bytes=result.stdout_view.total_bytes,
        stderr_bytes=result.stderr_view.total_bytes,
        sandbox_id=sandbox_id,
        process_id=result.id or "",
        ending=result.ending.kind.value,
        stdout_next=stdout.size if stdout.truncated else None,
        stderr_next=stderr.size if stderr.truncated else None,
        ended_children=result.ended_children or None,
        hint=_exec_hint(wanted, network, result, stderr.text + stdout.text),
    )
    rest = f"process_id={answer.process_id}, stdout_offset={stdout.size}, stderr_offset={stderr.size}"
    text = texts.lines(
        f"{_sentence(result)} after {answer.duration_ms:g} ms",
        texts.data("stdout", stdout.text),
        texts.data("stderr", stderr.text) if stderr.text else None,
        f"the rest: sandbox_output with {rest}" if answer.truncated else None,
        f"hint: {answer.hint}" if answer.hint else None,
    )
    return Reply(answer, text)


def run_reply(wanted: RunInput, result: RunResult, limits: RunLimits, most: int, room: int) -> Reply:
    """With at most `most` bytes of each stream, and artifacts of at most half of `room`."""
    stdout, stderr = _streams(result, most)
    isolation = texts.isolation(result.isolation) if result.isolation else "unknown"
    network = result.isolation.network if result.isolation else ""
    artifacts = _artifacts(result, room // 4)
    answer = RunAnswer(
        ok=result.ok,
        runtime=result.runtime,
        exit_code=result.exit_code,
        duration_ms=round(result.duration_seconds * 1000, 1),
        stdout=stdout.text,
        stderr=stderr.text,
        timed_out=result.timed_out,
        stdout_truncated=stdout.truncated,
        stderr_truncated=stderr.truncated,
        limits=limits,
        ending=result.ending.kind.value,
        isolation=isolation,
        artifacts=artifacts,
        artifacts_missing=list(result.artifacts_missing),
        artifacts_left_out=max(0, len(result.artifacts) - _LISTED_ARTIFACTS) or None,
        error=None if result.ok else _sentence(result),
        hint=_run_hint(wanted, network, result, stdout, stderr),
    )
    text = texts.lines(
        f"{_sentence(result)} after {answer.duration_ms:g} ms · {isolation}",
        texts.data("stdout", stdout.text),
        texts.data("stderr", stderr.text) if stderr.text else None,
        *_artifact_texts(artifacts, result, most),
        *[f"artifact {texts.named(name)}: matched nothing" for name in answer.artifacts_missing],
        f"artifacts: {answer.artifacts_left_out} more are not listed" if answer.artifacts_left_out else None,
        f"hint: {answer.hint}" if answer.hint else None,
    )
    return Reply(answer, text, _images(artifacts, result, room // 4))


@dataclass(frozen=True)
class Taken:
    """What was read of one stream of a process: without a hole, but maybe behind one."""

    start: int
    data: bytes = b""
    lost: int = 0
    """Bytes right before `data` that are no longer kept."""

    def with_(self, chunk: Chunk, most: int) -> Taken | None:
        """With the chunk, as far as there is room for `most` bytes; `None`: it is for the next answer."""
        if chunk.missing_bytes:
            # A hole stands at the beginning of an answer or not in it.
            return None if self.data else Taken(self.start, lost=self.lost + chunk.missing_bytes)
        return Taken(self.start, self.data + chunk.data[: most - len(self.data)], self.lost)

    def shown(self, most: int, encoding: str, *, last: bool) -> tuple[str, int]:
        """As text or base64, and the offset that goes on. `last`: the stream ends with it; else a character whose end
        has not come is left for the next answer, which begins with it."""
        kept = self.data[:most]
        if encoding == "utf-8" and not (last and len(kept) == len(self.data)):
            kept = texts.whole_characters(kept) or kept
        text = base64.b64encode(kept).decode() if encoding == "base64" else plain(kept.decode(errors="replace"))
        return text, self.start + self.lost + len(kept)


def output_reply(
    sandbox_id: str,
    view: ProcessView,
    taken: dict[str, Taken],
    encoding: Literal["utf-8", "base64"],
    most: int,
    *,
    all_there: bool,
) -> Reply:
    """With at most `most` bytes of each stream. `all_there`: nothing follows what was taken, now or later."""
    stdout, stdout_next = taken["stdout"].shown(most, encoding, last=all_there)
    stderr, stderr_next = taken["stderr"].shown(most, encoding, last=all_there)
    cut = any(len(item.data) > most for item in taken.values())
    answer = OutputAnswer(
        process_id=view.id,
        sandbox_id=sandbox_id,
        running=view.state != "ended",
        stdout=stdout,
        stderr=stderr,
        encoding=encoding,
        stdout_next=stdout_next,
        stderr_next=stderr_next,
        more=cut or not all_there,
        exit_code=view.exit_code,
        ending=view.ending.kind.value if view.ending else None,
        stdout_lost_bytes=taken["stdout"].lost or None,
        stderr_lost_bytes=taken["stderr"].lost or None,
    )
    state = "runs" if answer.running else texts.ending(view.ending) if view.ending else "ended"
    text = texts.lines(
        f"{view.id}: {state}",
        texts.data("stdout", stdout),
        texts.data("stderr", stderr) if stderr else None,
        f"go on with stdout_offset={stdout_next}, stderr_offset={stderr_next}" if answer.more else None,
    )
    return Reply(answer, text)


def _streams(result: Output, most: int) -> tuple[Shown, Shown]:
    views = (result.stdout_view, result.stderr_view)
    stdout, stderr = (Shown.of(view.head.to_bytes(), most, view.total_bytes) for view in views)
    return stdout, stderr


def _sentence(result: Output) -> str:
    reason = f" ({texts.named(result.ending.reason)})" if result.ending.reason else ""
    return texts.ending(result.ending) + reason


def _run_hint(wanted: RunInput, network: str, result: RunResult, stdout: Shown, stderr: Shown) -> str | None:
    if not result.ok and (hint := hints.after(result.ending.kind, wanted.code, stderr.text + stdout.text, network)):
        return hint
    if stdout.truncated or stderr.truncated:
        total = result.stdout_view.total_bytes + result.stderr_view.total_bytes
        return (
            f"{stdout.size + stderr.size} of {total} bytes are shown and the rest is gone: let the program write to a "
            "file and name it in artifacts, or use sandbox_exec, whose output can be read on"
        )
    return None


def _exec_hint(wanted: ExecInput, network: str, result: ExecResult, said: str) -> str | None:
    if not result.ok:
        command = wanted.command if isinstance(wanted.command, str) else " ".join(wanted.command)
        return hints.after(result.ending.kind, command, said, network)
    if result.ended_children:
        return "what still ran was ended with the command; sandbox_start starts what is to go on"
    return None


def _admitted(sizes: dict[str, int], room: int) -> set[str]:
    """Those for which there is room, one after the other; one that is too large takes none from the others."""
    found = set()
    for name, size in sizes.items():
        if size <= room:
            room -= size
            found.add(name)
    return found


def _artifacts(result: RunResult, room: int) -> list[Artifact]:
    """With their content, as long as there is `room` for it in bytes."""
    contents = dict(sorted(result.artifacts.items())[:_LISTED_ARTIFACTS])
    held = _admitted({path: len(content) for path, content in contents.items()}, room)
    return [
        Artifact(path, len(content), base64.b64encode(content).decode() if path in held else None)
        for path, content in contents.items()
    ]


def _artifact_texts(artifacts: list[Artifact], result: RunResult, room: int) -> list[str]:
    """Small text files are shown, as long as there is `room` for them in bytes."""
    small = {item.path: item.size_bytes for item in artifacts if item.content_base64 and _is_small_text(result, item)}
    held = _admitted(small, room)
    found = []
    for item in artifacts:
        title = f"artifact {texts.named(item.path)}, {item.size_bytes} bytes"
        if item.content_base64 is None:
            found.append(f"{title}: {_TOO_LARGE}")
        elif item.path in held:
            found.append(texts.data(title, result.artifacts[item.path].decode()))
        else:
            found.append(title)
    return found


def _is_small_text(result: RunResult, item: Artifact) -> bool:
    return item.size_bytes <= _SHOWN_ARTIFACT_BYTES and texts.as_text(result.artifacts[item.path]) is not None


def _images(artifacts: list[Artifact], result: RunResult, room: int) -> tuple[Image, ...]:
    """Those that a model may look at, as long as there is `room` for them as base64."""
    kinds = {item.path: image_type(result.artifacts[item.path]) for item in artifacts}
    coded = {item.path: item.content_base64 for item in artifacts if kinds[item.path] and item.content_base64}
    held = _admitted({path: len(content) for path, content in coded.items()}, room)
    return tuple(Image(kinds[path] or "", content) for path, content in coded.items() if path in held)
