"""Fault 25, the keys: an endpoint that is down, slow, rotated, malformed, or hammered by unknown `kid`s."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from crcr.decide.oidc.identity import IssuerKind
from crcr.errors import CrcrError, KeysUnavailable, NotAuthentic
from crcr.receive.oidc.issuers import GITHUB_ACTIONS, complete_issuer
from crcr.receive.oidc.jwks import MAX_JWKS_BYTES, KeyCache, http_fetcher, parse_jwks
from support.clock import ManualClock, settle

GITHUB = complete_issuer(GITHUB_ACTIONS, IssuerKind.GITHUB)
ENTERPRISE = complete_issuer("https://ghe.example/_services/token", IssuerKind.GITHUB)
OLD = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
NEW = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key()  # noqa: S505 - to be refused
MINUTES, HOURS = 60, 3600


def jwk(key: rsa.RSAPublicKey, **members: Any) -> dict[str, Any]:
    """Describe a key; an Ellipsis removes a member."""
    described = {**RSAAlgorithm.to_jwk(key, as_dict=True), "use": "sig", "alg": "RS256", **members}
    return {name: value for name, value in described.items() if value is not ...}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


@dataclass
class Endpoint:
    """A fake JWKS endpoint: `answer` None is an outage, a cleared `gate` holds every read."""

    answer: bytes | None = field(default_factory=lambda: jwks(jwk(OLD, kid="old")))
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    reads: list[str] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.gate.set()
        self.keys = KeyCache(self.fetch, self.clock)

    async def fetch(self, url: str) -> bytes:
        self.reads.append(url)
        await self.gate.wait()
        if self.answer is None:
            raise KeysUnavailable("down")
        return self.answer

    async def refusal(self, kid: str) -> CrcrError:
        with pytest.raises(CrcrError) as caught:
            await self.keys.find(GITHUB, kid)
        return caught.value


async def test_keys_are_read_once_for_all_concurrent_callers() -> None:
    endpoint = Endpoint()
    keys = await asyncio.gather(*(endpoint.keys.find(GITHUB, "old") for _ in range(50)))
    assert keys == [OLD] * 50
    assert endpoint.reads == [GITHUB.jwks_url]


async def test_cancelling_one_caller_does_not_cancel_the_read_of_the_others() -> None:
    endpoint = Endpoint()
    endpoint.gate.clear()
    leaving, staying = (asyncio.create_task(endpoint.keys.find(GITHUB, "old")) for _ in range(2))
    await settle()
    leaving.cancel()
    await settle()
    endpoint.gate.set()
    assert await staying == OLD
    assert len(endpoint.reads) == 1


async def test_down_from_the_start_is_unavailable_with_a_correct_retry_after() -> None:
    endpoint = Endpoint(answer=None)
    first = await endpoint.refusal("old")
    endpoint.clock.advance(10)
    second = await endpoint.refusal("old")
    assert isinstance(first, KeysUnavailable)
    assert isinstance(second, KeysUnavailable)
    assert (first.retry_after_s, second.retry_after_s, len(endpoint.reads)) == (30, 20, 1)
    endpoint.answer = jwks(jwk(OLD, kid="old"))
    endpoint.clock.advance(second.retry_after_s)
    assert await endpoint.keys.find(GITHUB, "old") == OLD


async def test_down_later_cached_keys_work_for_a_day_only() -> None:
    endpoint = Endpoint()
    await endpoint.keys.find(GITHUB, "old")
    endpoint.answer = None
    for _ in range(24):
        endpoint.clock.advance(1 * HOURS)
        assert await endpoint.keys.find(GITHUB, "old") == OLD
        await settle()
    endpoint.clock.advance(31)
    assert isinstance(await endpoint.refusal("old"), KeysUnavailable)


async def test_down_an_unknown_kid_raises_keys_unavailable() -> None:
    endpoint = Endpoint()
    await endpoint.keys.find(GITHUB, "old")
    endpoint.answer = None
    endpoint.clock.advance(31)
    assert isinstance(await endpoint.refusal("new"), KeysUnavailable)
    assert isinstance(await endpoint.refusal("new"), KeysUnavailable)
    assert len(endpoint.reads) == 2


async def test_slow_a_known_kid_is_served_while_the_renewal_hangs() -> None:
    endpoint = Endpoint()
    await endpoint.keys.find(GITHUB, "old")
    endpoint.gate.clear()
    endpoint.clock.advance(60 * MINUTES + 1)
    for _ in range(3):
        assert await endpoint.keys.find(GITHUB, "old") == OLD
        await settle()
    assert len(endpoint.reads) == 2
    await endpoint.keys.aclose()


async def test_slow_a_known_kid_does_not_wait_for_a_request_with_an_unknown_kid() -> None:
    endpoint = Endpoint()
    await endpoint.keys.find(GITHUB, "old")
    endpoint.gate.clear()
    endpoint.clock.advance(31)
    waiting = asyncio.create_task(endpoint.refusal("new"))
    await settle()
    assert await endpoint.keys.find(GITHUB, "old") == OLD
    assert not waiting.done()
    endpoint.gate.set()
    assert isinstance(await waiting, NotAuthentic)


async def test_fresh_keys_are_not_read_again() -> None:
    endpoint = Endpoint()
    await endpoint.keys.find(GITHUB, "old")
    endpoint.clock.advance(60 * MINUTES)
    await endpoint.keys.find(GITHUB, "old")
    await settle()
    assert len(endpoint.reads) == 1


async def test_rotated_a_new_kid_is_found_by_reading_again() -> None:
    endpoint = Endpoint()
    await endpoint.keys.find(GITHUB, "old")
    endpoint.answer = jwks(jwk(OLD, kid="old"), jwk(NEW, kid="new"))
    endpoint.clock.advance(30)
    assert await endpoint.keys.find(GITHUB, "new") == NEW
    assert await endpoint.keys.find(GITHUB, "old") == OLD


async def test_rotated_away_a_kid_is_refused_after_the_renewal() -> None:
    endpoint = Endpoint()
    await endpoint.keys.find(GITHUB, "old")
    endpoint.answer = jwks(jwk(NEW, kid="new"))
    endpoint.clock.advance(60 * MINUTES + 1)
    assert await endpoint.keys.find(GITHUB, "old") == OLD
    await settle()
    assert isinstance(await endpoint.refusal("old"), NotAuthentic)
    assert await endpoint.keys.find(GITHUB, "new") == NEW


async def test_hammered_by_unknown_kids_it_reads_once_per_cooldown_and_caches_none() -> None:
    endpoint = Endpoint()
    await endpoint.keys.find(GITHUB, "old")
    for second in range(1, 91):
        endpoint.clock.advance(1)
        refusals = await asyncio.gather(*(endpoint.refusal(f"{second}-{i}") for i in range(20)))
        assert {type(refusal) for refusal in refusals} == {NotAuthentic}
    assert len(endpoint.reads) == 1 + 3
    assert set(endpoint.keys._key_sets[GITHUB.issuer].keys) == {"old"}


async def test_hammered_one_issuer_does_not_cool_down_another() -> None:
    endpoint = Endpoint()
    await endpoint.refusal("unknown")
    assert await endpoint.keys.find(ENTERPRISE, "old") == OLD
    assert endpoint.reads == [GITHUB.jwks_url, ENTERPRISE.jwks_url]


MALFORMED = {
    "empty": b"",
    "not JSON": b"<html>",
    "not UTF-8": b'{"keys":[{"kid":"\xff"}]}',
    "a list": b"[]",
    "no keys": b"{}",
    "keys not a list": b'{"keys":{}}',
    "empty list": b'{"keys":[]}',
    "kid a number": jwks(jwk(OLD, kid=1)),
    "nested too deep": b'{"keys":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "only unusable keys": jwks(jwk(WEAK, kid="weak")),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed_keys_count_as_an_outage_and_cached_keys_stay(case: str) -> None:
    endpoint = Endpoint()
    await endpoint.keys.find(GITHUB, "old")
    endpoint.answer = MALFORMED[case]
    endpoint.clock.advance(60 * MINUTES + 1)
    assert isinstance(await endpoint.refusal("new"), KeysUnavailable)
    assert await endpoint.keys.find(GITHUB, "old") == OLD


UNUSABLE = {
    "weak": jwk(WEAK, kid="k"),
    "for encryption": jwk(OLD, kid="k", use="enc"),
    "other algorithm": jwk(OLD, kid="k", alg="RS512"),
    "no kid": jwk(OLD),
    "empty kid": jwk(OLD, kid=""),
    "no modulus": jwk(OLD, kid="k", n=...),
    "modulus not base64": jwk(OLD, kid="k", n="é"),
    "exponent even": jwk(OLD, kid="k", e="Ag"),
    "exponent one": jwk(OLD, kid="k", e="AQ"),
    "symmetric": {"kty": "oct", "kid": "k", "k": "c2VjcmV0"},
    "elliptic": {
        **ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True),
        "kid": "k",
    },
    "symmetric under an RSA name": {"kty": "RSA", "kid": "k", "k": "c2VjcmV0"},
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_key_is_skipped_and_the_others_are_accepted(case: str) -> None:
    assert parse_jwks(jwks(UNUSABLE[case], jwk(NEW, kid="new")), ("RS256",)) == {"new": NEW}


@pytest.mark.parametrize(
    "members", [{"use": ..., "alg": ...}, {"d": "AQAB"}], ids=["bare", "with a private part"]
)
def test_only_the_public_part_of_a_key_is_used(members: dict[str, Any]) -> None:
    assert parse_jwks(jwks(jwk(OLD, kid="k", **members)), ("RS256",)) == {"k": OLD}


async def test_closing_cancels_the_read_in_flight() -> None:
    endpoint = Endpoint()
    endpoint.gate.clear()
    waiting = asyncio.create_task(endpoint.refusal("old"))
    await settle()
    await endpoint.keys.aclose()
    assert isinstance(await waiting, KeysUnavailable)
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("keys of")] == []


async def _endless() -> AsyncIterator[bytes]:
    while True:
        yield b" " * 65_536


def _time_out(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("slow", request=request)


ANSWERS = {
    "too large": lambda _: httpx.Response(200, content=b" " * (MAX_JWKS_BYTES + 1)),
    "endless": lambda _: httpx.Response(200, content=_endless()),
    "bomb": lambda _: httpx.Response(
        200, content=gzip.compress(b" " * 10_000_000), headers={"content-encoding": "gzip"}
    ),
    "not gzip": lambda _: httpx.Response(
        200, content=b"not gzip at all", headers={"content-encoding": "gzip"}
    ),
    "redirect": lambda _: httpx.Response(302, headers={"location": "https://evil.example/jwks"}),
    "error": lambda _: httpx.Response(500),
    "time-out": _time_out,
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_over_http_everything_but_a_small_200_is_unavailable(case: str) -> None:
    transport = httpx.MockTransport(ANSWERS[case])
    async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
        with pytest.raises(KeysUnavailable):
            await http_fetcher(client)("https://keys.example/jwks")


async def test_over_http_the_bytes_are_returned_unchanged() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=b"x" * MAX_JWKS_BYTES))
    async with httpx.AsyncClient(transport=transport) as client:
        assert await http_fetcher(client)("https://keys.example/jwks") == b"x" * MAX_JWKS_BYTES
