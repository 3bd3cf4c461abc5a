"""The pages of numbers: `/crcr`, all backends of an upstream, and `/crcr/metrics`, how they did over time."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.numbers import Figures, LeftOut
from crcr.decide.views import Summary
from crcr.show.frame import Frame
from crcr.show.here import Here
from crcr.show.links import formats
from crcr.show.live_delay import LiveDelay
from crcr.show.sorting import BY_LEVEL, Choice, Order, arrange, pick_backend, pick_order, tabulate
from crcr.show.trends import trend_charts


def routes(frame: Frame, delay: LiveDelay | None = None) -> list[BaseRoute]:
    pages = NumberPages(frame, delay or LiveDelay())
    return [
        Route("/crcr", frame.endpoint(pages.summary)),
        Route("/crcr/metrics", frame.endpoint(pages.metrics)),
    ]


class NumberPages:
    def __init__(self, frame: Frame, delay: LiveDelay) -> None:
        self._frame = frame
        self._delay = delay

    async def summary(self, request: Request, here: Here) -> Response:
        views, now = self._frame.views(request), self._frame.clock.now()
        summary = await views.summary(here.upstream, here.span, now, kind=here.kind)
        choice = Choice.of(request.query_params)
        return self._frame.page(
            request,
            "summary.html",
            here,
            cursor=summary.cursor,
            summary=summary,
            choice=choice,
            table=tabulate(summary.backends, choice),
            left_out=_left_out(summary),
            formats=formats(here, "summary", choice.query()),
        )

    async def metrics(self, request: Request, here: Here) -> Response:
        views, now = self._frame.views(request), self._frame.clock.now()
        metrics = await views.metrics(here.upstream, here.span, now, kind=here.kind)
        choice = Choice(order=_order(request))
        chosen = pick_backend(metrics, request.query_params.get("backend"))
        drawn: Figures = chosen.figures if chosen else metrics.total
        return self._frame.page(
            request,
            "metrics.html",
            here,
            cursor=metrics.cursor,
            live_delay=self._delay,
            metrics=metrics,
            choice=choice,
            chosen=chosen,
            drawn=drawn,
            charts=trend_charts(drawn),
            rows=arrange(metrics.backends, choice.order),
            formats=formats(here, "metrics", {"backend": chosen.name.full_name} if chosen else {}),
        )


def _left_out(summary: Summary) -> LeftOut:
    figures = (each.figures for each in summary.backends if each.figures and not each.probe)
    return sum((each.left_out for each in figures), LeftOut())


def _order(request: Request) -> Order:
    """Here the levels do not stand apart: without a wish the lowest rate is first."""
    asked = pick_order(request.query_params.get("sort"))
    return Order("rate", down=False) if asked.column == BY_LEVEL else asked
