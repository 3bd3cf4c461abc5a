"""What the doctor tells an operator about Redis."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from crcr.cli.doctor.relay.redis import redis_findings
from crcr.join.findings.finding import SetupFinding, State
from crcr.record.limits.redis_connection import RedisLink, parse_redis_url
from crcr.settings import load_settings
from support.services.redis import RedisServer

PEM = (
    rsa.generate_private_key(65537, 2048)
    .private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    .decode()
)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    made = RedisServer.make(password="hunter2-and-more")
    yield made
    made.remove()


async def findings(folder: Path, url: str = "") -> tuple[SetupFinding, ...]:
    environ = {
        "CRCR_UPSTREAM": "example/framework",
        "CRCR_ALLOWLIST": "https://github.com/example/framework/blob/main/allowlist.yml",
        "CRCR_GITHUB_APP_ID": "1234",
        "CRCR_GITHUB_APP_PRIVATE_KEY": PEM,
        "CRCR_GITHUB_WEBHOOK_SECRET": "a webhook secret of some length",
        "CRCR_OIDC_AUDIENCE": "relay.example.org",
        "CRCR_REDIS_URL": url,
    }
    found = await redis_findings(load_settings(config=None, environ=environ, cwd=folder))
    assert "hunter2" not in repr(found)
    return found


async def configure(server: RedisServer, **settings: str) -> None:
    link = RedisLink(parse_redis_url(server.url))
    for name, value in settings.items():
        await link.call(lambda redis, name=name, value=value: redis.config_set(name.replace("_", "-"), value))  # type: ignore[misc]
    await link.aclose()


async def test_no_redis_is_fine_on_one_machine(tmp_path: Path) -> None:
    [found] = await findings(tmp_path)
    assert (found.name, found.state) == ("redis", State.OK)
    assert "not used" in found.text


async def test_a_good_one_is_told_with_its_version_and_how_fast_it_answers(
    tmp_path: Path, server: RedisServer
) -> None:
    [found] = await findings(tmp_path, server.url)
    assert (found.name, found.state) == ("redis", State.OK)
    assert f"redis://127.0.0.1:{server.port}/0 answers in " in found.text


async def test_one_that_is_away_or_lets_nobody_in_is_a_problem(tmp_path: Path, server: RedisServer) -> None:
    for url in (server.url.replace("hunter2", "hunter2-is-wrong"), "redis://:hunter2@127.0.0.1:1"):
        [found] = await findings(tmp_path, url)
        assert found.state is State.PROBLEM
        assert "callbacks get 503" in (found.hint or "")


async def test_one_that_may_forget_windows_is_warned_of(tmp_path: Path, server: RedisServer) -> None:
    await configure(server, maxmemory="64mb", maxmemory_policy="allkeys-lru")
    _, found = await findings(tmp_path, server.url)
    assert (found.name, found.state) == ("redis_memory", State.WARNING)
    await configure(server, maxmemory_policy="noeviction")
    [found] = await findings(tmp_path, server.url)
    assert found.state is State.OK
