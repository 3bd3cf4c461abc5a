"""The compatibility matrix: the page `/crcr/compat`, the same as JSON and CSV, the newest common green commit, and its badge.

`/api/v1/compat/latest-green?format=text` is for scripts that pin a commit: the SHA and a line break, or 404 and nothing at all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from crcr.decide.compatibility import (
    MOST_NAMED,
    MOST_SEARCHED,
    CompatBackend,
    CompatCell,
    CompatColumns,
    CompatCommit,
    CompatQuery,
    CompatState,
    CompatView,
    GreenCommit,
    GreenMatch,
    GroupKind,
    LatestGreen,
)
from crcr.decide.github.commit_origin import RELEASE_BRANCHES
from crcr.decide.model import Level, RepoName, is_repo_name
from crcr.decide.number_format import count_things
from crcr.errors import BadRequest, NotFound, Unavailable
from crcr.show.api import parameters as params
from crcr.show.api.models.derive import Model, derive_model
from crcr.show.api.models.shared import ErrorBody
from crcr.show.csv.writer import CsvExport, CsvRow, CsvTable, describe_response
from crcr.show.pages import badge
from crcr.show.pages.frame import Frame
from crcr.show.render.grids import ColumnHead, ColumnSpan, GridHeads
from crcr.show.render.markup import escape_link, escape_text
from crcr.show.render.status import Status
from crcr.show.urls.filters import ListFilters
from crcr.show.urls.location import PageLinks, PageLocation, data_links, pick_upstream

TAG = "overview"
_MOST_COLUMNS = 50
_COLUMNS_OF_PAGE = 12
"""Of the branch: nights, releases and tags follow, and should be in view."""
_LONGEST_NAMES = MOST_NAMED * 141
_LONGEST_LABEL = 40
_LEVELS = {level.name: level for level in Level if level >= Level.L2}
_STATES = {
    CompatState.GREEN: Status("O", "green", "ok"),
    CompatState.FAILED: Status("X", "failed", "bad"),
    CompatState.RUNNING: Status("?", "running", "run"),
    CompatState.INCONCLUSIVE: Status("I", "inconclusive: cancelled, skipped or neutral", "off"),
}
_WORST_FIRST = (CompatState.FAILED, CompatState.RUNNING, CompatState.INCONCLUSIVE)
_BETWEEN = Status("B", "no result here; between two green commits", "wait")
_UNTESTED = Status("·", "no result", "off")
LEGEND = (*_STATES.values(), _BETWEEN, _UNTESTED)
_GROUPS = {
    GroupKind.BRANCH: "{}",
    GroupKind.NIGHTLY: "nightly",
    GroupKind.RELEASE: "{}",
    GroupKind.TAGS: "tags",
}
_NONE = "at no commit of {branch}, among its newest {most:,}, is every chosen backend green"


def read_names(text: str | None) -> tuple[RepoName, ...]:
    """Return the backends of a list such as `a/b,c/d`."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if len(names) > MOST_NAMED:
        raise BadRequest(f"{len(names)} backends are named", hint=f"name up to {MOST_NAMED}")
    for name in names:
        if not is_repo_name(name):
            raise BadRequest(f"{name[:150]!r} is not owner/name", hint="separate the names by commas")
    return tuple(dict.fromkeys(map(RepoName, names)))


# The page


def routes(frame: Frame) -> list[BaseRoute]:
    return [
        Route("/crcr/compat", frame.endpoint(partial(_page, frame))),
        Route("/badge/compat.svg", partial(_badge, frame)),
    ]


async def _page(frame: Frame, request: Request, location: PageLocation) -> Response:
    filters = ListFilters(request, "level", "hardware", "branch")
    filters.values |= {"backends": names} if (names := _names_of(request)) else {}
    query = CompatQuery(
        upstream=location.upstream,
        level=_LEVELS.get(filters.choice(_LEVELS, "level") or ""),
        hardware=filters.text("hardware"),
        branch=filters.text("branch"),
        commits=_COLUMNS_OF_PAGE,
    )
    view = await _read_view(frame, request, query, filters)
    chosen = filters.understood
    return frame.page(
        request,
        "compat.html",
        location,
        cursor=view.cursor,
        view=view,
        heads=_lay_out(view.groups, location),
        draw_row=partial(_draw_row, view, location),
        draw_all=partial(_draw_all, view, location),
        legend=LEGEND,
        links=PageLinks(location, chosen),
        chosen=filters.values,
        unclear=filters.unclear,
        levels=tuple(reversed(_LEVELS)),
        pin=f"{frame.site}{_pin_path(location, chosen)}",
        badge=f"{frame.site}/badge/compat.svg{_query(location, chosen)}",
        formats=data_links(location, "compat", chosen),
    )


