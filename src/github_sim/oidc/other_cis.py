"""OIDC issuers of other CIs, with the claims that each of them signs: Buildkite, GitLab, CircleCI, and a generic one.

`token(audience, **changes)` signs the token of a regular job on the default branch; a claim given as None is left out.
`fork_token` is the token of a fork's build, for CIs that issue one; a verifier must refuse it.
"""

import random
import uuid
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any

from github_sim.oidc.github_actions import GitHubIssuer
from github_sim.oidc.signing import SigningKeys
from github_sim.world.records import Json
from github_sim.world.world import World

SHA = "9f3182061f1e2cca4702c368cbc039b7dc9d4485"
CIRCLE = "oidc.circleci.com/"


def stable_id(*parts: str) -> str:
    """Return an id that is the same in every simulation."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(parts)))


class OtherIssuer(SigningKeys, ABC):
    """An issuer at `path` below the simulator's address, with its keys at `keys_path` below that."""

    name = "other"
    path = "/_other"
    keys_path = "/.well-known/jwks"
    life = timedelta(minutes=5)

    def __init__(self, world: World, home: GitHubIssuer) -> None:
        super().__init__(f"oidc-{self.name}", f"{self.name}-sim")
        self._world = world
        self._home = home
        self._chance = random.Random(self.name)

    @property
    def url(self) -> str:
        return f"{self._home.base_url}{self.path}"

    @property
    def jwks_url(self) -> str:
        return f"{self.url}{self.keys_path}"

    def discovery(self) -> Json:
        return {
            "issuer": self.url,
            "jwks_uri": self.jwks_url,
            "subject_types_supported": ["public"],
            "response_types_supported": ["id_token"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "scopes_supported": ["openid"],
            "claims_supported": sorted(self.claims("any")),
        }

    def claims(self, audience: str, **changes: Any) -> Json:
        full = {**self._registered_claims(audience), **self._own_claims(), **self._full_names(changes)}
        full.setdefault("sub", self._make_subject(full))
        return {name: value for name, value in full.items() if value is not None and value is not ...}

    def token(self, audience: str, **changes: Any) -> str:
        return self.sign(self.claims(audience, **changes))

    def fork_token(self, audience: str, **changes: Any) -> str:
        return self.token(audience, **{**self.fork_changes(), **changes})

    @abstractmethod
    def fork_changes(self) -> Json:
        """Return the claims in which a fork's build differs from the real one."""

    def new_id(self) -> str:
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))

    def _registered_claims(self, audience: str) -> Json:
        now = int(self._world.now().timestamp())
        life_s = int(self.life.total_seconds())
        return {"iss": self.url, "aud": audience, "iat": now, "nbf": now, "exp": now + life_s}

    def _full_names(self, changes: Json) -> Json:
        return changes

    @abstractmethod
    def _own_claims(self) -> Json:
        """Return the claims of this CI for a regular job on the default branch."""

    @abstractmethod
    def _make_subject(self, claims: Json) -> str: ...


class BuildkiteIssuer(OtherIssuer):
    """Ids of the organisation and the pipeline are included only when the job requests them; there is no `jti`."""

    name = "buildkite"
    path = "/_buildkite"
    organization_id = stable_id("buildkite", "acme-inc")
    pipeline_id = stable_id("buildkite", "acme-inc", "backend")

    def claims(self, audience: str, *, wanted: tuple[str, ...] = (), **changes: Any) -> Json:
        """`wanted` are optional claims, as by `--claim`: organization_id, pipeline_id."""
        available = {"organization_id": self.organization_id, "pipeline_id": self.pipeline_id}
        return super().claims(audience, **{name: available[name] for name in wanted}, **changes)

    def fork_changes(self) -> Json:
        # Buildkite prefixes branches of forks unless the pipeline is configured otherwise.
        return {"build_branch": "mallory:main", "build_source": "webhook", "build_commit": "f" * 40}

    def _own_claims(self) -> Json:
        return {
            "organization_slug": "acme-inc",
            "pipeline_slug": "backend",
            "build_number": 1417,
            "build_branch": "main",
            "build_commit": SHA,
            "step_key": "build",
            "job_id": self.new_id(),
            "agent_id": stable_id("buildkite", "agent"),
            "build_source": "api",
            "runner_environment": "self-hosted",
        }

    def _make_subject(self, claims: Json) -> str:
        organization, pipeline = claims.get("organization_slug"), claims.get("pipeline_slug")
        ref, commit = f"refs/heads/{claims.get('build_branch')}", claims.get("build_commit")
        return f"organization:{organization}:pipeline:{pipeline}:ref:{ref}:commit:{commit}:step:{claims.get('step_key')}"


