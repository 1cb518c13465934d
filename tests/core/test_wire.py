"""Requests refuse nonsense with the field's name; shapes survive the way to JSON and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from station.core import codec, wire
from station.core.capabilities import Grade, GuestUid, Isolation, Level, LimitReport
from station.core.endings import Ending, EndingKind
from station.core.errors import CannotEnforce, InvalidInput, StationError, from_body
from station.core.ids import check_name, new_id, uid_of
from station.core.records import BoxRef, Owner, SandboxRecord
from station.core.spec import DEFAULT_LIMITS, LifecycleClass, Limits, Mount, Spec
from station.core.states import State, check_transition, public


@pytest.mark.parametrize("field", ["memory_mb", "cpus", "pids", "open_files", "workspace_mb", "tmp_mb"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_zero_or_negative_limit_is_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(InvalidInput, match=f"limits.{field} must be above zero and finite"):
        Limits(**{field: value})


def test_named_limits_stand_over_the_defaults() -> None:
    limits = Limits(pids=64)
    assert limits.named() == {"pids": 64}
    assert limits.over(DEFAULT_LIMITS).pids == 64
    assert limits.over(DEFAULT_LIMITS).memory_mb == 1024


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "command"),
        ({"command": "x", "argv": ["x"]}, "command"),
        ({"argv": []}, "argv"),
        ({"argv": [""]}, "argv"),
        ({"command": "a\0b"}, "command"),
        ({"command": "x", "cwd": "a\0"}, "command"),
        ({"command": "x", "timeout_seconds": 0}, "timeout_seconds"),
        ({"command": "x", "timeout_seconds": -1}, "timeout_seconds"),
        ({"command": "x", "timeout_seconds": 3601}, "timeout_seconds"),
        ({"command": "x", "env": {"": "v"}}, "env"),
        ({"command": "x", "env": {"A=B": "v"}}, "env"),
        ({"command": "x", "env": {"A\n": "v"}}, "env"),
        ({"command": "x", "env": {"A": "v\0"}}, "env"),
        ({"command": "x", "env": {"A": "v" * 2**20}}, "env"),
        ({"command": "x", "env": {"A": "é" * 2**16}}, "env"),
        ({"command": "x", "output_limit_bytes": 0}, "output_limit_bytes"),
    ],
)
def test_a_command_that_cannot_be_is_refused_naming_the_field(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        wire.ExecRequest(**arguments)
    assert caught.value.detail["field"] == field


def test_an_unknown_runtime_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="choose python, node, bash"):
        wire.RunRequest(code="x", runtime="ruby")


@pytest.mark.parametrize("kept", [0, -1, 16 * 2**20 + 1])
def test_the_output_that_a_run_keeps_is_bounded(kept: int) -> None:
    with pytest.raises(InvalidInput, match="output_kept_bytes must be between 1 and 16777216"):
        wire.RunRequest(code="x", output_kept_bytes=kept)


@given(st.binary(max_size=200))
def test_content_carries_every_byte(raw: bytes) -> None:
    content = wire.Content.of(raw)
    assert content.to_bytes() == raw
    assert codec.from_plain(wire.Content, codec.to_plain(content)) == content


def test_damaged_base64_is_refused() -> None:
    with pytest.raises(InvalidInput):
        wire.Content("a*b", "base64").to_bytes()


def test_a_run_result_survives_json() -> None:
    report = LimitReport(Level.WATCHED, "polling", "use cgroups", 1024)
    isolation = Isolation("fake", Grade.NONE, "none", GuestUid.SHARED, "pidns", "host:/usr", {"memory_mb": report})
    view = wire.StreamView(wire.Content("out"), 3)
    result = wire.RunResult(
        ok=True, runtime="python", ending=Ending.exited(0), exit_code=0, timed_out=False, stdout=view, stderr=view,
        duration_ms=1.5, isolation=isolation, warm=True,
        artifacts=[wire.Artifact("a", 1, "00", wire.Content("x"))],
    )  # fmt: skip
    assert codec.from_plain(wire.RunResult, codec.to_plain(result)) == result


def test_a_record_survives_json_and_unknown_fields_of_a_later_version_do_no_harm() -> None:
    record = SandboxRecord(
        uid="u", name="n", owner=Owner(), spec=Spec("fake", mount=Mount("/a")), class_=LifecycleClass.KEPT,
        state=State.RUNNING, generation=3, created_at=1, updated_at=2, last_active_at=3,
        box=BoxRef("fake", "b", {"p": 1}),
    )  # fmt: skip
    plain = codec.to_plain(record) | {"invented_later": 1}
    assert codec.from_plain(SandboxRecord, plain) == record


@pytest.mark.parametrize(
    ("ending", "code", "status"),
    [
        (Ending.exited(0), 0, "completed"),
        (Ending.exited(42), 42, "failed"),
        (Ending.signalled(9), 137, "failed"),
        (Ending(EndingKind.TIMED_OUT), 124, "timed_out"),
        (Ending(EndingKind.CANCELLED), 130, "cancelled"),
        (Ending(EndingKind.OOM), 137, "failed"),
        (Ending(EndingKind.OUTPUT_LIMIT), 137, "failed"),
        (Ending.lost("x"), None, "interrupted"),
    ],
)
def test_an_ending_shows_as_exit_code_and_as_the_seeds_status(ending: Ending, code: int | None, status: str) -> None:
    assert (ending.exit_code, ending.status) == (code, status)
    assert ending.ok is (code == 0)


def test_an_error_survives_the_wire_with_code_sentence_and_detail() -> None:
    error = from_body(CannotEnforce("memory", limit="memory_mb").to_body())
    assert type(error) is CannotEnforce
    assert (error.status, error.message, error.detail) == (422, "memory", {"limit": "memory_mb"})
    assert not error.retryable
    assert type(from_body({"code": "from_a_later_version", "message": "m"})) is StationError


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "x" * 257, "\udcff", "a\x1b"])
def test_a_name_that_cannot_be_shown_or_stored_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_name(name)


@pytest.mark.parametrize("name", ["a.b", "A", "ü/ø:x y", "x" * 256])
def test_other_names_are_kept_as_given_and_apart(name: str) -> None:
    assert check_name(name) == name
    assert uid_of("local", name) != uid_of("local", name.lower() + "x")
    assert uid_of("local", name) != uid_of("other", name)


def test_ids_sort_by_time_and_do_not_repeat() -> None:
    early, late = new_id("prc", 1_700_000_000), new_id("prc", 1_700_000_001)
    assert early.startswith("prc_")
    assert len(early) == 30
    assert early < late
    assert new_id("prc", 1) != new_id("prc", 1)


def test_only_drawn_transitions_are_allowed() -> None:
    check_transition(State.SAVED, State.CREATING)
    check_transition(State.RUNNING, State.RUNNING)
    with pytest.raises(StationError, match="cannot go from tombstone to running"):
        check_transition(State.TOMBSTONE, State.RUNNING)
    assert public(State.SAVED) == "suspended"
