"""Webhooks with a wrong signature: one log line a minute, one row, and one sentence on the health pages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from support.clock import settle
from support.running_relay import UPSTREAM, RunningRelay, running_relay

LISTED = "L2: [org/one]"


@asynccontextmanager
async def relay_with_refusal_log(folder: Path) -> AsyncIterator[tuple[RunningRelay, list[Any]]]:
    """A relay that reports refused webhooks, and its log lines."""
    async with running_relay(folder, LISTED, downstreams=("org/one",)) as relay:
        stopping = asyncio.Event()
        with capture_logs() as lines:
            loop = asyncio.create_task(relay.services.webhook.refused.run(stopping))
            yield relay, lines
            stopping.set()
            await loop


async def send(relay: RunningRelay, number: int, **headers: str) -> None:
    signed = {"X_GitHub_Event": "push", "X_Hub_Signature_256": "sha256=" + "0" * 64, **headers}
    sent = {name.replace("_", "-"): value for name, value in signed.items() if value}
    for _ in range(number):
        assert (await relay.http.post("/github/webhook", content=b"{}", headers=sent)).status_code == 401


async def wait_for_report(relay: RunningRelay) -> None:
    """Return when the count is written and logged, and the next report waits for its minute."""
    async with asyncio.timeout(8):
        while not relay.clock.sleeping:
            await settle()


def refusal_lines(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["log_level"], line["detail"]) for line in lines if line["event"] == "webhooks_refused"]


def sentence(number: int, since: str) -> tuple[str, str]:
    detail = "signature does not match CRCR_GITHUB_WEBHOOK_SECRET"
    return "warning", f"{detail}, {number} since {since} UTC"


async def test_refused_webhooks_cause_one_warning_a_minute_with_the_count_since_the_first(
    tmp_path: Path,
) -> None:
    async with relay_with_refusal_log(tmp_path) as (relay, lines):
        relay.clock.advance(600)
        await send(relay, 1)
        await wait_for_report(relay)
        await send(relay, 13)
        await settle()
        assert refusal_lines(lines) == [sentence(1, "00:10")]
        relay.clock.advance(60)
        await settle()
        await wait_for_report(relay)
        assert refusal_lines(lines) == [sentence(1, "00:10"), sentence(14, "00:10")]
        health = (await relay.http.get("/api/v1/health")).json()
        assert health["state"] == "amber"
        assert [reason["text"] for reason in health["reasons"]] == [
            (
                "14 webhooks were refused since 00:10 UTC: the signature does not match CRCR_GITHUB_WEBHOOK_SECRET."
                " Either the App has another secret, or they are not GitHub's."
            )
        ]
        await relay.clock.pass_time(3600)
        assert (await relay.http.get("/api/v1/health")).json()["state"] == "green"
        await relay.clock.pass_time(60)
        await send(relay, 1)
        await wait_for_report(relay)
        assert refusal_lines(lines)[2] == sentence(1, "01:12")  # a new series


async def test_requests_without_github_headers_are_logged_as_info_and_do_not_affect_health(
    tmp_path: Path,
) -> None:
    async with relay_with_refusal_log(tmp_path) as (relay, lines):
        await send(relay, 5, X_Hub_Signature_256="")
        await send(relay, 5, X_GitHub_Event="")
        await wait_for_report(relay)
        relay.clock.advance(60)
        await settle()
        assert refusal_lines(lines) == []
        info_lines = [line for line in lines if line["event"] == "webhooks_unsigned"]
        assert {line["log_level"] for line in info_lines} == {"info"}
        assert sum(line["number"] for line in info_lines) == 10
        assert len(info_lines) <= 2
        assert (await relay.http.get("/api/v1/health")).json()["state"] == "green"
        assert relay.rows("SELECT * FROM refused_webhooks") == []


async def test_health_says_that_refused_webhooks_may_be_foreign_when_others_match(tmp_path: Path) -> None:
    async with relay_with_refusal_log(tmp_path) as (relay, _):
        await send(relay, 2)
        await wait_for_report(relay)
        relay.clock.advance(5)
        await relay.github.open_pr(UPSTREAM)
        [reason] = (await relay.http.get("/api/v1/health")).json()["reasons"]
        assert reason["text"].endswith("Others arrive with the right one, so these may not be GitHub's.")
