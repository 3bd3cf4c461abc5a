"""A few pages for people who look at a demo: repositories, the merge queue, issues, workflow runs, files, the App.

They are served only to a browser (`Accept: text/html`); API clients never get them. `pull_request.py` has the pages of
pull requests and checks.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from github_sim.bodies.repositories import APP_NAME, APP_SLUG
from github_sim.rest.checks import latest_by_name
from github_sim.rest.exchange import Reply
from github_sim.web.html import Html, check_state, concat, link, page, render_markdown, status_badge, tag
from github_sim.web.pull_request import check_page, pull_page
from github_sim.world import merge_rules
from github_sim.world.actions import StepRun, WorkflowJob, WorkflowRun
from github_sim.world.records import Installation, MergeGroup, PullRequest, Repository

if TYPE_CHECKING:
    from github_sim.simulation import Simulation


def index_page(sim: "Simulation") -> Html:
    own = [repository for repository in sim.world.repositories.values() if repository.parent_id is None]
    busy = [repository for repository in own if _open_pulls(sim, repository)]
    quiet = [repository for repository in own if repository not in busy]
    others = concat(*(tag("li", _repository_link(repository)) for repository in quiet))
    return concat(
        tag("h1", "Open pull requests"),
        *(_pulls(sim, repository) for repository in busy),
        tag("h2", "Without open pull requests") if quiet else "",
        tag("ul", others) if quiet else "",
    )


def repository_page(sim: "Simulation", repository: Repository) -> Html:
    return concat(
        tag("h1", repository.full_name),
        tag("p", repository.description or "No description."),
        _pulls(sim, repository),
        _issues(sim, repository),
        runs_list(sim, repository),
    )


def _issues(sim: "Simulation", repository: Repository) -> Html:
    """The issues of a repository that has any, newest first."""
    found = sorted(
        (issue for issue in sim.world.issues.values() if issue.repository_id == repository.id),
        key=lambda issue: -issue.number,
    )
    rows = [
        tag(
            "li",
            link(f"/{repository.full_name}/issues/{issue.number}", f"{issue.title} #{issue.number}"),
            f" · {issue.state}",
        )
        for issue in found
    ]
    return concat(tag("h2", "Issues"), tag("ul", *rows, class_="plain")) if rows else concat()


def issue_page(sim: "Simulation", repository: Repository, number: int) -> Html | None:
    issue = sim.world.issues.get((repository.id, number))
    if issue is None:
        return None
    return concat(
        tag("h1", f"{issue.title} #{issue.number}"),
        tag("p", f"{issue.state} · by {issue.author.login} · ", _repository_link(repository)),
        tag("div", render_markdown(issue.body), class_="card") if issue.body else "",
    )


def _repository_link(repository: Repository) -> Html:
    return link(f"/{repository.full_name}", repository.full_name)


def _open_pulls(sim: "Simulation", repository: Repository) -> list[PullRequest]:
    found = [pull for pull in sim.world.pulls.values() if pull.repository_id == repository.id]
    return sorted((pull for pull in found if pull.state == "open"), key=lambda pull: -pull.number)


def _pulls(sim: "Simulation", repository: Repository) -> Html:
    rows = [_pull_row(sim, repository, pull) for pull in _open_pulls(sim, repository)]
    waiting = sum(1 for group in sim.world.queue if group.repository_id == repository.id)
    queue = link(f"/{repository.full_name}/queue", f"Merge queue ({waiting})")
    title = tag("h2", _repository_link(repository), " · ", queue)
    shown = tag("ul", *rows, class_="plain") if rows else tag("p", "No open pull requests.")
    return concat(title, _rate_limit(sim, repository), shown)


def _rate_limit(sim: "Simulation", repository: Repository) -> Html:
    """What the App has used of the limits of the installation that the repository belongs to."""
    installation = sim.world.installation_of(repository)
    if installation is None or not (counted := sim.call_counts.for_installation(installation.id)).routes:
        return concat()
    rate = sim.rate_limiter.headers(("installation", installation.id), sim.clock.now())
    used, limit = int(rate["x-ratelimit-used"]), int(rate["x-ratelimit-limit"])
    until = datetime.fromtimestamp(int(rate["x-ratelimit-reset"]), UTC)
    return tag(
        "p",
        f"The App's calls on {repository.owner.login} in the hour until {until:%H:%M} UTC: {used:,} of {limit:,}."
        f" Busiest minute so far: {counted.most_points_in_a_minute:,} of {sim.limits.points_per_minute:,} points.",
        class_="soft",
    )


def _pull_row(sim: "Simulation", repository: Repository, pull: PullRequest) -> Html:
    state = merge_rules.merge_state(sim.world, pull)
    queued = any(
        (group.repository_id, group.number) == (repository.id, pull.number) for group in sim.world.queue
    )
    said = ", ".join(state.blocked_by) or ("in the merge queue" if queued else "ready to merge")
    address = f"/{repository.full_name}/pull/{pull.number}"
    words = tag("span", f"by {pull.author.login} · {said}", class_="soft")
    shown = status_badge("success" if state.mergeable else _worst(state.blocked_by))
    return tag("li", shown, " ", link(address, f"#{pull.number} {pull.title}"), " ", words)


def _worst(reasons: tuple[str, ...]) -> str:
    return "failure" if any(reason.endswith(": failure") for reason in reasons) else "queued"


def queue_page(sim: "Simulation", repository: Repository) -> Html:
    groups = [group for group in sim.world.queue if group.repository_id == repository.id]
    cards = [_group_card(sim, repository, position, group) for position, group in enumerate(groups, 1)]
    return concat(
        tag("h1", "Merge queue of ", _repository_link(repository)),
        *(cards or [tag("p", "The merge queue is empty.")]),
    )


def _group_card(sim: "Simulation", repository: Repository, position: int, group: MergeGroup) -> Html:
    pull = sim.world.pulls[(group.repository_id, group.number)]
    reasons = merge_rules.blocked_by(sim.world, repository, group.head_sha, group.base_ref)
    checks = latest_by_name(sim.world.checks_on(repository, group.head_sha))
    address = f"/{repository.full_name}/pull/{pull.number}"
    return tag(
        "div",
        tag("p", f"{position}. ", link(address, f"#{pull.number} {pull.title}"), f" into {group.base_ref}"),
        tag("p", "Group ", tag("code", group.head_sha), " on ", tag("code", group.base_sha)),
        tag("p", f"Waiting for: {', '.join(reasons)}" if reasons else "All required checks have passed."),
        *(
            tag("p", status_badge(check_state(check)), f" {name}: {check_state(check)}")
            for name, check in checks.items()
        ),
        class_=f"card {'wait' if reasons else 'good'}",
    )


MOST_RUNS = 20
MOST_LOG_CHARACTERS = 4_000


def runs_list(sim: "Simulation", repository: Repository) -> Html:
    latest_by_name = list(sim.world.runs_of(repository))[: -MOST_RUNS - 1 : -1]
    rows = (tag("li", *_run_row(repository, run)) for run in latest_by_name)
    return (
        concat(tag("h2", "Workflow runs"), tag("ul", *rows, class_="plain")) if latest_by_name else concat()
    )


def _run_row(repository: Repository, run: WorkflowRun) -> tuple[Html, str, Html]:
    address = f"/{repository.full_name}/actions/runs/{run.id}"
    words = f"{run.workflow.name} #{run.run_number} · {run.display_title}"
    return status_badge(run.conclusion or run.status), " ", link(address, words)


def run_page(sim: "Simulation", repository: Repository, number: int) -> Html | None:
    run = sim.world.runs.get(number)
    if run is None or run.repository_id != repository.id:
        return None
    home = link(f"/{repository.full_name}", repository.full_name)
    return concat(
        tag("h1", run.display_title),
        tag("p", f"{run.workflow.name} run {run.run_number}, attempt {run.attempt}"),
        tag("p", home, f" · {run.event} · {run.conclusion or run.status}"),
        tag("ul", *(_job(job) for job in run.jobs), class_="plain"),
    )


def _job(job: WorkflowJob) -> Html:
    state = job.conclusion or job.status
    steps = tag("ul", *(_step(step) for step in job.steps), class_="plain") if job.steps else ""
    return tag("li", status_badge(state), f" {job.name}: {state}", steps)


def _step(step: StepRun) -> Html:
    state = step.conclusion or step.status
    log = step.log[-MOST_LOG_CHARACTERS:].strip()
    return tag("li", status_badge(state), f" {step.name}: {state}", tag("pre", log) if log else "")


APP_PATH = f"/apps/{APP_SLUG}"
MOST_FILE_CHARACTERS = 200_000


def app_page(sim: "Simulation") -> Html:
    """The page to install the App."""
    rows = [_installation(sim, installation) for installation in sim.world.installations.values()]
    joining = tag("p", "In the demo, ", tag("code", "crcr demo-join owner/name"), " installs it.")
    return concat(
        tag("h1", APP_NAME),
        tag("p", "The GitHub App of the relay."),
        tag("div", joining, class_="card wait"),
        tag("h2", "Installed on"),
        tag("ul", *rows) if rows else tag("p", "No repository."),
    )


def _installation(sim: "Simulation", installation: Installation) -> Html:
    held = [sim.world.repositories.get(number) for number in sorted(installation.repository_ids)]
    names = [
        link(f"/{repository.full_name}", repository.full_name)
        for repository in held
        if repository is not None
    ]
    spaced = [part for name in names for part in (", ", name)][1:]
    return tag("li", *spaced, " (suspended)" if installation.suspended_at else "")


def file_page(sim: "Simulation", repository: Repository, place: str) -> Html | None:
    """`place` is a branch or a commit, and a path. A branch's name may hold slashes, so all places are tried."""
    parts = place.split("/")
    for end in range(1, len(parts)):
        ref, path = "/".join(parts[:end]), "/".join(parts[end:])
        commit = sim.world.resolve(repository, ref)
        if commit is not None and path in commit.tree:
            return _file(repository, ref, path, commit.tree[path])
    return None


