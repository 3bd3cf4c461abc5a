"""The App's page: its address is fetched from GitHub once, outside of requests, and linked by the onboarding page."""

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
    """A GitHub that is unreachable at first."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.requests = 0

    async def read(self) -> AppFacts:
        self.requests += 1
        if self.requests <= self.failures:
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


async def test_the_onboarding_page_links_to_the_app(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2: [org/one]") as relay:
        assert LINK not in (await relay.http.get(ONBOARDING)).text
        async with asyncio.timeout(20), relay.app.inner.router.lifespan_context(relay.app.inner):
            while LINK not in (page := (await relay.http.get(ONBOARDING)).text):
                await asyncio.sleep(0)
        assert "not known here yet" not in page


async def test_the_apps_page_is_requested_again_after_failures_until_it_is_known() -> None:
    clock, apps = ManualClock(), Apps(failures=2)
    page = AppPage(apps, clock)
    finding = asyncio.create_task(page.find(asyncio.Event()))
    await clock.pass_time(ASK_AGAIN_S * 5)
    async with asyncio.timeout(20):
        await finding
    assert page.address == "https://github.com/apps/crcr"
    assert apps.requests == 3


async def test_stopping_ends_the_retries() -> None:
    stopping = asyncio.Event()
    page = AppPage(Apps(failures=1_000), ManualClock())
    finding = asyncio.create_task(page.find(stopping))
    stopping.set()
    async with asyncio.timeout(20):
        await finding
    assert page.address is None