def _names_of(request: Request) -> str:
    return request.query_params.get("backends", "").strip()[:_LONGEST_NAMES]


async def _read_view(frame: Frame, request: Request, query: CompatQuery, filters: ListFilters) -> CompatView:
    """Names that cannot be chosen are shown in their field with the reason, and choose nothing."""
    views, now = frame.views(request), frame.clock.now()
    try:
        names = read_names(filters.text("backends"))
        return await views.compat(replace(query, backends=names), now)
    except BadRequest as problem:
        filters.unclear["backends"] = str(problem)
        return await views.compat(query, now)


def _query(location: PageLocation, chosen: dict[str, str], **more: str) -> str:
    kept = {**({"upstream": location.upstream.full_name} if _is_other(location) else {}), **chosen, **more}
    kept = {name: value for name, value in kept.items() if name not in {"after", "sort"}}
    return f"?{urlencode(kept, safe='/,')}" if kept else ""


def _is_other(location: PageLocation) -> bool:
    return location.upstream != location.upstreams[0]


def _pin_path(location: PageLocation, chosen: dict[str, str]) -> str:
    level = {} if {"level", "hardware", "backends"} & set(chosen) else {"level": "L3"}
    return f"/api/v1/compat/latest-green{_query(location, {**level, **chosen}, format='text')}"


def _lay_out(groups: Sequence[CompatColumns], location: PageLocation) -> GridHeads:
    spans, heads = [], []
    for group in groups:
        label = _GROUPS[group.kind].format(group.name.removeprefix(RELEASE_BRANCHES))
        what = "tags" if group.kind is GroupKind.TAGS else "commits, newest first"
        title = f"{group.name}: {len(group.commits)} {what}"
        spans.append(ColumnSpan(label, title, len(group.commits)))
        for index, commit in enumerate(group.commits):
            name = commit.label or commit.sha[:8]
            title = f"{commit.label or ''} {commit.sha} {commit.title or ''}".strip()
            link = location.commit(commit.sha)
            heads.append(ColumnHead(name[:_LONGEST_LABEL], title, link, not index, "backend"))
    return GridHeads(tuple(spans), tuple(heads))


def _draw_row(view: CompatView, location: PageLocation, index: int) -> Markup:
    """The cells of one backend; each links to the commit."""
    drawn = [
        _draw_cell(_status_of(commit.cells[index]), str(commit.cells[index].backend), commit, location)
        for group in view.groups
        for commit in group.commits
    ]
    return Markup("".join(drawn))  # noqa: S704  every piece of it is escaped


def _draw_all(view: CompatView, location: PageLocation) -> Markup:
    """The cells of all chosen backends together."""
    drawn = [
        _draw_cell(_status_of_all(commit), "all chosen backends", commit, location)
        for group in view.groups
        for commit in group.commits
    ]
    return Markup("".join(drawn))  # noqa: S704  the same


def _status_of_all(commit: CompatCommit) -> Status | None:
    """Green or between where each backend is one of these; otherwise the worst state, and none where only results are missing."""
    if all(cell.between or cell.state is CompatState.GREEN for cell in commit.cells):
        return _STATES[CompatState.GREEN] if commit.is_green else _BETWEEN
    states = {cell.state for cell in commit.cells if not cell.between}
    return next((_STATES[state] for state in _WORST_FIRST if state in states), None)


def _status_of(cell: CompatCell) -> Status | None:
    if cell.between:
        return _BETWEEN
    return None if cell.state is None else _STATES[cell.state]


def _draw_cell(status: Status | None, who: str, commit: CompatCommit, location: PageLocation) -> str:
    if status is None:
        return "<td></td>"
    title = escape_text(f"{who} at {commit.label or commit.sha[:8]}: {status.word}")
    link = escape_link(location.commit(commit.sha))
    return f'<td class="{status.tone}"><a href="{link}" title="{title}">{status.letter}</a></td>'


# The badge


_GREEN_FOR_S = 2 * 86_400
"""An older common commit has another colour."""


