"""Signing keys of a simulated OIDC issuer: RSA keys, rotation, the JWKS document, signatures.

Keys are generated at run time and never stored. Generating one takes tens of milliseconds, so each named slot is
generated once per process. Each issuer has its own slots, so no issuer can sign for another.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from github_sim.world.records import Json


@functools.cache
def rsa_key(slot: str) -> rsa.RSAPrivateKey:
    if not slot:
        raise ValueError("a key slot needs a name")
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@functools.cache
def private_pem(slot: str) -> str:
    return (
        rsa_key(slot)
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        .decode()
    )


@functools.cache
def public_pem(slot: str) -> bytes:
    return (
        rsa_key(slot)
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


class SigningKeys:
    def __init__(self, slot: str, kid: str) -> None:
        self._slot = slot
        self._kid = kid
        self._generation = 1
        self._published = [1]

    @property
    def key_slot(self) -> str:
        return f"{self._slot}-{self._generation}"

    @property
    def kid(self) -> str:
        return f"{self._kid}-{self._generation}"

    def rotate(self, *, retire_old: bool = False) -> None:
        """Sign with a new key from now on; the old one stays in the JWKS unless it is retired."""
        self._generation += 1
        self._published = [self._generation] if retire_old else [*self._published, self._generation]

    def jwks(self) -> Json:
        return {"keys": [self._public_jwk(generation) for generation in self._published]}

    def sign(self, claims: Mapping[str, Any], *, headers: Mapping[str, Any] | None = None) -> str:
        header = {"kid": self.kid, **(headers or {})}
        return jwt.encode(dict(claims), rsa_key(self.key_slot), algorithm="RS256", headers=header)

    def _public_jwk(self, generation: int) -> Json:
        public = RSAAlgorithm.to_jwk(rsa_key(f"{self._slot}-{generation}").public_key(), as_dict=True)
        return {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": f"{self._kid}-{generation}",
            "n": public["n"],
            "e": public["e"],
        }
