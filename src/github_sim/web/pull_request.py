"""The page of one pull request (merge box, position in the queue, checks, comments), and the page of one check."""

from typing import TYPE_CHECKING

from github_sim.clock import stamp
from github_sim.rest.checks import latest_by_name
from github_sim.web.html import (
    Html,
    check_state,
    concat,
    link,
    render_markdown,
    status_badge,
    status_colour,
    tag,
)
from github_sim.world import merge_rules
from github_sim.world.records import CheckRun, Comment, PullRequest, Repository

if TYPE_CHECKING:
    from github_sim.simulation import Simulation


def pull_page(sim: "Simulation", repository: Repository, number: int) -> Html | None:
    pull = sim.world.pulls.get((repository.id, number))
    if pull is None:
        return None
    checks = latest_by_name(
        [
            *sim.world.ci_checks_on(repository, pull.head_sha),
            *sim.world.checks_on(repository, pull.head_sha),
        ]
    )
    required = merge_rules.required_checks(repository, pull.base_ref)
    in_order = sorted(checks.values(), key=lambda check: (check.name not in required, check.name))
    cards = [_check(repository, check, unfolded=check.name in required) for check in in_order]
    comments = [_comment(comment) for comment in sim.world.comments_on(pull)]
    return concat(
        _title(repository, pull),
        tag("div", render_markdown(pull.body), class_="card") if pull.body else "",
        tag("h2", "Merging"),
        _merge_box(sim, repository, pull),
        _queue_box(sim, repository, pull),
        tag("h2", "Checks"),
        *(cards or [tag("p", "No checks.")]),
        tag("h2", "Comments"),
        *(comments or [tag("p", "No comments.")]),
    )


def _title(repository: Repository, pull: PullRequest) -> Html:
    state = "merged" if pull.merged else "draft" if pull.draft else pull.state
    where = f"{state} · by {pull.author.login} · {pull.head_ref} into {pull.base_ref} of "
    labels = [concat(tag("span", name, class_="label"), " ") for name in pull.labels]
    return concat(
        tag("h1", f"{pull.title} #{pull.number}"),
        tag("p", where, link(f"/{repository.full_name}", repository.full_name)),
        tag("p", *labels) if labels else "",
        tag("p", "Head ", tag("code", pull.head_sha), class_="soft"),
    )


def check_page(sim: "Simulation", repository: Repository, number: int) -> Html | None:
    check = sim.world.check_runs.get(number) or sim.world.ci_checks.get(number)
    if check is None or check.repository_id != repository.id:
        return None
    head = tag(
        "p",
        "On ",
        tag("code", check.head_sha),
        " of ",
        link(f"/{repository.full_name}", repository.full_name),
    )
    return concat(tag("h1", check.name), head, _check(repository, check, unfolded=True))


def _check(repository: Repository, check: CheckRun, *, unfolded: bool) -> Html:
    """One check. The page reloads itself and folds again, so what matters most is never folded."""
    state = check_state(check)
    colour = status_colour(state)
    where = check.details_url or ""
    details = link(where, "Details") if where.startswith(("http://", "https://")) else ""
    name = link(f"/{repository.full_name}/runs/{check.id}", check.name)
    line = concat(
        status_badge(state),
        " ",
        tag("strong", name),
        f" {state} · {check.output.get('title') or ''} ",
        details,
    )
    body = concat(*(render_markdown(str(check.output.get(part) or "")) for part in ("summary", "text")))
    if unfolded or not body:
        return tag("div", tag("p", line), body, class_=f"card {colour}")
    return tag("details", tag("summary", line), body, class_=f"card {colour}")


def _comment(comment: Comment) -> Html:
    who = f"{comment.author.login}{' (bot)' if comment.author.type == 'Bot' else ''}"
    standing = "" if comment.author_association == "NONE" else f" · {comment.author_association.lower()}"
    reactions = ", ".join(reaction.content for reaction in comment.reactions)
    return tag(
        "div",
        tag(
            "p",
            tag("strong", who),
            f"{standing} · {stamp(comment.created_at)}",
            class_="soft",
        ),
        render_markdown(comment.body),
        tag("p", f"Reactions: {reactions}", class_="soft") if reactions else "",
        class_="card",
        id=f"issuecomment-{comment.id}",
    )


def _merge_box(sim: "Simulation", repository: Repository, pull: PullRequest) -> Html:
    state = merge_rules.merge_state(sim.world, pull)
    if pull.merged:
        said = f"Merged as {pull.merge_commit_sha}"
    elif pull.state == "closed":
        said = "Closed without merging"
    elif not state.mergeable:
        said = f"Merging is blocked: {', '.join(state.blocked_by)}"
    elif merge_rules.required_checks(repository, pull.base_ref):
        said = "All required checks have passed"
    else:
        said = "No checks are required"
    failing = any(reason.endswith(": failure") for reason in state.blocked_by)
    colour = "good" if state.mergeable or pull.merged else "bad" if failing else "wait"
    return tag("div", tag("p", said), class_=f"card {colour}")


def _queue_box(sim: "Simulation", repository: Repository, pull: PullRequest) -> Html:
    waiting = [group for group in sim.world.queue if group.repository_id == repository.id]
    position = next((at for at, group in enumerate(waiting, 1) if group.number == pull.number), None)
    queue = link(f"/{repository.full_name}/queue", "merge queue")
    if position is None:
        return tag("p", "Not in the ", queue, ".", class_="soft")
    group = waiting[position - 1]
    return tag("p", f"Number {position} in the ", queue, " as ", tag("code", group.head_sha), ".")
