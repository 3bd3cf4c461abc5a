"""GitHub's REST API by subject: `github.checks.create(…)`, `github.repositories.dispatch(…)`.

All subjects share one `GitHubTransport`. A call sends a request of `github.api` with a token for one repository and the
one permission that it needs, and reads the response with the reader beside that request. Failures are the `Outside…`
errors of `errors.py`. Lists end after a number of pages that no honest repository reaches.
"""

from collections import OrderedDict
from datetime import datetime
from itertools import chain

from crcr.decide.checks.check_run import CheckContent
from crcr.decide.github.repository_setup import (
    AppFacts,
    BranchFacts,
    HookFacts,
    InstallationFacts,
    ListedFile,
)
from crcr.decide.github.requests_and_answers import (
    ActionsJob,
    ActionsRun,
    ChangedFiles,
    Comparison,
    DeliveryLogPage,
    FileLocation,
    FileText,
    FileVersion,
    ListedCheck,
    PostedComment,
    PullFacts,
    RepositoryFacts,
    Role,
    Target,
    Urgency,
)
from crcr.decide.model import RepoName
from crcr.decide.pairs.pair import HeadReview, LinkedPull
from crcr.errors import OutsideRefused
from crcr.github.api import (
    actions,
    branches,
    checks,
    comments_and_roles,
    commits,
    delivery_log,
    pull_requests,
    request_response,
    setup,
)
from crcr.github.api.request_response import Request, Response
from crcr.github.app_auth import TokenScope
from crcr.github.http.transport import GitHubTransport, token_scope

_KNOWN_INSTALLATIONS = 1000
_CHECK_PAGES = 5
_PULL_FILE_PAGES = 30
_PAGES = 10
_NO_SUCH_COMMIT = frozenset({404, 422})


class GitHubClient:
    """Every call that the relay makes to GitHub. The caller owns the transport's HTTP client and closes it."""

    def __init__(self, transport: GitHubTransport) -> None:
        self.repositories = RepositoriesApi(transport)
        self.pull_requests = PullRequestsApi(transport)
        self.commits = CommitsApi(transport)
        self.branches = BranchesApi(transport)
        self.checks = ChecksApi(transport)
        self.comments = CommentsApi(transport)
        self.issues = IssuesApi(transport)
        self.actions = ActionsApi(transport)
        self.workflow_files = WorkflowFilesApi(transport)
        self.app = AppApi(transport)
        self.delivery_log = DeliveryLogApi(transport)


class RepositoriesApi:
    """A repository, the App's installation on it, dispatches to it, and its files."""

    def __init__(self, transport: GitHubTransport) -> None:
        self._transport = transport
        # The installation ids that GitHub last returned.
        self._installations: OrderedDict[RepoName, int] = OrderedDict()

    async def find_installation(self, repo: RepoName) -> int:
        """Return the installation's id, always read from GitHub; `read_file` uses the last answer."""
        try:
            installation_id = request_response.parse_installation_id(
                await self._transport.send_as_app(request_response.find_installation(repo))
            )
        except OutsideRefused as refusal:
            self._installations.pop(repo, None)
            if refusal.status != 404:
                raise
            raise OutsideRefused(f"The App is not installed on {repo}.", status=404) from None
        self._installations[repo] = installation_id
        if len(self._installations) > _KNOWN_INSTALLATIONS:
            self._installations.popitem(last=False)
        return installation_id

    async def read_installation(self, repo: RepoName) -> InstallationFacts | None:
        """Return the App's installation, or None where it is not installed."""
        try:
            return setup.parse_installation(
                await self._transport.send_as_app(request_response.find_installation(repo))
            )
        except OutsideRefused as refusal:
            if refusal.status != 404:
                raise
            return None

    async def read(self, repo: RepoName, installation_id: int) -> RepositoryFacts:
        scope = TokenScope(installation_id, None, request_response.METADATA_READ)
        return request_response.parse_repository(
            await self._transport.send_in_scope(request_response.read_repository(repo), scope)
        )

    async def read_default_branch(self, where: Target) -> BranchFacts:
        request = setup.read_branch(where.repository)
        return setup.parse_branch(await self._transport.send(where, request, request_response.METADATA_READ))

    async def dispatch(self, target: Target, body: bytes) -> None:
        request = request_response.create_dispatch(target.repository, body)
        await self._transport.send(target, request, request_response.CONTENTS_WRITE)

    async def read_file(self, file: FileLocation, *, etag: str | None) -> FileText | None:
        """Return the file's text, or None when `etag` still matches."""
        request = request_response.read_file(file, etag)
        repo = file.repository
        installation_id = self._installations.get(repo) or await self.find_installation(repo)
        scope = TokenScope(installation_id, None, request_response.CONTENTS_READ)
        try:
            return request_response.parse_file(await self._transport.send_in_scope(request, scope))
        except OutsideRefused:
            # The App may have been reinstalled, under another id.
            self._installations.pop(repo, None)
            raise


