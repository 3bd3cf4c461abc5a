"""Issuers' keys shared through Redis: many replicas read like one, and Redis decides nothing about trust."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from crcr.decide.report.identity import IssuerKind, KeySetText
from crcr.errors import KeysUnavailable, NotAuthentic
from crcr.receive.oidc.issuers import GITHUB_ACTIONS, complete_issuer
from crcr.receive.oidc.jwks import KeyCache
from crcr.record.redis.connection import RedisLink, parse_redis_url
from crcr.record.redis.key_sets import RedisKeySets
from support.clock import ManualClock, settle
from support.services.redis import RedisServer, new_name, shared_redis

GITHUB = complete_issuer(GITHUB_ACTIONS, IssuerKind.GITHUB)
OTHER = complete_issuer("https://ghe.example/_services/token", IssuerKind.GITHUB)
OLD, NEW, FORGED = (rsa.generate_private_key(65537, 2048).public_key() for _ in range(3))
SECRET = b"the webhook secret of this relay"


def jwks(**keys: rsa.RSAPublicKey) -> bytes:
    return json.dumps(
        {"keys": [{**RSAAlgorithm.to_jwk(key, as_dict=True), "kid": kid} for kid, key in keys.items()]}
    ).encode()


@dataclass
class Endpoint:
    answer: bytes | None = field(default_factory=lambda: jwks(old=OLD))
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    clock: ManualClock = field(default_factory=ManualClock)
    reads: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    async def fetch(self, _: str) -> bytes:
        self.reads += 1
        await self.gate.wait()
        if self.answer is None:
            raise KeysUnavailable("down")
        return self.answer


OpenLink = Callable[..., RedisLink]


@pytest.fixture
async def links() -> AsyncIterator[OpenLink]:
    opened: list[RedisLink] = []
    name = new_name()

    def open_one(url: str | None = None) -> RedisLink:
        opened.append(RedisLink(parse_redis_url(url or shared_redis().url), name=name))
        return opened[-1]

    yield open_one
    for each in opened:
        await each.aclose()


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def replica(endpoint: Endpoint, links: OpenLink) -> Callable[..., KeyCache]:
    def make(url: str | None = None, secret: bytes = SECRET) -> KeyCache:
        return KeyCache(endpoint.fetch, endpoint.clock, shared=RedisKeySets(links(url), secret=secret))

    return make


Make = Callable[..., KeyCache]


async def stored(link: RedisLink) -> tuple[str, bytes]:
    [key] = await link.call(lambda redis: redis.keys(link.key("keys", "*")))
    value = await link.call(lambda redis: redis.get(key))
    assert isinstance(key, bytes)
    assert isinstance(value, bytes)
    return key.decode(), value


async def put(link: RedisLink, key: str, value: bytes) -> None:
    await link.call(lambda redis: redis.set(key, value))


async def test_what_one_replica_read_the_others_know(endpoint: Endpoint, replica: Make) -> None:
    for _ in range(5):
        assert await replica().find(GITHUB, "old") == OLD
    assert endpoint.reads == 1


async def test_replicas_that_need_a_key_at_once_read_it_once(endpoint: Endpoint, replica: Make) -> None:
    endpoint.gate.clear()
    finding = [asyncio.create_task(replica().find(GITHUB, "old")) for _ in range(5)]
    async with asyncio.timeout(10):
        while not endpoint.reads:
            await asyncio.sleep(0.01)
        endpoint.gate.set()
        assert await asyncio.gather(*finding) == [OLD] * 5
    assert endpoint.reads == 1


async def test_hammered_by_unknown_kids_many_replicas_read_once_per_cooldown(
    endpoint: Endpoint, replica: Make
) -> None:
    replicas = [replica() for _ in range(4)]
    for number in range(6):
        for each in replicas:
            with pytest.raises(NotAuthentic):
                await each.find(GITHUB, f"unknown-{number}")
        endpoint.clock.advance(10.5)
    assert endpoint.reads == 2


async def test_a_rotated_key_is_found_by_a_replica_that_knew_the_older_set(
    endpoint: Endpoint, replica: Make
) -> None:
    one, two = replica(), replica()
    await one.find(GITHUB, "old")
    await two.find(GITHUB, "old")
    endpoint.answer = jwks(old=OLD, new=NEW)
    endpoint.clock.advance(60)
    assert await one.find(GITHUB, "new") == NEW
    assert await two.find(GITHUB, "new") == NEW
    assert endpoint.reads == 2


async def test_a_replica_that_starts_late_takes_the_set_over_and_still_asks_for_a_newer_key(
    endpoint: Endpoint, replica: Make
) -> None:
    await replica().find(GITHUB, "old")
    endpoint.clock.advance(300)
    endpoint.answer = jwks(old=OLD, new=NEW)
    late = replica()
    assert await late.find(GITHUB, "old") == OLD
    assert endpoint.reads == 1
    assert await late.find(GITHUB, "new") == NEW
    assert endpoint.reads == 2


async def test_an_issuer_that_is_down_is_not_asked_by_every_replica(
    endpoint: Endpoint, replica: Make
) -> None:
    endpoint.answer = None
    finding = [replica().find(GITHUB, "old") for _ in range(3)]
    found = await asyncio.gather(*finding, return_exceptions=True)
    assert {type(each) for each in found} == {KeysUnavailable}
    assert endpoint.reads == 1


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "keys without a proof": lambda value: b"\0" * 32 + value[32:40] + jwks(old=FORGED),
    "other keys under a proof": lambda value: value[:40] + jwks(old=FORGED),
    "another time under a proof": lambda value: value[:39] + bytes([value[39] ^ 1]) + value[40:],
    "cut short": lambda value: value[:20],
    "nothing": lambda _: b"",
    "larger than any": lambda value: value + b" " * 400_000,
}


@pytest.mark.parametrize("case", FORGERIES)
async def test_who_writes_into_redis_makes_no_key_trusted(
    endpoint: Endpoint, replica: Make, links: OpenLink, case: str
) -> None:
    await replica().find(GITHUB, "old")
    key, value = await stored(links())
    await put(links(), key, FORGERIES[case](value))
    assert await replica().find(GITHUB, "old") == OLD
    assert endpoint.reads == 2


async def test_one_issuers_entry_is_no_proof_for_another(
    endpoint: Endpoint, replica: Make, links: OpenLink
) -> None:
    link = links()
    await replica().find(GITHUB, "old")
    _, value = await stored(link)
    shared = RedisKeySets(link, secret=SECRET)
    await put(link, shared._entry(OTHER.issuer), value)
    endpoint.answer = jwks(new=NEW)
    with pytest.raises(NotAuthentic):
        await replica().find(OTHER, "old")


async def test_a_relay_with_another_secret_is_not_believed(endpoint: Endpoint, replica: Make) -> None:
    await replica().find(GITHUB, "old")
    await replica(secret=b"somebody else's").find(GITHUB, "old")
    assert endpoint.reads == 2


async def test_an_old_entry_put_back_brings_no_withdrawn_key_back(
    endpoint: Endpoint, replica: Make, links: OpenLink
) -> None:
    one = replica()
    await one.find(GITHUB, "old")
    key, value = await stored(links())
    endpoint.answer = jwks(new=NEW)
    endpoint.clock.advance(timedelta(minutes=10, seconds=1))
    await one.find(GITHUB, "old")
    await settle()
    async with asyncio.timeout(10):
        while endpoint.reads < 2:
            await asyncio.sleep(0.01)
    assert await one.find(GITHUB, "new") == NEW
    await put(links(), key, value)
    for each in (one, replica()):
        with pytest.raises(NotAuthentic):
            await each.find(GITHUB, "old")


async def test_an_entry_of_the_future_is_passed_over(
    endpoint: Endpoint, replica: Make, links: OpenLink
) -> None:
    shared = RedisKeySets(links(), secret=SECRET)
    ahead = KeySetText(jwks(old=FORGED), endpoint.clock.now() + timedelta(hours=1))
    await shared.keep(GITHUB.issuer, ahead, timedelta(minutes=10))
    assert await replica().find(GITHUB, "old") == OLD


@pytest.fixture
def server() -> Iterator[RedisServer]:
    made = RedisServer.make()
    yield made
    made.remove()


async def test_without_redis_each_replica_reads_for_itself(
    endpoint: Endpoint, replica: Make, server: RedisServer
) -> None:
    server.stop()
    for _ in range(2):
        async with asyncio.timeout(2):
            assert await replica(server.url).find(GITHUB, "old") == OLD
    assert endpoint.reads == 2
