"""The relay's front: intakes, pages and API put together as one ASGI app over wired services."""

from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

from starlette.requests import Request

from crcr.app import Edge, create_app
from crcr.company import Company
from crcr.decide.gate import Policy
from crcr.receive.address import client_address
from crcr.record.signals import CHANGES
from crcr.record.views import SqlViews
from crcr.settings import Settings
from crcr.show import api, events, health, pages
from crcr.show.feed import Wakeups
from crcr.wiring import Services


def build_app(services: Services, *, work: bool = True) -> Edge:
    """The relay as an ASGI app; with `work` its worker and loops run beside the requests."""
    upstreams, clock = services.upstreams, services.clock
    views = SqlViews(services.database, services.allowlists, upstreams, _patience(services.settings))
    subscribe = partial(services.signals.subscribe, CHANGES)
    unsubscribe = partial(services.signals.unsubscribe, CHANGES)
    return create_app(
        hot={
            "/github/webhook": services.webhook.handle,
            "/github/callback": services.callback.handle,
            "/github/callback/": services.callback.handle,
        },
        routes=[
            *pages.routes(views, upstreams=upstreams, clock=clock, github_url=_web_url(services.settings)),
            *events.routes(
                views,
                wakeups=Wakeups(subscribe, unsubscribe),
                upstreams=upstreams,
                clock=clock,
                stopping=services.stopping,
                address_of=partial(_address, services.settings),
            ),
            *health.routes(views, metrics=services.metrics, clock=clock),
        ],
        routers=[api.router(views, upstreams=upstreams, clock=clock)],
        background=Company(services, work=work),
        on_crash=services.on_crash,
    )


def _patience(settings: Settings) -> Policy:
    return Policy(timedelta(seconds=settings.gate_timeout_s), timedelta(seconds=settings.job_timeout_s))


def _web_url(settings: Settings) -> str:
    """Where people look at GitHub, given where programs ask it."""
    parts = urlsplit(settings.github_api_url)
    host = parts.netloc.removeprefix("api.") if parts.netloc.startswith("api.") else parts.netloc
    return f"{parts.scheme}://{host}"


def _address(settings: Settings, request: Request) -> str:
    peer = request.client.host if request.client else None
    return client_address(peer, request.headers.getlist("x-forwarded-for"), settings.trusted_proxies)
