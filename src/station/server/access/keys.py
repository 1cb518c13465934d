"""API keys of the operator: shown once, kept as digests, gone at once when they are revoked."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import replace

from station.core.access import MAX_KEYS, ApiKey, KeyMade, KeyRequest, KeyView, check_access_name
from station.core.errors import Conflict, LimitReached, NotFound, StationError
from station.core.identity import unauthenticated
from station.core.ids import new_id
from station.core.principals import Kind, Principal
from station.core.stored import parse_ttl
from station.store.principals import Documents

from .kept import Kept

log = logging.getLogger(__name__)

PREFIX = b"stn_key_"
USED_SECONDS = 60.0
"""How far what is written down of a key's last use may be behind."""
_FORM = re.compile(rb"stn_(key_[0-9A-HJKMNP-TV-Z]{26})_([A-Za-z0-9_-]{43})")
_RANDOM_BYTES = 32
_NOBODYS = hashlib.sha256(b"").hexdigest()


class Keys:
    """Those of one station: in memory for whoever asks, written down before anybody is told."""

    def __init__(self, documents: Documents, now: Callable[[], float]) -> None:
        self._kept = Kept(documents, "key", ApiKey)
        self._now = now
        self._used: dict[str, float] = {}
        """By id, the last use that is not written down."""

    async def load(self) -> None:
        await self._kept.load()

    def principal(self, token: bytes) -> Principal:
        """Of whoever shows it. Raises Unauthenticated."""
        found = _FORM.fullmatch(token)
        key_id = found[1].decode() if found else ""
        key = self._kept.get(key_id)
        shown = hashlib.sha256(found[2] if found else b"").hexdigest()
        fits = hmac.compare_digest(shown, key.sha256 if key else _NOBODYS)
        now = self._now()
        if key is None or not fits or (key.expires_at is not None and now >= key.expires_at):
            raise unauthenticated()
        self._used[key_id] = now
        return Principal(Kind.OPERATOR, key_id=key_id, name=key.name)

    def list(self) -> list[KeyView]:
        """Oldest first; expired ones too, until they are revoked."""
        keys = (self._seen(key) for key in self._kept.all())
        return [KeyView(it.id, it.name, it.created_at, it.last_used_at, it.expires_at) for it in keys]

    async def create(self, wanted: KeyRequest) -> KeyMade:
        """Raises InvalidInput for a name that no key may have, and for a time to live that is none."""
        now = self._now()
        expires_at = None if wanted.ttl is None else now + parse_ttl(wanted.ttl)
        if len(self._kept.all()) >= MAX_KEYS:
            raise LimitReached(f"there are {MAX_KEYS} keys; revoke some", limit=MAX_KEYS, current=MAX_KEYS)
        secret = secrets.token_urlsafe(_RANDOM_BYTES)
        digest = hashlib.sha256(secret.encode()).hexdigest()
        key = ApiKey(new_id("key", now), check_access_name(wanted.name), digest, now, expires_at=expires_at)
        await self._kept.create(key.id, key)
        log.info("API key %s (%s) was made", key.id, key.name)
        return KeyMade(f"stn_{key.id}_{secret}", key.id, key.name, expires_at)

    async def revoke(self, key_id: str) -> None:
        """From its next request on it is good for nothing. Raises NotFound."""
        key = self._kept.get(key_id)
        if key is None:
            raise NotFound(f"there is no key {key_id[:80]!r}; `stn key list` has their ids", key=key_id[:80])
        await self._kept.delete(key_id)
        self._used.pop(key_id, None)
        log.info("API key %s (%s) was revoked", key.id, key.name)

    async def flush(self, *, all_of_them: bool = False) -> None:
        """Writes down last uses: of each key once a minute, unless `all_of_them`."""
        for key_id, at in list(self._used.items()):
            key = self._kept.get(key_id)
            if key is not None and not all_of_them and at - (key.last_used_at or 0) < USED_SECONDS:
                continue
            try:
                if key is not None:
                    await self._kept.put(key_id, replace(key, last_used_at=at))
            except Conflict:
                pass  # it has just been revoked
            except StationError as error:
                log.warning("the last use of key %s was not written: %s", key_id, error)
                continue
            if self._used.get(key_id) == at:
                del self._used[key_id]

    def _seen(self, key: ApiKey) -> ApiKey:
        return replace(key, last_used_at=self._used.get(key.id, key.last_used_at))
