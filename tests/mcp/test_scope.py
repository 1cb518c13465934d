"""Whose sandboxes a call may reach is told by their names alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from station.core.errors import InvalidInput
from station.core.ids import check_name
from station.mcp.scope import Scope

KEYS = st.text(min_size=1, max_size=40).filter(lambda key: _is_name(key) and key != "default")


def _is_name(text: str) -> bool:
    try:
        check_name(text)
    except InvalidInput:
        return False
    return True


def test_two_processes_have_no_name_in_common() -> None:
    one, other = Scope.of_process(None, 1), Scope.of_process(None, 1)
    assert one.default != other.default
    assert not one.owns(other.default)
    assert not one.owns(other.name_of("data"))


def test_a_token_has_the_same_names_in_every_connection() -> None:
    assert Scope.of_principal("operator", None) == Scope.of_principal("operator", None)
    assert not Scope.of_principal("operator", None).owns(Scope.of_principal("agent", None).default)


@pytest.mark.parametrize("key", [None, "", "default"])
def test_no_key_and_the_word_default_mean_the_default_sandbox(key: str | None) -> None:
    for scope in (Scope.of_process(None, 1), Scope.of_process("mine", 1)):
        assert scope.name_of(key) == scope.default


def test_a_chosen_default_sandbox_is_kept_and_all_others_end_by_themselves() -> None:
    chosen, own = Scope.of_process("mine", 1), Scope.of_process(None, 1)
    assert chosen.default == "mine"
    assert not chosen.is_temporary("mine")
    assert chosen.is_temporary(chosen.name_of("other"))
    assert own.is_temporary(own.default)


@given(KEYS, KEYS)
def test_a_scope_owns_what_it_names_and_different_keys_are_different_sandboxes(key: str, other: str) -> None:
    for scope in (Scope.of_process(None, 1), Scope.of_process("mine", 1), Scope.of_principal("operator", "mine")):
        assert scope.owns(scope.name_of(key))
        assert (scope.name_of(key) == scope.name_of(other)) == (key == other)


@given(KEYS)
def test_a_key_reaches_no_name_of_anybody_else(key: str) -> None:
    user, other = Scope.of_process("mine", 1), Scope.of_process(None, 1)
    assert user.name_of(key) not in {"mine", key}
    assert not other.owns(user.name_of(key))
    assert not other.owns(key)


def test_a_scope_of_a_chosen_name_owns_it_and_what_is_below_it_and_nothing_that_only_begins_alike() -> None:
    scope = Scope.of_process("mine", 1)
    assert scope.owns("mine")
    assert scope.owns("mine:other")
    assert not scope.owns("mine2")
    assert not scope.owns("min")
    assert not scope.owns("")


@pytest.mark.parametrize("name", ["", " a", "a\nb", "a\x1b[0m", "x" * 257, "\ud800", "a\x85b"])
def test_a_name_that_no_sandbox_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        Scope.of_process(name, 1)
    if name:
        with pytest.raises(InvalidInput):
            Scope.of_process(None, 1).name_of(name if name.strip() == name else f"a{name} ")
