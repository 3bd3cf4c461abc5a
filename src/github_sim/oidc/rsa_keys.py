"""RSA keys of the simulator, made at run time and never stored.

Making one costs tens of milliseconds, so each named slot is made once per process and shared by all
simulators in it; different slots never share a key.
"""

import functools

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


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
