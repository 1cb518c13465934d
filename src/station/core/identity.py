"""Identity tokens: which deployment a caller is. Everything about them but the signature. Pure.

A token is a JWT of three parts. It says who calls and nothing else: account and limits are the registry's to tell.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from .access import is_deployment_id
from .errors import Unauthenticated

MAX_BYTES = 8192
LEEWAY_SECONDS = 60.0
AUDIENCE, TYPE = "sandbox", "JWT"
_MOST_TIME = 1e15
_HEADER = {"alg", "typ", "kid"}
_UNREADABLE = (ValueError, binascii.Error, RecursionError)

WHY = (
    "the token is missing or does not hold here: send one header `Authorization: Bearer TOKEN`, with that in "
    "operator.token of the station's state directory, an API key, or an identity token of a deployment"
)


def unauthenticated() -> Unauthenticated:
    """The one answer to whoever is not known, for whatever reason: it helps nobody to find out how far he came."""
    return Unauthenticated(WHY)


@dataclass(frozen=True)
class Claims:
    deployment: str
    generation: int


def is_identity(token: bytes) -> bool:
    """Whether it has the three parts of one."""
    return token.count(b".") == 2


def key_id_of(token: bytes) -> str:
    """The id of the key that a token says it is signed with. Raises Unauthenticated where it is too long, has no such
    header, or one that says more: where else a key could be had is nothing that a token may tell."""
    if len(token) > MAX_BYTES:
        raise unauthenticated()
    header = _object(token.split(b".")[0])
    if header is None or set(header) != _HEADER or header["typ"] != TYPE or not isinstance(header["kid"], str):
        raise unauthenticated()
    return str(header["kid"])


def claims_of(payload: bytes, *, issuer: str, now: float) -> Claims:
    """What a token of a good signature claims. Raises Unauthenticated where it is another station's, for another
    purpose, over or not yet begun; 60 seconds of two clocks that differ are allowed."""
    claims = _parsed(payload)
    if claims is None or claims.get("iss") != issuer or claims.get("aud", AUDIENCE) != AUDIENCE:
        raise unauthenticated()
    begins, ends = _time(claims, "nbf", now), _time(claims, "exp", now)
    if now < begins - LEEWAY_SECONDS or now > ends + LEEWAY_SECONDS:
        raise unauthenticated()
    deployment, generation = claims.get("sub"), claims.get("gen")
    if not isinstance(deployment, str) or type(generation) is not int:
        raise unauthenticated()
    return Claims(deployment, generation)


def subject_of(token: str) -> str | None:
    """The deployment that a token says it is of, unverified: for a client that names things. `None`: of none."""
    raw = token.encode("ascii", "replace")
    if not is_identity(raw) or len(raw) > MAX_BYTES:
        return None
    subject = (_object(raw.split(b".")[1]) or {}).get("sub")
    return subject if isinstance(subject, str) and is_deployment_id(subject) else None


def _time(claims: dict[str, Any], name: str, absent: float) -> float:
    """Raises Unauthenticated for what is there and no number."""
    value = claims.get(name, absent)
    if type(value) not in (int, float) or not abs(value) < _MOST_TIME:  # no NaN is
        raise unauthenticated()
    return float(value)


def _object(part: bytes) -> dict[str, Any] | None:
    try:
        return _parsed(base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except _UNREADABLE:
        return None


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(raw)
    except _UNREADABLE:
        return None
    return value if isinstance(value, dict) else None
