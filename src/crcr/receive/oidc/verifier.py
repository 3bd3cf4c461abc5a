"""Verifies a bearer token into an `Identity`: layer 1 of a callback, and the only maker of identities.

Nothing in a token is trusted before its signature is verified with a key of an issuer from the table; what is read
earlier is called `unverified_…` and only selects the issuer and the key. Times are checked against the injected clock. No
error contains the token, only what was expected and what its claims were.
"""

from binascii import a2b_base64
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512

from crcr.decide.model import is_repo_name
from crcr.decide.oidc.identity import Identity, IssuerKind
from crcr.decide.oidc.registration import (
    RULES,
    Registration,
    find_registration,
    missing_claims,
    registration_example,
    unmet_requirement,
)
from crcr.decide.row_dataclass import row_dataclass
from crcr.errors import KeysUnavailable, NotAuthentic, NotRegistered
from crcr.ports import Clock
from crcr.receive.oidc.claims_to_identity import read_github, read_registered
from crcr.receive.oidc.issuers import TrustedIssuer, organisation_issuer
from crcr.receive.oidc.jwks import KeyCache
from crcr.receive.oidc.signed_claims import NEW_TOKEN, SignedClaims, TokenTimes, check_times, read_times

MAX_TOKEN_BYTES = 16 * 1024
_MAX_PROOFS = 2_000
"""Of 1.5 KB each. The reports of one token come within minutes."""
_MAX_KID = 256

_REQUIRED = ("exp", "iat", "iss", "aud")


_HASHES = {"RS256": SHA256(), "RS384": SHA384(), "RS512": SHA512()}
_PADDING = PKCS1v15()
_BASE64URL = bytes.maketrans(b"-_+/=", b"+/!!!")
"""The letters of base64url as those of base64; the three that base64url does not have become invalid."""


class _UnverifiedHeader(msgspec.Struct, frozen=True):
    alg: str
    kid: str
    crit: object = msgspec.UNSET
    """Extensions that a verifier must understand (RFC 7515, 4.1.11). There are none that we do."""


@row_dataclass(frozen=True, slots=True)
class _UnverifiedToken:
    """The parts of a token (a compact JWS), with the issuer that it claims."""

    header: _UnverifiedHeader
    claims: bytes
    issuer: str
    signed_part: bytes
    signature: bytes


class _UnverifiedIssuer(msgspec.Struct, frozen=True):
    iss: str


_issuer_claim = msgspec.json.Decoder(_UnverifiedIssuer)
_header = msgspec.json.Decoder(_UnverifiedHeader)
_claims = msgspec.json.Decoder(dict[str, Any])


@row_dataclass(frozen=True, slots=True)
class _Proof:
    """A verified token, with what must still hold each time it is sent again."""

    identity: Identity
    times: TokenTimes
    issuer: TrustedIssuer
    kid: str
    key: RSAPublicKey


