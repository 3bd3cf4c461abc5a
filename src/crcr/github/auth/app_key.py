"""The App's own identity: a short-lived RS256 token made from its private key.

The key is loaded once, because that costs tens of milliseconds, and its text is not kept. Neither the key nor a
token shows in a repr or an error.
"""

from datetime import timedelta

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from crcr.github.api.core import Token
from crcr.ports import Clock

# GitHub refuses more than ten minutes ahead, and recommends a minute back for clocks that run ahead.
_BACKDATED = timedelta(seconds=60)
_LIFE = timedelta(minutes=9)
_RENEWED_BEFORE = timedelta(minutes=2)


def load_private_key(pem: str) -> RSAPrivateKey:
    """Return the key, or raise ValueError with a sentence for whoever configures the relay."""
    # One-line environment files write line ends as a backslash and an n.
    text = pem.strip().replace("\\n", "\n")
    try:
        key = load_pem_private_key(text.encode(), password=None)
    except TypeError:
        raise ValueError("The App's private key is protected by a password; store it without one.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("The App's private key is not a readable PEM file.") from None
    if not isinstance(key, RSAPrivateKey):
        raise ValueError("The App's private key is not an RSA key.")  # noqa: TRY004 - a value from a setting
    if key.key_size < 2048:
        raise ValueError("The App's private key has fewer than 2,048 bits.")
    return key


class AppAuth:
    """Signs as the App; one token serves all calls of about seven minutes."""

    __slots__ = ("_app_id", "_clock", "_key", "_token")

    def __init__(self, app_id: str, private_key_pem: str, clock: Clock) -> None:
        self._app_id = app_id
        self._key = load_private_key(private_key_pem)
        self._clock = clock
        self._token: Token | None = None

    def __repr__(self) -> str:
        return f"AppAuth({self._app_id!r})"

    def token(self) -> Token:
        now = self._clock.now()
        if self._token is None or now >= self._token.expires_at - _RENEWED_BEFORE:
            self._token = self._sign()
        return self._token

    def forget(self, token: Token) -> None:
        """Drop a token that GitHub refused, unless a newer one has taken its place."""
        if self._token is token:
            self._token = None

    def _sign(self) -> Token:
        now = self._clock.now()
        expires_at = now + _LIFE
        claims = {"iat": now - _BACKDATED, "exp": expires_at, "iss": self._app_id}
        return Token(jwt.encode(claims, self._key, algorithm="RS256"), expires_at)
