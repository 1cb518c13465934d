"""Keys and lifetimes of stored files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from station.core.errors import InvalidInput
from station.core.stored import (
    PREFIXES,
    check_key,
    check_prefix,
    content_type_of,
    expires_at,
    file_name,
    is_own,
    parse_ttl,
)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("f_01J", "files/f_01J"),
        ("files/f_01J", "files/f_01J"),
        ("/files/f_01J", "files/f_01J"),
        ("data/a..b.csv", "files/data/a..b.csv"),
        ("runs/r1/output/x", "runs/r1/output/x"),
        ("sessions/s/x", "sessions/s/x"),
        ("sessionsx", "files/sessionsx"),
        ("über alles.csv", "files/über alles.csv"),
    ],
)
def test_a_key_names_its_place_or_is_below_files(text: str, key: str) -> None:
    assert check_key(text) == key
    assert check_key(key) == key


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "files/", "files/../x", "a/../../x", "..", ".", "a//b", "//a", "a/./b", "a\0b", "a\nb", "\udcff", "x/",
        "y" * 256, "a/" * 600 + "a",
    ],
)  # fmt: skip
def test_what_can_be_no_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_key(text)
    assert refused.value.detail["field"] == "key"


@given(st.text())
def test_a_key_is_refused_or_safe(text: str) -> None:
    try:
        key = check_key(text)
    except InvalidInput:
        return
    assert key.startswith(PREFIXES)
    assert not {"", ".", ".."} & set(key.split("/"))


def test_a_prefix_may_end_anywhere() -> None:
    assert [check_prefix(text) for text in ("", "/", "files/", "fix", "runs/r1", "runs/r1/")] == [
        "", "", "files/", "files/fix", "runs/r1", "runs/r1/",
    ]  # fmt: skip
    assert [check_prefix(text) for text in ("sess", "sessions", "/runs", "f", "session_notes")] == [
        "sessions/", "sessions/", "runs/", "files/", "files/session_notes",
    ]  # fmt: skip
    with pytest.raises(InvalidInput):
        check_prefix("../x")


def test_outputs_of_runs_stay_seven_days_and_the_rest_until_it_is_deleted() -> None:
    assert expires_at("files/a", 10.0, None) is None
    assert expires_at("sessions/s/a", 10.0, None) is None
    assert expires_at("runs/r/output/a", 10.0, None) == 10.0 + 7 * 86400
    assert expires_at("runs/r/output/a", 10.0, 5.0) == 15.0


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43200), ("7d", 604800), ("2w", 1209600)]
)
def test_a_time_to_live_has_a_unit(text: str, seconds: float) -> None:
    assert parse_ttl(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "0d", "-1d", "1.5h", "7 d", "1y", "9" * 12 + "d", "7d1h", "999999w"])
def test_what_is_no_time_to_live_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"7d|ten years"):
        parse_ttl(text)


def test_content_types_go_by_the_end_of_the_name() -> None:
    names = ["a.csv", "a.b.yaml", "A.YML", "x.py", "x.json", "x", "x.unknown", "x.png", "a.tar"]
    assert [content_type_of(name) for name in names] == [
        "text/csv", "application/yaml", "application/yaml", "text/x-python", "application/json",
        "application/octet-stream", "application/octet-stream", "image/png", "application/x-tar",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("report.csv", "report.csv"),
        ("/home/me/ü 🎉.csv", "ü 🎉.csv"),
        ("a\r\nSet-Cookie: x", "a__Set-Cookie: x"),
        ("\udcff\x9b31m.txt", "__31m.txt"),
        ("folder/", ""),
        ("ä" * 300, "ä" * 127),
    ],
)
def test_a_file_name_is_a_hint_that_can_be_shown(text: str, name: str) -> None:
    assert file_name(text) == name


def test_of_sessions_a_sandbox_has_its_own_alone() -> None:
    assert [is_own(key, "uid", "ses_A") for key in ("files/a", "runs/r/x", "sessions/uid/x", "sessions/ses_A/x")] == [
        True, True, True, True,
    ]  # fmt: skip
    assert not is_own("sessions/ses_B/x", "uid", "ses_A")
    assert not is_own("sessions/ses_AB/x", "uid", "ses_A")
