"""Turns a bearer token into a proved `Identity`: layer 1 of a callback, and the only maker of identities.

Nothing in a token is believed before its signature is checked with a key of an issuer from the table; what is
read earlier is called `unverified_…` and only chooses the issuer and the key. Times are checked against the
injected clock. No error holds the token, only what was expected and what its claims said.
"""

import base64
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, Protocol

import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from joserfc import jws
from joserfc.errors import BadSignatureError, JoseError
from joserfc.jwk import RSAKey
from joserfc.jws import JWSRegistry

from crcr.decide.identity import Identity
from crcr.errors import NotAuthentic, NotRegistered
from crcr.ports import Clock
from crcr.receive.issuers import READERS, Issuer, SignedClaims, kind_by_name

MAX_TOKEN_BYTES = 16 * 1024
LEEWAY_S = 60
_MAX_PROOFS = 10_000
_MAX_KID = 256
_END_OF_TIME = 253_402_300_800  # the year 10000, where `datetime` ends

_NEW_TOKEN = "ask the issuer for a new token right before the report is sent"  # noqa: S105

_REQUIRED = ("exp", "iat", "iss", "aud")


class _Signatures(JWSRegistry):
    """What joserfc may meet: our own caps come first, and unknown header fields decide nothing."""

    max_header_length = MAX_TOKEN_BYTES
    max_payload_length = MAX_TOKEN_BYTES
    max_signature_length = MAX_TOKEN_BYTES


class KeySource(Protocol):
    async def find(self, issuer: Issuer, unverified_kid: str) -> RSAPublicKey:
        """Return the key, or raise `NotAuthentic` (not the issuer's) or `KeysUnavailable` (cannot say)."""
        ...


class _UnverifiedHeader(msgspec.Struct, frozen=True):
    alg: str
    kid: str


class _UnverifiedClaims(msgspec.Struct, frozen=True):
    iss: str
    aud: Any = None


_header = msgspec.json.Decoder(_UnverifiedHeader)
_claims = msgspec.json.Decoder(_UnverifiedClaims)
_signed_claims = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class _Times:
    issued_at: float
    not_before: float
    expires_at: float
    max_age_s: int

    @property
    def ends_at(self) -> float:
        """By `exp` or by the issuer's maximum age, whichever comes first."""
        return min(self.expires_at, self.issued_at + self.max_age_s)


@dataclass(frozen=True, slots=True)
class _Proof:
    """A verified token, with what must still hold each time it is shown again."""

    identity: Identity
    times: _Times
    issuer: Issuer
    kid: str
    key: RSAPublicKey


class OidcVerifier:
    """Implements `ports.Verifier`. Remembers proofs by the token's hash, because a token may carry many reports."""

    def __init__(
        self,
        issuers: Mapping[str, Issuer],
        audiences: Iterable[str],
        keys: KeySource,
        clock: Clock,
        *,
        max_proofs: int = _MAX_PROOFS,
    ) -> None:
        self._issuers = dict(issuers)
        self._audiences = frozenset(audiences)
        if not self._audiences or "" in self._audiences:
            raise ValueError("at least one audience is needed, and none may be empty")
        self._keys = keys
        self._clock = clock
        self._max_proofs = max_proofs
        self._proofs: OrderedDict[bytes, _Proof] = OrderedDict()
        self._jose_keys: deque[tuple[RSAPublicKey, RSAKey]] = deque(maxlen=16)

    async def verify(self, unverified_token: str) -> Identity:
        unverified = _as_bytes(unverified_token)
        digest = sha256(unverified).digest()
        # Taken out while it is judged: only a proof that still holds is put back, as the most recent.
        proof = self._proofs.pop(digest, None)
        if proof is None or await self._keys.find(proof.issuer, proof.kid) != proof.key:
            proof = await self._prove(unverified)
        _check_times(proof.times, self._clock.now().timestamp())
        self._proofs[digest] = proof
        if len(self._proofs) > self._max_proofs:
            self._proofs.popitem(last=False)
        return proof.identity

    async def _prove(self, unverified: bytes) -> _Proof:
        unverified_header, unverified_claims = _peek(unverified)
        issuer = self._issuer(unverified_claims.iss)
        if unverified_header.alg not in issuer.algorithms:
            raise NotAuthentic(
                f"the token is signed with {ascii(unverified_header.alg)[:20]}; "
                f"{issuer.issuer} signs with {' or '.join(issuer.algorithms)}",
                hint=_NEW_TOKEN,
            )
        key = await self._keys.find(issuer, unverified_header.kid)
        claims = self._decode(unverified, issuer, key, unverified_claims.aud)
        times = _read_times(claims, issuer)
        signed = SignedClaims(issuer, claims, datetime.fromtimestamp(times.ends_at, UTC))
        return _Proof(READERS[issuer.kind](signed), times, issuer, unverified_header.kid, key)

    def _issuer(self, unverified_issuer: str) -> Issuer:
        issuer = self._issuers.get(unverified_issuer)
        kind = issuer.kind if issuer else kind_by_name(unverified_issuer)
        if kind is None:
            raise NotAuthentic(
                f"the issuer {ascii(unverified_issuer)[:200]} is not known; known are {', '.join(self._issuers)}",
                hint="send a token of a known issuer, or ask the relay's operator to add yours",
            )
        if issuer is None or kind not in READERS:
            # Before any key is read: without registration no token of this kind could be taken.
            raise NotRegistered(
                f"tokens of {kind} name no repository, and no pipeline of {ascii(unverified_issuer)[:200]} is registered",
                hint="report from GitHub Actions; this relay cannot register other pipelines yet",
            )
        return issuer

    def _decode(
        self, unverified: bytes, issuer: Issuer, key: RSAPublicKey, unverified_aud: object
    ) -> dict[str, Any]:
        claims = _verified_claims(unverified, issuer, self._jose_key(key))
        for name in _REQUIRED:
            if name not in claims:
                raise NotAuthentic(f"the token has no claim {name!r}", hint=_NEW_TOKEN)
        if claims["iss"] != issuer.issuer:
            raise NotAuthentic(f"the token is not issued by {issuer.issuer}", hint=_NEW_TOKEN)
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        # Whoever else a token is meant for could show it to us, so every entry of a list must be ours.
        if not audiences or not all(isinstance(each, str) and each in self._audiences for each in audiences):
            raise self._wrong_audience(unverified_aud)
        return claims

    def _jose_key(self, key: RSAPublicKey) -> RSAKey:
        """The key as joserfc wants it; working that out costs as much as a signature, and keys change rarely."""
        for known, made in self._jose_keys:
            if known is key:
                return made
        made = RSAKey(key, key)
        self._jose_keys.appendleft((key, made))
        return made

    def _wrong_audience(self, got: object) -> NotAuthentic:
        expected = " or ".join(sorted(self._audiences))
        return NotAuthentic(
            f"the token is for the audience {ascii(got)[:200]}; expected {expected}",
            hint=f"ask the issuer for a token with the audience {expected}, and no other",
        )


