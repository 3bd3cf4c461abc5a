"""The pages of the relay's log: deliveries with their dispatches, outgoing calls, waivers, notices, the audit log.

All lists keep filters, order and position in the address. An invalid filter is reported beside its field, so that nobody
mistakes the longer list for the requested one.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.model import (
    BISECTION_EVENT,
    PAIR_EVENT,
    DeliveryState,
    DispatchState,
    EffectState,
    RepoName,
    is_repo_name,
)
from crcr.decide.notices.notice import Topic
from crcr.decide.views.commit import WaiverState
from crcr.decide.views.logs import (
    AuditQuery,
    AuditView,
    DeliveryQuery,
    EffectQuery,
    NoticeFilter,
    NoticeQuery,
    WaiverQuery,
)
from crcr.decide.views.overview import DeliveryView, DispatchView, OutboxState
from crcr.show.pages.frame import Frame
from crcr.show.render import status
from crcr.show.urls import cursors
from crcr.show.urls.filters import ListFilters
from crcr.show.urls.job_tokens import job_token
from crcr.show.urls.location import PageLinks, PageLocation, data_links

PAGE = 50
_DELIVERIES = 25
"""Deliveries per page; each comes with all of its dispatches."""
_LONGEST = 200
_MOST_LISTED = 12
"""Dispatches listed with a delivery; its own page lists all."""
_OLDEST, _NEWEST = "at", "-at"

EVENTS = (
    *("pull_request", "push", "merge_group", "nightly"),
    *("issue_comment", "check_run", "check_suite", "crcr_test", BISECTION_EVENT, PAIR_EVENT),
)
EFFECT_STATES = ("parked", "waiting", "retried", "claimed", "done", "cancelled")
ACTS = (
    *(
        "waive",
        "unwaive",
        "waiver_used",
        "excuse",
        "verdict",
        "approve",
        "retry",
        "rerun",
        "replay",
        "pause",
        "unpause",
    ),
    *("known", "unknown", "issue_closed"),
    *("bisect", "stop_bisection", "bisection_ended"),
    *("suspend", "resume", "rebind", "alarm", "dispatch_test", "refresh_allowlist"),
)
_WORST = (
    *(DispatchState.PARKED, DispatchState.HELD, DispatchState.WAITING),
    *(DispatchState.SENT, DispatchState.CANCELLED, DispatchState.LEFT_OUT),
)


def routes(frame: Frame) -> list[BaseRoute]:
    pages = LogPages(frame)
    return [
        Route("/crcr/deliveries", frame.endpoint(pages.deliveries)),
        Route("/crcr/deliveries/{guid}", frame.endpoint(pages.delivery)),
        Route("/crcr/waivers", frame.endpoint(pages.waivers)),
        Route("/crcr/audit", frame.endpoint(pages.audit)),
        Route("/crcr/notices", frame.endpoint(pages.notices)),
    ]


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A line of the log: the delivery, its dispatches by state, and the first of them, worst first."""

    delivery: DeliveryView
    sums: tuple[tuple[status.Status, int], ...]
    dispatches: tuple[DispatchView, ...]
    more: int


