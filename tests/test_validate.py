"""Hostile input costs little, and what is said of it stays the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from station import validate
from station.core.errors import InvalidInput
from station.core.suggest import suggestion
from station.core.wire import ExecRequest
from station.validate import from_json


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done to explain: a word for each step."""
    done: list[str] = []
    one = validate._one

    def counted_suggestion(*args: Any) -> str:
        done.append("suggestion")
        return suggestion(*args)

    def counted_one(*args: Any, **named: Any) -> tuple[str, str]:
        done.append("explanation")
        return one(*args, **named)

    monkeypatch.setattr(validate, "suggestion", counted_suggestion)
    monkeypatch.setattr(validate, "_one", counted_one)
    return done


def refused(body: dict[str, Any]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        from_json(ExecRequest, json.dumps(body).encode())
    return caught.value


def test_of_many_errors_ten_are_explained_and_one_with_a_suggestion(work: list[str]) -> None:
    error = refused({"comand": "id", **{f"k{number}": 1 for number in range(5000)}})
    assert (work.count("explanation"), work.count("suggestion")) == (10, 1)
    assert (error.message, error.detail["field"]) == ("unknown field 'comand'; did you mean 'command'?", "comand")
    assert [each["field"] for each in error.detail["errors"]] == ["comand", *(f"k{number}" for number in range(9))]
    assert error.detail["errors"][1]["message"] == "unknown field 'k0'"


def test_an_unknown_name_goes_before_what_else_is_amiss(work: list[str]) -> None:
    error = refused({"argv": [1] * 50, "cwd": 7, "timeout": 5})
    assert error.message == "unknown field 'timeout'; did you mean 'timeout_seconds'?"
    assert [each["field"] for each in error.detail["errors"]][:3] == ["timeout", "argv.0", "argv.1"]
    assert (work.count("explanation"), work.count("suggestion")) == (10, 1)


def test_more_than_anybody_could_mean_are_counted_and_not_looked_at(work: list[str]) -> None:
    error = refused({f"k{number}": 1 for number in range(20_000)})
    assert error.message == "20000 fields or values are not what they must be, too many to name them"
    assert (error.detail, work) == ({"field": "", "errors": []}, [])
