"""The calls by subject: one class per port, all on the same `Line`.

Each asks with a token for one repository and the one permission that the call needs, and hands the answer to its
reader in `api_…`. Lists end after a number of pages that no honest repository reaches.
"""

from datetime import datetime
from itertools import chain

from crcr.decide.checks.check_run import Shown
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
from crcr.github import api, api_actions, api_app, api_changes, api_checks, api_people
from crcr.github.line import Line, scope_of

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
        shown: Shown,
        urgency: Urgency = Urgency.FIRST,
    ) -> int:
        request = api_checks.create_check(
            where.repository,
            head_sha=head_sha,
            name=name,
            external_id=external_id,
            shown=shown,
            urgency=urgency,
        )
        return api_checks.check_run_id(await self._at(where, request, api.CHECKS_WRITE))

    async def update_check(
        self, where: Target, check_run_id: int, shown: Shown, *, urgency: Urgency = Urgency.FIRST
    ) -> None:
        request = api_checks.update_check(where.repository, check_run_id, shown, urgency=urgency)
        await self._at(where, request, api.CHECKS_WRITE)

    async def find_checks(
        self, where: Target, head_sha: str, name: str, *, urgency: Urgency = Urgency.FIRST
    ) -> tuple[FoundCheck, ...]:
        request = api_checks.find_checks(where.repository, head_sha, name, urgency=urgency)
        pages = await self._pages(request, scope_of(where, api.CHECKS_READ), CHECK_PAGES)
        return tuple(chain.from_iterable(map(api_checks.found_checks, pages)))


class ChangeCalls(Line):
    """The port `Changes`."""

    async def pull_files(self, where: Target, number: int) -> ChangedFiles:
        request = api_changes.pull_files(where.repository, number)
        pages = await self._pages(request, scope_of(where, api.PULLS_READ), PULL_FILE_PAGES)
        return api_changes.changed_files(pages)

    async def compare(self, where: Target, base: str, head: str) -> Comparison:
        request = api_changes.compare(where.repository, base, head)
        pages = await self._pages(request, scope_of(where, api.CONTENTS_READ), PAGES)
        return api_changes.comparison(pages)

    async def commit_tree(self, where: Target, sha: str) -> str:
        request = api_changes.commit_tree(where.repository, sha)
        return api_changes.tree_sha(await self._at(where, request, api.CONTENTS_READ))

    async def commit_pulls(self, where: Target, sha: str) -> tuple[int, ...]:
        request = api_changes.commit_pulls(where.repository, sha)
        pages = await self._pages(request, scope_of(where, api.PULLS_READ), PAGES)
        return tuple(chain.from_iterable(api_changes.open_pulls(page, where) for page in pages))


class PeopleCalls(Line):
    """The port `People`."""

    async def permission(self, where: Target, login: str) -> Role:
        request = api_people.permission(where.repository, login)
        try:
            return api_people.role(await self._at(where, request, api.METADATA_READ))
        except OutsideRefused as refused:
            if refused.status != 404:
                raise
            return Role.NONE

    async def comment(self, where: Target, number: int, body: str) -> int:
        request = api_people.comment(where.repository, number, body)
        return api_people.comment_id(await self._at(where, request, api.PULLS_WRITE))

    async def comments(self, where: Target, number: int, since: datetime) -> tuple[PostedComment, ...]:
        request = api_people.comments(where.repository, number, since)
        pages = await self._pages(request, scope_of(where, api.PULLS_READ), PAGES)
        return tuple(chain.from_iterable(map(api_people.posted_comments, pages)))

    async def react(self, where: Target, comment_id: int, content: str) -> None:
        request = api_people.react(where.repository, comment_id, content)
        await self._at(where, request, api.PULLS_WRITE)


class ActionsCalls(Line):
    """The port `Actions`."""

    async def rerun(self, where: Target, run_id: int, *, failed_only: bool) -> None:
        request = api_actions.rerun(where.repository, run_id, failed_only=failed_only)
        await self._at(where, request, api.ACTIONS_WRITE)

    async def read_run(self, where: Target, run_id: int, *, urgency: Urgency = Urgency.FIRST) -> ActionsRun:
        request = api_actions.read_run(where.repository, run_id, urgency=urgency)
        return api_actions.run(await self._at(where, request, api.ACTIONS_READ))

    async def list_runs(
        self,
        where: Target,
        *,
        event: str,
        since: datetime,
        until: datetime,
        urgency: Urgency = Urgency.FIRST,
    ) -> tuple[ActionsRun, ...]:
        request = api_actions.list_runs(
            where.repository, event=event, since=since, until=until, urgency=urgency
        )
        pages = await self._pages(request, scope_of(where, api.ACTIONS_READ), PAGES)
        return tuple(chain.from_iterable(map(api_actions.runs, pages)))

    async def run_jobs(
        self, where: Target, run_id: int, attempt: int, *, urgency: Urgency = Urgency.FIRST
    ) -> tuple[ActionsJob, ...]:
        request = api_actions.run_jobs(where.repository, run_id, attempt, urgency=urgency)
        pages = await self._pages(request, scope_of(where, api.ACTIONS_READ), PAGES)
        return tuple(chain.from_iterable(api_actions.jobs(page, attempt) for page in pages))


class LogCalls(Line):
    """The port `DeliveryLog`, in the App's own name."""

    async def delivery_log(self, cursor: str | None) -> LogPage:
        return api_app.log_page(await self._as_app(api_app.delivery_log(cursor)))

    async def logged_delivery(self, log_id: int) -> tuple[str, str, bytes]:
        return api_app.delivered(await self._as_app(api_app.logged_delivery(log_id)))