class GitLabIssuer(OtherIssuer):
    """A GitLab instance: all claims of a job are strings but the runner's id; a token lives as long as a job may."""

    name = "gitlab"
    path = "/_gitlab"
    keys_path = "/oauth/discovery/keys"
    life = timedelta(hours=1)

    def discovery(self) -> Json:
        return {
            **super().discovery(),
            "authorization_endpoint": f"{self.url}/oauth/authorize",
            "token_endpoint": f"{self.url}/oauth/token",
            "userinfo_endpoint": f"{self.url}/oauth/userinfo",
        }

    def fork_changes(self) -> Json:
        """A merge request of a fork whose pipeline runs in the parent: `project_*` are the fork's."""
        return {
            "namespace_id": "99",
            "namespace_path": "mallory",
            "project_id": "66601",
            "project_path": "mallory/backend",
            "user_id": "99",
            "user_login": "mallory",
            "user_email": "mallory@example.org",
            "pipeline_source": "merge_request_event",
            "ref": "main",
            "ref_protected": "false",
            "sha": "f" * 40,
        }

    def _registered_claims(self, audience: str) -> Json:
        usual = super()._registered_claims(audience)
        return {**usual, "nbf": usual["iat"] - 5, "jti": self.new_id()}

    def _own_claims(self) -> Json:
        host = self.url.partition("://")[2]
        return {
            "namespace_id": "72",
            "namespace_path": "acme",
            "project_id": "20617",
            "project_path": "acme/backend",
            "job_namespace_id": "72",
            "job_namespace_path": "acme",
            "job_project_id": "20617",
            "job_project_path": "acme/backend",
            "user_id": "314",
            "user_login": "anja",
            "user_email": "anja@example.org",
            "user_access_level": "maintainer",
            "pipeline_id": "574001",
            "pipeline_source": "trigger",
            "job_id": "302001",
            "ref": "main",
            "ref_type": "branch",
            "ref_path": "refs/heads/main",
            "ref_protected": "true",
            "runner_id": 1,
            "runner_environment": "self-hosted",
            "sha": SHA,
            "project_visibility": "public",
            "ci_config_ref_uri": f"{host}/acme/backend//.gitlab-ci.yml@refs/heads/main",
            "ci_config_sha": SHA,
        }

    def _make_subject(self, claims: Json) -> str:
        project, ref = claims.get("project_path"), claims.get("ref")
        return f"project_path:{project}:ref_type:{claims.get('ref_type')}:ref:{ref}"


class CircleCiIssuer(OtherIssuer):
    """One issuer for each organisation. Own claims may be named by their last part, as `project_id`; no `jti`."""

    name = "circleci"
    organization_id = stable_id("circleci", "acme")
    path = f"/_circleci/org/{organization_id}"
    project_id = stable_id("circleci", "acme", "backend")
    user_id = stable_id("circleci", "user", "anja")
    keys_path = "/.well-known/jwks-pub.json"
    life = timedelta(hours=1)

    @staticmethod
    def context_id(name: str = "crcr") -> str:
        """The id of a context, as tokens of its jobs name it."""
        return stable_id("circleci", "context", name)

    def fork_changes(self) -> Json:
        """A fork's pull request with secrets passed on: the project is ours, the origin is theirs."""
        return {"vcs_origin": "github.com/mallory/backend", "vcs_ref": "refs/heads/pull/7"}

    def _registered_claims(self, audience: str) -> Json:
        usual = super()._registered_claims(audience)
        del usual["nbf"]
        return usual

    def _full_names(self, changes: Json) -> Json:
        short = {name.removeprefix(CIRCLE).replace("-", "_"): name for name in self._own_claims()}
        return {short.get(name, name): value for name, value in changes.items()}

    def _own_claims(self) -> Json:
        return {
            f"{CIRCLE}org-id": self.organization_id,
            f"{CIRCLE}project-id": self.project_id,
            f"{CIRCLE}context-ids": [self.context_id()],
            f"{CIRCLE}job-id": self.new_id(),
            f"{CIRCLE}workflow-id": self.new_id(),
            f"{CIRCLE}pipeline-id": self.new_id(),
            f"{CIRCLE}pipeline-definition-id": stable_id("circleci", "definition"),
            f"{CIRCLE}vcs-origin": "github.com/acme/backend",
            f"{CIRCLE}vcs-ref": "refs/heads/main",
            f"{CIRCLE}ssh-rerun": False,
        }

    def _make_subject(self, claims: Json) -> str:
        return f"org/{self.organization_id}/project/{claims.get(f'{CIRCLE}project-id')}/user/{self.user_id}"


class GenericIssuer(OtherIssuer):
    """A CI of no known make, for claims that an operator maps by hand."""

    name = "generic"
    path = "/_generic"
    life = timedelta(minutes=10)

    def fork_changes(self) -> Json:
        return {"project": "mallory/backend", "project_id": "66601"}

    def _registered_claims(self, audience: str) -> Json:
        return {**super()._registered_claims(audience), "jti": self.new_id()}

    def _own_claims(self) -> Json:
        return {
            "project": "acme/backend",
            "project_id": "4711",
            "branch": "main",
            "commit": SHA,
            "build_id": "8801",
            "build_attempt": "1",
            "job": "build",
            "job_id": "880101",
        }

    def _make_subject(self, claims: Json) -> str:
        return f"project:{claims.get('project')}:branch:{claims.get('branch')}"
