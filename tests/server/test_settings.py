from __future__ import annotations

from pathlib import Path

import pytest

from station.core.errors import InvalidInput
from station.core.spec import Limits
from station.server.activity import Activity
from station.server.settings import load, variables


def write(home: Path, text: str) -> Path:
    (home / "station.yaml").write_text(text, encoding="utf-8")
    return home


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    settings = load(tmp_path, {})
    assert (settings.home, settings.sandbox.pool_size, settings.sandbox.allow_host) == (tmp_path, 2, False)


def test_the_environment_goes_before_the_file_and_an_empty_variable_is_none(tmp_path: Path) -> None:
    write(tmp_path, "sandbox:\n  backend: host\n  pool_size: 5\n  limits: {memory_mb: 64}\nidle_minutes: 3\n")
    settings = load(
        tmp_path, {"STN_SANDBOX_BACKEND": "", "STN_SANDBOX_POOL_SIZE": "0", "STN_SANDBOX_LIMITS_PIDS": "32"}
    )
    assert (settings.sandbox.backend, settings.sandbox.pool_size, settings.idle_minutes) == ("host", 0, 3.0)
    assert settings.sandbox.limits == Limits(memory_mb=64, pids=32)


BAD = [
    ("sandbox:\n  poolsize: 3\n", "did you mean 'pool_size'"),
    ("sanbox: {}\n", "did you mean 'sandbox'"),
    ("sandbox:\n  pool_size: -1\n", "sandbox.pool_size"),
    ("sandbox:\n  pool_size: 1\n  pool_size: 2\n", "given twice"),
    ("sandbox:\n  limits:\n    memory: 3\n", "unknown field 'memory' in sandbox.limits"),
    ("sandbox:\n  limits:\n    memory_mb: 0\n", "above zero"),
    ("sandbox:\n  max_processes: 0\n", "sandbox.max_processes"),
    ("idle_minutes: .inf\n", "idle_minutes"),
    ("home: /x\n", "home is set by"),
    ("- a\n", "keys and values"),
    ("a: [\n", "cannot be read"),
    ("sandbox: 3\n", "sandbox"),
]


@pytest.mark.parametrize(("text", "sentence"), BAD, ids=lambda value: value.strip()[:30])
def test_a_bad_file_is_named_with_what_is_wrong_in_it(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as error:
        load(write(tmp_path, text), {})
    assert sentence in error.value.message
    assert "station.yaml" in error.value.message


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("STN_SANDBOX_BACKEN", "x", "did you mean 'STN_SANDBOX_BACKEND'"),
        ("STN_SANDBOX_ZZZ", "x", "unknown variable"),
        ("STN_IDLE_MINUTE", "1", "did you mean 'STN_IDLE_MINUTES'"),
        ("STN_SANDBOX_POOL_SIZE", "many", "sandbox.pool_size"),
    ],
)
def test_a_bad_variable_is_named(tmp_path: Path, name: str, value: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as error:
        load(tmp_path, {name: value})
    assert sentence in error.value.message


def test_variables_of_others_are_left_alone(tmp_path: Path) -> None:
    others = {"STN_CODE_SANDBOX_X": "1", "STN_HOME": "/x", "STN_FAIL": "", "STN_TEST_FULL": "1", "PATH": "/bin"}
    assert load(tmp_path, others) == load(tmp_path, {})


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    missing = [name for name, _ in variables() if f"`{name}`" not in page]
    missing += [key for _, place in variables() if f"`{(key := '.'.join(place))}`" not in page]
    assert missing == []


def test_a_station_is_idle_without_a_box_and_a_request_for_so_long() -> None:
    now = 0.0
    activity = Activity(lambda: now)
    assert not activity.is_idle(live_boxes=0, minutes=1)
    now = 60.0
    assert activity.is_idle(live_boxes=0, minutes=1)
    assert not activity.is_idle(live_boxes=1, minutes=1)
    assert not activity.is_idle(live_boxes=0, minutes=0)
    with activity:
        now = 600.0
        assert not activity.is_idle(live_boxes=0, minutes=1)
    assert not activity.is_idle(live_boxes=0, minutes=1)
    now = 660.0
    assert activity.is_idle(live_boxes=0, minutes=1)
