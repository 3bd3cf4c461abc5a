"""The public keys of the issuers, read from their JWKS endpoints and cached in memory.

A caller whose key is cached never waits: an old key set is renewed in the background, and stays usable for a day while the
endpoint is down. Only an unknown `kid` waits for a read, which all waiting callers share, and reads are at least a cooldown
apart whatever callers send. While the keys cannot be read the verdict is "cannot say", never "not authentic". Each
process reads for itself, a listed issuer once an hour.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import httpx
import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import InvalidKeyError
from jwt.algorithms import RSAAlgorithm

from crcr.errors import KeysUnavailable, NotAuthentic
from crcr.ports import Clock
from crcr.receive.oidc.issuers import TrustedIssuer, is_safe_address

Fetch = Callable[[str], Awaitable[bytes]]
"""Reads an address, or raises `KeysUnavailable`."""

FETCH_TIMEOUT_S = 3.0
MAX_JWKS_BYTES = 256 * 1024
_DISCOVERY = "/.well-known/openid-configuration"
_MAX_KEYS = 100
_MAX_UNLISTED = 32
"""How many key sets of issuers outside the table are cached."""
_BETWEEN_UNLISTED = timedelta(seconds=1)
_KEY_BITS = range(2048, 8192 + 1)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KeyAges:
    """Keys are `fresh` for a while, then renewed; `usable` much longer, while the issuer cannot be read."""

    fresh: timedelta = timedelta(hours=1)
    usable: timedelta = timedelta(hours=24)
    cooldown: timedelta = timedelta(seconds=30)


@dataclass(slots=True)
class _KeySet:
    keys: dict[str, RSAPublicKey] = field(default_factory=dict)
    read_at: datetime | None = None
    tried_at: datetime | None = None
    answered: bool = False
    """Whether the last read succeeded; False during a read."""
    reading: asyncio.Task[None] | None = None

    def is_within(self, age: timedelta, now: datetime) -> bool:
        return self.read_at is not None and now - self.read_at <= age


class KeyCache:
    """One key set per issuer of the table, and a few of others, so callers cannot make it grow.

    Callers choose which unlisted issuers there are, so all of these together are read at most once a second.
    """

    def __init__(
        self,
        fetch: Fetch,
        clock: Clock,
        ages: KeyAges | None = None,
        on_read: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_read` gets the outcome of each read: read or failed."""
        self._fetch = fetch
        self._clock = clock
        self._ages = ages or KeyAges()
        self._on_read = on_read
        self._key_sets: dict[str, _KeySet] = {}
        self._unlisted: OrderedDict[str, _KeySet] = OrderedDict()
        self._unlisted_tried_at: datetime | None = None

    async def find(self, issuer: TrustedIssuer, unverified_kid: str) -> RSAPublicKey:
        """Return the key, or raise `NotAuthentic` (not the issuer's) or `KeysUnavailable` (cannot say)."""
        held = self._hold(issuer)
        now = self._clock.now()
        key = self._usable(held, unverified_kid)
        if key is None:
            if reading := self._start_reading(issuer, held):
                # `wait` does not cancel the read for other callers when this one is cancelled.
                await asyncio.wait([reading])
            key = self._usable(held, unverified_kid)
        elif not held.is_within(self._ages.fresh, now):
            self._start_reading(issuer, held)
        if key is None:
            raise self._refusal(issuer, held, unverified_kid)
        return key

    def _hold(self, issuer: TrustedIssuer) -> _KeySet:
        if issuer.listed:
            return self._key_sets.get(issuer.issuer) or self._key_sets.setdefault(issuer.issuer, _KeySet())
        held = self._unlisted.setdefault(issuer.issuer, _KeySet())
        self._unlisted.move_to_end(issuer.issuer)
        if len(self._unlisted) > _MAX_UNLISTED:
            _, oldest = self._unlisted.popitem(last=False)
            if oldest.reading is not None:
                oldest.reading.cancel()
        return held

    async def aclose(self) -> None:
        every = (*self._key_sets.values(), *self._unlisted.values())
        under_way = [held.reading for held in every if held.reading is not None]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def _usable(self, held: _KeySet, kid: str) -> RSAPublicKey | None:
        return held.keys.get(kid) if held.is_within(self._ages.usable, self._clock.now()) else None

    def _start_reading(self, issuer: TrustedIssuer, held: _KeySet) -> asyncio.Task[None] | None:
        """Return the read in progress, or start one; None while the last one is too recent."""
        if held.reading is None and not self._cooldown_left(held) and self._may_read(issuer):
            held.tried_at, held.answered = self._clock.now(), False
            held.reading = asyncio.create_task(self._read(issuer, held), name=f"keys of {issuer.issuer}")
        return held.reading

    def _may_read(self, issuer: TrustedIssuer) -> bool:
        if issuer.listed:
            return True
        now, last = self._clock.now(), self._unlisted_tried_at
        if last is not None and now - last < _BETWEEN_UNLISTED:
            return False
        self._unlisted_tried_at = now
        return True

    async def _read(self, issuer: TrustedIssuer, held: _KeySet) -> None:
        try:
            held.keys = await read_keys(self._fetch, issuer)
        except KeysUnavailable as failure:
            log.warning("keys_read_failed", issuer=issuer.issuer, reason=failure.detail)
            self._on_read("failed")
            return
        finally:
            held.reading = None
        held.read_at, held.answered = self._clock.now(), True
        log.info("keys_read", issuer=issuer.issuer, keys=len(held.keys))
        self._on_read("read")

    def _cooldown_left(self, held: _KeySet) -> timedelta:
        if held.tried_at is None:
            return timedelta(0)
        return max(held.tried_at + self._ages.cooldown - self._clock.now(), timedelta(0))

    def _refusal(self, issuer: TrustedIssuer, held: _KeySet, kid: str) -> NotAuthentic | KeysUnavailable:
        if held.answered:
            return NotAuthentic(
                f"the token names the key {ascii(kid)[:200]}, which {issuer.issuer} does not publish",
                hint="ask the issuer for a new token; an edited or very old one cannot be used",
            )
        failure = KeysUnavailable(
            f"the keys of {issuer.issuer} cannot be read now, so the token cannot be checked",
            hint="send the same request again later",
        )
        failure.retry_after_s = max(self._cooldown_left(held).total_seconds(), 1.0)
        return failure


