"""The doctor's findings about Redis."""

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
    server = RedisServer.make(password="hunter2-and-more")
    yield server
    server.remove()


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
    redis_results = await redis_findings(load_settings(config=None, environ=environ, cwd=folder))
    assert "hunter2" not in repr(redis_results)
    return redis_results


async def configure(server: RedisServer, **settings: str) -> None:
    link = RedisLink(parse_redis_url(server.url))
    for name, value in settings.items():
        await link.call(lambda redis, name=name, value=value: redis.config_set(name.replace("_", "-"), value))  # type: ignore[misc]
    await link.aclose()


async def test_no_redis_is_ok_on_one_machine(tmp_path: Path) -> None:
    [finding] = await findings(tmp_path)
    assert (finding.name, finding.state) == ("redis", State.OK)
    assert "not used" in finding.text


async def test_a_working_redis_is_reported_with_its_address_and_response_time(
    tmp_path: Path, server: RedisServer
) -> None:
    [finding] = await findings(tmp_path, server.url)
    assert (finding.name, finding.state) == ("redis", State.OK)
    assert f"redis://127.0.0.1:{server.port}/0 answers in " in finding.text


async def test_an_unreachable_redis_or_a_wrong_password_is_a_problem(
    tmp_path: Path, server: RedisServer
) -> None:
    for url in (server.url.replace("hunter2", "hunter2-is-wrong"), "redis://:hunter2@127.0.0.1:1"):
        [finding] = await findings(tmp_path, url)
        assert finding.state is State.PROBLEM
        assert "callbacks get 503" in (finding.hint or "")


async def test_a_redis_that_may_evict_windows_causes_a_warning(tmp_path: Path, server: RedisServer) -> None:
    await configure(server, maxmemory="64mb", maxmemory_policy="allkeys-lru")
    _, finding = await findings(tmp_path, server.url)
    assert (finding.name, finding.state) == ("redis_memory", State.WARNING)
    await configure(server, maxmemory_policy="noeviction")
    [finding] = await findings(tmp_path, server.url)
    assert finding.state is State.OK
