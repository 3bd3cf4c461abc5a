"""Query and path parameters of the API with their bounds, and the context of a request.

JSON and CSV routes share the same parameters. Text that cannot be stored (NUL and other control characters, bytes that are
not UTF-8) is refused before it is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Path, Query, Request

from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.model import DeliveryState, EffectState, JobState, RepoName, is_repo_name
from crcr.decide.notices.notice import Topic
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.backend import BackendQuery
from crcr.decide.views.bisections import BisectionQuery, BisectionState
from crcr.decide.views.commit import WaiverState
from crcr.decide.views.culprits import CulpritQuery
from crcr.decide.views.failing import FailingKind, FailingQuery, FailingSort
from crcr.decide.views.grids import CommitListQuery, PullFilter, PullListQuery, PullScope, PullSort
from crcr.decide.views.logs import (
    AuditQuery,
    DeliveryQuery,
    EffectQuery,
    NoticeFilter,
    NoticeQuery,
    WaiverQuery,
)
from crcr.decide.views.overview import JobQuery
from crcr.decide.views.search import HitKind
from crcr.errors import BadRequest, NotFound
from crcr.ports import Clock
from crcr.record.views.sql_views import SqlViews
from crcr.show.access.reader import get_reader
from crcr.show.live.shared_health import SharedHealth
from crcr.show.urls import cursors
from crcr.show.urls.location import pick_upstream, whole_sha
from crcr.show.urls.sorting import NUMBERS, TableFilters

CONTEXT = "crcr.api_context"
"""The key of the app's `ApiContext` in the scope of a request."""
MOST_LISTED = 200
MOST_EXPORTED = 10_000

_TEXT = r"^[^\x00-\x1f\x7f]*$"
_ORG = "[A-Za-z0-9][A-Za-z0-9_-]{0,38}"
_REPO = "[A-Za-z0-9._-]{1,100}"
_BIGGEST_NUMBER = 2**31 - 1


class EffectFilter(StrEnum):
    """The states of effects; `retried` are those waiting that were attempted before."""

    WAITING = EffectState.WAITING.value
    RETRIED = "retried"
    CLAIMED = EffectState.CLAIMED.value
    PARKED = EffectState.PARKED.value
    DONE = EffectState.DONE.value
    CANCELLED = EffectState.CANCELLED.value


class TimeOrder(StrEnum):
    """By time; a minus sign means newest first, as in the addresses of the pages."""

    NEWEST_FIRST = "-at"
    OLDEST_FIRST = "at"


UpstreamParam = Annotated[
    str | None,
    Query(description="`owner/repo` of the upstream; default: the first", max_length=150, pattern=_TEXT),
]
KindParam = Annotated[
    ResultKind, Query(description="the kind of events that the results belong to; kinds are never mixed")
]
RangeParam = Annotated[
    Span,
    Query(alias="range", description="the window of the numbers, in whole hours, including the current one"),
]
CursorParam = Annotated[
    str | None,
    Query(
        description="`next` of the previous page, unchanged", max_length=16_384, pattern="^[A-Za-z0-9_=-]+$"
    ),
]
LimitParam = Annotated[int, Query(ge=1, le=MOST_LISTED, description="maximum number of items")]
LinesParam = Annotated[
    int,
    Query(
        alias="limit",
        ge=1,
        le=MOST_EXPORTED,
        description="maximum number of lines; if there are more, the header `Link` has the next request",
    ),
]
NumberParam = Annotated[int | None, Query(ge=1, le=_BIGGEST_NUMBER, description="number of a pull request")]
OrderParam = Annotated[TimeOrder, Query(alias="sort", description="`-at`: newest first")]
OrgPath = Annotated[str, Path(pattern=f"^{_ORG}$", description="the backend's owner", examples=["org"])]
RepoPath = Annotated[str, Path(pattern=f"^{_REPO}$", description="the backend's name", examples=["repo"])]
GuidPath = Annotated[str, Path(max_length=200, pattern=_TEXT, description="the GUID that GitHub sent")]
BisectionPath = Annotated[
    int, Path(ge=1, le=_BIGGEST_NUMBER, description="the bisection's number", examples=[17])
]
NumberPath = Annotated[int, Path(ge=1, le=_BIGGEST_NUMBER, description="number of a pull request")]
_SHA = {"pattern": "^([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$"}


def _sha(sha: Annotated[str, Path(json_schema_extra=_SHA, description="the full SHA")]) -> str:
    return whole_sha(sha)


