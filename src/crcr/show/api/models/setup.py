"""The JSON API's answers about a downstream's set-up."""

from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from crcr.join.findings.examine import State
from crcr.show.api.models.derive import LevelName, Model, Name

_SETUP: dict[str, Any] = {
    "repository": "org/backend",
    "upstream": "pytorch/pytorch",
    "listed": True,
    "level": "L2",
    "inspected_at": "2026-08-03T09:00:00Z",
    "being_inspected": False,
    "reads_actions": True,
    "findings": [
        {
            "name": "id_token",
            "state": "problem",
            "text": ".github/workflows/crcr.yml may not request an OIDC token, so it cannot report.",
            "hint": "give the job that reports, and only that one, `permissions: id-token: write`",
        }
    ],
}


class Finding(Model):
    name: str = Field(description="Stable name of the check.")
    state: State
    text: str
    hint: str | None = Field(description="How to fix it.")


class Setup(Model):
    """For a repository that is not on the allowlist or not public there, `listed` is false and all else is empty."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SETUP]})

    repository: Name
    upstream: Name
    listed: bool
    level: LevelName | None
    inspected_at: datetime | None = Field(description="When the set-up was last inspected on GitHub.")
    being_inspected: bool = Field(description="Whether an inspection is in progress.")
    reads_actions: bool | None = Field(
        default=None, description="Whether the App could read its Actions at the last inspection."
    )
    findings: list[Finding] = Field(description="In the order in which to fix them.")


class Asked(Model):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"ok": True, "repository": "org/backend", "asked": True}]}
    )

    ok: bool = True
    repository: Name
    asked: bool = Field(
        description="False when an inspection was requested less than a minute ago; its result is used."
    )


class TestSent(Model):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"ok": True, "delivery": "0b989ba4-242f-11e5-81e1-c7b6966d2516", "event": "crcr_test"}
            ]
        }
    )

    ok: bool = True
    delivery: str = Field(description="Its dispatch and jobs are at `/api/v1/deliveries/{guid}`.")
    event: str = "crcr_test"