async def _badge(frame: Frame, request: Request) -> Response:
    query = request.query_params
    label = badge.clean_label(query.get("label")) or "green together"
    try:
        upstream = pick_upstream(frame.location(request).upstreams, query.get("upstream"))
        chosen = CompatQuery(
            upstream=upstream,
            level=_LEVELS.get(query.get("level", "")),
            backends=read_names(query.get("backends")),
            hardware=query.get("hardware") or None,
            branch=query.get("branch") or None,
            match=next(
                (match for match in GreenMatch if match.value == query.get("match")), GreenMatch.EXACT
            ),
        )
        latest = await frame.views(request).latest_green(chosen, frame.clock.now())
    except (BadRequest, NotFound) as problem:
        code = 400 if isinstance(problem, BadRequest) else 404
        return badge.respond(request, badge.BadgePicture(label, "unknown", badge.GREY), code=code)
    except Unavailable:
        return badge.respond_unavailable(request, label)
    return badge.respond(request, choose_badge(latest, label))


def choose_badge(latest: LatestGreen | None, label: str) -> badge.BadgePicture:
    if latest is None:
        return badge.BadgePicture(label, "no common commit", badge.RED)
    commit = latest.commit
    days, hours = int(commit.age_s // 86_400), int(commit.age_s // 3_600)
    age = count_things(days, "day") if days else f"{hours} h"
    how = " · between" if latest.between else ""
    colour = badge.GREEN if commit.age_s < _GREEN_FOR_S and not latest.between else badge.AMBER
    about = f"{latest.branch}, {count_things(len(latest.backends), 'backend')}"
    return badge.BadgePicture(label, f"{commit.sha[:8]} · {age}{how}", colour, about)


# JSON and plain text


_AT = "2026-03-01T04:00:00Z"
_SHA = "6dcb09b5b57875f334f61aebed695e2e4193db5e"
_COMMIT_EXAMPLE = {
    "sha": _SHA,
    "title": "Fix dtype promotion in addmm",
    "number": 7,
    "pushed_at": _AT,
    "age_s": 5400.0,
    "newer_commits": 12,
}
_LATEST_EXAMPLE: dict[str, Any] = {
    "sha": _SHA,
    "upstream": "org/project",
    "branch": "main",
    "match": "exact",
    "backends": ["org/backend"],
    "commit": _COMMIT_EXAMPLE,
    "between": [],
}
derive_model(
    GreenCommit,
    "GreenCommit",
    described={
        "age_s": "Seconds since it was pushed.",
        "newer_commits": "How many commits the branch has after it.",
    },
)
LATEST = derive_model(
    LatestGreen,
    "LatestGreen",
    "The newest commit of a branch at which every chosen backend is green.",
    properties=("sha",),
    described={
        "match": "`exact`: each backend has a green result at exactly this commit; `between`: or it has none there, and lies"
        " between two green commits with no failure in between.",
        "between": "The backends without a result at this commit; empty for `exact`.",
    },
    example=_LATEST_EXAMPLE,
)
derive_model(
    CompatCell,
    "CompatCell",
    described={
        "state": "At exactly this commit; null where the backend has no result there.",
        "between": "No result here, and between two green commits of the group with no failure in between.",
    },
)
derive_model(
    CompatCommit,
    "CompatCommit",
    properties=("is_green",),
    described={
        "label": "The name of a tag.",
        "is_green": "Every chosen backend is green at exactly this commit.",
    },
)
derive_model(
    CompatColumns,
    "CompatGroup",
    "Commits of a branch, newest first, those that nights tested, or tags, highest version first.",
    properties=("newest_green",),
)
derive_model(CompatBackend, "CompatBackend")
COMPAT = derive_model(
    CompatView,
    "Compatibility",
    "Backends by commits, and the newest commit at which all of them are green.",
    without=("cursor",),
    described={
        "level": "Backends of this level and above were chosen; null where names or hardware chose.",
        "exact": "Null where no commit among those searched is green for all.",
        "between": "The same with `match=between`.",
    },
    example={
        "upstream": "org/project",
        "at": _AT,
        "branch": "main",
        "level": "L3",
        "searched": MOST_SEARCHED,
        "backends": [
            {
                "name": "org/backend",
                "level": "L3",
                "device": "npu",
                "hardware": "NPU v2",
                "last_green": _COMMIT_EXAMPLE,
            }
        ],
        "groups": [
            {
                "kind": "tags",
                "name": "tags",
                "newest_green": _SHA,
                "commits": [
                    {
                        "sha": _SHA,
                        "label": "v2.9.0",
                        "title": "Fix dtype promotion in addmm",
                        "number": 7,
                        "pushed_at": _AT,
                        "is_green": True,
                        "cells": [{"backend": "org/backend", "state": "green", "between": False}],
                    }
                ],
            }
        ],
        "exact": _LATEST_EXAMPLE,
        "between": _LATEST_EXAMPLE,
    },
)


def compat_query(
    *,
    level: Annotated[
        Literal["L2", "L3", "L4"] | None,
        Query(
            description="backends of this level and above; default: L3, or all where names or hardware choose"
        ),
    ] = None,
    backends: Annotated[
        str | None,
        Query(
            max_length=_LONGEST_NAMES,
            pattern=r"^[A-Za-z0-9._/, -]*$",
            description=f"only these backends, `owner/repo` separated by commas, {MOST_NAMED} at most",
        ),
    ] = None,
    hardware: Annotated[
        str | None, params.text_query("only backends whose device or hardware contains this text", 100)
    ] = None,
    branch: Annotated[str | None, params.text_query("default: the upstream's default branch", 255)] = None,
) -> Callable[..., CompatQuery]:
    return partial(
        CompatQuery,
        level=_LEVELS[level] if level else None,
        backends=read_names(backends),
        hardware=hardware or None,
        branch=branch or None,
    )


CompatQueryParam = Annotated[Callable[..., CompatQuery], Depends(compat_query)]
_MatchParam = Annotated[
    GreenMatch,
    Query(
        description="`between` also accepts a commit between two green ones, for backends without a result there"
    ),
]
_ColumnsParam = Annotated[
    int, Query(alias="limit", ge=1, le=_MOST_COLUMNS, description="how many tested commits of the branch")
]


def add(api: APIRouter) -> None:
    @api.get(
        "/compat",
        tags=[TAG],
        summary="Backends by commits: what is green together, and each backend's last green commit",
        response_model=COMPAT,
    )
    async def compat(
        make_query: CompatQueryParam, api_request: params.RequestParam, columns: _ColumnsParam = 20
    ) -> Model:
        query = make_query(upstream=api_request.upstream, commits=columns)
        return COMPAT.model_validate(await api_request.views.compat(query, api_request.now))

    @api.get(
        "/compat/latest-green",
        tags=[TAG],
        summary="The newest commit at which every chosen backend is green; 404 where there is none",
        description="With `format=text` the answer is the SHA alone, and a 404 has no body: for scripts that pin a commit.",
        response_model=LATEST,
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": f"{_SHA}\n"}}},
            404: {
                "description": "No commit among those searched; empty with `format=text`.",
                "model": ErrorBody,
                "content": {"text/plain": {"schema": {"type": "string", "maxLength": 0}}},
            },
        },
    )
    async def latest_green(
        make_query: CompatQueryParam,
        api_request: params.RequestParam,
        match: _MatchParam = GreenMatch.EXACT,
        answer_format: Annotated[Literal["json", "text"], Query(alias="format")] = "json",
    ) -> Any:
        query = make_query(upstream=api_request.upstream, match=match)
        latest = await api_request.views.latest_green(query, api_request.now)
        if answer_format == "text":
            return _text(latest)
        if latest is None:
            raise _none_found(query)
        return LATEST.model_validate(latest)