ShaPath = Annotated[str, Depends(_sha)]
TokenPath = Annotated[
    str, Path(max_length=4_096, pattern="^[A-Za-z0-9_=-]+$", description="`token` of a job, unchanged")
]
SearchParam = Annotated[
    str,
    Query(
        min_length=1,
        max_length=200,
        pattern=_TEXT,
        description="a number, a commit, an author, words of a title, or part of a backend's, job's or test's name or of a message",
    ),
]
HitKindParam = Annotated[
    HitKind | None, Query(alias="type", description="only results of this kind, page by page")
]


def text_query(description: str, most: int = 200) -> Any:
    return Query(max_length=most, pattern=_TEXT, description=description)


DeliveryParam = Annotated[str | None, text_query("a delivery's GUID, to find an older commit")]


@dataclass(frozen=True, slots=True)
class ApiContext:
    """What the routes of one app need to answer."""

    views: SqlViews
    upstreams: tuple[RepoName, ...]
    clock: Clock
    health: SharedHealth
    site: str = "http://127.0.0.1:8000"
    """The address under which readers reach this relay."""
    audience: str = "crcr"
    """The `aud` that dispatches name."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request to the API: its upstream, the views that its reader may see, and the time."""

    views: SqlViews
    upstream: RepoName
    now: datetime
    context: ApiContext


def read_api_request(request: Request, upstream: UpstreamParam = None) -> ReadRequest:
    """Administrators get views that hide nothing."""
    context: ApiContext = request.scope[CONTEXT]
    views = context.views.for_admins() if get_reader(request).admin else context.views
    return ReadRequest(views, pick_upstream(context.upstreams, upstream), context.clock.now(), context)


RequestParam = Annotated[ReadRequest, Depends(read_api_request)]


def read_table_filters(
    *,
    q: Annotated[
        str | None, text_query("only backends whose name, hardware or on-call contains this text", 100)
    ] = None,
    level: Annotated[
        Literal["L1", "L2", "L3", "L4"] | None, Query(description="only backends of this level")
    ] = None,
    sort: Annotated[
        str | None,
        Query(
            pattern=f"^-?({'|'.join(('name', *NUMBERS))})$",
            description="a column; with a minus sign highest first; default: by level, worst first",
        ),
    ] = None,
) -> TableFilters:
    """Return filters and order of a table of backends; the parameters are those of the page."""
    values = {"q": q, "level": level, "sort": sort}
    return TableFilters.from_query({name: value for name, value in values.items() if value})


TableChoice = Annotated[TableFilters, Depends(read_table_filters)]
OneBackend = Annotated[
    str | None,
    Query(
        alias="backend",
        pattern=f"^{_ORG}/{_REPO}$",
        description="`owner/repo`: only this backend; the total still covers all",
    ),
]


def require_utf8(request: Request) -> None:
    """Refuse an address that is not UTF-8: decoding would replace its invalid bytes silently."""
    scope = request.scope
    try:
        for part in (scope.get("raw_path") or b"", scope["query_string"]):
            unquote_to_bytes(part).decode()
    except UnicodeDecodeError as fault:
        raise BadRequest("the address is not UTF-8", hint="percent-encode the bytes of UTF-8 text") from fault


def backend_name(org: OrgPath, repo: RepoPath) -> RepoName:
    return _repository(f"{org}/{repo}", NotFound)


def backend_query(
    *,
    kind: KindParam = ResultKind.PULLS,
    span: RangeParam = Span.FORTNIGHT,
    job: Annotated[str | None, text_query("only jobs whose name or workflow contains this text")] = None,
    author: Annotated[str | None, text_query("only events of this author", 100)] = None,
    result: Annotated[CountedAs | None, Query(description="only events with a job of this result")] = None,
    verdict: Annotated[
        VerdictKind | None, Query(description="only events with a failed job of this verdict of the rules")
    ] = None,
    q: Annotated[
        str | None, text_query("only events whose number, commit, branch, title or author contains this text")
    ] = None,
    older: Annotated[bool, Query(description="include superseded commits and closings")] = False,
    day: Annotated[date | None, Query(description="only events of this day (UTC)")] = None,
    failing: Annotated[bool, Query(description="only jobs that failed on one of the events listed")] = False,
    cursor: CursorParam = None,
) -> Callable[..., BackendQuery]:
    return partial(
        BackendQuery,
        kind=kind,
        span=span,
        job=job or None,
        author=author or None,
        result=result,
        verdict=verdict,
        text=q or None,
        older=older,
        day=day,
        only_failing=failing,
        after=cursors.decode(cursor),
    )