class OidcVerifier:
    """Verifies tokens, and caches the proof of each by the token's hash, because many reports may come with one token."""

    def __init__(
        self,
        issuers: Mapping[str, TrustedIssuer],
        audiences: Iterable[str],
        keys: KeyCache,
        clock: Clock,
        *,
        registrations: Iterable[Registration] = (),
        max_proofs: int = _MAX_PROOFS,
    ) -> None:
        self._issuers = dict(issuers)
        self._registrations = tuple(registrations)
        self._audiences = frozenset(audiences)
        if not self._audiences or "" in self._audiences:
            raise ValueError("at least one audience is needed, and none may be empty")
        self._keys = keys
        self._clock = clock
        self._max_proofs = max_proofs
        self._proofs: OrderedDict[bytes, _Proof] = OrderedDict()

    async def verify(self, unverified_token: str) -> Identity:
        unverified = _as_bytes(unverified_token)
        digest = sha256(unverified).digest()
        # Removed while it is checked: only a proof that still holds is put back, as the most recent.
        proof = self._proofs.pop(digest, None)
        if proof is None or await self._keys.find(proof.issuer, proof.kid) != proof.key:
            proof = await self._prove(unverified)
        else:
            check_times(proof.times, self._clock.now().timestamp())
        self._proofs[digest] = proof
        if len(self._proofs) > self._max_proofs:
            self._proofs.popitem(last=False)
        return proof.identity

    async def _prove(self, unverified: bytes) -> _Proof:
        unverified_token = _read_unverified(unverified)
        unverified_header = unverified_token.header
        issuer = self._issuer(unverified_token.issuer)
        if unverified_header.alg not in issuer.algorithms:
            raise NotAuthentic(
                f"the token is signed with {ascii(unverified_header.alg)[:20]}; "
                f"{issuer.issuer} signs with {' or '.join(issuer.algorithms)}",
                hint=NEW_TOKEN,
            )
        key = await self._find_key(issuer, unverified_header.kid)
        claims = _verified_claims(unverified_token, issuer, key)
        try:
            self._check(claims, issuer)
            times = read_times(claims, issuer)
            check_times(times, self._clock.now().timestamp())
            signed = SignedClaims(issuer, claims, datetime.fromtimestamp(times.ends_at, UTC))
            return _Proof(self._read(signed), times, issuer, unverified_header.kid, key)
        except NotAuthentic as refusal:
            refusal.signed_by, refusal.signed_id = self._signed_by(issuer, claims)
            raise

    async def _find_key(self, issuer: TrustedIssuer, unverified_kid: str) -> RSAPublicKey:
        try:
            return await self._keys.find(issuer, unverified_kid)
        except KeysUnavailable:
            if issuer.listed:
                raise
            # No token of this issuer would be accepted, so waiting does not help.
            raise self._unknown_issuer(issuer.issuer) from None

    def _read(self, signed: SignedClaims) -> Identity:
        if signed.issuer.kind is IssuerKind.GITHUB:
            return read_github(signed)
        registration = self._registered(signed.issuer, signed.claims)
        problem = unmet_requirement(registration, signed.claims)
        if problem is not None:
            raise NotAuthentic(
                f"this build may not speak for {registration.repository}: {problem}",
                hint="report from a build of a registered branch, or ask the relay's operator to register this one",
            )
        return read_registered(signed, registration)

    def _find(self, issuer: TrustedIssuer, claims: Mapping[str, Any]) -> Registration | None:
        return find_registration(
            (registration for registration in self._registrations if registration.issuer == issuer.issuer),
            claims,
        )

    def _registered(self, issuer: TrustedIssuer, claims: Mapping[str, Any]) -> Registration:
        registration = self._find(issuer, claims)
        if registration is None:
            raise _not_registered(issuer.kind, issuer.issuer, claims)
        return registration

    def _signed_by(self, issuer: TrustedIssuer, claims: Mapping[str, Any]) -> tuple[str | None, int | None]:
        """Return the repository that the signature proves; whether the token is accepted is another question."""
        if issuer.kind is IssuerKind.GITHUB:
            name, number = claims.get("repository"), claims.get("repository_id")
            if not isinstance(name, str) or not is_repo_name(name) or not isinstance(number, str):
                return None, None
            plain = number.isascii() and number.isdigit() and len(number) < 19
            return (name, int(number)) if plain else (None, None)
        registration = self._find(issuer, claims)
        return (str(registration.repository), None) if registration else (None, None)

    def _issuer(self, unverified_issuer: str) -> TrustedIssuer:
        issuer = self._issuers.get(unverified_issuer) or organisation_issuer(unverified_issuer)
        if issuer is None:
            raise self._unknown_issuer(unverified_issuer)
        return issuer

    def _unknown_issuer(self, unverified_issuer: str) -> NotAuthentic:
        return NotAuthentic(
            f"the issuer {ascii(unverified_issuer)[:200]} is not known; known are {', '.join(self._issuers)}",
            hint="send a token of a known issuer, or ask the relay's operator to add yours",
        )

    def _check(self, claims: Mapping[str, Any], issuer: TrustedIssuer) -> None:
        for name in _REQUIRED:
            if name not in claims:
                raise NotAuthentic(f"the token has no claim {name!r}", hint=NEW_TOKEN)
        if claims["iss"] != issuer.issuer:
            raise NotAuthentic(f"the token is not issued by {issuer.issuer}", hint=NEW_TOKEN)
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        # Another recipient of the token could send it to us, so every entry of a list must be ours.
        if not audiences or not all(
            isinstance(audience, str) and audience in self._audiences for audience in audiences
        ):
            raise self._wrong_audience()

    def _wrong_audience(self) -> NotAuthentic:
        """The token's own audience is the sender's text and not repeated: refusals are shown on pages."""
        expected = " or ".join(sorted(self._audiences))
        return NotAuthentic(
            f"the token is for another audience; expected {expected}",
            hint=f"ask the issuer for a token with the audience {expected}, and no other",
        )


