"""API keys and identity tokens as the guard sees them. What is refused differs from what passes in one thing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from station.core.access import KeyRequest
from station.core.errors import InvalidInput, NotFound, Refused, Unauthenticated
from station.core.identity import WHY
from station.core.principals import OPERATOR, Kind, Principal
from station.server.access.access import Access
from station.server.access.keys import USED_SECONDS
from station.server.access.tokens import FILE
from station.server.settings import SandboxSettings, Settings
from station.store.principals_sqlite import SqliteDocuments

URL = "http://127.0.0.1:7311"
OPERATORS = b"stn_op_0123456789abcdef"
SHARED = b"a secret that an older control plane signs with"


@dataclass
class Bed:
    """A registry of keys and deployments, and a clock that tests turn."""

    home: Path
    documents: SqliteDocuments
    now: float = 1_800_000_000.0
    serves_others: bool = True

    async def load(self) -> Access:
        """As a station does at its start."""
        settings = Settings(self.home, sandbox=SandboxSettings(serves_others=self.serves_others))
        access = await Access.load(self.documents, settings, self.home, now=lambda: self.now, clock=lambda: self.now)
        access.open_tcp(URL, OPERATORS)
        return access

    @property
    def ring(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / FILE).read_text())
        return found

    @property
    def private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(base64.urlsafe_b64decode(self.ring["keys"][0]["key"] + "="))


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    made = Bed(tmp_path, SqliteDocuments(":memory:"))
    yield made
    await made.documents.aclose()


@pytest.fixture
async def access(bed: Bed) -> Access:
    made = await bed.load()
    await made.deployments.create("one")
    return made


async def minted(access: Access, ttl: str | None = None) -> str:
    return (await access.deployments.token("one", ttl)).token


def whose(access: Access, token: str | bytes) -> Principal | None:
    """`None`: refused, with the sentence that every refusal has."""
    try:
        return access.principal(token.encode() if isinstance(token, str) else token)
    except Unauthenticated as error:
        said = error.message, error.detail
    assert said == (WHY, {})
    return None


def part(value: Any) -> bytes:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def opened(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims, unverified."""
    return jwt.get_unverified_header(token), jwt.decode(token, options={"verify_signature": False})


def signed(bed: Bed, header: dict[str, Any], claims: Any) -> bytes:
    """With the station's own key, whatever it says: what a fault of ours could mint."""
    text = part(header) + b"." + part(claims)
    return text + b"." + part(bed.private.sign(text))


# ── identity tokens ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_token_says_which_deployment_calls_and_nothing_else(bed: Bed, access: Access) -> None:
    token = await minted(access)
    header, claims = opened(token)
    deployment = access.deployments.get("one")
    assert header == {"alg": "EdDSA", "typ": "JWT", "kid": bed.ring["keys"][0]["kid"]}
    assert claims == {"sub": deployment.id, "iss": URL, "aud": "sandbox", "gen": 1, "iat": int(bed.now)}
    assert whose(access, token) == Principal(Kind.DEPLOYMENT, deployment.owner, name="one")
    assert whose(access, signed(bed, header, claims)) is not None, "the control of all that is signed below"


async def test_signing_keys_are_made_when_first_needed_for_this_user_alone(bed: Bed, access: Access) -> None:
    assert not (bed.home / FILE).exists()
    token = await minted(access)
    assert (bed.home / FILE).stat().st_mode & 0o777 == 0o600
    before = bed.ring
    await minted(access)
    assert whose(await bed.load(), token) is not None, "a restart knows them"
    assert bed.ring == before