def job_query(
    *,
    downstream: Annotated[
        str | None, Query(pattern=f"^{_ORG}/{_REPO}$", description="`owner/repo` of a backend")
    ] = None,
    delivery: Annotated[str | None, text_query("a delivery's GUID")] = None,
    number: NumberParam = None,
    state: Annotated[JobState | None, Query(description="only jobs in this state")] = None,
    verdict: Annotated[
        VerdictKind | None, Query(description="only failed jobs to which the rules give this verdict")
    ] = None,
    cursor: CursorParam = None,
) -> Callable[..., JobQuery]:
    return partial(
        JobQuery,
        downstream=_repository(downstream, BadRequest) if downstream else None,
        delivery=delivery or None,
        number=number,
        state=state,
        verdict=verdict,
        after=cursors.decode(cursor),
    )


def delivery_query(
    *,
    event: Annotated[str | None, text_query("GitHub's name of the event", 64)] = None,
    state: Annotated[DeliveryState | None, Query(description="only deliveries in this state")] = None,
    number: NumberParam = None,
    sha: Annotated[
        str | None,
        Query(pattern="^[0-9a-fA-F]{7,64}$", description="the commit, or at least its first seven digits"),
    ] = None,
    order: OrderParam = TimeOrder.NEWEST_FIRST,
    cursor: CursorParam = None,
) -> Callable[..., DeliveryQuery]:
    return partial(
        DeliveryQuery,
        event=event or None,
        state=state,
        number=number,
        head_sha=sha.lower() if sha else None,
        oldest_first=order is TimeOrder.OLDEST_FIRST,
        after=cursors.decode(cursor),
    )


def effect_query(
    *,
    state: Annotated[EffectFilter | None, Query(description="default: all that are not finished")] = None,
    target: Annotated[str | None, text_query("only effects for this target")] = None,
    delivery: Annotated[str | None, text_query("only effects of this delivery, by its GUID")] = None,
    cursor: CursorParam = None,
) -> Callable[..., EffectQuery]:
    return partial(
        EffectQuery,
        state=state.value if state else None,
        target=target or None,
        delivery=delivery or None,
        after=cursors.decode(cursor),
    )


def notice_query(
    *,
    backend: Annotated[
        str | None, text_query("only notices about backends whose name contains this text")
    ] = None,
    topic: Annotated[Topic | None, Query(description="only notices of this topic")] = None,
    state: Annotated[
        NoticeFilter | None,
        Query(description="`open`: the newest of each open thread; `unsent`: those that still wait"),
    ] = None,
    cursor: CursorParam = None,
) -> Callable[..., NoticeQuery]:
    return partial(
        NoticeQuery, backend=backend or None, topic=topic, state=state, after=cursors.decode(cursor)
    )


def audit_query(
    *,
    who: Annotated[str | None, text_query("only acts of people whose name contains this text")] = None,
    act: Annotated[
        str | None,
        text_query("only acts with a word that begins with this text; a space matches `_`"),
    ] = None,
    order: OrderParam = TimeOrder.NEWEST_FIRST,
    cursor: CursorParam = None,
) -> Callable[..., AuditQuery]:
    return partial(
        AuditQuery,
        who=_person(who),
        act=act or None,
        oldest_first=order is TimeOrder.OLDEST_FIRST,
        after=cursors.decode(cursor),
    )


def waiver_query(
    *,
    state: Annotated[WaiverState | None, Query(description="only waivers in this state")] = None,
    who: Annotated[str | None, text_query("only waivers of people whose name contains this text")] = None,
    backend: Annotated[
        str | None, text_query("only waivers of backends whose `owner/repo` contains this text")
    ] = None,
    number: NumberParam = None,
    order: Annotated[
        Literal["-at"] | None,
        Query(alias="sort", description="`-at`: newest first; default: those in force first"),
    ] = None,
    cursor: CursorParam = None,
) -> Callable[..., WaiverQuery]:
    return partial(
        WaiverQuery,
        state=state,
        who=_person(who),
        backend=backend or None,
        number=number,
        newest_first=order is not None,
        after=cursors.decode(cursor),
    )


def failing_query(
    *,
    kind: Annotated[
        FailingKind,
        Query(description="`push`: commits of the base branch; `nightly`: nightly and periodic runs"),
    ] = FailingKind.PUSH,
    branch: Annotated[
        str | None, text_query("the base branch, for `push`; default: the upstream's default branch", 255)
    ] = None,
    backend: Annotated[
        str | None, text_query("only backends whose `owner/repo` contains this text", 150)
    ] = None,
    q: Annotated[
        str | None, text_query("only jobs whose name, workflow, message or on-call contains this text", 100)
    ] = None,
    known: Annotated[
        bool | None, Query(description="only jobs whose failure is linked to an issue, or only the others")
    ] = None,
    sort: Annotated[
        str,
        Query(
            pattern=f"^-?({'|'.join(FailingSort)})$",
            description="a column; with a minus sign highest first; default: those that fail for longest first",
        ),
    ] = FailingSort.SINCE.value,
    cursor: CursorParam = None,
) -> Callable[..., FailingQuery]:
    return partial(
        FailingQuery,
        kind=kind,
        branch=branch or None,
        backend=backend or None,
        text=q or None,
        known=known,
        sort=FailingSort(sort.removeprefix("-")),
        down=sort.startswith("-"),
        after=cursors.decode(cursor),
    )