def _verified_claims(
    unverified: _UnverifiedToken, issuer: TrustedIssuer, key: RSAPublicKey
) -> dict[str, Any]:
    """Return the claims of a token that `key` has signed; the caller has found its algorithm among the issuer's."""
    if unverified.header.crit is not msgspec.UNSET:
        raise _unusable()
    try:
        key.verify(unverified.signature, unverified.signed_part, _PADDING, _HASHES[unverified.header.alg])
    except InvalidSignature:
        raise NotAuthentic(
            f"the signature is not by {issuer.issuer}", hint="send the token unchanged, as the issuer gave it"
        ) from None
    try:
        return _claims.decode(unverified.claims)
    except (ValueError, RecursionError):
        raise _unusable() from None


def _as_bytes(unverified_token: str) -> bytes:
    # Characters are counted first, so that an oversized text is not even copied.
    if len(unverified_token) > MAX_TOKEN_BYTES:
        raise NotAuthentic(f"the token is longer than {MAX_TOKEN_BYTES:,} bytes", hint=NEW_TOKEN)
    try:
        return unverified_token.encode("ascii")
    except UnicodeEncodeError:
        raise _not_a_token() from None


def _read_unverified(unverified: bytes) -> _UnverifiedToken:
    """Take the token apart. Its header and issuer select the key."""
    signed_part, _, signature = unverified.rpartition(b".")
    header, dot, claims = signed_part.partition(b".")
    if not dot or b"." in claims:
        raise _not_a_token()
    try:
        token = _UnverifiedToken(
            _header.decode(_from_base64url(header)),
            payload := _from_base64url(claims),
            _issuer_claim.decode(payload).iss,
            signed_part,
            _signature_bytes(signature),
        )
    except (ValueError, RecursionError):
        raise _not_a_token() from None
    if not 0 < len(token.header.kid) <= _MAX_KID:
        raise _not_a_token()
    return token


def _signature_bytes(text: bytes) -> bytes:
    """Return the signature; none where the text is not base64url, which no key has signed."""
    try:
        return _from_base64url(text)
    except ValueError:
        return b""


def _from_base64url(text: bytes) -> bytes:
    return a2b_base64(text.translate(_BASE64URL) + b"=" * (-len(text) % 4), strict_mode=True)


def _not_registered(kind: IssuerKind, issuer: str, claims: Mapping[str, Any]) -> NotRegistered:
    """Refuse an authentic token of an unregistered pipeline, with the ids that its sender should have registered."""
    absent = missing_claims(kind, claims)
    prefix = f"the token lacks {' and '.join(absent)}; " if absent else ""
    hint = f"ask the relay's operator to add: {registration_example(kind, issuer, claims)}"
    return NotRegistered(
        f"{prefix}no registration names this pipeline of {ascii(issuer)[:200]}",
        hint=f"first ask for the ids: {RULES[kind].ask}; then {hint}" if absent else hint,
    )


def _unusable() -> NotAuthentic:
    return NotAuthentic("the token cannot be used", hint=NEW_TOKEN)


def _not_a_token() -> NotAuthentic:
    return NotAuthentic(
        "this is not an OIDC token: it needs three parts, `alg` and `kid` in its header, and `iss` in its claims",
        hint="send `Authorization: Bearer <token>` with the token of the job, not a GITHUB_TOKEN or an access token",
    )