class PullRequestsApi:
    def __init__(self, transport: GitHubTransport) -> None:
        self._transport = transport

    async def read(self, repo: RepoName, number: int, installation_id: int) -> PullFacts:
        scope = TokenScope(installation_id, None, request_response.PULLS_READ)
        return request_response.parse_pull(
            await self._transport.send_in_scope(request_response.read_pull(repo, number), scope)
        )

    async def read_linked(self, through: Target, repo: RepoName, number: int) -> LinkedPull | None:
        """Return a pull request that another one depends on, with the token of that target: its own, or of another
        repository where the App is installed, which can read what is public.
        """
        request = pull_requests.read_linked_pull(repo, number)
        return pull_requests.parse_linked_pull(
            await self._transport.send(through, request, request_response.PULLS_READ)
        )

    async def list_reviews(self, through: Target, repo: RepoName, number: int) -> tuple[HeadReview, ...]:
        """Return the reviews that approve or reject, the oldest first."""
        request = pull_requests.list_reviews(repo, number)
        scope = token_scope(through, request_response.PULLS_READ)
        pages = await self._transport.send_pages(request, scope, _PAGES)
        return tuple(chain.from_iterable(map(pull_requests.parse_reviews, pages)))

    async def list_files(self, where: Target, number: int) -> ChangedFiles:
        request = commits.list_pull_files(where.repository, number)
        scope = token_scope(where, request_response.PULLS_READ)
        return commits.parse_changed_files(await self._transport.send_pages(request, scope, _PULL_FILE_PAGES))

    async def find_from_branch(self, where: Target, branch: str, base: str) -> int | None:
        """Return the newest pull request from this branch of the repository into `base`, open or closed."""
        request = branches.list_pulls_of_branch(where.repository, branch)
        response = await self._transport.send(where, request, request_response.PULLS_READ)
        return branches.find_pull_of_branch(response, branch, base)

    async def create(self, where: Target, *, head: str, base: str, title: str, body: str) -> int:
        """Return the number. GitHub refuses (422) a second open one from the same branch."""
        request = branches.create_pull(where.repository, head=head, base=base, title=title, body=body)
        return branches.parse_pull_number(
            await self._transport.send(where, request, request_response.PULLS_WRITE)
        )


