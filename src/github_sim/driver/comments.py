"""What people do below a pull request: comment, edit a comment, delete it."""

from github_sim.simulation import Simulation
from github_sim.webhooks import comments
from github_sim.world.records import Comment, PullRequest
from github_sim.world.roles import association_of


class CommentActs(Simulation):
    def comments(self, pull: PullRequest) -> list[Comment]:
        """What stands below a pull request, oldest first; each with its `reactions`."""
        return self.world.comments_on(pull)

    async def comment_pr(
        self,
        pull: PullRequest,
        body: str,
        *,
        author: str = "maintainer",
        author_type: str = "User",
        author_association: str | None = None,
    ) -> Comment:
        """Somebody comments; the association comes from the author's role unless it is given."""
        account = self.world.account(author, author_type)
        if author_type != "User":
            account.type = author_type
        repository = self.world.repositories[pull.repository_id]
        own = pull.author_association if account is pull.author else association_of(repository, account)
        return await comments.write(self, pull, body, account, author_association or own, by_app=False)

    async def edit_comment(self, comment: Comment, body: str) -> Comment:
        await comments.edit(self, comment, body)
        return comment

    async def delete_comment(self, comment: Comment) -> Comment:
        await comments.delete(self, comment)
        return comment
