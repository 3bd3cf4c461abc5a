"""The App's page: GitHub is asked once, outside of requests, and the onboarding page links to it."""

import asyncio
from pathlib import Path

from crcr.decide.github.repository_setup import AppFacts
from crcr.deliver.periodic.app_link import ASK_AGAIN_S, AppPage
from crcr.errors import OutsideUnreachable
from support.clock import ManualClock
from support.running_relay import running_relay

ONBOARDING = "/crcr/onboarding"
LINK = '<a class="button" href="http://127.0.0.1:9/apps/'


class Apps:
    """A GitHub that is away at first."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.asked = 0

    async def read(self) -> AppFacts:
        self.asked += 1
        if self.asked <= self.away:
            raise OutsideUnreachable("nobody there")
        return AppFacts(
            app_id=1,
            client_id=None,
            slug="crcr",
            html_url="https://github.com/apps/crcr",
            permissions={},
            events=(),
            server_time=None,
        )


async def test_who_joins_finds_the_link_to_the_app(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2: [org/one]") as relay:
        assert LINK not in (await relay.http.get(ONBOARDING)).text
        async with asyncio.timeout(20), relay.app.inner.router.lifespan_context(relay.app.inner):
            while LINK not in (page := (await relay.http.get(ONBOARDING)).text):
                await asyncio.sleep(0)
        assert "not known here yet" not in page


async def test_a_github_that_is_away_is_asked_again_and_then_no_more() -> None:
    clock, apps = ManualClock(), Apps(away=2)
    page = AppPage(apps, clock)
    finding = asyncio.create_task(page.find(asyncio.Event()))
    await clock.pass_time(ASK_AGAIN_S * 5)
    async with asyncio.timeout(20):
        await finding
    assert page.address == "https://github.com/apps/crcr"
    assert apps.asked == 3


async def test_a_stop_ends_the_asking() -> None:
    stopping = asyncio.Event()
    page = AppPage(Apps(away=1_000), ManualClock())
    finding = asyncio.create_task(page.find(stopping))
    stopping.set()
    async with asyncio.timeout(20):
        await finding
    assert page.address is None