class CommitsApi:
    """Commits, comparisons and branches of an upstream."""

    def __init__(self, transport: GitHubTransport) -> None:
        self._transport = transport

    async def compare(self, where: Target, base: str, head: str) -> Comparison:
        request = commits.compare(where.repository, base, head)
        scope = token_scope(where, request_response.CONTENTS_READ)
        return commits.parse_comparison(await self._transport.send_pages(request, scope, _PAGES))

    async def read_tree_sha(self, where: Target, sha: str) -> str:
        request = commits.read_commit_tree(where.repository, sha)
        return commits.parse_tree_sha(
            await self._transport.send(where, request, request_response.CONTENTS_READ)
        )

    async def list_open_pulls(self, where: Target, sha: str) -> tuple[int, ...]:
        """Return the numbers of the open pull requests into this repository that contain the commit."""
        request = commits.list_commit_pulls(where.repository, sha)
        pages = await self._transport.send_pages(
            request, token_scope(where, request_response.PULLS_READ), _PAGES
        )
        return tuple(chain.from_iterable(commits.parse_open_pulls(page, where) for page in pages))

    # These four need the same permission, so a missing one is noticed at the first call.

    async def read_default_branch(self, where: Target) -> str:
        request = commits.read_repository(where.repository)
        return commits.parse_default_branch(
            await self._transport.send(where, request, request_response.CONTENTS_READ)
        )

    async def list_branches(self, where: Target, prefix: str) -> tuple[str, ...]:
        request = commits.list_matching_branches(where.repository, prefix)
        return commits.parse_branches(
            await self._transport.send(where, request, request_response.CONTENTS_READ), prefix
        )

    async def exists(self, where: Target, sha: str) -> bool:
        """Whether GitHub has the commit in this repository or in a fork of it."""
        return await self._send_or_none(where, commits.read_commit(where.repository, sha)) is not None

    async def is_on_branch(self, where: Target, branch: str, sha: str) -> bool:
        """Whether the branch exists and has the commit in its history."""
        response = await self._send_or_none(where, commits.compare_ancestry(where.repository, branch, sha))
        return response is not None and commits.is_ancestor(response)

    async def _send_or_none(self, where: Target, request: Request) -> Response | None:
        try:
            return await self._transport.send(where, request, request_response.CONTENTS_READ)
        except OutsideRefused as refusal:
            if refusal.status not in _NO_SUCH_COMMIT:
                raise
            return None


class BranchesApi:
    """The branches of a repository, and single files on them."""

    def __init__(self, transport: GitHubTransport) -> None:
        self._transport = transport

    async def read_sha(self, where: Target, branch: str) -> str | None:
        """Return the commit that the branch points at; None where there is no such branch."""
        request = branches.read_branch(where.repository, branch)
        try:
            return branches.parse_branch_sha(
                await self._transport.send(where, request, request_response.CONTENTS_READ)
            )
        except OutsideRefused as refusal:
            if refusal.status != 404:
                raise
            return None

    async def create(self, where: Target, branch: str, sha: str) -> None:
        """Create the branch at a commit. GitHub refuses (422) a name that is in use."""
        request = branches.create_branch(where.repository, branch, sha)
        await self._transport.send(where, request, request_response.CONTENTS_WRITE)

    async def read_file(self, where: Target, path: str, ref: str) -> FileVersion:
        request = request_response.read_file(FileLocation(where.repository, ref, path), None)
        return branches.parse_file_version(
            await self._transport.send(where, request, request_response.CONTENTS_READ)
        )

    async def write_file(
        self, where: Target, path: str, text: str, *, branch: str, replaces: str, message: str
    ) -> None:
        """Commit the file to the branch. GitHub refuses (409) unless it has the content with the hash `replaces`."""
        file = FileLocation(where.repository, branch, path)
        request = branches.write_file(file, text, replaces=replaces, message=message)
        await self._transport.send(where, request, request_response.CONTENTS_WRITE)


class ChecksApi:
    """An upstream's check runs; `urgency` orders the calls while GitHub's limits leave too few."""

    def __init__(self, transport: GitHubTransport) -> None:
        self._transport = transport

    async def create(
        self,
        where: Target,
        *,
        head_sha: str,
        name: str,
        external_id: str,
        content: CheckContent,
        urgency: Urgency = Urgency.FIRST,
    ) -> int:
        """Return the check run's id. Not idempotent: two calls create two check runs of the same name."""
        request = checks.create_check(
            where.repository,
            head_sha=head_sha,
            name=name,
            external_id=external_id,
            content=content,
            urgency=urgency,
        )
        return checks.parse_check_run_id(
            await self._transport.send(where, request, request_response.CHECKS_WRITE)
        )

    async def update(
        self, where: Target, check_run_id: int, content: CheckContent, *, urgency: Urgency = Urgency.FIRST
    ) -> None:
        """Replace what the check run shows; annotations are added to those that it already has."""
        request = checks.update_check(where.repository, check_run_id, content, urgency=urgency)
        await self._transport.send(where, request, request_response.CHECKS_WRITE)

    async def find(
        self, where: Target, head_sha: str, name: str, *, urgency: Urgency = Urgency.FIRST
    ) -> tuple[ListedCheck, ...]:
        """Return the check runs of that name, those of other Apps included."""
        request = checks.find_checks(where.repository, head_sha, name, urgency=urgency)
        scope = token_scope(where, request_response.CHECKS_READ)
        pages = await self._transport.send_pages(request, scope, _CHECK_PAGES)
        return tuple(chain.from_iterable(map(checks.parse_checks, pages)))