async def read_keys(fetch: Fetch, issuer: TrustedIssuer) -> dict[str, RSAPublicKey]:
    return parse_jwks(await read_key_set(fetch, issuer), issuer.algorithms)


async def read_key_set(fetch: Fetch, issuer: TrustedIssuer) -> bytes:
    """Read the key set at the table's address, or at the one in the issuer's discovery document."""
    if issuer.jwks_url is not None:
        return await fetch(issuer.jwks_url)
    document = await fetch(issuer.issuer.rstrip("/") + _DISCOVERY)
    return await fetch(parse_discovery(document, issuer))


class _Jwk(msgspec.Struct, frozen=True):
    kty: str = ""
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    n: str | None = None
    e: str | None = None


class _JwkSet(msgspec.Struct, frozen=True):
    keys: list[_Jwk]


class _Discovery(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


_jwk_set = msgspec.json.Decoder(_JwkSet)
_discovery = msgspec.json.Decoder(_Discovery)


def parse_discovery(raw: bytes, issuer: TrustedIssuer) -> str:
    """Return the address of the keys; a document for another issuer is refused."""
    try:
        document = _discovery.decode(raw)
    except (ValueError, RecursionError):
        raise KeysUnavailable("the issuer's discovery document is malformed") from None
    downgraded = issuer.issuer.startswith("https:") and not document.jwks_uri.startswith("https:")
    if document.issuer != issuer.issuer or downgraded or not is_safe_address(document.jwks_uri):
        raise KeysUnavailable("the discovery document names another issuer or an unsafe address")
    return document.jwks_uri


def parse_jwks(raw: bytes, algorithms: tuple[str, ...]) -> dict[str, RSAPublicKey]:
    """Return the usable RSA keys by `kid`; a set without any is refused, since it would lock everybody out."""
    try:
        listed = _jwk_set.decode(raw).keys[:_MAX_KEYS]
    except (ValueError, RecursionError):
        raise KeysUnavailable("the issuer's key set is malformed") from None
    usable = {jwk.kid: key for jwk in listed if jwk.kid and (key := _public_key(jwk, algorithms))}
    if not usable:
        raise KeysUnavailable("the issuer's key set holds no usable key")
    return usable


def _public_key(jwk: _Jwk, algorithms: tuple[str, ...]) -> RSAPublicKey | None:
    if jwk.kty != "RSA" or jwk.use not in {None, "sig"} or jwk.alg not in {None, *algorithms}:
        return None
    try:
        # Only the public members are used: a `d` would make it a private key.
        key = RSAAlgorithm.from_jwk({"kty": "RSA", "n": jwk.n, "e": jwk.e})
    except (InvalidKeyError, ValueError, TypeError):
        return None
    return key if isinstance(key, RSAPublicKey) and key.key_size in _KEY_BITS else None


def http_fetcher(client: httpx.AsyncClient) -> Fetch:
    """Read over HTTP without redirects, so that a key set comes from the table's address; bounded in time and size."""

    async def fetch(url: str) -> bytes:
        try:
            # httpx limits each read; the whole needs its own limit against a slow trickle.
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                return await _get(client, url)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as failure:
            raise KeysUnavailable(f"{url} did not answer: {type(failure).__name__}") from failure

    return fetch


async def _get(client: httpx.AsyncClient, url: str) -> bytes:
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    body = bytearray()
    async with client.stream(
        "GET", url, headers=headers, timeout=FETCH_TIMEOUT_S, follow_redirects=False
    ) as response:
        if response.status_code != httpx.codes.OK:
            raise KeysUnavailable(f"{url} answered {response.status_code}")
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_JWKS_BYTES:
                raise KeysUnavailable(f"{url} answered more than {MAX_JWKS_BYTES:,} bytes")
    return bytes(body)
