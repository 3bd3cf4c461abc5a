"""The simulator's pages that list things: open pull requests, a repository, its merge queue."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from github_sim.rest.checks import newest
from github_sim.web.html import Html, joined, link, mark, state_of, tag
from github_sim.web.runs import runs_list
from github_sim.world import merge_rules
from github_sim.world.records import MergeGroup, PullRequest, Repository

if TYPE_CHECKING:
    from github_sim.simulation import Simulation


def index_page(sim: "Simulation") -> Html:
    own = [each for each in sim.world.repositories.values() if each.parent_id is None]
    busy = [each for each in own if _open_pulls(sim, each)]
    quiet = [each for each in own if each not in busy]
    others = joined(*(tag("li", _repository_link(each)) for each in quiet))
    return joined(
        tag("h1", "Open pull requests"),
        *(_pulls(sim, each) for each in busy),
        tag("h2", "Without open pull requests") if quiet else "",
        tag("ul", others) if quiet else "",
    )


def repository_page(sim: "Simulation", repository: Repository) -> Html:
    return joined(
        tag("h1", repository.full_name),
        tag("p", repository.description or "No description."),
        _pulls(sim, repository),
        runs_list(sim, repository),
    )


def _repository_link(repository: Repository) -> Html:
    return link(f"/{repository.full_name}", repository.full_name)


def _open_pulls(sim: "Simulation", repository: Repository) -> list[PullRequest]:
    found = [each for each in sim.world.pulls.values() if each.repository_id == repository.id]
    return sorted((each for each in found if each.state == "open"), key=lambda each: -each.number)


def _pulls(sim: "Simulation", repository: Repository) -> Html:
    rows = [_pull_row(sim, repository, pull) for pull in _open_pulls(sim, repository)]
    waiting = sum(1 for group in sim.world.queue if group.repository_id == repository.id)
    queue = link(f"/{repository.full_name}/queue", f"Merge queue ({waiting})")
    title = tag("h2", _repository_link(repository), " · ", queue)
    shown = tag("ul", *rows, class_="plain") if rows else tag("p", "No open pull requests.")
    return joined(title, _rate_limit(sim, repository), shown)


def _rate_limit(sim: "Simulation", repository: Repository) -> Html:
    """What the App has used of the limits of the installation that the repository belongs to."""
    installation = sim.world.installation_of(repository)
    if installation is None or not (counted := sim.call_counts.of(installation.id)).routes:
        return joined()
    rate = sim.ledger.headers(("installation", installation.id), sim.clock.now())
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
    shown = mark("success" if state.mergeable else _worst(state.blocked_by))
    return tag("li", shown, " ", link(address, f"#{pull.number} {pull.title}"), " ", words)


def _worst(reasons: tuple[str, ...]) -> str:
    return "failure" if any(reason.endswith(": failure") for reason in reasons) else "queued"


def queue_page(sim: "Simulation", repository: Repository) -> Html:
    groups = [each for each in sim.world.queue if each.repository_id == repository.id]
    cards = [_group_card(sim, repository, place, group) for place, group in enumerate(groups, 1)]
    return joined(
        tag("h1", "Merge queue of ", _repository_link(repository)),
        *(cards or [tag("p", "The merge queue is empty.")]),
    )


def _group_card(sim: "Simulation", repository: Repository, place: int, group: MergeGroup) -> Html:
    pull = sim.world.pulls[(group.repository_id, group.number)]
    reasons = merge_rules.blocked_by(sim.world, repository, group.head_sha, group.base_ref)
    checks = newest(sim.world.checks_on(repository, group.head_sha))
    address = f"/{repository.full_name}/pull/{pull.number}"
    return tag(
        "div",
        tag("p", f"{place}. ", link(address, f"#{pull.number} {pull.title}"), f" into {group.base_ref}"),
        tag("p", "Group ", tag("code", group.head_sha), " on ", tag("code", group.base_sha)),
        tag("p", f"Waiting for: {', '.join(reasons)}" if reasons else "All required checks have passed."),
        *(tag("p", mark(state_of(each)), f" {name}: {state_of(each)}") for name, each in checks.items()),
        class_=f"card {'wait' if reasons else 'good'}",
    )
