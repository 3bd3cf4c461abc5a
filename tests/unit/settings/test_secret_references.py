"""Secrets by reference to AWS: read at start; an error names the missing secret and never shows a value."""

import json
import os
from collections.abc import Iterator
from hashlib import sha256
from hmac import digest
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
from pydantic import SecretStr

from crcr.aws_client import ElastiCacheTokens
from crcr.errors import BadSettings
from crcr.settings import load_settings
from crcr.settings.secret_files import SecretFiles
from support.aws.server import CREDENTIALS, AwsFault, AwsServer, shared_aws
from unit.settings.test_settings import PEM, REQUIRED, WEBHOOK_SECRET, without

FIELDS = {"webhook": "a webhook secret in a field", "pem": PEM, "number": 7, "list": ["x"]}
PLAIN = "a whole secret of its own"


@pytest.fixture(scope="module")
def secrets() -> AwsServer:
    aws = shared_aws()
    manager, store = aws.client("secretsmanager"), aws.client("ssm")
    manager.create_secret(Name="crcr/app", SecretString=json.dumps(FIELDS))
    manager.create_secret(Name="crcr-plain", SecretString=f"{PLAIN}\n")
    manager.create_secret(Name="crcr-bytes", SecretBinary=b"\xff\xfe")
    store.put_parameter(Name="/crcr/webhook", Value=WEBHOOK_SECRET, Type="SecureString")
    store.put_parameter(Name="flat", Value="flat value", Type="String")
    return aws


@pytest.fixture
def aws(secrets: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsServer]:
    secrets.set_environment(monkeypatch)
    yield secrets
    assert not secrets.faults


READ = [
    ("aws-sm://crcr/app#webhook", FIELDS["webhook"]),
    ("aws-sm://crcr/app#number", "7"),
    ("aws-sm://crcr-plain", PLAIN),
    ("aws-ssm:///crcr/webhook", WEBHOOK_SECRET),
    ("aws-ssm://crcr/webhook", WEBHOOK_SECRET),
    ("aws-ssm://flat", "flat value"),
]


@pytest.mark.parametrize(("reference", "value"), READ)
def test_a_reference_is_resolved(aws: AwsServer, reference: str, value: str, tmp_path: Path) -> None:
    assert SecretFiles().read(reference, tmp_path) == value


