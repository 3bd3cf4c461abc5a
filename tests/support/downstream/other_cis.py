"""CIs other than GitHub Actions: the registration of a pipeline, and the token of a valid build."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from github_sim.github import GitHub
from support.downstream.callbacks import BACKEND
from support.running_relay import AUDIENCE

SIM = "http://127.0.0.1:9"
IDS = ("organization_id", "pipeline_id")
ORGANIZATION = "d1f8a4a3-0f6c-4b3e-9f6d-000000000001"
ORIGIN = "github.com/org/backend"


@dataclass(frozen=True, slots=True)
class OtherCi:
    """One CI: the registration of its pipeline, and the token and run of a valid build."""

    name: str
    registration: Mapping[str, Any]
    claims: Mapping[str, Any] = field(default_factory=dict)
    run_id: str = "run-1"
    issuer: Mapping[str, Any] | None = None
    max_age_s: int = 600

    def issuer_in(self, github: GitHub) -> Any:
        return github.others[self.name]

    def token(self, github: GitHub, **changes: Any) -> str:
        return str(self.issuer_in(github).token(AUDIENCE, **{**self.claims, **changes}))

    def settings(self) -> dict[str, str]:
        github = {"issuer": f"{SIM}/_services/token", "kind": "github"}
        issuers = [github, *([self.issuer] if self.issuer else [])]
        return {
            "CRCR_OIDC_ISSUERS": json.dumps(issuers),
            "CRCR_OIDC_REGISTRATIONS": json.dumps([{"repository": BACKEND, **self.registration}]),
        }


def all_other_cis() -> tuple[OtherCi, ...]:
    with_ids = GitHub(base_url=SIM)
    buildkite, circleci = with_ids.buildkite, with_ids.circleci
    ids = {"organization_id": buildkite.organization_id, "pipeline_id": buildkite.pipeline_id}
    return (
        OtherCi(
            "buildkite",
            {"issuer": buildkite.url, "kind": "buildkite", "branches": ["main"], **ids},
            {"wanted": IDS},
            run_id="0190-a-build-uuid",
        ),
        OtherCi(
            "gitlab",
            {"issuer": with_ids.gitlab.url, "kind": "gitlab", "project_id": 20617},
            run_id="574001",
            max_age_s=3600,
        ),
        OtherCi(
            "circleci",
            {
                "issuer": circleci.url,
                "kind": "circleci",
                "project_id": circleci.project_id,
                "branches": ["main"],
            },
            {"vcs_origin": ORIGIN, "workflow_id": "wf-1"},
            run_id="wf-1",
            max_age_s=3600,
        ),
        OtherCi(
            "generic",
            {"issuer": with_ids.generic.url, "kind": "generic", "ids": {"project_id": "4711"}},
            run_id="8801",
            issuer={
                "issuer": with_ids.generic.url,
                "kind": "generic",
                "reads": {"run_id": "build_id", "run_attempt": "build_attempt", "job_id": "job_id"},
            },
        ),
    )


ALL_OTHER_CIS = {ci.name: ci for ci in all_other_cis()}
