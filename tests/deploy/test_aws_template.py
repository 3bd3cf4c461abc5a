"""The CloudFormation template: valid by cfn-lint's strictest rules, and with functions and settings that exist in crcr."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from crcr.settings import Settings, UpstreamSetting, load_settings, settings_of
from crcr.wiring.aws_lambda.background_functions import STOP_BEFORE_S
from crcr.wiring.aws_lambda.handlers import FUNCTIONS
from github_sim.oidc.signing import private_pem
from support.deploy.certificates import Authority
from support.deploy.deploy_files import DEPLOY
from support.paths import ROOT

TEMPLATE = DEPLOY / "aws" / "template.yaml"
REQUIRED = {"webhook", "callback", "relay", "worker", "tick", "migrate", "stream"}
"""`relay`, since all other paths lead there: the protocol allows a trailing slash for the callback, and a route does not."""
NOT_CHECKED = "I4010"
"""It requires metadata on each resource for other tools; README.md and comments document the same."""


class _Loader(yaml.SafeLoader):
    """Reads `!Ref X` as `{"!Ref": "X"}`."""


def _tagged(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return {f"!{suffix}": loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {f"!{suffix}": loader.construct_sequence(node, deep=True)}
    raise TypeError(node)


_Loader.add_multi_constructor("!", _tagged)


@cache
def template() -> Any:
    return yaml.load(TEMPLATE.read_text(), Loader=_Loader)  # noqa: S506  a safe loader


def functions() -> dict[str, Any]:
    resources = template()["Resources"].items()
    return {
        name: each["Properties"] for name, each in resources if each["Type"] == "AWS::Serverless::Function"
    }


def variables() -> dict[str, Any]:
    return dict(template()["Globals"]["Function"]["Environment"]["Variables"])


def test_cfn_lint_finds_nothing() -> None:
    command = [
        str(Path(sys.executable).parent / "cfn-lint"),
        "--include-checks",
        "I",
        "--include-experimental",
    ]
    regions = ("--regions", "us-east-1", "eu-central-1")
    done = subprocess.run(
        [*command, "--ignore-checks", NOT_CHECKED, *regions, "--template", str(TEMPLATE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_setting_in_the_template_exists() -> None:
    known = {**settings_of(Settings), **settings_of(UpstreamSetting)}.values()
    names = {row.variable for row in known if row.env} | {
        f"{row.variable}_FILE" for row in known if row.secret
    }
    assert set(variables()) <= names


@pytest.mark.parametrize(
    ("database", "has_redis"),
    [
        ({"CRCR_DATABASE_URL": "postgresql://crcr@proxy.example:5432/crcr"}, True),
        ({"CRCR_DATABASE_URL_FILE": "url", "CRCR_DATABASE_AUTH": "password"}, False),
    ],
)
def test_crcr_accepts_the_settings_without_a_warning(
    tmp_path: Path, database: dict[str, str], has_redis: bool
) -> None:
    """With values for parameters and attributes, the relay accepts all variables; secrets are files here."""
    (tmp_path / "key").write_text(private_pem("template"))
    (tmp_path / "secret").write_text("a-secret-that-nobody-sees")
    (tmp_path / "ca.pem").write_bytes(Authority.make().pem)
    (tmp_path / "url").write_text("postgresql://crcr:word@db.example/crcr")
    values = {
        "CRCR_UPSTREAM": "org/framework",
        "CRCR_ALLOWLIST": "https://github.com/org/framework/blob/main/allowlist.yml",
        "CRCR_GITHUB_APP_ID": "123456",
        "CRCR_GITHUB_APP_PRIVATE_KEY_FILE": "key",
        "CRCR_GITHUB_WEBHOOK_SECRET_FILE": "secret",
        "CRCR_OIDC_AUDIENCE": "relay.example.org",
        "CRCR_PUBLIC_URL": "https://id.execute-api.eu-central-1.amazonaws.com",
        "CRCR_DATABASE_URL": "",
        "CRCR_DATABASE_URL_FILE": "",
        "CRCR_DATABASE_AUTH": "aws-iam",
        "CRCR_DATABASE_POOLER": "transaction",
        "CRCR_DATABASE_CA": "ca.pem",
        "CRCR_REDIS_URL": "rediss://cache.example:6379/0" if has_redis else "",
        "CRCR_WAKEUP_QUEUE_URL": "https://sqs.eu-central-1.amazonaws.com/123456789012/wakeups",
        **database,
    }
    environ = {
        name: values[name] if name in values else _default(value) for name, value in variables().items()
    }
    settings = load_settings(config=None, environ=environ, cwd=tmp_path)
    assert (settings.hud_live, settings.database_pool, settings.log_format) == ("poll", 4, "json")
    assert settings.warnings() == ()


def _default(value: Any) -> str:
    """The value itself, or the default of the parameter that it names."""
    return str(template()["Parameters"][value["!Ref"]]["Default"]) if isinstance(value, dict) else str(value)


def test_the_functions_are_those_of_the_package() -> None:
    prefix = "crcr.wiring.aws_lambda.handlers."
    handlers = [each["Handler"] for each in functions().values()]
    assert {handler.removeprefix(prefix) for handler in handlers} == REQUIRED
    assert set(FUNCTIONS) >= REQUIRED
    runtime = template()["Globals"]["Function"]["Runtime"]
    assert (
        f'RUNTIME = "{runtime.removeprefix("python")}"' in (ROOT / "tools" / "lambda_package.py").read_text()
    )


def test_the_timeouts_are_consistent() -> None:
    resources, queue = functions(), template()["Resources"]["WakeupQueue"]["Properties"]
    assert queue["VisibilityTimeout"] >= 6 * resources["WorkerFunction"]["Timeout"]
    for name in ("WorkerFunction", "TickFunction"):
        assert resources[name]["Timeout"] >= 3 * STOP_BEFORE_S
    for name in ("WebhookFunction", "CallbackFunction", "HudFunction"):
        assert resources[name]["Timeout"] < 30  # API Gateway waits no longer


def test_roles_name_their_resources_and_no_wildcards() -> None:
    statements = template()["Resources"]["RelayPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    text = yaml.safe_dump(statements)
    assert "Resource: '*'" not in text
    assert ":*" not in text
    assert set(re.findall(r"Action: (\S+)", text)) == {
        "dynamodb:UpdateItem",
        "rds-db:connect",
        "secretsmanager:GetSecretValue",
        "sqs:SendMessage",
    }
