"""Changes of issues, and of comments on pull requests, with the webhook of each: made by people or by the App."""

from typing import TYPE_CHECKING

from github_sim.bodies import webhooks
from github_sim.bodies.comments import comment_json, issue_json, plain_issue_json
from github_sim.bodies.repositories import APP_SLUG, app_json, repository_json
from github_sim.world.records import (
    Account,
    Comment,
    Issue,
    Json,
    PullRequest,
    Reaction,
    Repository,
    WebhookDelivery,
)

if TYPE_CHECKING:
    from github_sim.simulation import Simulation


def app_account(sim: "Simulation") -> Account:
    """The bot that the App acts as."""
    return sim.world.account(f"{APP_SLUG}[bot]", "Bot")


def render_comment(sim: "Simulation", comment: Comment) -> Json:
    repository = sim.world.repositories[comment.repository_id]
    app = app_json(sim.base_url, sim.world, sim.app_id, sim.app_permissions) if comment.by_app else None
    return comment_json(sim.base_url, repository, comment, app)


async def write(
    sim: "Simulation", pull: PullRequest, body: str, author: Account, association: str, *, by_app: bool
) -> Comment:
    now = sim.clock.now()
    comment = Comment(
        id=sim.world.next_id("comment"),
        repository_id=pull.repository_id,
        number=pull.number,
        body=body,
        author=author,
        author_association=association,
        created_at=now,
        updated_at=now,
        by_app=by_app,
    )
    sim.world.comments[comment.id] = comment
    pull.updated_at = now
    comment.last_delivery = await send_webhook(sim, comment, "created")
    return comment


async def edit(sim: "Simulation", comment: Comment, body: str) -> None:
    changes = {"body": {"from": comment.body}}
    comment.body, comment.updated_at = body, sim.clock.now()
    comment.last_delivery = await send_webhook(sim, comment, "edited", {"changes": changes})


async def delete(sim: "Simulation", comment: Comment) -> None:
    del sim.world.comments[comment.id]
    comment.last_delivery = await send_webhook(sim, comment, "deleted")


def react(sim: "Simulation", comment: Comment, content: str, user: Account) -> tuple[Reaction, bool]:
    """A person reacts once in each way; the second value is whether this one is new."""
    for reaction in comment.reactions:
        if (reaction.content, reaction.user) == (content, user):
            return reaction, False
    reaction = Reaction(sim.world.next_id("reaction"), content, user, sim.clock.now())
    comment.reactions.append(reaction)
    return reaction, True


async def send_webhook(
    sim: "Simulation", comment: Comment, action: str, more: Json | None = None
) -> WebhookDelivery | None:
    repository = sim.world.repositories[comment.repository_id]
    pull = sim.world.pulls[(comment.repository_id, comment.number)]
    body = {
        "action": action,
        **(more or {}),
        "issue": issue_json(sim.base_url, sim.world, pull),
        "comment": render_comment(sim, comment),
        "repository": repository_json(sim.base_url, repository),
        **webhooks.organization(sim.base_url, repository.owner),
    }
    return await sim.emit("issue_comment", body, repository, comment.author)


async def open_issue(
    sim: "Simulation",
    repository: Repository,
    title: str,
    author: Account,
    *,
    body: str | None = None,
    by_app: bool = False,
) -> Issue:
    now = sim.clock.now()
    issue = Issue(
        id=sim.world.next_id("issue"),
        number=repository.next_number,
        repository_id=repository.id,
        title=title,
        author=author,
        created_at=now,
        updated_at=now,
        body=body,
        by_app=by_app,
    )
    repository.next_number += 1
    sim.world.issues[(repository.id, issue.number)] = issue
    return await send_issue_webhook(sim, issue, "opened")


async def send_issue_webhook(sim: "Simulation", issue: Issue, action: str) -> Issue:
    issue.updated_at = sim.clock.now()
    repository = sim.world.repositories[issue.repository_id]
    body = {
        "action": action,
        "issue": plain_issue_json(sim.base_url, repository, issue),
        "repository": repository_json(sim.base_url, repository),
        **webhooks.organization(sim.base_url, repository.owner),
    }
    issue.last_delivery = await sim.emit("issues", body, repository, issue.author)
    return issue