async def test_hd_a01_no_token_chooses_its_algorithm_or_its_key(bed: Bed, access: Access) -> None:
    token = await minted(access)
    header, claims = opened(token)
    text = part(header | {"alg": "none"}) + b"." + part(claims)
    public = bed.private.public_key()
    as_pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    as_raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    forged = [text + b".", text + b"." + token.split(".")[2].encode(), text]
    for secret in (as_pem, as_raw, b""):
        of_public = part(header | {"alg": "HS256"}) + b"." + part(claims)
        forged.append(of_public + b"." + part(hmac.digest(secret, of_public, hashlib.sha256)))
    stranger = Ed25519PrivateKey.generate()
    of_stranger = part(header) + b"." + part(claims)
    forged.append(of_stranger + b"." + part(stranger.sign(of_stranger)))
    changes: list[dict[str, Any]] = [
        *({"kid": kid} for kid in ("../../../../dev/null", "/dev/null", "", "'; SELECT 1", header["kid"].upper())),
        *({name: "https://attacker.example/keys"} for name in ("jku", "x5u", "jwk", "x5c")),
        *({"alg": name} for name in ("EdDSA ", "eddsa", "NONE", "HS256", "ES256", "Ed25519")),
        {"kid": header["kid"] + "\0"},
        {"crit": ["exp"]},
    ]
    forged += [signed(bed, header | changed, claims) for changed in changes]
    for which in forged:
        assert whose(access, which) is None, which
    assert whose(access, signed(bed, header, claims)) is not None


async def test_a_signature_belongs_to_what_is_signed(bed: Bed, access: Access) -> None:
    await access.deployments.create("two")
    token, other = await minted(access), (await access.deployments.token("two", None)).token
    head, claims, signature = token.split(".")
    assert whose(access, f"{head}.{other.split('.')[1]}.{signature}") is None
    flipped = signature[:-2] + ("A" if signature[-2] != "A" else "B") + signature[-1]
    forms = f"{head}.{claims}.{flipped}", f"{head}.{claims}.", f"{token}.", f".{token}", f"{token}=", f"{token} "
    for which in forms:
        assert whose(access, which) is None, which
    assert whose(access, token) != whose(access, other)


async def test_hd_a02_a_token_ends_with_its_time_and_not_a_minute_later(bed: Bed, access: Access) -> None:
    token = await minted(access, "1h")
    header, claims = opened(token)
    assert claims["exp"] == int(bed.now) + 3600
    without = {name: value for name, value in claims.items() if name != "exp"}
    head, _, signature = token.split(".")
    assert whose(access, f"{head}.{part(without).decode()}.{signature}") is None, "an end is not taken off"
    for changed in ({"exp": str(claims["exp"])}, {"exp": None}, {"nbf": bed.now + 90}, {"exp": bed.now - 90}):
        assert whose(access, signed(bed, header, claims | changed)) is None, changed
    assert whose(access, signed(bed, header, claims | {"nbf": bed.now + 30})) is not None
    bed.now += 3600 + 59
    assert whose(access, token) is not None
    bed.now += 2
    assert whose(access, token) is None


async def test_hd_a03_a_token_of_another_station_or_for_another_purpose_is_refused(bed: Bed, access: Access) -> None:
    token = await minted(access)
    header, claims = opened(token)
    for changed in ({"aud": "station"}, {"iss": "http://127.0.0.1:7312"}, {"iss": URL + "/"}, {"sub": "local"}):
        assert whose(access, signed(bed, header, claims | changed)) is None, changed
    assert whose(access, signed(bed, header | {"typ": "at+jwt"}, claims)) is None
    without = {name: value for name, value in claims.items() if name != "aud"}
    assert whose(access, signed(bed, header, without)) is not None, "the audience may be left out"


async def test_rotated_tokens_and_those_of_a_deleted_deployment_end_at_once(bed: Bed, access: Access) -> None:
    old = await minted(access)
    await access.deployments.rotate("one")
    new = await minted(access)
    assert (whose(access, old), whose(access, new) is None) == (None, False)
    header, claims = opened(new)
    assert whose(access, signed(bed, header, claims | {"gen": 99})) is not None, "a later one is of this station"
    again = await bed.load()
    assert (whose(again, old), whose(again, new) is None) == (None, False), "a restart remembers"
    await access.deployments.close("one")
    assert whose(access, new) is None, "from the beginning of its deletion on"
    await access.deployments.forget("one")
    await access.deployments.create("one")
    assert whose(access, new) is None, "another one of that name is another"


