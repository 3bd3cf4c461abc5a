"""Secrets in AWS and in files: rotated without a restart, and never written to any output."""

import io
import json
import logging
import os
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.responses import Response

from crcr import log as logs
from crcr.record.store.sqlite.file import copy_database
from crcr.settings import load_settings
from flow.callbacks.test_forwarding import HUD, Hud
from github_sim.github import GitHub
from support.aws.server import CREDENTIALS, AwsFault, AwsServer, shared_aws
from support.deploy.otlp_collector import attribute_texts, run_collector
from support.downstream.callbacks import BACKEND, LISTED, post_report
from support.running_relay import UPSTREAM, running_relay
from support.services.redis import RedisServer

READER_TOKEN = "crcr_" + "r" * 43
FORWARD = "a-forward-token-in-a-file"
INGEST = "an-ingest-token-in-a-parameter"
CHANNEL = "channel-key-in-secrets-manager"
REDIS = "a-redis-password-in-the-environment"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> AwsServer:
    server = shared_aws()
    server.set_environment(monkeypatch)
    return server


def store_app(aws: AwsServer, name: str, github: GitHub) -> None:
    text = json.dumps({"key": github.private_key_pem, "webhook": github.webhook_secret, "channel": CHANNEL})
    client = aws.client("secretsmanager")
    try:
        client.put_secret_value(SecretId=name, SecretString=text)
    except client.exceptions.ResourceNotFoundException:
        client.create_secret(Name=name, SecretString=text)


def aws_secret_settings(name: str) -> dict[str, Any]:
    return {
        "CRCR_GITHUB_APP_PRIVATE_KEY": "",
        "CRCR_GITHUB_APP_PRIVATE_KEY_FILE": f"aws-sm://{name}#key",
        "CRCR_GITHUB_WEBHOOK_SECRET": "",
        "CRCR_GITHUB_WEBHOOK_SECRET_FILE": f"aws-sm://{name}#webhook",
    }


async def test_a_rotated_key_is_reread_on_githubs_401_and_a_webhook_secret_within_15_minutes(
    aws: AwsServer, tmp_path: Path
) -> None:
    settings = aws_secret_settings("rotated")

    def store(github: GitHub) -> None:
        store_app(aws, "rotated", github)

    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,), prepare=store, **settings) as relay:
        # The key: the first call with the old one is refused, and succeeds with the new one in the same attempt.
        relay.github.auth.use_key("rotated")
        store(relay.github)
        relay.clock.advance(7200)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert set(relay.dispatch_states().values()) == {"sent"}
        assert relay.rows("SELECT * FROM effects WHERE attempts > 1") == []

        # The webhook secret: GitHub rejects no call, so it is reread after 15 minutes.
        relay.github.webhooks.secret = "the-next-webhook-secret"
        store(relay.github)
        relay.clock.advance(899)
        await relay.services.secrets.refresh_if_due()
        await relay.github.open_pr(UPSTREAM)
        assert relay.rows("SELECT count(*) AS n FROM deliveries WHERE event = 'pull_request'") == [{"n": 1}]
        relay.clock.advance(1)
        await relay.services.secrets.refresh_if_due()
        await relay.github.open_pr(UPSTREAM)
        assert relay.rows("SELECT count(*) AS n FROM deliveries WHERE event = 'pull_request'") == [{"n": 2}]

        # An outage of the secret store changes nothing.
        relay.clock.advance(900)
        with aws.failing(*[AwsFault(503, "ServiceUnavailable")] * 9):
            await relay.services.secrets.refresh_if_due()
        await relay.github.open_pr(UPSTREAM)
        assert relay.rows("SELECT count(*) AS n FROM deliveries WHERE event = 'pull_request'") == [{"n": 3}]


async def test_a_key_that_github_keeps_rejecting_is_reread_once_a_minute(
    aws: AwsServer, tmp_path: Path
) -> None:
    def store(github: GitHub) -> None:
        store_app(aws, "revoked", github)

    async with running_relay(
        tmp_path, LISTED, downstreams=(BACKEND,), prepare=store, **aws_secret_settings("revoked")
    ) as relay:
        relay.github.auth.use_key("revoked")
        relay.clock.advance(7200)
        before = len(aws.targets)
        for _ in range(3):
            await relay.github.open_pr(UPSTREAM)
            await relay.drain()
        assert len(aws.targets) - before == 1  # both fields are of one secret
        store(relay.github)
        await relay.pass_time(3600)
        assert set(relay.dispatch_states().values()) == {"sent"}


def encodings(secret: str) -> set[bytes]:
    """A secret in all encodings in which it could leak, also in HTTP headers; a PEM is split into its lines."""
    forms = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], *secret.splitlines()}
    forms |= {b64encode(text.encode()).decode() for text in (secret, f":{secret}", f"crcr:{secret}")}
    return {form.encode() for form in forms if len(form) > 12 and not form.startswith("-----")}


PAGES = (
    *("/crcr", f"/crcr/{BACKEND}", "/crcr/pr/1", "/crcr/deliveries", "/crcr/onboarding", "/crcr/metrics"),
    *("/crcr/queue", "/crcr/notices", "/crcr/audit", "/api/openapi.json", "/api/v1/health", "/metrics"),
    *("/healthz", "/readyz", "/api/v1/admin/effects", "/crcr/none/none/none", "/crcr/levels"),
)


