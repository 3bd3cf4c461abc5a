"""The calls by subject: one class per port, all on the same `Line`.

Each asks with a token for one repository and the one permission that the call needs, and hands the answer to its
reader in `api_…`. Lists end after a number of pages that no honest repository reaches.
"""

from datetime import datetime
from itertools import chain

from crcr.decide.checks.check_run import CheckContent
from crcr.decide.github.values import (
    ActionsJob,
    ActionsRun,
    ChangedFiles,
    Comparison,
    FoundCheck,
    LogPage,
    PostedComment,
    Role,
    Target,
)
from crcr.decide.outbox.urgency import Urgency
from crcr.errors import OutsideRefused
from crcr.github.api import actions, changes, checks, comments_and_roles, core
from crcr.github.api import delivery_log as api_delivery_log
from crcr.github.http.requests import Line, scope_of

CHECK_PAGES = 5
PULL_FILE_PAGES = 30
PAGES = 10


class CheckCalls(Line):
    """The port `Checks`."""

    async def create_check(
        self,
        where: Target,
        *,
        head_sha: str,
        name: str,
        external_id: str,
        shown: CheckContent,
        urgency: Urgency = Urgency.FIRST,
    ) -> int:
        request = checks.create_check(
            where.repository,
            head_sha=head_sha,
            name=name,
            external_id=external_id,
            shown=shown,
            urgency=urgency,
        )
        return checks.check_run_id(await self._at(where, request, core.CHECKS_WRITE))

    async def update_check(
        self, where: Target, check_run_id: int, shown: CheckContent, *, urgency: Urgency = Urgency.FIRST
    ) -> None:
        request = checks.update_check(where.repository, check_run_id, shown, urgency=urgency)
        await self._at(where, request, core.CHECKS_WRITE)

    async def find_checks(
        self, where: Target, head_sha: str, name: str, *, urgency: Urgency = Urgency.FIRST
    ) -> tuple[FoundCheck, ...]:
        request = checks.find_checks(where.repository, head_sha, name, urgency=urgency)
        pages = await self._pages(request, scope_of(where, core.CHECKS_READ), CHECK_PAGES)
        return tuple(chain.from_iterable(map(checks.found_checks, pages)))


class ChangeCalls(Line):
    """The port `Changes`."""

    async def pull_files(self, where: Target, number: int) -> ChangedFiles:
        request = changes.pull_files(where.repository, number)
        pages = await self._pages(request, scope_of(where, core.PULLS_READ), PULL_FILE_PAGES)
        return changes.changed_files(pages)

    async def compare(self, where: Target, base: str, head: str) -> Comparison:
        request = changes.compare(where.repository, base, head)
        pages = await self._pages(request, scope_of(where, core.CONTENTS_READ), PAGES)
        return changes.comparison(pages)

    async def commit_tree(self, where: Target, sha: str) -> str:
        request = changes.commit_tree(where.repository, sha)
        return changes.tree_sha(await self._at(where, request, core.CONTENTS_READ))

    async def commit_pulls(self, where: Target, sha: str) -> tuple[int, ...]:
        request = changes.commit_pulls(where.repository, sha)
        pages = await self._pages(request, scope_of(where, core.PULLS_READ), PAGES)
        return tuple(chain.from_iterable(changes.open_pulls(page, where) for page in pages))


class PeopleCalls(Line):
    """The port `People`."""

    async def permission(self, where: Target, login: str) -> Role:
        request = comments_and_roles.permission(where.repository, login)
        try:
            return comments_and_roles.role(await self._at(where, request, core.METADATA_READ))
        except OutsideRefused as refused:
            if refused.status != 404:
                raise
            return Role.NONE

    async def comment(self, where: Target, number: int, body: str) -> int:
        request = comments_and_roles.comment(where.repository, number, body)
        return comments_and_roles.comment_id(await self._at(where, request, core.PULLS_WRITE))

    async def comments(self, where: Target, number: int, since: datetime) -> tuple[PostedComment, ...]:
        request = comments_and_roles.comments(where.repository, number, since)
        pages = await self._pages(request, scope_of(where, core.PULLS_READ), PAGES)
        return tuple(chain.from_iterable(map(comments_and_roles.posted_comments, pages)))

    async def react(self, where: Target, comment_id: int, content: str) -> None:
        request = comments_and_roles.react(where.repository, comment_id, content)
        await self._at(where, request, core.PULLS_WRITE)


class ActionsCalls(Line):
    """The port `Actions`."""

    async def rerun(self, where: Target, run_id: int, *, failed_only: bool) -> None:
        request = actions.rerun(where.repository, run_id, failed_only=failed_only)
        await self._at(where, request, core.ACTIONS_WRITE)

    async def read_run(self, where: Target, run_id: int, *, urgency: Urgency = Urgency.FIRST) -> ActionsRun:
        request = actions.read_run(where.repository, run_id, urgency=urgency)
        return actions.run(await self._at(where, request, core.ACTIONS_READ))

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
        pages = await self._pages(request, scope_of(where, core.ACTIONS_READ), PAGES)
        return tuple(chain.from_iterable(map(actions.runs, pages)))

    async def run_jobs(
        self, where: Target, run_id: int, attempt: int, *, urgency: Urgency = Urgency.FIRST
    ) -> tuple[ActionsJob, ...]:
        request = actions.run_jobs(where.repository, run_id, attempt, urgency=urgency)
        pages = await self._pages(request, scope_of(where, core.ACTIONS_READ), PAGES)
        return tuple(chain.from_iterable(actions.jobs(page, attempt) for page in pages))


class LogCalls(Line):
    """The port `DeliveryLog`, in the App's own name."""

    async def delivery_log(self, cursor: str | None) -> LogPage:
        return api_delivery_log.log_page(await self._as_app(api_delivery_log.delivery_log(cursor)))

    async def logged_delivery(self, log_id: int) -> tuple[str, str, bytes]:
        return api_delivery_log.delivered(await self._as_app(api_delivery_log.logged_delivery(log_id)))
