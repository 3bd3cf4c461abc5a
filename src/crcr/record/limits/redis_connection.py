"""Connections to Redis: one small pool, time-outs below a second in total, and a circuit breaker.

A call either returns or raises `RedisDown` within the time-out. After a failure all calls fail at once for a second;
then one of them tries again, so that a recovered Redis is noticed within a second and a dead one delays no caller.
Logs and errors contain only the server's address and the kind of the fault.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

import structlog
from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import RedisError

from crcr.errors import CrcrError

T = TypeVar("T")

CALL_S = 0.7
"""The whole of a call: getting a connection, making a new one with TLS, sending, the answer."""
_STEP_S = 0.6
_PROBE_EVERY_S = 1.0
_CONNECTIONS = 8
_DEFAULT_PORT = 6379

log = structlog.get_logger(__name__)


class RedisDown(CrcrError):
    """Redis did not answer."""

    code = "redis_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisLocation:
    """The server's address, credentials and TLS settings."""

    host: str
    port: int
    number: int
    username: str | None
    password: str | None
    encrypted: bool
    ca: Path | None = None
    make_token: Callable[[], str] | None = None
    """Returns the password for a new connection, where the user signs in with short-lived tokens."""

    def __repr__(self) -> str:
        return f"RedisLocation({self})"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.encrypted else 'redis'}://{host}:{self.port}/{self.number}"


def parse_redis_url(url: str, ca: Path | None = None) -> RedisLocation:
    """Parse an address that the settings have validated."""
    parts = urlsplit(url)
    return RedisLocation(
        host=parts.hostname or "",
        port=parts.port or _DEFAULT_PORT,
        number=int(parts.path.strip("/") or 0),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        encrypted=parts.scheme == "rediss",
        ca=ca,
    )


class RedisLink:
    def __init__(
        self, location: RedisLocation, *, name: str = "crcr", monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`name` is the prefix of every key, so that a server can be shared."""
        self.location = location
        self._name = name
        self._monotonic = monotonic
        self._pool = _pool(location, self._credentials)
        self._redis = Redis.from_pool(self._pool)
        self._tries_again_at: float | None = None
        """None while Redis answers."""

    def sign_in_as(self, location: RedisLocation) -> None:
        """Sign new connections in with this location's user and password."""
        self.location = replace(self.location, username=location.username, password=location.password)

    def _credentials(self) -> tuple[str, ...]:
        location = self.location
        password = location.make_token() if location.make_token else location.password
        return tuple(word for word in (location.username, password) if word)

    def key(self, *parts: str) -> str:
        return ":".join((self._name, *parts))

    async def call(self, command: Callable[["Redis"], Awaitable[T]]) -> T:
        """Run a command, or raise `RedisDown`; the outcome of an interrupted call is unknown."""
        self._admit()
        try:
            async with _raising_cancel(), asyncio.timeout(CALL_S):
                answer = await command(self._redis)
        except (RedisError, OSError, TimeoutError) as fault:
            raise self._failed(fault) from None  # the driver's text may contain arguments
        self._answered()
        return answer

    async def renew_connections(self) -> None:
        """Close the idle connections: the next calls connect again."""
        with suppress(RedisError, OSError):  # they may be dead already
            await self._pool.disconnect(inuse_connections=False)

    async def aclose(self) -> None:
        await self._redis.aclose()
        await self._pool.aclose()

    def _admit(self) -> None:
        if self._tries_again_at is None:
            return
        now = self._monotonic()
        if now < self._tries_again_at:
            raise RedisDown(f"{self.location} did not answer a moment ago")
        self._tries_again_at = now + _PROBE_EVERY_S  # this call is the one that tries

    def _failed(self, fault: BaseException) -> RedisDown:
        kind = type(fault).__name__
        if self._tries_again_at is None:
            log.warning("redis_down", place=str(self.location), reason=kind)
        self._tries_again_at = self._monotonic() + _PROBE_EVERY_S
        return RedisDown(f"{self.location} did not answer: {kind}")

    def _answered(self) -> None:
        if self._tries_again_at is not None:
            log.info("redis_back", place=str(self.location))
            self._tries_again_at = None


@asynccontextmanager
async def _raising_cancel() -> AsyncIterator[None]:
    """Re-raise a cancellation that the driver swallows when its own step ends at the same time."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    yield
    if task and task.cancelling() > before:
        raise asyncio.CancelledError


class _Credentials(CredentialProvider):
    """User and password of each new connection: both may be rotated while the process runs."""

    def __init__(self, read: Callable[[], tuple[str, ...]]) -> None:
        self._read = read

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        return cast("tuple[str] | tuple[str, str]", self._read())

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return await asyncio.to_thread(self.get_credentials)  # a token may need a request for AWS credentials


def _pool(location: RedisLocation, credentials: Callable[[], tuple[str, ...]]) -> BlockingConnectionPool:
    signs_in = location.password or location.make_token
    common: dict[str, Any] = {
        "host": location.host,
        "port": location.port,
        "db": location.number,
        "credential_provider": _Credentials(credentials) if signs_in else None,
        "username": None if signs_in else location.username,
        "socket_connect_timeout": _STEP_S,
        "socket_timeout": _STEP_S,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "max_connections": _CONNECTIONS,
        "timeout": _STEP_S,
    }
    if not location.encrypted:
        return BlockingConnectionPool(connection_class=Connection, **common)
    proof: dict[str, Any] = {
        "ssl_ca_certs": str(location.ca) if location.ca else None,
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
    }
    return BlockingConnectionPool(connection_class=SSLConnection, **common, **proof)
