"""The pages of numbers: `/crcr`, all backends of an upstream, and `/crcr/metrics`, their trends."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.health.relay import Health, cautious_state
from crcr.decide.statistics.figures import Figures, LeftOut
from crcr.decide.views.backend import BackendMetrics
from crcr.decide.views.overview import BackendSummary, Summary
from crcr.join.findings.finding import SetupFinding
from crcr.join.findings.relay_checklist import RelaySetup, is_set_up, relay_checklist
from crcr.show.live.change_feed import LiveDelay
from crcr.show.pages.frame import Frame
from crcr.show.previews.preview import preview_summary
from crcr.show.previews.tags import make_tags
from crcr.show.render.number_cells import SummaryColumns
from crcr.show.render.status import PROBE_OK, is_late, probe_status
from crcr.show.render.trend_charts import trend_charts
from crcr.show.urls.location import PageLocation, data_links
from crcr.show.urls.sorting import (
    BY_LEVEL,
    SortOrder,
    TableFilters,
    arrange,
    cut_page,
    pick_backend,
    pick_order,
    pick_page,
    tabulate,
)


def routes(
    frame: Frame, delay: LiveDelay | None = None, app_page: Callable[[], str | None] = lambda: None
) -> list[BaseRoute]:
    """`app_page` returns the address of the App's own page, once GitHub has said it."""
    pages = OverviewPages(frame, delay or LiveDelay(), app_page)
    return [
        Route("/crcr", frame.endpoint(pages.summary)),
        Route("/crcr/metrics", frame.endpoint(pages.metrics)),
    ]


class OverviewPages:
    def __init__(self, frame: Frame, delay: LiveDelay, app_page: Callable[[], str | None]) -> None:
        self._frame = frame
        self._delay = delay
        self._app_page = app_page

    async def summary(self, request: Request, location: PageLocation) -> Response:
        views, now = self._frame.views(request), self._frame.clock.now()
        choice = TableFilters.from_query(request.query_params)

        table = tabulate((), choice)

        def pick(backends: Sequence[BackendSummary]) -> Sequence[BackendSummary]:
            nonlocal table
            table = tabulate(backends, choice)
            return cut_page(table.rows, choice.page).rows

        summary = await views.summary(location.upstream, location.span, now, kind=location.kind, pick=pick)
        health: Health | None = getattr(request.state, "health", None)
        return self._frame.page(
            request,
            "summary.html",
            location,
            cursor=summary.cursor,
            summary=summary,
            preview=make_tags(self._frame, location, preview_summary(summary), "summary"),
            choice=choice,
            table=table.on_page(summary.rows),
            group_sizes=table.sizes,
            page=cut_page(table.rows, choice.page),
            left_out=_sum_left_out(summary),
            columns=SummaryColumns.filled_by(backend.figures for backend in summary.backends),
            relay_state=cautious_state(health, doubtful=_is_doubtful(summary)),
            checklist=self._list_setup(location, summary, health),
            join_page=location.url("/crcr/onboarding"),
            formats=data_links(location, "summary", choice.query()),
        )

    def _list_setup(
        self, location: PageLocation, summary: Summary, health: Health | None
    ) -> tuple[SetupFinding, ...]:
        """Return the checklist of a relay that is not set up yet; empty for any other."""
        setup = RelaySetup(
            upstream=location.upstream,
            health=health,
            allowlist=summary.allowlist,
            backends=len(summary.backends),
            last_delivery_at=summary.health.last_delivery_at,
            last_result_at=summary.health.last_result_at,
            installed=summary.health.installed,
            app_known=self._app_page() is not None,
            public_url=self._frame.site,
        )
        return () if is_set_up(setup) else relay_checklist(setup)

    async def metrics(self, request: Request, location: PageLocation) -> Response:
        views, now = self._frame.views(request), self._frame.clock.now()
        choice = TableFilters(order=_read_order(request), page=pick_page(request.query_params.get("page")))
        requested = request.query_params.get("backend")

        def pick(every: Sequence[BackendMetrics]) -> Sequence[BackendMetrics]:
            chosen_row = pick_backend(every, requested)
            return [
                *([chosen_row] if chosen_row else []),
                *cut_page(arrange(every, choice.order), choice.page).rows,
            ]

        metrics = await views.metrics(location.upstream, location.span, now, kind=location.kind, pick=pick)
        chosen = pick_backend(metrics.rows, requested)
        page = cut_page(arrange(metrics.backends, choice.order), choice.page)
        in_full = {row.name: row for row in metrics.rows}
        drawn: Figures = chosen.figures if chosen else metrics.total
        return self._frame.page(
            request,
            "metrics.html",
            location,
            cursor=metrics.cursor,
            live_delay=self._delay,
            metrics=metrics,
            choice=choice,
            chosen=chosen,
            drawn=drawn,
            charts=trend_charts(drawn),
            page=replace(page, rows=arrange((in_full[row.name] for row in page.rows), choice.order)),
            formats=data_links(location, "metrics", {"backend": chosen.name.full_name} if chosen else {}),
        )


def _is_doubtful(summary: Summary) -> bool:
    """Whether something says that the relay may not work, beside the reasons of its health."""
    health = summary.health
    no_events = health.last_delivery_at is None or summary.allowlist.version is None
    return (
        no_events
        or is_late(health.lag_s)
        or any(probe_status(probe) is not PROBE_OK for probe in health.probes)
    )


def _sum_left_out(summary: Summary) -> LeftOut:
    figures = (backend.figures for backend in summary.backends if backend.figures and not backend.probe)
    return sum((figure.left_out for figure in figures), LeftOut())


def _read_order(request: Request) -> SortOrder:
    """Return the order; this page does not group by level, so its default is the lowest rate first."""
    order = pick_order(request.query_params.get("sort"))
    return SortOrder("rate", down=False) if order.column == BY_LEVEL else order