def _file(repository: Repository, ref: str, path: str, content: bytes) -> Html:
    words = content.decode("utf-8", "replace")
    cut = len(words) > MOST_FILE_CHARACTERS
    adding = tag("code", "crcr demo-join")
    return concat(
        tag("h1", path),
        tag("p", link(f"/{repository.full_name}", repository.full_name), " at ", tag("code", ref)),
        tag("pre", words[:MOST_FILE_CHARACTERS]),
        tag("p", "The rest is not shown.", class_="soft") if cut else "",
        tag("p", "Read only. In the demo, ", adding, " adds a repository to the allowlist.", class_="soft"),
    )


Page = Callable[["Simulation", Repository, int], Html | None]
_REPOSITORY = re.compile(r"/(?P<name>[^/]+/[^/]+?)(?:/(?P<rest>.+))?/?")
_BLOB = "blob/"
_PAGES: tuple[tuple[re.Pattern[str], Page], ...] = (
    (re.compile(r"pull/(\d+)(?:/.*)?"), pull_page),
    (re.compile(r"actions/runs/(\d+)(?:/.*)?"), run_page),
    (re.compile(r"runs/(\d+)"), check_page),
    (re.compile(r"issues/(\d+)"), issue_page),
)


def wants_html(method: str, accept: str) -> bool:
    """Whether a browser requests a page; an unknown address is then a 404, and not unexpected."""
    return method == "GET" and "text/html" in accept


def page_for(sim: "Simulation", method: str, path: str, accept: str) -> Reply | None:
    """The page of a path, or None when this is no browser's request for something known."""
    if method == "GET" and path == "/favicon.ico":
        return Reply(204)
    if not wants_html(method, accept):
        return None
    if path == "/":
        return page("Pull requests", index_page(sim))
    if path in (APP_PATH, f"{APP_PATH}/installations/new"):
        return page("App", app_page(sim))
    found = _REPOSITORY.fullmatch(path)
    repository = sim.world.find(found["name"]) if found else None
    if found is None or repository is None:
        return None
    return page(repository.full_name, _body(sim, repository, found["rest"] or ""))


def _body(sim: "Simulation", repository: Repository, rest: str) -> Html:
    if rest == "queue":
        return queue_page(sim, repository)
    if rest.startswith(_BLOB):
        shown = file_page(sim, repository, rest.removeprefix(_BLOB))
        return shown or concat(tag("h1", "No such file"), tag("p", rest.removeprefix(_BLOB)))
    for pattern, made in _PAGES:
        if (found := pattern.fullmatch(rest)) and (body := made(sim, repository, int(found[1]))) is not None:
            return body
    return repository_page(sim, repository)
