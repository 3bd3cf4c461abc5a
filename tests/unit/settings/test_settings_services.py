"""Settings of services: a URL's password is never shown, and a CA needs an encrypted URL."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from crcr.errors import BadSettings
from crcr.settings import Settings, load_settings
from support.deploy.certificates import Authority

PASSWORD = "hunter2 & more"
WRITTEN = "hunter2%20%26%20more"
PEM = (
    rsa.generate_private_key(65537, 2048)
    .private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    .decode()
)
REQUIRED = {
    "CRCR_UPSTREAM": "example/framework",
    "CRCR_ALLOWLIST": "https://github.com/example/framework/blob/main/allowlist.yml",
    "CRCR_GITHUB_APP_ID": "1234",
    "CRCR_GITHUB_APP_PRIVATE_KEY": PEM,
    "CRCR_GITHUB_WEBHOOK_SECRET": "a webhook secret of some length",
    "CRCR_OIDC_AUDIENCE": "relay.example.org",
}


def load_with(cwd: Path, **variables: str) -> Settings:
    environ = {**REQUIRED, **{f"CRCR_{name}": value for name, value in variables.items()}}
    return load_settings(config=None, environ=environ, cwd=cwd)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    path.write_bytes(Authority.make().pem)
    return path


def problem_with(cwd: Path, **variables: str) -> str:
    with pytest.raises(BadSettings) as caught:
        load_with(cwd, **variables)
    (message,) = caught.value.problems
    return message


def test_redis_is_optional(tmp_path: Path) -> None:
    settings = load_with(tmp_path)
    assert (settings.redis_url, settings.redis_ca) == (None, None)


def test_a_url_is_kept_as_written_and_displayed_without_its_password(tmp_path: Path) -> None:
    address = f"redis://ann:{WRITTEN}@cache.example.org:6380/2"
    settings = load_with(tmp_path, REDIS_URL=address)
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == address
    assert settings.redis_url.display_name == "redis://cache.example.org:6380/2"
    assert not settings.redis_url.encrypted
    assert "hunter2" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_the_password_is_masked_encoded_and_decoded(tmp_path: Path) -> None:
    secrets = load_with(tmp_path, REDIS_URL=f"redis://:{WRITTEN}@cache").secrets()
    assert {PASSWORD, WRITTEN} <= set(secrets)


def test_a_short_url_causes_no_warning_about_short_secrets(tmp_path: Path) -> None:
    settings = load_with(tmp_path, REDIS_URL="redis://a", PUBLIC_URL="https://relay.example.org")
    assert settings.warnings() == ()


def test_the_url_can_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "redis").write_text("rediss://:hunter2@cache\n")
    settings = load_with(tmp_path, REDIS_URL_FILE="redis")
    assert settings.redis_url is not None
    assert settings.redis_url.encrypted


def test_a_ca_needs_an_encrypted_url(tmp_path: Path, ca: Path) -> None:
    assert load_with(tmp_path, REDIS_URL="rediss://cache", REDIS_CA=str(ca)).redis_ca == ca
    for address in ({"REDIS_URL": "redis://cache"}, {}):
        message = problem_with(tmp_path, REDIS_CA=str(ca), **address)
        assert message.startswith("CRCR_REDIS_CA proves a rediss:// server, and CRCR_REDIS_URL names none")


def test_a_ca_file_must_contain_certificates_and_not_a_key(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(REQUIRED["CRCR_GITHUB_APP_PRIVATE_KEY"])
    message = problem_with(tmp_path, REDIS_URL="rediss://cache", REDIS_CA="key.pem")
    assert message.startswith("CRCR_REDIS_CA must name a PEM file with certificates")
    assert "PRIVATE" not in message


def test_a_wrong_url_is_the_only_problem_even_with_a_ca(tmp_path: Path, ca: Path) -> None:
    message = problem_with(tmp_path, REDIS_URL="http://:hunter2@cache", REDIS_CA=str(ca))
    assert message.startswith("CRCR_REDIS_URL must be an address such as redis://… or rediss://….")
