"""What an identity token may say. The signature has its own tests (tests/server/test_tokens.py)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from station.core.errors import Unauthenticated
from station.core.identity import LEEWAY_SECONDS, MAX_BYTES, WHY, Claims, claims_of, key_id_of, subject_of

ISSUER = "http://127.0.0.1:7311"
DEPLOYMENT = "dep_01ARZ3NDEKTSV4RRFFQ69G5FAV"
NOW = 1_800_000_000.0
GOOD = {"sub": DEPLOYMENT, "iss": ISSUER, "gen": 1, "iat": int(NOW)}


def part(value: Any) -> bytes:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def told(**changed: Any) -> Claims | None:
    """`None`: refused, with the sentence that every refusal has."""
    claims = {name: value for name, value in (GOOD | changed).items() if value is not None}
    try:
        return claims_of(json.dumps(claims).encode(), issuer=ISSUER, now=NOW)
    except Unauthenticated as error:
        said = error.message, error.detail
    assert said == (WHY, {})
    return None


def test_a_token_tells_a_deployment_and_its_generation() -> None:
    assert told() == told(aud="sandbox") == Claims(DEPLOYMENT, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"iss": None}, {"iss": ISSUER + "/"}, {"iss": ISSUER.upper()}, {"iss": [ISSUER]}, {"iss": "http://elsewhere"},
        {"aud": "station"}, {"aud": ["sandbox"]}, {"aud": ""}, {"aud": "Sandbox"},
        {"sub": None}, {"sub": 1}, {"sub": [DEPLOYMENT]},
        {"gen": None}, {"gen": "1"}, {"gen": True}, {"gen": 1.0},
    ],
    ids=str,
)  # fmt: skip
def test_hd_a03_another_issuer_audience_or_form_is_refused(changed: dict[str, Any]) -> None:
    assert told(**changed) is None


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({"exp": NOW}, True), ({"exp": NOW - LEEWAY_SECONDS}, True), ({"exp": NOW - LEEWAY_SECONDS - 1}, False),
        ({"nbf": NOW + LEEWAY_SECONDS}, True), ({"nbf": NOW + LEEWAY_SECONDS + 1}, False), ({"nbf": 0}, True),
        ({"exp": NOW + 90, "nbf": NOW - 90}, True), ({"exp": NOW - 90}, False), ({"nbf": NOW + 90}, False),
        ({"exp": str(int(NOW) + 9)}, False), ({"nbf": "0"}, False), ({"exp": True}, False), ({"exp": [NOW + 9]}, False),
        ({"exp": 10**400}, False), ({"exp": -(10**400)}, False), ({"exp": float("inf")}, False),
        ({"nbf": float("-inf")}, False), ({"exp": float("nan")}, False), ({"nbf": float("nan")}, False),
    ],
    ids=str,
)  # fmt: skip
def test_hd_a02_times_hold_within_a_minute_and_only_as_numbers(changed: dict[str, Any], holds: bool) -> None:
    assert (told(**changed) is not None) == holds


@pytest.mark.parametrize("payload", [b"", b"null", b"[]", b'"x"', b"1", b"\xff", b"{", b"[" * 5000], ids=repr)
def test_a_payload_that_is_no_object_is_refused(payload: bytes) -> None:
    with pytest.raises(Unauthenticated):
        claims_of(payload, issuer=ISSUER, now=NOW)


def token(header: Any, payload: Any = GOOD) -> bytes:
    return b".".join([part(header), part(payload), b"c2ln"])


def test_a_header_names_a_key_by_its_id() -> None:
    assert key_id_of(token({"alg": "EdDSA", "typ": "JWT", "kid": "k"})) == "k"


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "EdDSA", "typ": "JWT"}, {"alg": "EdDSA", "kid": "k"}, {"typ": "JWT", "kid": "k"},
        {"alg": "EdDSA", "typ": "at+jwt", "kid": "k"}, {"alg": "EdDSA", "typ": "jwt", "kid": "k"},
        {"alg": "EdDSA", "typ": "JWT", "kid": 1}, {"alg": "EdDSA", "typ": "JWT", "kid": ["k"]},
        {"alg": "EdDSA", "typ": "JWT", "kid": "k", "jku": "https://attacker.example/keys"},
        {"alg": "EdDSA", "typ": "JWT", "kid": "k", "x5u": "https://attacker.example/cert"},
        {"alg": "EdDSA", "typ": "JWT", "kid": "k", "jwk": {"kty": "OKP"}},
        {"alg": "EdDSA", "typ": "JWT", "kid": "k", "crit": ["exp"]},
        {"alg": "EdDSA", "typ": "JWT", "kid": "k", "b64": False},
        [], "x", None, b"\xff", b"", b"{",
    ],
    ids=str,
)  # fmt: skip
def test_hd_a01_a_header_that_says_less_more_or_something_else_is_refused(header: Any) -> None:
    with pytest.raises(Unauthenticated):
        key_id_of(token(header))


def test_a_token_over_the_bound_is_not_looked_at() -> None:
    good = token({"alg": "EdDSA", "typ": "JWT", "kid": "k"})
    assert key_id_of(good + b"x" * (MAX_BYTES - len(good))) == "k"
    with pytest.raises(Unauthenticated):
        key_id_of(good + b"x" * (MAX_BYTES - len(good) + 1))


def test_a_client_reads_whose_a_token_is_and_takes_no_other_for_one() -> None:
    assert subject_of(token({}).decode()) == DEPLOYMENT
    for other in ("", "a.b.c", "stn_op_x", "..", "stn_key_x_y", "é.é.é", token({}, {"sub": "x"}).decode()):
        assert subject_of(other) is None
