"""What the users of those clients see where the token is not the station's."""

from __future__ import annotations

import pytest

from .peers import KINDS, Peer, Refused, Target

pytestmark = pytest.mark.full


# `mcp` 2.x, and fastmcp on it, show no HTTP status, only the message of the JSON-RPC error in the body: it says where
# the token is.
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("mcp1", "401"),
        ("mcp2", "operator.token"),
        ("mcp2-legacy", "operator.token"),
        ("typescript1", "401"),
        ("typescript2", "401"),
        ("fastmcp", "operator.token"),
    ],
)
def test_a_wrong_token_is_an_error_and_nothing_hangs(http: Target, name: str, word: str):
    with Peer(KINDS[name], {**http, "token": "wrong"}, fails=True) as peer:
        with pytest.raises(Refused):
            peer.do("info")
        assert word in peer.stderr()
