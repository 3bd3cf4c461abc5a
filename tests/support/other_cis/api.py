"""The API calls of Buildkite, GitLab and CircleCI that bridge workflows and reporters make: start, list and cancel a
build, and issue a job's OIDC token.

Each API is served below its issuer's address, with the paths, the authentication and the answers of the real one.
"""

from typing import TYPE_CHECKING

from github_sim.clock import stamp
from github_sim.oidc.other_cis import BuildkiteIssuer, CircleCiIssuer, GitLabIssuer
from github_sim.rest.exchange import ApiError, ApiRequest, Auth, Reply, Route
from github_sim.runner.yaml_text import WorkflowError
from github_sim.simulation import Simulation
from github_sim.world.records import Json
from support.other_cis.builds import ENDED, Build, PlannedJob, Project
from support.other_cis.circleci import SECRETS_PATH

if TYPE_CHECKING:
    from support.other_cis.projects import OtherCis

_OUTCOMES = {"passed": "passed", "failed": "hard_failed", "canceled": "errored", "skipped": "neutral"}
_BUILDS = f"{BuildkiteIssuer.path}/v2/organizations/{{organization}}/pipelines/{{pipeline}}/builds"
_JOBS = f"{BuildkiteIssuer.path}/v3/jobs/{{job}}"
_TRIGGER = f"{GitLabIssuer.path}/api/v4/projects/{{project}}/trigger/pipeline"
_PIPELINE = "/_circleci/api/v2/project/{vcs}/{organization}/{project}/pipeline"


def api_routes(cis: "OtherCis") -> tuple[Route, ...]:
    api = _Api(cis)
    return (
        Route("POST", _BUILDS, api.create_build, Auth.OPEN),
        Route("GET", _BUILDS, api.list_builds, Auth.OPEN),
        Route("PUT", f"{_BUILDS}/{{number}}/cancel", api.cancel_build, Auth.OPEN),
        Route("POST", f"{_JOBS}/oidc/tokens", api.buildkite_token, Auth.OPEN),
        Route("GET", f"{_JOBS}/steps/{{step}}", api.buildkite_step, Auth.OPEN),
        Route("POST", _TRIGGER, api.trigger_gitlab_pipeline, Auth.OPEN),
        Route("POST", _PIPELINE, api.start_circleci_pipeline, Auth.OPEN),
        Route("POST", f"{_PIPELINE}/run", api.start_circleci_pipeline, Auth.OPEN),
        Route("POST", f"{CircleCiIssuer.path}{SECRETS_PATH}", api.circleci_token, Auth.OPEN),
    )


class _Api:
    """The handlers, with the signature that the simulator's routes have."""

    def __init__(self, cis: "OtherCis") -> None:
        self._cis = cis

    async def create_build(self, _sim: Simulation, request: ApiRequest) -> Reply:
        project, body = self._buildkite_project(request), request.json()
        if not body.get("commit") or not body.get("branch"):
            raise ApiError(422, "Validation failed")
        variables, message = body.get("env") or {}, str(body.get("message", ""))
        try:
            build = self._cis.start(project, variables, message=message, meta=body.get("meta_data"))
        except WorkflowError as problem:
            raise ApiError(422, str(problem)) from None
        return Reply(201, _build_json(build, body["branch"]))

    async def list_builds(self, _sim: Simulation, request: ApiRequest) -> Reply:
        meta = {name[10:-1]: value for name, value in request.query.items() if name.startswith("meta_data[")}
        builds = [
            build
            for build in self._cis.builds_of(self._buildkite_project(request))
            if meta.items() <= build.meta.items()
            and ("state[]" not in request.query or build.state not in ENDED)
        ]
        return Reply(200, [_build_json(build, "main") for build in reversed(builds)])

    async def cancel_build(self, _sim: Simulation, request: ApiRequest) -> Reply:
        for build in self._cis.builds_of(self._buildkite_project(request)):
            if build.number == request.number("number"):
                build.cancel()
                return Reply(200, _build_json(build, "main"))
        raise ApiError(404, "Not Found")

    async def buildkite_token(self, _sim: Simulation, request: ApiRequest) -> Reply:
        _, job = self._running_job(request)
        body = request.json()
        if job.mint is None or job.env.get("BUILDKITE_JOB_ID") != request.params["job"]:
            raise ApiError(404, "Not Found")
        return Reply(200, {"token": job.mint(body.get("audience") or "", body.get("claims") or [])})

    async def buildkite_step(self, _sim: Simulation, request: ApiRequest) -> Reply:
        build, _ = self._running_job(request)
        step = build.jobs.get(request.params["step"])
        if step is None:
            raise ApiError(404, "No step found")
        outcome = _OUTCOMES.get(step.state, "neutral")
        return Reply(200, {"outcome": outcome, "artifacts": str(build.kept / request.params["step"])})

    async def trigger_gitlab_pipeline(self, _sim: Simulation, request: ApiRequest) -> Reply:
        body = request.json()
        project = self._project("gitlab", request.params["project"], str(body.get("token", "")))
        if body.get("ref") != project.joined.repository.default_branch:
            raise ApiError(400, "Reference not found")
        try:
            build = self._cis.start(project, body.get("variables") or {})
        except WorkflowError as problem:
            raise ApiError(400, str(problem)) from None
        return Reply(201, {"id": int(build.id), "status": "created", "source": "trigger", "ref": body["ref"]})

    async def start_circleci_pipeline(self, sim: Simulation, request: ApiRequest) -> Reply:
        body, slug = (
            request.json(),
            "/".join(request.params[name] for name in ("vcs", "organization", "project")),
        )
        project = self._project("circleci", slug, request.headers.get("circle-token", ""))
        try:
            build = self._cis.start(project, body.get("parameters") or {})
        except WorkflowError as problem:
            raise ApiError(400, str(problem)) from None
        created_at = stamp(sim.clock.now())
        return Reply(
            201, {"id": build.id, "number": build.number, "state": "pending", "created_at": created_at}
        )

    async def circleci_token(self, _sim: Simulation, request: ApiRequest) -> Reply:
        _, job = self._running_job(request)
        if job.mint is None:
            raise ApiError(404, "Not Found")
        return Reply(200, {"token": job.mint(str(request.json().get("aud", "")))})

    def _buildkite_project(self, request: ApiRequest) -> Project:
        path = f"{request.params['organization']}/{request.params['pipeline']}"
        return self._project("buildkite", path, _bearer_token(request))

    def _project(self, ci: str, path: str, token: str) -> Project:
        project = self._cis.find_project(ci, path, token)
        if project is None:
            raise ApiError(401, "Authentication required. Please supply a valid API Access Token")
        return project

    def _running_job(self, request: ApiRequest) -> tuple[Build, PlannedJob]:
        job = self._cis.find_running_job(_bearer_token(request))
        if job is None:
            raise ApiError(401, "Unauthorized")
        return job


def _bearer_token(request: ApiRequest) -> str:
    return request.headers.get("authorization", "").partition(" ")[2]


def _build_json(build: Build, branch: str) -> Json:
    return {
        "id": build.id,
        "number": build.number,
        "state": build.state,
        "branch": branch,
        "source": "api",
        "message": build.meta.get("message", ""),
        "meta_data": {name: value for name, value in build.meta.items() if name != "message"},
    }