async def test_secrets_of_every_source_appear_in_no_log_page_metric_trace_error_or_backup(
    aws: AwsServer, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRCR_TEST_STORE", "sqlite")  # the backup is a copy of SQLite's file
    hud, redis = Hud([Response(status_code=500), Response(status_code=401)]), RedisServer.make(password=REDIS)
    aws.client("ssm").put_parameter(Name="/leak/ingest", Value=INGEST, Type="SecureString", Overwrite=True)
    (tmp_path / "forward").write_text(FORWARD)
    channel = {
        "name": "hook",
        "kind": "webhook",
        "url": f"https://{HUD}/{CHANNEL}",
        "secret_file": "aws-sm://leak#channel",
    }
    settings = aws_secret_settings("leak") | {
        "CRCR_HUD_FORWARD_URL": f"https://{HUD}/api/crcr/results",
        "CRCR_HUD_FORWARD_TOKEN_FILE": str(tmp_path / "forward"),
        "CRCR_HUD_INGEST_TOKEN_FILE": "aws-ssm:///leak/ingest",
        "CRCR_REDIS_URL": redis.url,
        "CRCR_CHANNELS": json.dumps([channel]),
    }
    log_output = io.StringIO()
    old_secrets: list[str] = []

    def store(github: GitHub) -> None:
        old_secrets.extend((github.private_key_pem, github.webhook_secret))
        store_app(aws, "leak", github)

    with run_collector() as collected:
        settings["CRCR_OTEL_ENDPOINT"] = collected.url
        async with running_relay(
            tmp_path, LISTED, downstreams=(BACKEND,), outside={HUD: hud}, prepare=store, **settings
        ) as relay:
            logs.configure("json", "debug", log_output)
            logs.redact_literals(relay.services.settings.secrets())
            bodies = []
            # Rotated, so that old and new secrets are both in the process.
            relay.github.auth.use_key("leak")
            relay.github.webhooks.secret = "the-webhook-secret-after-its-rotation"
            store(relay.github)
            assert await relay.services.secrets.refresh()
            await relay.github.open_pr(UPSTREAM)
            await relay.drain()
            run = relay.github.runs(BACKEND)[0]
            await post_report(relay, run, "build", "in_progress")
            await relay.drain()
            await post_report(relay, run, "build", "completed", conclusion="failure")
            await relay.pass_time(3600)
            with aws.failing(*[AwsFault(400, "AccessDeniedException")] * 9):
                await relay.services.secrets.refresh()
            for token in (INGEST, INGEST[:-1], FORWARD):
                headers = {"x-hud-internal-bot": token}
                answer = await relay.http.post("/api/crcr/results", json={"trusted": 1}, headers=headers)
                bodies.append(answer.content)
            redis.stop()
            answer = await relay.http.post("/github/callback", headers={"authorization": "Bearer x.y.z"})
            bodies.append(answer.content)
            logging.getLogger("botocore").debug("a library's own line")
            bodies += [(await relay.http.get(path)).content for path in PAGES]
            guid = relay.rows("SELECT delivery FROM dispatches")[0]["delivery"]
            copy_database(tmp_path / "crcr.db", tmp_path / "backup.db")
    logs.configure("json", "info", io.StringIO())
    redis.remove()
    problems = _settings_error(aws, tmp_path, settings)

    secrets = [*old_secrets, FORWARD, INGEST, CHANNEL, REDIS, CREDENTIALS["AWS_SECRET_ACCESS_KEY"]]
    outputs = {
        "log": log_output.getvalue().encode(),
        "output": "".join(capfd.readouterr()).encode(),
        "pages, metrics and errors": b"".join(bodies),
        "traces": " ".join(
            t for s in collected.spans for t in attribute_texts(s.attributes).values()
        ).encode(),
        "backup": (tmp_path / "backup.db").read_bytes(),
        "settings": repr(relay.services.settings).encode() + repr(relay.services.secrets.current).encode(),
        "problems": problems.encode(),
    }
    assert all(outputs.values())
    assert b"secrets_changed" in outputs["log"]
    assert b"secrets_not_read" in outputs["log"]
    leaks = [
        (output, secret[:12])
        for output, content in outputs.items()
        for secret in secrets
        if any(form in content for form in encodings(secret))
    ]
    assert leaks == []
    # The search finds a value that is known to be in the outputs.
    assert {output for output in outputs if any(form in outputs[output] for form in encodings(guid))} >= {
        *("log", "pages, metrics and errors", "traces", "backup"),
    }
    assert hud.tokens == {FORWARD}


def _settings_error(aws: AwsServer, folder: Path, settings: dict[str, Any]) -> str:
    """The error message of settings in which each secret is readable and invalid."""
    names = [name for name in settings if name.endswith("_FILE")]
    environ = {**dict(os.environ), **settings, **dict.fromkeys(names, "aws-sm://leak#channel")}
    environ |= {"CRCR_REDIS_URL": f"redis://:{REDIS}@", "CRCR_DATABASE_URL": f"postgresql://u:{REDIS}@"}
    try:
        load_settings(config=None, environ=environ, cwd=folder)
    except Exception as error:  # noqa: BLE001  no error may contain a secret
        return f"{error!r} {error}"
    raise AssertionError("these settings are wrong")