@lru_cache(maxsize=64)
def _signatures(algorithms: tuple[str, ...]) -> _Signatures:
    return _Signatures(algorithms=list(algorithms), strict_check_header=False)


def _verified_claims(unverified: bytes, issuer: Issuer, key: RSAKey) -> dict[str, Any]:
    """The claims of a token whose signature is by `key`, with one of the issuer's own algorithms."""
    try:
        signed = jws.deserialize_compact(unverified, key, registry=_signatures(issuer.algorithms))
        return _signed_claims.decode(signed.payload)
    except BadSignatureError:
        raise NotAuthentic(
            f"the signature is not by {issuer.issuer}", hint="send the token unchanged, as the issuer gave it"
        ) from None
    except (JoseError, ValueError, RecursionError):
        raise NotAuthentic("the token cannot be used", hint=_NEW_TOKEN) from None


def _as_bytes(unverified_token: str) -> bytes:
    # Characters are counted first, so that an oversized text is not even copied.
    if len(unverified_token) > MAX_TOKEN_BYTES:
        raise NotAuthentic(f"the token is longer than {MAX_TOKEN_BYTES} bytes", hint=_NEW_TOKEN)
    try:
        return unverified_token.encode("ascii")
    except UnicodeEncodeError:
        raise _not_a_token() from None


def _peek(unverified: bytes) -> tuple[_UnverifiedHeader, _UnverifiedClaims]:
    parts = unverified.split(b".")
    if len(parts) != 3:
        raise _not_a_token()
    try:
        header = _header.decode(base64.urlsafe_b64decode(parts[0] + b"=="))
        claims = _claims.decode(base64.urlsafe_b64decode(parts[1] + b"=="))
    except (ValueError, RecursionError):
        raise _not_a_token() from None
    if not 0 < len(header.kid) <= _MAX_KID:
        raise _not_a_token()
    return header, claims


def _not_a_token() -> NotAuthentic:
    return NotAuthentic(
        "this is not an OIDC token: it needs three parts, `alg` and `kid` in its header, and `iss` in its claims",
        hint="send `Authorization: Bearer <token>` with the token of the job, not a GITHUB_TOKEN or an access token",
    )


def _read_times(claims: Mapping[str, Any], issuer: Issuer) -> _Times:
    expires_at, issued_at = _moment(claims, "exp"), _moment(claims, "iat")
    if expires_at <= issued_at:
        raise NotAuthentic("the token ends before it begins (`exp` is not after `iat`)", hint=_NEW_TOKEN)
    not_before = _moment(claims, "nbf") if "nbf" in claims else issued_at
    return _Times(issued_at, not_before, expires_at, issuer.max_age_s)


def _moment(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    # The comparison is False for NaN and needs no float of a thousand-digit number.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _END_OF_TIME:
        raise NotAuthentic(f"the claim {name!r} must be a time as a number of seconds", hint=_NEW_TOKEN)
    return float(value)


def _check_times(times: _Times, now: float) -> None:
    if now >= times.expires_at + LEEWAY_S:
        raise NotAuthentic(f"the token expired {now - times.expires_at:.0f} s ago (`exp`)", hint=_NEW_TOKEN)
    if now >= times.ends_at + LEEWAY_S:
        raise NotAuthentic(
            f"the token is {now - times.issued_at:.0f} s old (`iat`); at most {times.max_age_s} s are taken",
            hint=_NEW_TOKEN,
        )
    early_s = max(times.issued_at, times.not_before) - now
    if early_s > LEEWAY_S:
        raise NotAuthentic(
            f"the token begins {early_s:.0f} s from now (`iat` or `nbf`)",
            hint="set the clock of the machine that issued it; up to a minute of difference is taken",
        )
