"""Findings about Redis, which counts rate limits: whether it answers, how fast, its eviction policy. Read-only."""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from crcr.join.findings.finding import SetupFinding, ok, problem, unknown, warning
from crcr.settings import Settings, SqliteSetting
from crcr.settings.readers.single_values import LOOPBACK
from crcr.wiring.rate_limits import open_redis

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from crcr.record.limits.redis_connection import RedisLink

_SLOW_S = 0.05
_KEEPS_ALL = "noeviction"


async def redis_findings(settings: Settings) -> tuple[SetupFinding, ...]:
    link = open_redis(settings)
    if link is None:
        return (_unused(settings),)
    try:
        return (*await _query_server(link), *_unencrypted(link))
    finally:
        await link.aclose()


def _unused(settings: Settings) -> SetupFinding:
    if isinstance(settings.database, SqliteSetting):
        return ok("redis", "Redis is not used; a single machine does not need it.")
    return warning(
        "redis",
        "Redis is not used, so each process counts rate limits on its own.",
        "with more than one `crcr serve`, set CRCR_REDIS_URL",
    )


async def _query_server(link: "RedisLink") -> tuple[SetupFinding, ...]:
    from crcr.record.limits.redis_connection import RedisDown  # loads the driver

    try:
        await link.call(_connect)
        began = time.monotonic()
        await link.call(_run_script)
        took_s = time.monotonic() - began
    except RedisDown as down:
        hint = "check CRCR_REDIS_URL, CRCR_REDIS_CA and the server; callbacks get 503 until it answers"
        return (problem("redis", f"Redis cannot be used: {down.detail}.", hint),)
    try:
        facts = await link.call(_info)
    except RedisDown:
        hint = "allow the user to run INFO for more checks; the relay does not need it"
        return (unknown("redis", f"Redis at {link.location} answers, but refuses INFO.", hint),)
    return (_answers(link, facts, took_s), *_memory(facts))


def _answers(link: "RedisLink", facts: Mapping[str, Any], took_s: float) -> SetupFinding:
    text = f"Redis {facts.get('redis_version', '?')} at {link.location} answers in {took_s * 1000:.1f} ms"
    if took_s > _SLOW_S:
        return warning("redis", f"{text}.", "every callback makes two round trips to it; move it closer")
    return ok("redis", f"{text}.")


def _memory(facts: Mapping[str, Any]) -> Iterator[SetupFinding]:
    most, policy = int(facts.get("maxmemory", 0)), str(facts.get("maxmemory_policy", _KEEPS_ALL))
    if most and policy != _KEEPS_ALL:
        yield warning(
            "redis_memory",
            f"A full Redis may evict rate-limit windows that still count (maxmemory-policy {policy}).",
            "set maxmemory-policy to noeviction: then callers get 503 instead of passing the limit",
        )


def _unencrypted(link: "RedisLink") -> Iterator[SetupFinding]:
    if not link.location.encrypted and link.location.host not in LOOPBACK:
        yield warning(
            "redis_tls",
            f"The connection to {link.location} is not encrypted.",
            "use rediss:// unless the network in between is private",
        )


async def _connect(redis: "Redis") -> None:
    await redis.ping()


async def _run_script(redis: "Redis") -> None:
    await redis.eval("return 1", 0)


async def _info(redis: "Redis") -> Mapping[str, Any]:
    server, memory = await redis.info("server"), await redis.info("memory")
    return {**server, **memory}
