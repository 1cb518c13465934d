"""Identity tokens are signed and their signatures checked here, with the ring of keys in the state directory.

`identity.keys` is JSON: `{"keys": [{"kid": "…", "alg": "EdDSA", "key": "…"}, …]}`, each key in base64url: the 32 bytes
of an Ed25519 private key, or at least 32 bytes of a secret for HS256. The first EdDSA key signs; all verify, each with
the one algorithm that stands beside it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import secrets
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from station.core.errors import Refused, Unavailable
from station.core.identity import AUDIENCE, Claims, claims_of, key_id_of, unauthenticated
from station.durable import write_private

from .operator_token import read_private

FILE = "identity.keys"
_EDDSA, _HS256 = "EdDSA", "HS256"
_MOST_BYTES = 64 * 1024
_KEY_BYTES = 32
_REMEMBERED = 1024


@dataclass(frozen=True)
class SigningKey:
    kid: str
    alg: str
    secret: bytes = field(repr=False)

    def load(self) -> None:
        """PyJWT and what it stands on, which take a while, are there when the first token comes. A station that has no
        key needs none of it."""
        import jwt  # noqa: F401 - to have it

        _ = self.verifies

    @cached_property
    def signs(self) -> Any:
        if self.alg == _HS256:
            return self.secret
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret)

    @cached_property
    def verifies(self) -> Any:
        return self.secret if self.alg == _HS256 else self.signs.public_key()


class Ring:
    """The signing keys of one state directory; the file is made with the first token."""

    def __init__(self, home: Path) -> None:
        """Raises Refused for a file of keys that others can read or made, or that says something else. Best in a
        thread: it reads, and loads what checks signatures."""
        self._file = home / FILE
        self._keys = _read(self._file) if os.path.lexists(self._file) else {}
        for key in self._keys.values():
            key.load()
        self._verified = lru_cache(_REMEMBERED)(self._payload)
        """A good signature stays good: each is checked once. What the token says is judged each time."""

    def mint(self, claims: Claims, *, issuer: str, now: float, expires_at: float | None) -> str:
        """Raises Refused where no key of the file signs."""
        import jwt

        key = self._signing()
        said = {"sub": claims.deployment, "iss": issuer, "aud": AUDIENCE, "gen": claims.generation, "iat": int(now)}
        if expires_at is not None:
            said["exp"] = int(expires_at)
        return jwt.encode(said, key.signs, algorithm=key.alg, headers={"kid": key.kid})

    def claims(self, token: bytes, *, issuer: str, now: float) -> Claims:
        """What a token of one of our keys claims. Raises Unauthenticated, the same for whatever is wrong with it."""
        return claims_of(self._verified(token), issuer=issuer, now=now)

    def _payload(self, token: bytes) -> bytes:
        key = self._keys.get(key_id_of(token))
        if key is None:
            raise unauthenticated()
        import jwt

        try:
            # The algorithm is the key's, whatever the token says.
            payload: bytes = jwt.PyJWS().decode(token, key.verifies, algorithms=[key.alg])
        except jwt.PyJWTError:
            raise unauthenticated() from None
        return payload

    def _signing(self) -> SigningKey:
        if not self._keys:
            self._keys = self._made()
        key = next((key for key in self._keys.values() if key.alg == _EDDSA), None)
        if key is None:
            raise Refused(f"{self._file} has no {_EDDSA} key, which new tokens are signed with", file=str(self._file))
        return key

    def _made(self) -> dict[str, SigningKey]:
        key = {"kid": f"ed_{secrets.token_hex(8)}", "alg": _EDDSA, "key": _base64(secrets.token_bytes(_KEY_BYTES))}
        try:
            write_private(self._file, json.dumps({"keys": [key]}, indent=1).encode() + b"\n", replace=False)
        except OSError as error:
            raise Unavailable(f"the signing keys {self._file} cannot be kept: {error.strerror}") from error
        return _read(self._file)


def _read(file: Path) -> dict[str, SigningKey]:
    """Raises Refused for a file that others can read or made, or that says something else."""
    try:
        raw = read_private(file, "the file of signing keys", most_bytes=_MOST_BYTES)
        keys = [
            SigningKey(entry["kid"], entry["alg"], base64.b64decode(_padded(entry["key"]), b"-_", validate=True))
            for entry in json.loads(raw)["keys"]
        ]
        sound = all(_is_sound(key) for key in keys)
    except OSError as error:
        raise Unavailable(f"the signing keys {file} cannot be read: {error.strerror}", retryable=False) from error
    except (ValueError, TypeError, KeyError, binascii.Error, RecursionError):
        sound, keys = False, []
    if not sound or len({key.kid for key in keys}) != len(keys):
        raise Refused(
            f"{file} is no ring of signing keys: each has a kid of its own, alg {_EDDSA} or {_HS256}, and key in "
            "base64url. Removed, it is made anew, and every identity token has to be minted again",
            file=str(file),
        )
    return {key.kid: key for key in keys}


def _is_sound(key: SigningKey) -> bool:
    kid: Any = key.kid  # read from a file: the type is a hope
    if key.alg == _EDDSA:
        return isinstance(kid, str) and len(key.secret) == _KEY_BYTES
    return isinstance(kid, str) and key.alg == _HS256 and len(key.secret) >= _KEY_BYTES


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 4)


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