def test_an_arn_is_resolved_in_its_own_region(
    aws: AwsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arn = aws.client("secretsmanager").describe_secret(SecretId="crcr-plain")["ARN"]
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert SecretFiles().read(f"aws-sm://{arn}", tmp_path) == PLAIN


def test_every_file_setting_accepts_a_reference(aws: AwsServer, tmp_path: Path) -> None:
    environ = {
        **without("GITHUB_APP_PRIVATE_KEY", "GITHUB_WEBHOOK_SECRET"),
        "CRCR_GITHUB_APP_PRIVATE_KEY_FILE": "aws-sm://crcr/app#pem",
        "CRCR_GITHUB_WEBHOOK_SECRET_FILE": "aws-ssm:///crcr/webhook",
        "CRCR_CHANNELS": json.dumps(
            [
                {
                    "name": "hook",
                    "kind": "webhook",
                    "url": "https://hooks.example.org/x",
                    "secret_file": "aws-sm://crcr-plain",
                }
            ]
        ),
    }
    requests = len(aws.targets)
    settings = load_settings(config=None, environ=environ, cwd=tmp_path)
    assert settings.github_app_private_key.get_secret_value() == PEM.strip()
    assert settings.github_webhook_secret.get_secret_value() == WEBHOOK_SECRET
    assert settings.channels[0].secret == SecretStr(PLAIN)
    assert settings.may_rotate
    assert {WEBHOOK_SECRET, PLAIN} <= set(settings.secrets())  # and so masked in every log line
    assert len(aws.targets) - requests == 3


WRONG = [
    ("aws-sm://crcr/none#x", "aws-sm://crcr/none#x, which does not exist."),
    ("aws-ssm:///crcr/none", "aws-ssm:///crcr/none, which does not exist."),
    ("aws-sm://crcr/app#none", "aws-sm://crcr/app#none, but that secret has no such field with a text."),
    ("aws-sm://crcr/app#list", "aws-sm://crcr/app#list, but that secret has no such field with a text."),
    ("aws-sm://crcr-plain#x", "aws-sm://crcr-plain#x, but that secret is not a JSON object with fields."),
    ("aws-sm://crcr-bytes", "aws-sm://crcr-bytes, which does not hold text."),
    ("aws-sm://#x", "write aws-sm://NAME"),
    ("aws-ssm://", "write aws-ssm://PATH"),
]


@pytest.mark.parametrize(("reference", "expected"), WRONG)
def test_a_missing_secret_is_named_without_any_value(
    aws: AwsServer, reference: str, expected: str, tmp_path: Path
) -> None:
    environ = {**without("GITHUB_WEBHOOK_SECRET"), "CRCR_GITHUB_WEBHOOK_SECRET_FILE": reference}
    with pytest.raises(BadSettings) as caught:
        load_settings(config=None, environ=environ, cwd=tmp_path)
    (problem,) = caught.value.problems
    assert problem.startswith("CRCR_GITHUB_WEBHOOK_SECRET_FILE is ")
    assert expected in problem
    assert PLAIN not in problem
    assert "a webhook secret in a field" not in str(caught.value)


FAULTS = [
    (AwsFault(400, "AccessDeniedException"), "which this role may not read"),
    (AwsFault(400, "ExpiredTokenException"), "which cannot be read: ExpiredTokenException"),
    (AwsFault(500, "InternalServiceError"), "which cannot be read: InternalServiceError"),
]


@pytest.mark.parametrize(("fault", "expected"), FAULTS)
def test_a_refusal_by_aws_is_reported_with_its_reason(
    aws: AwsServer, fault: AwsFault, expected: str, tmp_path: Path
) -> None:
    environ = {**without("GITHUB_WEBHOOK_SECRET"), "CRCR_GITHUB_WEBHOOK_SECRET_FILE": "aws-sm://crcr-plain"}
    with aws.failing(*[fault] * 3), pytest.raises(BadSettings, match=expected):
        load_settings(config=None, environ=environ, cwd=tmp_path)


@pytest.mark.parametrize("missing", ["AWS_REGION", "AWS_ACCESS_KEY_ID"])
def test_missing_credentials_or_region_are_reported(
    aws: AwsServer, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(missing)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    environ = {**without("GITHUB_WEBHOOK_SECRET"), "CRCR_GITHUB_WEBHOOK_SECRET_FILE": "aws-sm://crcr-plain"}
    with pytest.raises(BadSettings) as caught:
        load_settings(config=None, environ=environ, cwd=tmp_path)
    assert ("set AWS_REGION" if missing == "AWS_REGION" else "NoCredentialsError") in caught.value.problems[0]


def test_an_elasticache_token_is_a_signed_request_renewed_after_ten_minutes(
    aws: AwsServer,
) -> None:
    now = [1000.0]
    tokens = ElastiCacheTokens("iam-user", "serverless/my-cache", monotonic=lambda: now[0])
    first = tokens()
    address, _, query = first.partition("?")
    fields = dict(parse_qsl(query))
    assert address == "my-cache/"
    assert (fields["Action"], fields["User"], fields["ResourceType"]) == (
        "connect",
        "iam-user",
        "ServerlessCache",
    )
    assert fields["X-Amz-Expires"] == "900"
    assert fields["X-Amz-Credential"].startswith(CREDENTIALS["AWS_ACCESS_KEY_ID"])
    assert fields["X-Amz-Credential"].endswith("/us-east-1/elasticache/aws4_request")
    assert fields.pop("X-Amz-Signature") == _signature("my-cache", fields)
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in first
    now[0] += 599
    assert tokens() is first
    now[0] += 2
    assert tokens() is not first
    assert "ResourceType" not in ElastiCacheTokens("iam-user", "my-cache")()


def _signature(host: str, query: dict[str, str]) -> str:
    """Compute AWS's Signature Version 4 of a GET, as its documentation defines it."""

    def hmac(key: bytes, text: str) -> bytes:
        return digest(key, text.encode(), "sha256")

    scope = query["X-Amz-Credential"].partition("/")[2]
    words = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
    request = f"GET\n/\n{words}\nhost:{host}\n\nhost\n{sha256(b'').hexdigest()}"
    text = f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{sha256(request.encode()).hexdigest()}"
    key = b"AWS4" + CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode()
    for part in scope.split("/"):
        key = hmac(key, part)
    return hmac(key, text).hex()


REFUSED_IAM = ["redis://user@cache:6379", "rediss://user:password@cache:6379", "rediss://cache:6379"]


@pytest.mark.parametrize("url", REFUSED_IAM)
def test_iam_with_redis_requires_tls_a_user_and_no_password(url: str, tmp_path: Path) -> None:
    environ = {**REQUIRED, "CRCR_REDIS_URL": url, "CRCR_REDIS_IAM": "my-cache"}
    with pytest.raises(BadSettings, match="CRCR_REDIS_IAM needs CRCR_REDIS_URL as rediss://user@host:6379"):
        load_settings(config=None, environ=environ, cwd=tmp_path)
    environ["CRCR_REDIS_URL"] = "rediss://user@cache:6379"
    assert load_settings(config=None, environ=environ, cwd=tmp_path).redis_iam == "my-cache"


def test_rotation_rereads_only_secrets(tmp_path: Path) -> None:
    (tmp_path / "hook").write_text("the first webhook secret")
    (tmp_path / "redis").write_text("redis://:first-password@cache.example.org/0")
    environ: dict[str, Any] = {
        **without("GITHUB_WEBHOOK_SECRET"),
        "CRCR_GITHUB_WEBHOOK_SECRET_FILE": "hook",
        "CRCR_REDIS_URL_FILE": "redis",
    }
    settings = load_settings(config=None, environ=environ, cwd=tmp_path)
    (tmp_path / "hook").write_text("the second webhook secret")
    (tmp_path / "redis").write_text("redis://:second-password@elsewhere.example.org/0")
    (tmp_path / "crcr.toml").write_text("port = 9999\n")
    new = settings.with_rotated_secrets()
    assert new.github_webhook_secret.get_secret_value() == "the second webhook secret"
    assert new.redis_url == settings.redis_url  # a changed server needs a restart
    assert new.port == settings.port
    assert new.with_rotated_secrets() == new
    assert not load_settings(config=None, environ=REQUIRED, cwd=tmp_path).may_rotate