class LogPages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def deliveries(self, request: Request, location: PageLocation) -> Response:
        if request.query_params.get("show") == "effects":
            return await self._effects(request, location)
        filters = ListFilters(request, "event", "state", "number", "sha", sort=_OLDEST)
        query = DeliveryQuery(
            upstream=location.upstream,
            event=filters.text("event"),
            state=filters.one_of(DeliveryState, "state"),
            number=filters.number(),
            head_sha=filters.digits(),
            oldest_first=filters.text("sort") == _OLDEST,
            after=cursors.decode(filters.text("after")),
            limit=_DELIVERIES,
        )
        page = await self._frame.views(request).deliveries(query)
        return self._list(
            request,
            "deliveries.html",
            location,
            filters,
            page,
            api="deliveries",
            limit=_DELIVERIES,
            rows=[_row(delivery) for delivery in page.deliveries],
            events=EVENTS,
            statuses=status.DELIVERIES,
        )

    async def _effects(self, request: Request, location: PageLocation) -> Response:
        filters = ListFilters(request, "show", "state", "target")
        if filters.text("state") == status.EFFECTS[EffectState.PARKED].word:  # the word that the pages show
            filters.values["state"] = EffectState.PARKED.value
        query = EffectQuery(
            upstream=location.upstream,
            state=filters.choice(EFFECT_STATES, "state"),
            target=filters.text("target"),
            after=cursors.decode(filters.text("after")),
            limit=PAGE,
        )
        page = await self._frame.views(request).effect_page(query)
        return self._list(
            request,
            "effects.html",
            location,
            filters,
            page,
            api="effects/list",
            csv="effects",
            statuses=status.EFFECTS,
            states=EFFECT_STATES,
            lag_s=_lag_s(page.outbox, self._frame.clock.now()),
        )

    async def delivery(self, request: Request, location: PageLocation) -> Response:
        guid = request.path_params["guid"][:_LONGEST]
        views = self._frame.views(request)
        delivery = await views.delivery(location.upstream, guid)
        effects = await views.effect_page(EffectQuery(upstream=location.upstream, delivery=guid, limit=PAGE))
        return self._frame.page(
            request,
            "delivery.html",
            location,
            cursor=effects.cursor,
            delivery=delivery,
            row=_row(delivery),
            effects=effects,
            statuses=status.DELIVERIES,
            effect_statuses=status.EFFECTS,
            job_token=job_token,
            formats=data_links(location, f"deliveries/{guid}"),
        )

    async def waivers(self, request: Request, location: PageLocation) -> Response:
        filters = ListFilters(request, "state", "who", "backend", "number", sort=_NEWEST)
        query = WaiverQuery(
            upstream=location.upstream,
            state=filters.one_of(WaiverState, "state"),
            who=filters.person(),
            backend=filters.text("backend"),
            number=filters.number(),
            newest_first=filters.text("sort") == _NEWEST,
            after=cursors.decode(filters.text("after")),
            limit=PAGE,
        )
        page = await self._frame.views(request).waiver_page(query, self._frame.clock.now())
        return self._list(request, "waivers.html", location, filters, page, api="waivers")

    async def audit(self, request: Request, location: PageLocation) -> Response:
        filters = ListFilters(request, "who", "act", sort=_OLDEST)
        query = AuditQuery(
            upstream=location.upstream,
            who=filters.person(),
            act=filters.text("act"),
            oldest_first=filters.text("sort") == _OLDEST,
            after=cursors.decode(filters.text("after")),
            limit=PAGE,
        )
        page = await self._frame.views(request).audit(query)
        return self._list(
            request,
            "audit.html",
            location,
            filters,
            page,
            api="audit",
            known_acts=ACTS,
            subject_url=lambda act: _subject_url(location, act),
        )

    async def notices(self, request: Request, location: PageLocation) -> Response:
        filters = ListFilters(request, "backend", "topic", "state")
        query = NoticeQuery(
            upstream=location.upstream,
            backend=filters.text("backend"),
            topic=filters.one_of(Topic, "topic"),
            state=filters.one_of(NoticeFilter, "state"),
            after=cursors.decode(filters.text("after")),
            limit=PAGE,
        )
        page = await self._frame.views(request).notices(query)
        return self._list(
            request,
            "notices.html",
            location,
            filters,
            page,
            api="notices",
            topics=tuple(Topic),
            states=tuple(NoticeFilter),
            statuses=status.NOTICES,
            message_statuses=status.NOTICE_MESSAGES,
        )

    def _list(
        self,
        request: Request,
        template: str,
        location: PageLocation,
        filters: ListFilters,
        page: Any,
        *,
        api: str,
        csv: str = "",
        limit: int = PAGE,
        **context: Any,
    ) -> Response:
        chosen = filters.understood
        exported = {name: value for name, value in chosen.items() if name != "show"}
        return self._frame.page(
            request,
            template,
            location,
            cursor=page.cursor,
            page=page,
            links=PageLinks(location, chosen),
            chosen=filters.values,
            unclear=filters.unclear,
            filtered=bool(chosen.keys() - {"after", "sort", "show"}),
            limit=limit,
            next_after=cursors.encode(page.next),
            formats=data_links(location, api, exported, csv=csv),
            **context,
        )


def _lag_s(outbox: OutboxState, now: datetime) -> float | None:
    """Age of the oldest effect that is due; None when nothing is."""
    due_at = outbox.oldest_due_at
    return (now - due_at).total_seconds() if due_at and due_at <= now else None


def _row(delivery: DeliveryView) -> DeliveryRow:
    counts = Counter(dispatch.state for dispatch in delivery.dispatches)
    worst_first = sorted(delivery.dispatches, key=lambda dispatch: _WORST.index(dispatch.state))
    return DeliveryRow(
        delivery,
        tuple((status.DISPATCHES[state], counts[state]) for state in _WORST if counts[state]),
        tuple(worst_first[:_MOST_LISTED]),
        max(0, len(worst_first) - _MOST_LISTED),
    )


def _subject_url(location: PageLocation, act: AuditView) -> str | None:
    """Return the address of an action's subject, if it has a page."""
    number = act.subject.removeprefix("#")
    if number != act.subject and number.isascii() and number.isdigit():
        return location.pull(int(number[:9]))
    if act.act == "replay":
        return location.url(f"/crcr/deliveries/{act.subject}")
    if is_repo_name(act.subject) and RepoName(act.subject) != location.upstream:
        return location.backend(RepoName(act.subject))
    return None