class CommentsApi:
    """Comments on pull requests, reactions to them, and the role of their authors."""

    def __init__(self, transport: GitHubTransport) -> None:
        self._transport = transport

    async def create(self, where: Target, number: int, body: str) -> int:
        """Return the comment's id."""
        request = comments_and_roles.create_comment(where.repository, number, body)
        return comments_and_roles.parse_comment_id(
            await self._transport.send(where, request, request_response.PULLS_WRITE)
        )

    async def update(self, where: Target, comment_id: int, body: str) -> None:
        request = comments_and_roles.update_comment(where.repository, comment_id, body)
        await self._transport.send(where, request, request_response.PULLS_WRITE)

    async def list_since(self, where: Target, number: int, since: datetime) -> tuple[PostedComment, ...]:
        """Return the comments that anybody wrote or changed since then."""
        request = comments_and_roles.list_comments(where.repository, number, since)
        pages = await self._transport.send_pages(
            request, token_scope(where, request_response.PULLS_READ), _PAGES
        )
        return tuple(chain.from_iterable(map(comments_and_roles.parse_comments, pages)))

    async def react(self, where: Target, comment_id: int, content: str) -> None:
        """React to a comment. Idempotent: two calls leave one reaction."""
        request = comments_and_roles.add_reaction(where.repository, comment_id, content)
        await self._transport.send(where, request, request_response.PULLS_WRITE)

    async def read_role(self, where: Target, login: str, repo: RepoName | None = None) -> Role:
        """Return the person's role in the repository, or in `repo` where the token is another repository's."""
        request = comments_and_roles.read_permission(repo or where.repository, login)
        try:
            return comments_and_roles.parse_role(
                await self._transport.send(where, request, request_response.METADATA_READ)
            )
        except OutsideRefused as refusal:
            if refusal.status != 404:
                raise
            return Role.NONE


class IssuesApi:
    def __init__(self, transport: GitHubTransport) -> None:
        self._transport = transport

    async def is_closed(self, where: Target, number: int) -> bool:
        request = comments_and_roles.read_issue(where.repository, number)
        return comments_and_roles.parse_is_closed(
            await self._transport.send(where, request, request_response.ISSUES_READ)
        )

    async def create(self, where: Target, title: str, body: str) -> int:
        """Return the issue's number. Not idempotent: two calls create two issues."""
        request = comments_and_roles.create_issue(where.repository, title, body)
        return comments_and_roles.parse_issue_number(
            await self._transport.send(where, request, request_response.ISSUES_WRITE)
        )

    async def update(self, where: Target, number: int, *, title: str, body: str, is_open: bool) -> None:
        """Replace title and body, and open or close the issue."""
        request = comments_and_roles.update_issue(
            where.repository, number, title=title, body=body, is_open=is_open
        )
        await self._transport.send(where, request, request_response.ISSUES_WRITE)

    async def list_since(self, where: Target, since: datetime) -> tuple[PostedComment, ...]:
        """Return the issues that anybody wrote or changed since then, by their numbers."""
        request = comments_and_roles.list_issues(where.repository, since)
        pages = await self._transport.send_pages(
            request, token_scope(where, request_response.ISSUES_READ), _PAGES
        )
        return tuple(chain.from_iterable(map(comments_and_roles.parse_issues, pages)))


