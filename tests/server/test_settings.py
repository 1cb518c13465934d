from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest

from station.core.errors import InvalidInput
from station.core.spec import Limits
from station.server.activity import Activity
from station.server.loading import is_changed, load
from station.server.settings import variables


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
        ("STN_LISTN", "127.0.0.1:0", "did you mean 'STN_LISTEN'"),
        ("STN_SANBOX_SERVES_OTHERS", "true", "did you mean 'STN_SANDBOX_SERVES_OTHERS'"),
        ("STN_FILES_QUOTA", "1", "unknown variable"),
        ("STN_SANDBOX_POOL_SIZE", "many", "sandbox.pool_size"),
    ],
)
def test_a_bad_variable_is_named(tmp_path: Path, name: str, value: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as error:
        load(tmp_path, {name: value})
    assert sentence in error.value.message


CANARY = "hunter2secret"
BESIDE_SECRETS = [
    *(f"    password: {value}" for value in (
        f"%{CANARY}", f"*{CANARY}", f"!!x/{CANARY}", f"!!x/hun'{CANARY}", f"!{CANARY} x", f"@{CANARY}", f"`{CANARY}",
        f"!!int {CANARY}", f"!!float {CANARY}", f"!!bool {CANARY}", f"!!timestamp {CANARY}", f"!!binary é{CANARY}",
        f'"\\q{CANARY}"', f'"{CANARY}', f"'{CANARY}", f"{CANARY}: x", f"[{CANARY}", f"{{{CANARY}: x}}", f"[{CANARY}]",
        f"${{{CANARY}}}", f"pa${{{CANARY}}}", f"${{{CANARY.upper()}}}x",
        f"&{CANARY} x\n    identity_token: &{CANARY} [",
        f"\x01{CANARY}", f"2024-99-99 {CANARY}: x", f"|\n    {CANARY}\n  -", f">{CANARY}",
    )),
    f"    {CANARY}: x", f"    {CANARY}: ${{UNSET}}", f"    ? [{CANARY}]\n    : x", f"    {CANARY}: 1\n    {CANARY}: 2",
    f"    <<: {CANARY}", f"    7{CANARY}: 1\n    8: 1", f"    - {CANARY}", f"    {CANARY}",
    f"    username: x\n  {CANARY}",
    f"    user_{CANARY}: x\n    pasword: x",
]  # fmt: skip


@pytest.mark.parametrize("lines", BESIDE_SECRETS)
def test_what_stands_beside_secrets_is_never_repeated(tmp_path: Path, lines: str) -> None:
    write(tmp_path, f"sandbox:\n  registry_auth:\n{lines}\n")
    with pytest.raises(InvalidInput) as error:
        load(tmp_path, {})
    shown = "".join(traceback.format_exception(error.value)) + json.dumps(error.value.to_body())
    assert CANARY not in shown.lower()
    assert "hun'" not in shown
    assert "station.yaml" in error.value.message


@pytest.mark.parametrize(
    "lines", [f"  {CANARY}: x", f"  password: ${{{CANARY}}}", f"  token: [{CANARY}]", f"  user: x\n  pasword: {CANARY}"]
)
def test_what_stands_beside_the_secrets_of_nats_is_never_repeated(tmp_path: Path, lines: str) -> None:
    with pytest.raises(InvalidInput) as error:
        load(write(tmp_path, f"nats:\n  url: nats://a:4222\n{lines}\n"), {})
    assert CANARY not in "".join(traceback.format_exception(error.value)) + json.dumps(error.value.to_body())


def test_a_file_that_is_no_text_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "station.yaml").write_bytes(f"sandbox: {{registry_auth: {{password: {CANARY}\xff}}}}".encode("latin-1"))
    with pytest.raises(InvalidInput, match="no UTF-8, from byte 49") as error:
        load(tmp_path, {})
    assert CANARY not in "".join(traceback.format_exception(error.value))


def test_a_place_in_the_file_is_told_by_line_and_column(tmp_path: Path) -> None:
    write(tmp_path, "sandbox:\n  registry_auth:\n    password: *x\n")
    with pytest.raises(InvalidInput, match="line 3, column 15: found undefined alias …"):
        load(tmp_path, {})


def test_a_slip_beside_secrets_is_named_and_nothing_else_is(tmp_path: Path) -> None:
    write(tmp_path, "sandbox:\n  registry_auth:\n    pasword: x\n")
    with pytest.raises(InvalidInput, match=r"unknown field 'pasword' .*did you mean 'password'"):
        load(tmp_path, {})
    write(tmp_path, "sandbox:\n  registry_auth:\n    xyz: x\n")
    with pytest.raises(InvalidInput, match=r"registry_auth has an unknown key.*known are .*identity_token, password"):
        load(tmp_path, {})


def test_a_variable_that_a_secret_comes_from_is_named_where_it_is_no_part_of_one(tmp_path: Path) -> None:
    for value, named in (("${GITHUB_TOKEN}", True), ("pa${SS}", False), ("${lower}", False)):
        write(tmp_path, f"sandbox:\n  registry_auth:\n    password: {value}\n")
        with pytest.raises(InvalidInput, match=r"sandbox\.registry_auth\.password") as error:
            load(tmp_path, {})
        assert ("GITHUB_TOKEN, which is not set" in error.value.message) is named
        assert (error.value.detail["variable"] is not None) is named
    write(tmp_path, "sandbox:\n  docker_image: a${lower}\n")
    with pytest.raises(InvalidInput, match="variable lower, which is not set"):
        load(tmp_path, {})


def test_variables_of_others_are_left_alone(tmp_path: Path) -> None:
    others = {"STN_CODE_SANDBOX_X": "1", "STN_HOME": "/x", "STN_FAIL": "", "STN_TEST_FULL": "1", "PATH": "/bin"}
    unlike = {"STN_DEMO_SECRET": "x", "STN_FOO": "1", "STN_SECRET": "x", "STN_SERVER_OTHERS": "1"}
    assert load(tmp_path, others | unlike) == load(tmp_path, {})


def test_a_file_that_was_edited_since_is_seen(tmp_path: Path) -> None:
    environ = {"STN_SANDBOX_POOL_SIZE": "1"}
    for text in ("", "idle_minutes: 3\n"):
        read = load(write(tmp_path, text), environ)
        assert not is_changed(read)
        write(tmp_path, "idle_minutes: 4\n")
        assert is_changed(read)
    read = load(tmp_path, environ)
    (tmp_path / "station.yaml").unlink()
    assert is_changed(read)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sandbox: docker\n", "sandbox: must be an object, that is a section with keys of its own"),
        ("sandbox: {enabled: maybe}\n", "sandbox.enabled: must be true or false"),
    ],
)
def test_a_value_of_another_kind_is_told_in_words_of_the_file(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as error:
        load(write(tmp_path, text), {})
    assert error.value.message.endswith(sentence)


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
