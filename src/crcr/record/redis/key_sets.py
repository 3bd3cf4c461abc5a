"""Issuers' key sets in Redis, for all replicas; a cache whose entries prove where they come from.

These keys decide whose tokens count, and Redis is not where that is decided: every entry carries an HMAC over its
issuer, its time and its text, made with a key that only the relay's processes can make. What does not prove
itself is passed over like nothing. An old entry that is put back is not newer than what is known, or too old.
"""

import asyncio
import hashlib
import hmac
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from crcr.decide.report.identity import KeySetText
from crcr.record.redis.connection import RedisDown, RedisLink
from crcr.record.store.times import from_us, to_us

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger(__name__)

_PURPOSE = b"crcr key sets in Redis, 1"
_MAC_BYTES, _TIME_BYTES = 32, 8
_MAX_BYTES = 256 * 1024 + _MAC_BYTES + _TIME_BYTES
_LOOKS = 15
_PAUSE_S = 0.2


class RedisKeySets:
    """Implements `receive.oidc.shared_key_sets.KeySets`."""

    def __init__(self, link: RedisLink, *, secret: bytes) -> None:
        self._link = link
        self._key = hmac.digest(secret, _PURPOSE, hashlib.sha256)

    async def recall(self, issuer: str) -> KeySetText | None:
        try:
            stored = await self._link.call(lambda redis: _get(redis, self._entry(issuer)))
        except RedisDown:
            return None
        return self._proved(issuer, stored) if stored else None

    async def claim(self, issuer: str, for_: timedelta) -> bool:
        try:
            return await self._link.call(lambda redis: _claim(redis, self._claim(issuer), for_))
        except RedisDown:
            return True

    async def await_other(self, issuer: str) -> KeySetText | None:
        before = await self.recall(issuer)
        for _ in range(_LOOKS):
            await asyncio.sleep(_PAUSE_S)
            found = await self.recall(issuer)
            if found is not None and found != before:
                return found
        return before

    async def keep(self, issuer: str, found: KeySetText, for_: timedelta) -> None:
        moment = to_us(found.read_at).to_bytes(_TIME_BYTES, "big")
        entry = self._mac(issuer, moment, found.raw) + moment + found.raw
        if len(entry) > _MAX_BYTES:
            return
        try:
            await self._link.call(lambda redis: _keep(redis, self._entry(issuer), entry, for_))
            await self._link.call(lambda redis: _end(redis, self._claim(issuer)))
        except RedisDown:
            return

    def _proved(self, issuer: str, stored: bytes) -> KeySetText | None:
        mac, moment = stored[:_MAC_BYTES], stored[_MAC_BYTES : _MAC_BYTES + _TIME_BYTES]
        raw = stored[_MAC_BYTES + _TIME_BYTES :]
        if len(stored) > _MAX_BYTES or not hmac.compare_digest(mac, self._mac(issuer, moment, raw)):
            log.warning("shared_keys_not_proved", issuer=issuer)
            return None
        return KeySetText(raw, from_us(int.from_bytes(moment, "big")))

    def _mac(self, issuer: str, moment: bytes, raw: bytes) -> bytes:
        named = hashlib.sha256(issuer.encode()).digest()
        return hmac.digest(self._key, named + moment + raw, hashlib.sha256)

    def _entry(self, issuer: str) -> str:
        return self._link.key("keys", _short(issuer))

    def _claim(self, issuer: str) -> str:
        return self._link.key("keys-read", _short(issuer))


def _short(issuer: str) -> str:
    return hashlib.sha256(issuer.encode()).hexdigest()[:32]


async def _get(redis: "Redis", key: str) -> bytes:
    # A range: somebody else's value may be of any size.
    found = await redis.getrange(key, 0, _MAX_BYTES)
    return found if isinstance(found, bytes) else found.encode()


async def _claim(redis: "Redis", key: str, for_: timedelta) -> bool:
    return bool(await redis.set(key, b"1", nx=True, px=for_))


async def _keep(redis: "Redis", key: str, entry: bytes, for_: timedelta) -> None:
    await redis.set(key, entry, px=for_)


async def _end(redis: "Redis", key: str) -> None:
    await redis.delete(key)