async def test_a_secret_of_an_older_control_plane_verifies_hs256_alone(bed: Bed, access: Access) -> None:
    await minted(access)
    ring = bed.ring
    ring["keys"].append({"kid": "older", "alg": "HS256", "key": part(SHARED).decode()})
    (bed.home / FILE).write_text(json.dumps(ring))
    again = await bed.load()
    claims = {"sub": access.deployments.get("one").id, "iss": URL, "gen": 1}
    theirs = jwt.encode(claims, SHARED, algorithm="HS256", headers={"kid": "older"})
    assert whose(again, theirs) is not None
    assert whose(again, jwt.encode(claims, SHARED * 2, algorithm="HS512", headers={"kid": "older"})) is None
    assert whose(again, jwt.encode(claims, bed.private, algorithm="EdDSA", headers={"kid": "older"})) is None
    kid = ring["keys"][0]["kid"]
    assert whose(again, jwt.encode(claims, SHARED, algorithm="HS256", headers={"kid": kid})) is None
    assert whose(access, theirs) is None, "the control: without the key it is nothing"


SOUND = {"kid": "a", "alg": "EdDSA", "key": "A" * 43}


@pytest.mark.parametrize(
    "keys",
    [[{}], [SOUND | {"kid": 1}], [SOUND | {"alg": "none"}], [SOUND | {"key": "short"}], [SOUND | {"key": "?" * 43}],
     [SOUND | {"alg": "HS256", "key": "c2hvcnQ"}], [SOUND, SOUND | {"alg": "HS256"}], 1, None],
    ids=str,
)  # fmt: skip
async def test_a_damaged_ring_lets_no_station_start(bed: Bed, keys: Any) -> None:
    file = bed.home / FILE
    for text in (json.dumps({"keys": keys}), json.dumps(keys), ""):
        file.write_text(text)
        file.chmod(0o600)
        with pytest.raises(Refused, match=FILE):
            await bed.load()
    file.write_text(json.dumps({"keys": [SOUND]}))
    await bed.load()


async def test_a_ring_that_others_can_read_lets_no_station_start(bed: Bed, access: Access) -> None:
    await minted(access)
    await bed.load()
    (bed.home / FILE).chmod(0o644)
    with pytest.raises(Refused, match="open to others"):
        await bed.load()


async def test_a_station_that_serves_nobody_else_refuses_a_deployment_and_names_the_setting(
    bed: Bed, access: Access
) -> None:
    token = await minted(access)
    bed.serves_others = False
    alone = await bed.load()
    with pytest.raises(Refused, match=r"sandbox\.serves_others"):
        alone.principal(token.encode())
    with pytest.raises(Refused, match=r"sandbox\.serves_others"):
        alone.acting(access.deployments.get("one").id)
    with pytest.raises(Refused, match=r"sandbox\.serves_others"):
        await alone.deployments.create("two")
    assert whose(alone, token[:-4] + "AAAA") is None, "whose signature does not fit is told nothing"
    bed.serves_others = True
    assert whose(await bed.load(), token) is not None


async def test_a_station_without_an_address_mints_no_token(bed: Bed) -> None:
    settings = Settings(bed.home, sandbox=SandboxSettings(serves_others=True))
    access = await Access.load(bed.documents, settings, bed.home, now=lambda: bed.now, clock=lambda: bed.now)
    await access.deployments.create("one")
    with pytest.raises(Refused, match=r"access\.url"):
        await access.deployments.token("one", None)
    access.open_tcp(URL, OPERATORS)
    assert whose(access, await minted(access)) is not None


# ── API keys ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_key_is_the_operators_and_only_its_digest_is_kept(bed: Bed, access: Access) -> None:
    made = await access.keys.create(KeyRequest("laptop"))
    assert made.key.startswith(f"stn_{made.id}_")
    assert whose(access, made.key) == Principal(Kind.OPERATOR, key_id=made.id, name="laptop")
    secret = made.key.rpartition(f"{made.id}_")[2]
    assert len(base64.urlsafe_b64decode(secret + "=")) == 32
    kept = b"".join(document.value for document in await bed.documents.list("key"))
    assert secret.encode() not in kept
    assert hashlib.sha256(secret.encode()).hexdigest().encode() in kept
    assert secret not in repr(access.keys.list()) + repr(made)
    assert whose(await bed.load(), made.key) is not None, "a restart knows it"


