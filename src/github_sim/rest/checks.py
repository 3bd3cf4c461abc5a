"""REST routes of check runs, with GitHub's limits on text, annotations and actions."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from github_sim.bodies.actions import check_run_json
from github_sim.bodies.repositories import app_json, other_app_json
from github_sim.clock import stamp
from github_sim.rest.exchange import ApiError, ApiRequest, Reply, Route, paginate, validation_error
from github_sim.world.records import CheckRun, Json

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

STATUSES = ("queued", "in_progress", "completed")
CONCLUSIONS = (
    "action_required", "cancelled", "failure", "neutral", "success", "skipped", "timed_out",
)  # fmt: skip
MOST_TEXT = 65_535
MOST_ANNOTATIONS = 50
MOST_ACTIONS = 3
ACTION_CHARACTERS = {"label": 20, "description": 40, "identifier": 20}
_TEXT_FIELDS = ("name", "details_url", "external_id", "started_at", "completed_at")


def _problem(body: Json) -> tuple[str, str] | None:
    """The first thing wrong with a check run's body: its field and GitHub's complaint."""
    output = body.get("output") or {}
    if body.get("status", "queued") not in STATUSES:
        return "status", f"status is not included in the list: {STATUSES}"
    if body.get("conclusion") is not None and body["conclusion"] not in CONCLUSIONS:
        return "conclusion", f"conclusion is not included in the list: {CONCLUSIONS}"
    if body.get("status") == "completed" and body.get("conclusion") is None:
        return "conclusion", "conclusion is required when status is completed"
    for name in ("summary", "text"):
        if len(output.get(name) or "") > MOST_TEXT:
            return name, f"Only {MOST_TEXT} characters are allowed; {len(output[name])} were supplied."
    if output and not (output.get("title") and output.get("summary") is not None):
        return "output", "title and summary are required"
    if len(output.get("annotations") or []) > MOST_ANNOTATIONS:
        return "annotations", "No more than 50 items are allowed"
    return _action_problem(body.get("actions") or [])


def _action_problem(actions: list[Json]) -> tuple[str, str] | None:
    if len(actions) > MOST_ACTIONS:
        return "actions", "No more than 3 items are allowed"
    for action in actions:
        for name, most in ACTION_CHARACTERS.items():
            if not 1 <= len(action.get(name) or "") <= most:
                return "actions", f"{name} must have 1 to {most} characters"
    return None


def _validated_body(request: ApiRequest) -> Json:
    body = request.json()
    problem = _problem(body)
    if problem is not None:
        raise validation_error("CheckRun", *problem)
    return body


async def create_check(sim: "Simulation", request: ApiRequest) -> Reply:
    body = _validated_body(request)
    for name in ("name", "head_sha"):
        if not isinstance(body.get(name), str) or not body[name]:
            raise validation_error("CheckRun", name, f'"{name}" wasn\'t supplied.')
    if body["head_sha"] not in request.repository.commits:
        raise validation_error("CheckRun", "head_sha", f"No commit found for SHA: {body['head_sha']}")
    check = CheckRun(sim.world.next_id("check_run"), request.repository.id, body["head_sha"], body["name"])
    _apply(sim, check, body)
    sim.world.check_runs[check.id] = check
    return Reply(201, _json(sim, request, check))


def _apply(sim: "Simulation", check: CheckRun, body: Json) -> None:
    reopens = (
        check.status == "completed" and body.get("conclusion") is None and body.get("status") is not None
    )
    if reopens:
        # GitHub may or may not reopen it; here it never does, so clients cannot rely on it.
        sim.unexpected.append(f"PATCH tried to reopen the completed check run {check.name} {check.id}")
    for name in _TEXT_FIELDS:
        if body.get(name) is not None:
            setattr(check, name, body[name])
    if body.get("conclusion") is not None:
        check.status, check.conclusion = "completed", body["conclusion"]
        check.completed_at = body.get("completed_at") or stamp(sim.clock.now())
    elif body.get("status") is not None and not reopens:
        check.status, check.conclusion, check.completed_at = body["status"], None, None
    if check.started_at is None:
        check.started_at = stamp(sim.clock.now())
    output = body.get("output") or {}
    check.output |= {name: output[name] for name in ("title", "summary", "text") if name in output}
    check.annotations += output.get("annotations") or []
    check.actions = body.get("actions", check.actions)


def _check(sim: "Simulation", request: ApiRequest) -> CheckRun:
    check = sim.world.check_runs.get(request.number("check_run_id"))
    if check is None or check.repository_id != request.repository.id:
        raise ApiError(404, "Not Found")
    return check


async def update_check(sim: "Simulation", request: ApiRequest) -> Reply:
    check = _check(sim, request)
    _apply(sim, check, _validated_body(request))
    return Reply(200, _json(sim, request, check))


async def get_check(sim: "Simulation", request: ApiRequest) -> Reply:
    return Reply(200, _json(sim, request, _check(sim, request)))


async def list_checks(sim: "Simulation", request: ApiRequest) -> Reply:
    commit = sim.world.resolve(request.repository, request.params["ref"])
    if commit is None:
        raise ApiError(422, f"No commit found for SHA: {request.params['ref']}", errors=[])
    checks: list[CheckRun] = []
    for on_commit in (
        sim.world.checks_on(request.repository, commit.sha),
        sim.world.ci_checks_on(request.repository, commit.sha),
    ):
        every = on_commit if request.query.get("filter") == "all" else latest_by_name(on_commit).values()
        checks += [check for check in every if _matches_filters(sim, check, request)]
    page, headers = paginate(sim.base_url, request, checks)
    bodies = [_json(sim, request, check) for check in page]
    return Reply(200, {"total_count": len(checks), "check_runs": bodies}, headers)


def latest_by_name(checks: Iterable[CheckRun]) -> dict[str, CheckRun]:
    """Of each name the check that was made last."""
    return {check.name: check for check in sorted(checks, key=lambda check: check.id)}


def _matches_filters(sim: "Simulation", check: CheckRun, request: ApiRequest) -> bool:
    filters = {name: request.query.get(name) for name in ("check_name", "status", "app_id")}
    return (
        filters["check_name"] in {None, check.name}
        and filters["status"] in {None, check.status}
        and filters["app_id"] in {None, str(check.app.id if check.app else sim.app_id)}
    )


def _json(sim: "Simulation", request: ApiRequest, check: CheckRun) -> Json:
    if check.app is not None:
        app = other_app_json(sim.base_url, sim.world, check.app)
    else:
        app = app_json(sim.base_url, sim.world, sim.app_id, sim.app_permissions)
    return check_run_json(sim.base_url, request.repository, check, app)


_REPO = "/repos/{owner}/{repo}"
_READ, _WRITE = ("checks", "read"), ("checks", "write")
ROUTES = (
    Route("POST", f"{_REPO}/check-runs", create_check, permission=_WRITE),
    Route("PATCH", f"{_REPO}/check-runs/{{check_run_id}}", update_check, permission=_WRITE),
    Route("GET", f"{_REPO}/check-runs/{{check_run_id}}", get_check, permission=_READ),
    Route("GET", f"{_REPO}/commits/{{ref}}/check-runs", list_checks, permission=_READ),
)
