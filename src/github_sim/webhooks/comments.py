"""Changes of comments on pull requests, with the `issue_comment` webhook of each: made by people or by the App."""

from typing import TYPE_CHECKING

from github_sim.bodies import webhooks
from github_sim.bodies.comments import comment_json, issue_json
from github_sim.bodies.repositories import APP_SLUG, app_json, repository_json
from github_sim.world.records import Account, Comment, Json, PullRequest, Reaction, WebhookDelivery

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
