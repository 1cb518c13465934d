"""Keys and lifetimes of stored files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from station.core.errors import InvalidInput
from station.core.stored import (
    PREFIXES,
    check_key,
    check_metadata,
    check_prefix,
    content_type_of,
    expires_at,
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
    assert [check_prefix(text) for text in ("", "/", "files/", "fi", "runs/r1", "runs/r1/")] == [
        "", "", "files/", "files/fi", "runs/r1", "runs/r1/",
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


@pytest.mark.parametrize("text", ["", "7", "d", "0d", "-1d", "1.5h", "7 d", "1y", "9" * 12 + "d", "7d1h"])
def test_what_is_no_time_to_live_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="7d"):
        parse_ttl(text)


def test_content_types_go_by_the_end_of_the_name() -> None:
    names = ["a.csv", "a.b.yaml", "A.YML", "x.py", "x.json", "x", "x.unknown", "x.png", "a.tar"]
    assert [content_type_of(name) for name in names] == [
        "text/csv", "application/yaml", "application/yaml", "text/x-python", "application/json",
        "application/octet-stream", "application/octet-stream", "image/png", "application/x-tar",
    ]  # fmt: skip


def test_metadata_is_bounded_and_plain() -> None:
    assert check_metadata({"original_filename": "a b.csv"}) == {"original_filename": "a b.csv"}
    for metadata in ({"a": "x" * 9000}, {"a": "x\r\nSet-Cookie: y"}, {"a\n": "x"}):
        with pytest.raises(InvalidInput):
            check_metadata(metadata)