def pull_list_query(
    *,
    state: Annotated[PullScope, Query(description="open or closed pull requests, or both")] = PullScope.OPEN,
    only: Annotated[
        PullFilter | None,
        Query(
            description="`blocked`: the gate failed; `failing`: a job failed on the newest commit; `waiting`: held until the "
            "draft is ready for review, or a maintainer approves the author's change"
        ),
    ] = None,
    author: Annotated[str | None, text_query("only pull requests of exactly this login", 100)] = None,
    q: Annotated[
        str | None,
        text_query("only those whose title or author contains this text, or whose number begins with it"),
    ] = None,
    sort: Annotated[
        str,
        Query(
            pattern=f"^-?({'|'.join(PullSort)})$",
            description="with a minus sign highest first; `gate`: failed ones first; default: newest change first",
        ),
    ] = f"-{PullSort.UPDATED}",
    cursor: CursorParam = None,
) -> Callable[..., PullListQuery]:
    return partial(
        PullListQuery,
        scope=state,
        only=only,
        author=_person(author),
        text=q or None,
        sort=PullSort(sort.removeprefix("-")),
        down=sort.startswith("-"),
        after=cursors.decode(cursor),
    )


def commit_list_query(
    *,
    branch: Annotated[str | None, text_query("default: the upstream's default branch", 255)] = None,
    cursor: CursorParam = None,
) -> Callable[..., CommitListQuery]:
    return partial(CommitListQuery, branch=branch or None, after=cursors.decode(cursor))


def culprit_query(
    *,
    backend: Annotated[
        str | None,
        Query(
            pattern=f"^{_ORG}/{_REPO}$",
            description="`owner/repo`: only this backend; the upstream for in-tree checks",
        ),
    ] = None,
    job: Annotated[
        str | None, text_query("only the job, or the in-tree check, of exactly this name", 300)
    ] = None,
) -> Callable[..., CulpritQuery]:
    return partial(
        CulpritQuery, backend=_repository(backend, BadRequest) if backend else None, job=job or None
    )


def bisection_query(
    *,
    backend: Annotated[
        str | None, Query(pattern=f"^{_ORG}/{_REPO}$", description="`owner/repo`: only this backend")
    ] = None,
    job: Annotated[str | None, text_query("only the job of exactly this name", 300)] = None,
    state: Annotated[BisectionState | None, Query(description="only bisections in this state")] = None,
    cursor: CursorParam = None,
) -> Callable[..., BisectionQuery]:
    return partial(
        BisectionQuery,
        backend=_repository(backend, BadRequest) if backend else None,
        job=job or None,
        state=state,
        after=cursors.decode(cursor),
    )


BackendQueryParam = Annotated[Callable[..., BackendQuery], Depends(backend_query)]
JobQueryParam = Annotated[Callable[..., JobQuery], Depends(job_query)]
DeliveryQueryParam = Annotated[Callable[..., DeliveryQuery], Depends(delivery_query)]
EffectQueryParam = Annotated[Callable[..., EffectQuery], Depends(effect_query)]
NoticeQueryParam = Annotated[Callable[..., NoticeQuery], Depends(notice_query)]
AuditQueryParam = Annotated[Callable[..., AuditQuery], Depends(audit_query)]
WaiverQueryParam = Annotated[Callable[..., WaiverQuery], Depends(waiver_query)]
FailingQueryParam = Annotated[Callable[..., FailingQuery], Depends(failing_query)]
PullListQueryParam = Annotated[Callable[..., PullListQuery], Depends(pull_list_query)]
CommitListQueryParam = Annotated[Callable[..., CommitListQuery], Depends(commit_list_query)]
CulpritQueryParam = Annotated[Callable[..., CulpritQuery], Depends(culprit_query)]
BisectionQueryParam = Annotated[Callable[..., BisectionQuery], Depends(bisection_query)]


def _repository(name: str, failure: type[BadRequest | NotFound]) -> RepoName:
    if not is_repo_name(name):
        raise failure(f"{name[:150]!r} is not owner/name")
    return RepoName(name)


def _person(who: str | None) -> str | None:
    return who.removeprefix("@") or None if who else None
