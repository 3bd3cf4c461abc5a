"""Simulated Buildkite, GitLab and CircleCI projects of joined repositories, and the builds that they start.

`connect` does what a maintainer does on the CI's pages: it creates the project, issues an API token and stores the
token among the repository's secrets, where the bridge workflow reads it.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from github_sim.oidc.other_cis import stable_id
from github_sim.runner.joined_repository import JoinedRepository
from github_sim.runner.runner import Runner
from github_sim.runner.yaml_text import WorkflowError
from support.other_cis import buildkite, circleci, gitlab
from support.other_cis.api import api_routes
from support.other_cis.builds import Build, PlannedJob, Project, RunningJobs

API_TOKEN_SECRETS = {
    "buildkite": "BUILDKITE_API_TOKEN",
    "gitlab": "GITLAB_TRIGGER_TOKEN",
    "circleci": "CIRCLECI_API_TOKEN",
}
API_URLS = {
    "buildkite": "https://api.buildkite.com",
    "gitlab": "https://gitlab.com",
    "circleci": "https://circleci.com",
}
_FIRST_PIPELINE = 574_000


class OtherCis:
    """The three CIs beside one simulated GitHub: their APIs are added to its routes, their jobs use its runner."""

    def __init__(self, runner: Runner) -> None:
        self.builds: list[Build] = []
        self._runner = runner
        self._projects: dict[tuple[str, str], Project] = {}
        self._running_jobs: RunningJobs = {}
        runner.sim.extra_routes.extend(api_routes(self))

    def connect(self, ci: str, joined: JoinedRepository, path: tuple[str, str]) -> Project:
        """`path`: organisation and pipeline at Buildkite, number and path at GitLab, slug and "" at CircleCI."""
        project = Project(ci, path, joined, secrets.token_hex(20))
        self._projects[ci, "/".join(path) if ci == "buildkite" else path[0]] = project
        joined.secrets[API_TOKEN_SECRETS[ci]] = project.token
        self._runner.redirects[API_URLS[ci]] = f"{self._runner.sim.base_url}/_{ci}"
        return project

    def find_project(self, ci: str, path: str, token: str) -> Project | None:
        """The project, or None when it does not exist or the token is not its own."""
        project = self._projects.get((ci, path))
        return project if project is not None and secrets.compare_digest(project.token, token) else None

    def start(
        self,
        project: Project,
        variables: Mapping[str, Any],
        *,
        message: str = "",
        meta: Mapping[str, str] | None = None,
    ) -> Build:
        """Start a build with these variables (at CircleCI: pipeline parameters)."""
        number = 1 + sum(1 for build in self.builds if build.ci == project.ci)
        id = str(_FIRST_PIPELINE + number) if project.ci == "gitlab" else stable_id(project.ci, str(number))
        build = Build(self._runner, project, number, id, self._running_jobs)
        build.meta = {**(meta or {}), "message": message}
        try:
            plan = self._plan(build, variables)
        except WorkflowError as problem:
            self._runner.report_problem(f"{project.joined.repository.full_name} {project.ci}: {problem}")
            raise
        self.builds.append(build)
        build.start(plan)
        return build

    def _plan(self, build: Build, variables: Mapping[str, Any]) -> list[PlannedJob]:
        sim = self._runner.sim
        if build.ci == "circleci":
            config = circleci.read_config(build)
            return circleci.plan(sim, build, config, circleci.pipeline_parameters(config, variables))
        build.env = {name: str(value) for name, value in variables.items()}
        return buildkite.plan(sim, build) if build.ci == "buildkite" else gitlab.plan(sim, build)

    def builds_of(self, project: Project) -> list[Build]:
        return [build for build in self.builds if build.joined is project.joined]

    def find_running_job(self, secret: str) -> tuple[Build, PlannedJob] | None:
        """The running job that was given this secret."""
        return self._running_jobs.get(secret)
