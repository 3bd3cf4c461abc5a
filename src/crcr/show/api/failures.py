"""JSON and CSV routes of groups of failures, and of the changes that may have broken a job."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from crcr.decide.culprits.ranking import CulpritCandidate
from crcr.decide.views.culprits import JobCulprits
from crcr.decide.views.failures import (
    FailureQuery,
    GroupMember,
    KnownFilter,
    OpenGroup,
)
from crcr.show.api import parameters as params
from crcr.show.api.models import commit as models
from crcr.show.api.models.derive import Model
from crcr.show.csv.writer import CsvExport, CsvRow, CsvTable, CursorKey, describe_response
from crcr.show.urls import cursors

TAG = "commits"
_TEXT = r"^[^\x00-\x1f\x7f]*$"
FingerprintPath = Annotated[
    str, Path(pattern="^[0-9a-f]{16}$", description="of the group", examples=["5f0c1e9ab2d34c77"])
]

_SEEN = ("sha", "number", "at")
_KNOWN = ("url", "state", "by", "until")


def _group_rows(group: OpenGroup) -> Iterator[CsvRow]:
    known = group.known
    yield (
        group.fingerprint,
        group.sample,
        " ".join(group.backends),
        "\n".join(group.jobs),
        *attrgetter(*_SEEN)(group.first_seen),
        *attrgetter(*_SEEN)(group.last_seen),
        group.count,
        *(attrgetter(*_KNOWN)(known) if known else (None,) * len(_KNOWN)),
    )


GROUPS: CsvTable[OpenGroup] = CsvTable(
    (
        *("fingerprint", "sample", "backends", "jobs"),
        *(f"first_seen_{name}" for name in _SEEN),
        *(f"last_seen_{name}" for name in _SEEN),
        "count",
        *(f"known_{name}" for name in _KNOWN),
    ),
    _group_rows,
)
_MEMBER = (
    *("delivery", "downstream", "workflow", "run_id", "attempt", "job_name", "event", "number", "head_sha"),
    *("at", "ended", "passed_at", "verdict", "confidence"),
)
_member: Callable[[GroupMember], CsvRow] = attrgetter(*_MEMBER)
MEMBERS: CsvTable[GroupMember] = CsvTable(_MEMBER, lambda member: [_member(member)])


_CANDIDATE = ("sha", "number", "title", "score")
_candidate: Callable[[CulpritCandidate], CsvRow] = attrgetter(*_CANDIDATE)


def _culprit_rows(breakage: JobCulprits) -> Iterator[CsvRow]:
    """A line for each candidate, and one for a breakage that has none."""
    span = breakage.range
    job = (
        breakage.backend,
        breakage.workflow,
        breakage.job,
        breakage.since,
        span.good,
        span.bad,
        span.commits,
    )
    if not breakage.candidates:
        yield (*job, *(None,) * (len(_CANDIDATE) + 2))
    for place, candidate in enumerate(breakage.candidates, start=1):
        yield (*job, place, *_candidate(candidate), "\n".join(candidate.reasons))


CULPRITS: CsvTable[JobCulprits] = CsvTable(
    (
        *("backend", "workflow", "job", "since", "good", "bad", "commits"),
        *("place", *_CANDIDATE, "reasons"),
    ),
    _culprit_rows,
)


def failure_query(
    *,
    backend: Annotated[
        str | None,
        Query(
            max_length=150,
            pattern=_TEXT,
            description="only of backends whose `owner/repo` contains this text",
        ),
    ] = None,
    q: Annotated[
        str | None,
        Query(max_length=200, pattern=_TEXT, description="only groups whose sample contains this text"),
    ] = None,
    known: Annotated[
        KnownFilter | None, Query(description="only groups that are linked to an issue, or that are not")
    ] = None,
    cursor: params.CursorParam = None,
) -> Callable[..., FailureQuery]:
    return partial(
        FailureQuery, backend=backend or None, text=q or None, known=known, after=cursors.decode(cursor)
    )


FailureQueryParam = Annotated[Callable[..., FailureQuery], Depends(failure_query)]


def add(api: APIRouter) -> None:
    @api.get(
        "/failures",
        tags=[TAG],
        summary="Groups of failures with the same message, those that failed last first",
        response_model=models.FAILURES,
    )
    async def failures(
        make_query: FailureQueryParam, api_request: params.RequestParam, limit: params.LimitParam = 50
    ) -> Model:
        query = make_query(upstream=api_request.upstream, limit=limit)
        return models.FAILURES.model_validate(await api_request.views.failures(query, api_request.now))

    @api.get(
        "/failures/{fingerprint}",
        tags=[TAG],
        summary="One group with its failures, newest first",
        response_model=models.GROUP,
    )
    async def failure_group(
        fingerprint: FingerprintPath,
        api_request: params.RequestParam,
        limit: params.LimitParam = 50,
        cursor: params.CursorParam = None,
    ) -> Model:
        page = await api_request.views.failure_group(
            api_request.upstream, fingerprint, api_request.now, after=cursors.decode(cursor), limit=limit
        )
        return models.GROUP.model_validate(page)

    @api.get(
        "/culprits",
        tags=[TAG],
        summary="Jobs that fail on the base branch, with the changes that may have broken them",
        response_model=list[models.JOB_CULPRITS],  # type: ignore[valid-type]
    )
    async def culprits(
        make_query: params.CulpritQueryParam, api_request: params.RequestParam, limit: params.LimitParam = 50
    ) -> list[Model]:
        """Jobs in the order of their names, at most `limit`; a job that was broken twice is listed twice. In-tree checks are last."""
        query = make_query(upstream=api_request.upstream, limit=limit)
        found = await api_request.views.culprits(query, api_request.now)
        return [models.JOB_CULPRITS.model_validate(one) for one in found]


def add_csv(api: APIRouter) -> None:
    about = "Groups of failures with the same message"

    @api.get("/failures.csv", summary=f"{about}, as CSV", responses=describe_response(about))
    async def failures_csv(
        request: Request,
        make_query: FailureQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = params.MOST_EXPORTED,
    ) -> Response:
        query = make_query(upstream=api_request.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[OpenGroup, ...], CursorKey]:
            page = await api_request.views.failures(replace(query, after=after, limit=size), api_request.now)
            return page.items, page.next

        export = CsvExport(request, f"{api_request.upstream}-failures", limit, query.after)
        return await export.respond_with_pages(GROUPS, read)

    of_group = "The failures of one group"

    @api.get(
        "/failures/{fingerprint}.csv", summary=f"{of_group}, as CSV", responses=describe_response(of_group)
    )
    async def failure_group_csv(
        request: Request,
        fingerprint: FingerprintPath,
        api_request: params.RequestParam,
        limit: params.LinesParam = params.MOST_EXPORTED,
        cursor: params.CursorParam = None,
    ) -> Response:
        async def read(after: CursorKey, size: int) -> tuple[tuple[GroupMember, ...], CursorKey]:
            page = await api_request.views.failure_group(
                api_request.upstream, fingerprint, api_request.now, after=after, limit=size
            )
            return page.failures, page.next

        export = CsvExport(
            request, f"{api_request.upstream}-failure-{fingerprint}", limit, cursors.decode(cursor)
        )
        return await export.respond_with_pages(MEMBERS, read)

    _add_culprits_csv(api)


def _add_culprits_csv(api: APIRouter) -> None:
    about = "Jobs that fail on the base branch, with the changes that may have broken them"

    @api.get("/culprits.csv", summary=f"{about}, as CSV", responses=describe_response(about))
    async def culprits_csv(
        request: Request,
        make_query: params.CulpritQueryParam,
        api_request: params.RequestParam,
        limit: params.LimitParam = 50,
    ) -> Response:
        query = make_query(upstream=api_request.upstream, limit=limit)
        found = await api_request.views.culprits(query, api_request.now)
        return await CsvExport(request, f"{api_request.upstream}-culprits").respond_with_items(
            CULPRITS, found
        )
