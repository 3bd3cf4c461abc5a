"""Authentication as a GitHub App: the App's own JWT, and installation tokens.

The private key is loaded once, because that costs tens of milliseconds, and its text is not kept. Neither the key nor a
token shows in a repr or an error. An installation token is minted for one scope: an installation, one repository where
its id is known, and the permissions of the calls that use it. Concurrent callers of a scope share one request and its
failure; a failure is not cached.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from crcr.github.api.request_response import Permissions, Token
from crcr.ports import Clock

# GitHub refuses more than ten minutes ahead, and recommends a minute back for clocks that run ahead.
_BACKDATED = timedelta(seconds=60)
_LIFE = timedelta(minutes=9)
_RENEWED_BEFORE = timedelta(minutes=2)


def load_private_key(pem: str) -> RSAPrivateKey:
    """Return the key, or raise ValueError with a sentence for the operator."""
    # One-line environment files write line ends as a backslash and an n.
    text = pem.strip().replace("\\n", "\n")
    try:
        # The settings have checked that the key's numbers fit together, which takes OpenSSL some 40 ms.
        key = load_pem_private_key(text.encode(), password=None, unsafe_skip_rsa_key_validation=True)
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
    """Signs JWTs as the App; one serves all calls of about seven minutes."""

    __slots__ = ("_app_id", "_clock", "_key", "_token")

    def __init__(self, app_id: str, private_key_pem: str, clock: Clock) -> None:
        self._app_id = app_id
        self._key = load_private_key(private_key_pem)
        self._clock = clock
        self._token: Token | None = None

    def __repr__(self) -> str:
        return f"AppAuth({self._app_id!r})"

    def replace_key(self, private_key_pem: str) -> None:
        """Sign with another key of the App from now on."""
        self._key = load_private_key(private_key_pem)
        self._token = None

    def token(self) -> Token:
        now = self._clock.now()
        if self._token is None or now >= self._token.expires_at - _RENEWED_BEFORE:
            self._token = self._sign()
        return self._token

    def forget(self, token: Token) -> None:
        """Drop a token that GitHub refused, unless a newer one has replaced it."""
        if self._token is token:
            self._token = None

    def _sign(self) -> Token:
        now = self._clock.now()
        expires_at = now + _LIFE
        claims = {"iat": now - _BACKDATED, "exp": expires_at, "iss": self._app_id}
        return Token(jwt.encode(claims, self._key, algorithm="RS256"), expires_at)


@dataclass(frozen=True, slots=True)
class TokenScope:
    """What a token is valid for; without a repository's id or name, all repositories of the installation."""

    installation_id: int
    repository_id: int | None
    permissions: Permissions
    repository: str | None = None
    """The name without its owner, where the id is not known yet."""


MintToken = Callable[[TokenScope], Awaitable[Token]]


class TokenCache:
    """Installation tokens by scope; beyond `size` the least recently used one is dropped."""

    __slots__ = ("_clock", "_pending", "_renew_before", "_size", "_tokens")

    def __init__(self, clock: Clock, *, renew_before_s: float = 300.0, size: int = 4096) -> None:
        self._clock = clock
        self._renew_before = timedelta(seconds=renew_before_s)
        self._size = size
        self._tokens: OrderedDict[TokenScope, Token] = OrderedDict()
        self._pending: dict[TokenScope, asyncio.Task[Token]] = {}

    def __repr__(self) -> str:
        return f"TokenCache({len(self._tokens)} tokens)"

    async def get(self, scope: TokenScope, mint: MintToken) -> Token:
        cached = self._tokens.get(scope)
        if cached is not None and self._clock.now() < cached.expires_at - self._renew_before:
            self._tokens.move_to_end(scope)
            return cached
        task = self._pending.get(scope)
        if task is None or task.done():
            task = self._start_minting(scope, mint)
        # A task of its own: cancelling one waiter does not cancel the request for the others.
        await asyncio.wait((task,))
        return task.result()

    def forget(self, scope: TokenScope, token: Token) -> None:
        """Drop a token that GitHub refused, unless a newer one has replaced it."""
        if self._tokens.get(scope) is token:
            del self._tokens[scope]

    def _start_minting(self, scope: TokenScope, mint: MintToken) -> asyncio.Task[Token]:
        task = asyncio.create_task(self._mint_and_cache(scope, mint))
        self._pending[scope] = task
        task.add_done_callback(partial(self._on_minted, scope))
        return task

    async def _mint_and_cache(self, scope: TokenScope, mint: MintToken) -> Token:
        token = await mint(scope)
        self._tokens[scope] = token
        self._tokens.move_to_end(scope)
        while len(self._tokens) > self._size:
            self._tokens.popitem(last=False)
        return token

    def _on_minted(self, scope: TokenScope, task: asyncio.Task[Token]) -> None:
        if self._pending.get(scope) is task:
            del self._pending[scope]
        # All waiters may have been cancelled; reading the error keeps the loop from logging it as never retrieved.
        if not task.cancelled():
            task.exception()
