"""What of other CIs' APIs a bridge and a reporter call: start and cancel a build, ask for a job's token.

Each below its issuer's address, with the paths, the authentication and the answers of the real ones.
"""

from typing import TYPE_CHECKING

from github_sim.clock import stamp
from github_sim.oidc.other_cis import BuildkiteIssuer, CircleCiIssuer, GitLabIssuer
from github_sim.rest.exchange import ApiError, Ask, Auth, Reply, Route
from github_sim.runner.other_cis.builds import ENDED, Build, PlannedJob
from github_sim.runner.other_cis.circleci import SECRETS_PATH
from github_sim.runner.problems import Problem
from github_sim.world.records import Json

if TYPE_CHECKING:
    from github_sim.runner.other_cis.projects import OtherCis, Project
    from github_sim.simulation import Simulation

_OUTCOMES = {"passed": "passed", "failed": "hard_failed", "canceled": "errored", "skipped": "neutral"}


def _cis(sim: "Simulation") -> "OtherCis":
    if sim.other_cis is None:
        raise ApiError(404, "Not Found")
    return sim.other_cis


def _project(sim: "Simulation", ci: str, place: str, token: str) -> "Project":
    found = _cis(sim).find(ci, place, token)
    if found is None:
        raise ApiError(401, "Authentication required. Please supply a valid API Access Token")
    return found


def _bearer(ask: Ask) -> str:
    return ask.headers.get("authorization", "").partition(" ")[2]


def _buildkite_project(sim: "Simulation", ask: Ask) -> "Project":
    place = f"{ask.params['organization']}/{ask.params['pipeline']}"
    return _project(sim, "buildkite", place, _bearer(ask))


async def create_build(sim: "Simulation", ask: Ask) -> Reply:
    project, body = _buildkite_project(sim, ask), ask.json()
    if not body.get("commit") or not body.get("branch"):
        raise ApiError(422, "Validation failed")
    try:
        build = _cis(sim).start(
            project, body.get("env") or {}, message=str(body.get("message", "")), meta=body.get("meta_data")
        )
    except Problem as problem:
        raise ApiError(422, str(problem)) from None
    return Reply(201, _build_json(build, body["branch"]))


async def list_builds(sim: "Simulation", ask: Ask) -> Reply:
    wanted = {name[10:-1]: value for name, value in ask.query.items() if name.startswith("meta_data[")}
    found = [
        build
        for build in _cis(sim).builds(_buildkite_project(sim, ask))
        if wanted.items() <= build.meta.items() and ("state[]" not in ask.query or build.state not in ENDED)
    ]
    return Reply(200, [_build_json(build, "main") for build in reversed(found)])


async def cancel_build(sim: "Simulation", ask: Ask) -> Reply:
    for build in _cis(sim).builds(_buildkite_project(sim, ask)):
        if build.number == ask.number("number"):
            build.cancel()
            return Reply(200, _build_json(build, "main"))
    raise ApiError(404, "Not Found")


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


def _job(sim: "Simulation", ask: Ask) -> tuple[Build, PlannedJob]:
    found = _cis(sim).job_of(_bearer(ask))
    if found is None:
        raise ApiError(401, "Unauthorized")
    return found


async def buildkite_token(sim: "Simulation", ask: Ask) -> Reply:
    _, job = _job(sim, ask)
    body = ask.json()
    if job.mint is None or job.env.get("BUILDKITE_JOB_ID") != ask.params["job"]:
        raise ApiError(404, "Not Found")
    return Reply(200, {"token": job.mint(body.get("audience") or "", body.get("claims") or [])})


async def buildkite_step(sim: "Simulation", ask: Ask) -> Reply:
    build, _ = _job(sim, ask)
    step = build.jobs.get(ask.params["step"])
    if step is None:
        raise ApiError(404, "No step found")
    outcome = _OUTCOMES.get(step.state, "neutral")
    return Reply(200, {"outcome": outcome, "artifacts": str(build.kept / ask.params["step"])})


async def trigger_pipeline(sim: "Simulation", ask: Ask) -> Reply:
    body = ask.json()
    project = _project(sim, "gitlab", ask.params["project"], str(body.get("token", "")))
    if body.get("ref") != project.joined.repository.default_branch:
        raise ApiError(400, "Reference not found")
    try:
        build = _cis(sim).start(project, body.get("variables") or {})
    except Problem as problem:
        raise ApiError(400, str(problem)) from None
    return Reply(201, {"id": int(build.id), "status": "created", "source": "trigger", "ref": body["ref"]})


async def start_pipeline(sim: "Simulation", ask: Ask) -> Reply:
    body, slug = ask.json(), "/".join(ask.params[name] for name in ("vcs", "organization", "project"))
    project = _project(sim, "circleci", slug, ask.headers.get("circle-token", ""))
    try:
        build = _cis(sim).start(project, body.get("parameters") or {})
    except Problem as problem:
        raise ApiError(400, str(problem)) from None
    at = stamp(sim.clock.now())
    return Reply(201, {"id": build.id, "number": build.number, "state": "pending", "created_at": at})


async def circleci_token(sim: "Simulation", ask: Ask) -> Reply:
    _, job = _job(sim, ask)
    if job.mint is None:
        raise ApiError(404, "Not Found")
    return Reply(200, {"token": job.mint(str(ask.json().get("aud", "")))})


_BUILDS = f"{BuildkiteIssuer.path}/v2/organizations/{{organization}}/pipelines/{{pipeline}}/builds"
_JOBS = f"{BuildkiteIssuer.path}/v3/jobs/{{job}}"
_PIPELINE = "/_circleci/api/v2/project/{vcs}/{organization}/{project}/pipeline"
ROUTES = (
    Route("POST", _BUILDS, create_build, Auth.OPEN),
    Route("GET", _BUILDS, list_builds, Auth.OPEN),
    Route("PUT", f"{_BUILDS}/{{number}}/cancel", cancel_build, Auth.OPEN),
    Route("POST", f"{_JOBS}/oidc/tokens", buildkite_token, Auth.OPEN),
    Route("GET", f"{_JOBS}/steps/{{step}}", buildkite_step, Auth.OPEN),
    Route(
        "POST",
        f"{GitLabIssuer.path}/api/v4/projects/{{project}}/trigger/pipeline",
        trigger_pipeline,
        Auth.OPEN,
    ),
    Route("POST", _PIPELINE, start_pipeline, Auth.OPEN),
    Route("POST", f"{_PIPELINE}/run", start_pipeline, Auth.OPEN),
    Route("POST", f"{CircleCiIssuer.path}{SECRETS_PATH}", circleci_token, Auth.OPEN),
)