class ActionsApi:
    """A downstream's workflow runs."""

    def __init__(self, transport: GitHubTransport) -> None:
        self._transport = transport

    async def rerun(self, where: Target, run_id: int, *, failed_only: bool) -> None:
        request = actions.rerun(where.repository, run_id, failed_only=failed_only)
        await self._transport.send(where, request, request_response.ACTIONS_WRITE)

    async def read_run(self, where: Target, run_id: int, *, urgency: Urgency = Urgency.FIRST) -> ActionsRun:
        request = actions.read_run(where.repository, run_id, urgency=urgency)
        return actions.parse_run(await self._transport.send(where, request, request_response.ACTIONS_READ))

    async def list_runs(
        self,
        where: Target,
        *,
        event: str,
        since: datetime,
        until: datetime,
        urgency: Urgency = Urgency.FIRST,
    ) -> tuple[ActionsRun, ...]:
        request = actions.list_runs(where.repository, event=event, since=since, until=until, urgency=urgency)
        pages = await self._transport.send_pages(
            request, token_scope(where, request_response.ACTIONS_READ), _PAGES
        )
        return tuple(chain.from_iterable(map(actions.parse_runs, pages)))

    async def list_jobs(
        self, where: Target, run_id: int, attempt: int, *, urgency: Urgency = Urgency.FIRST
    ) -> tuple[ActionsJob, ...]:
        request = actions.list_jobs(where.repository, run_id, attempt, urgency=urgency)
        pages = await self._transport.send_pages(
            request, token_scope(where, request_response.ACTIONS_READ), _PAGES
        )
        return tuple(chain.from_iterable(actions.parse_jobs(page, attempt) for page in pages))


class WorkflowFilesApi:
    """A downstream's workflow files."""

    def __init__(self, transport: GitHubTransport) -> None:
        self._transport = transport

    async def list_all(self, where: Target, ref: str) -> tuple[ListedFile, ...]:
        """Return the files of `.github/workflows`; none where that folder does not exist."""
        request = setup.list_workflow_files(where.repository, ref)
        try:
            return setup.parse_files(
                await self._transport.send(where, request, request_response.CONTENTS_READ)
            )
        except OutsideRefused as refusal:
            if refusal.status != 404:
                raise
            return ()

    async def read(self, where: Target, path: str, ref: str) -> str:
        request = setup.read_workflow_file(where.repository, path, ref)
        return setup.parse_text(await self._transport.send(where, request, request_response.CONTENTS_READ))

    async def read_states(self, where: Target) -> dict[str, str]:
        """Return GitHub's word for the state of each workflow, by its path."""
        request = setup.list_workflows(where.repository)
        return setup.parse_states(await self._transport.send(where, request, request_response.ACTIONS_READ))


class AppApi:
    """The App itself and its webhook, read with the App's own JWT."""

    def __init__(self, transport: GitHubTransport) -> None:
        self._transport = transport

    async def read(self) -> AppFacts:
        return setup.parse_app(await self._transport.send_as_app(setup.read_app()))

    async def read_webhook(self) -> HookFacts:
        return setup.parse_hook(await self._transport.send_as_app(setup.read_hook()))


class DeliveryLogApi:
    """GitHub's log of the App's webhook deliveries: the port `DeliveryLog`."""

    def __init__(self, transport: GitHubTransport) -> None:
        self._transport = transport

    async def read_page(self, cursor: str | None) -> DeliveryLogPage:
        return delivery_log.parse_log_page(
            await self._transport.send_as_app(delivery_log.list_deliveries(cursor))
        )

    async def redeliver(self, log_id: int) -> None:
        """Have GitHub send a webhook again; the log then has one more attempt with the same GUID."""
        await self._transport.send_as_app(delivery_log.redeliver(log_id))

    async def read_delivery(self, log_id: int) -> tuple[str, str, bytes]:
        """Return the GUID, the event's name and the payload."""
        return delivery_log.parse_delivery(
            await self._transport.send_as_app(delivery_log.read_delivery(log_id))
        )
