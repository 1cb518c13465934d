"""What each kind of caller may do."""

from __future__ import annotations

import pytest

from station.core.access import check_access_name
from station.core.errors import InvalidInput, Refused
from station.core.principals import LOCAL, NOBODY, OPERATOR, Action, Kind, Principal, check_may, may
from station.core.records import Owner

THEIRS = Principal(Kind.DEPLOYMENT, Owner("local", "dep_1"), name="one")


def test_the_operator_may_all_a_deployment_its_own_and_a_stranger_ask_how_it_is() -> None:
    told = {who.kind: {action for action in Action if may(who, action)} for who in (LOCAL, OPERATOR, THEIRS, NOBODY)}
    assert told == {
        Kind.LOCAL: set(Action),
        Kind.OPERATOR: set(Action),
        Kind.DEPLOYMENT: {Action.ASK, Action.LOOK, Action.USE, Action.TOOLS},
        Kind.NOBODY: {Action.ASK},
    }
    with pytest.raises(Refused, match="operator of the station"):
        check_may(THEIRS, Action.OPERATE)


def test_each_principal_goes_by_a_name_that_no_other_has() -> None:
    key = Principal(Kind.OPERATOR, key_id="key_1", name="one")
    assert [who.tag for who in (LOCAL, OPERATOR, key, THEIRS)] == ["local", "operator", "key_1", "dep_1"]
    assert [who.owner == Owner() for who in (LOCAL, OPERATOR, key, THEIRS)] == [True, True, True, False]


@pytest.mark.parametrize("name", ["", "-a", "_a", "a b", "a.b", "a/b", "..", "ä", "a" * 64, "a\n", "A\0", "*", ">"])
def test_a_name_that_a_path_or_a_subject_could_not_hold_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_access_name(name)
    assert check_access_name("A-b_9" + "x" * 58) == "A-b_9" + "x" * 58