def _text(latest: LatestGreen | None) -> Response:
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    if latest is None:
        return PlainTextResponse("", status_code=404, headers=headers)
    return PlainTextResponse(f"{latest.commit.sha}\n", headers=headers)


def _none_found(query: CompatQuery) -> NotFound:
    return NotFound(
        _NONE.format(branch=query.branch or "the default branch", most=MOST_SEARCHED),
        hint="/crcr/compat shows each backend's last green commit; match=between also accepts commits between two green ones",
    )


# CSV


_COLUMNS = (
    *("group_kind", "group", "sha", "label", "title", "number", "pushed_at", "is_green"),
    *("backend", "state", "between"),
)


def _lines(group: CompatColumns) -> Iterator[CsvRow]:
    for commit in group.commits:
        about = (commit.sha, commit.label, commit.title, commit.number, commit.pushed_at, commit.is_green)
        for cell in commit.cells:
            yield group.kind, group.name, *about, cell.backend, cell.state, cell.between


TABLE: CsvTable[CompatColumns] = CsvTable(_COLUMNS, _lines)


def add_csv(api: APIRouter) -> None:
    about = "Backends by commits: a line for each backend at each commit"

    @api.get("/compat.csv", summary=f"{about}, as CSV", responses=describe_response(about))
    async def compat_csv(
        request: Request,
        make_query: CompatQueryParam,
        api_request: params.RequestParam,
        columns: _ColumnsParam = 20,
    ) -> Response:
        query = make_query(upstream=api_request.upstream, commits=columns)
        view = await api_request.views.compat(query, api_request.now)
        return await CsvExport(request, f"{api_request.upstream}-compat").respond_with_items(
            TABLE, view.groups
        )