async def test_a_key_that_differs_in_anything_is_nobodys(bed: Bed, access: Access) -> None:
    one, two = await access.keys.create(KeyRequest("one")), await access.keys.create(KeyRequest("two"))
    secret = two.key.rpartition(f"{two.id}_")[2]
    for which in (
        f"stn_{one.id}_{secret}", one.key[:-1], one.key + "x", one.key.upper(), one.key.lower(), f"stn_{one.id}_",
        f"stn_{one.id}", "stn_key_", f"stn_key__{secret}", one.key.replace("stn_", ""), one.key[:-1] + "\n",
        f"stn_key_{'0' * 26}_{'A' * 43}", one.key[:10] + "../" + one.key[10:],
    ):  # fmt: skip
        assert whose(access, which) is None, which
    assert whose(access, one.key) is not None


async def test_a_key_ends_with_its_time_and_at_once_when_it_is_revoked(bed: Bed, access: Access) -> None:
    short, kept = await access.keys.create(KeyRequest("short", "90s")), await access.keys.create(KeyRequest("kept"))
    bed.now += 89
    assert whose(access, short.key) is not None
    bed.now += 1
    assert whose(access, short.key) is None
    assert [key.name for key in access.keys.list()] == ["short", "kept"]
    await access.keys.revoke(kept.id)
    assert whose(access, kept.key) is None
    assert whose(await bed.load(), kept.key) is None
    with pytest.raises(NotFound):
        await access.keys.revoke(kept.id)
    with pytest.raises(InvalidInput):
        await access.keys.create(KeyRequest("x", "soon"))


async def test_the_last_use_is_told_at_once_and_written_once_a_minute(bed: Bed, access: Access) -> None:
    made = await access.keys.create(KeyRequest("laptop"))

    async def written() -> Any:
        (document,) = await bed.documents.list("key")
        return json.loads(document.value)["last_used_at"], document.revision

    assert (await written())[0] is None
    first = bed.now = bed.now + 1
    assert whose(access, made.key)
    assert access.keys.list()[0].last_used_at == first
    await access.keys.flush()
    assert await written() == (first, revision := (await written())[1])
    bed.now += USED_SECONDS - 1
    assert whose(access, made.key)
    await access.keys.flush()
    assert await written() == (first, revision)
    bed.now += 1
    assert whose(access, made.key)
    await access.keys.flush()
    assert (await written())[0] == bed.now
    bed.now += 1
    assert whose(access, made.key)
    await access.aclose()
    assert (await written())[0] == bed.now


async def test_a_use_that_is_written_late_brings_no_revoked_key_back(bed: Bed, access: Access) -> None:
    made = await access.keys.create(KeyRequest("laptop"))
    assert whose(access, made.key)
    await bed.documents.delete(f"key/{made.id}")  # by another hand, between the use and its writing
    await access.keys.flush()
    assert list(await bed.documents.list("key")) == []


async def test_a_damaged_document_is_nobodys_and_hides_no_other(bed: Bed, access: Access) -> None:
    made = await access.keys.create(KeyRequest("good"))
    for name, value in (("bad", b"{"), ("worse", b"[1]"), ("worst", b'{"id": "worst"}')):
        await bed.documents.create(f"key/{name}", value)
    again = await bed.load()
    assert [key.name for key in again.keys.list()] == ["good"]
    assert whose(again, made.key) is not None


async def test_the_operators_own_token_stays_what_it_is(access: Access) -> None:
    assert whose(access, OPERATORS) is OPERATOR
    for which in (b"", OPERATORS[:-1], OPERATORS + b"x"):
        assert whose(access, which) is None
