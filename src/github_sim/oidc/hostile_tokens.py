"""Tokens that a verifier must refuse, each wrong in exactly one way.

Everything else about them is right, so a test sees that this one check is made.
"""

import base64
import enum
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import datetime, timedelta

import jwt

from github_sim.oidc.rsa_keys import public_pem, rsa_key
from github_sim.oidc.signing import Signing
from github_sim.world.records import Json


class Hostile(enum.Enum):
    ALG_NONE = "no signature at all"
    HS256_PUBLIC_KEY = "HMAC with the public key as its secret"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    OTHER_AUDIENCE = "made for somebody else"
    OTHER_ISSUER = "an unknown issuer"
    UNKNOWN_KID = "a key that the issuer never published"
    STRANGERS_KEY = "a published key id, signed by a stranger"
    NO_KID = "no key id"
    OVERSIZED = "one claim of 256 KB"
    TAMPERED = "claims changed after signing"
    NOT_JWT = "not a token at all"


def hostile_token(issuer: Signing, kind: Hostile, claims: Json, now: datetime) -> str:
    """Turn good claims into a token that is wrong in the given way."""
    if kind in _CLAIM_CHANGES:
        return issuer.sign({**claims, **_CLAIM_CHANGES[kind](now)})
    if kind is Hostile.ALG_NONE:
        return jwt.encode(claims, "", algorithm="none", headers={"kid": issuer.kid})
    if kind is Hostile.HS256_PUBLIC_KEY:
        return _hmac_token(issuer, claims)
    if kind in {Hostile.UNKNOWN_KID, Hostile.STRANGERS_KEY}:
        kid = issuer.kid if kind is Hostile.STRANGERS_KEY else "never-published"
        return jwt.encode(claims, rsa_key("stranger"), algorithm="RS256", headers={"kid": kid})
    if kind is Hostile.NO_KID:
        return jwt.encode(claims, rsa_key("stranger"), algorithm="RS256")
    if kind is Hostile.TAMPERED:
        head, _, signature = issuer.sign(claims).split(".")
        return f"{head}.{_encoded({**claims, 'run_id': '1'})}.{signature}"
    return "not-a-token"


_CLAIM_CHANGES: dict[Hostile, Callable[[datetime], Json]] = {
    Hostile.EXPIRED: lambda now: {
        "iat": _seconds(now - timedelta(minutes=12)),
        "nbf": _seconds(now - timedelta(minutes=17)),
        "exp": _seconds(now - timedelta(minutes=7)),
    },
    Hostile.NOT_YET_VALID: lambda now: {
        "nbf": _seconds(now + timedelta(minutes=5)),
        "exp": _seconds(now + timedelta(minutes=10)),
    },
    Hostile.OTHER_AUDIENCE: lambda _: {"aud": "https://somebody-else.example"},
    Hostile.OTHER_ISSUER: lambda _: {"iss": "https://issuer.example"},
    Hostile.OVERSIZED: lambda _: {"padding": "x" * 256 * 1024},
}


def _seconds(at: datetime) -> int:
    return int(at.timestamp())


def _encoded(value: Json) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _hmac_token(issuer: Signing, claims: Json) -> str:
    """Made by hand, since the library refuses to use a public key as a secret."""
    signed = f"{_encoded({'alg': 'HS256', 'typ': 'JWT', 'kid': issuer.kid})}.{_encoded(claims)}"
    digest = hmac.new(public_pem(issuer.key_slot), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
