"""Faults 41, 43 and 45: wherever a backend's numbers stand, they are the same, to the last digit.

What they must be is worked out from the recorded jobs by rules of its own (`sums_oracle`), for every range and kind.
"""

import csv
import io
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import unescape
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from crcr.record.store.times import to_us
from support.data.seeded_history import EVERYBODY, LISTED, QUIET, REPORTING, SeededHistory
from support.data.sums_oracle import HOUR_US, durations, job_categories, pass_rate, percentile
from support.running_relay import RunningRelay, running_relay

RANGES = {"24h": 1, "7d": 7, "14d": 14, "30d": 30, "90d": 90}
KINDS = ("pull_request", "push")
ASKED = [(span, kind) for span in RANGES for kind in KINDS]


@dataclass(frozen=True)
class PassRate:
    """What must be said of one backend."""

    success: int
    failure: int
    rate: float | None

    @property
    def percent(self) -> str:
        """As every page writes it: rounded down to a tenth, by whole numbers."""
        if self.rate is None:
            return "—"
        return f"{1000 * self.success // (self.success + self.failure) / 10:.1f}%"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def relay_with_reports(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningRelay]:
    folder = tmp_path_factory.mktemp("story")
    async with running_relay(folder, LISTED, downstreams=EVERYBODY) as relay:
        story = SeededHistory(relay, Random(41))
        await story.send_all()
        assert story.reports > 300
        yield relay


def window(span: str, now: datetime) -> tuple[int, int]:
    """The whole hours of a day, or the whole days, of which the running one is the last."""
    if span == "24h":
        until = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    else:
        until = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return to_us(until - timedelta(days=RANGES[span])), to_us(until)


def expected_rate(relay: RunningRelay, backend: str, span: str, kind: str) -> PassRate:
    since, until = window(span, relay.clock.now())
    jobs, dispatches = relay.rows("SELECT * FROM jobs"), relay.rows("SELECT * FROM dispatches")
    found = pass_rate(jobs, dispatches, downstream=backend, kind=kind, since_us=since, until_us=until)
    return PassRate(*found)


async def page(relay: RunningRelay, path: str, span: str, kind: str) -> str:
    answer = await relay.http.get(path, params={"range": span, "kind": kind})
    assert answer.status_code == 200, answer.text
    return answer.text


async def answer(relay: RunningRelay, path: str, span: str, kind: str) -> Any:
    got = await relay.http.get(path, params={"range": span, "kind": kind})
    assert got.status_code == 200, got.text
    return got.json()


def words(html: str) -> str:
    """What a reader sees of it, without thousands separators."""
    text = unescape(re.sub(r"<[^>]+>", " ", html))
    return " ".join(re.sub(r"(?<=\d),(?=\d{3})", "", text).split())


def table_row(html: str, backend: str) -> str:
    [found] = re.findall(rf'<tr data-key="{re.escape(backend)}".*?</tr>', html, re.DOTALL)
    return str(found)


def cell_text(line: str, label: str) -> str:
    [found] = re.findall(rf'<td[^>]*data-label="{label}"[^>]*>(.*?)</td>', line, re.DOTALL)
    return words(found)


def rate_text(line: str) -> str:
    [found] = re.findall(r'<td class="num ratecell[^>]*>(.*?)</td>', line, re.DOTALL)
    return words(found)


def rate_in_json(tally: dict[str, Any]) -> PassRate:
    return PassRate(tally["success"], tally["failure"], tally["pass_rate"])


async def test_the_story_has_everything_that_could_be_counted_wrongly(
    relay_with_reports: RunningRelay,
) -> None:
    jobs = relay_with_reports.rows("SELECT * FROM jobs")
    placed = set(job_categories(jobs, relay_with_reports.rows("SELECT * FROM dispatches")).values())
    assert placed >= {"success", "failure", "timed_out", "silent", "other", "superseded", "earlier", None}
    for mark in ("late", "disputed", "superseded"):
        assert any(job[mark] for job in jobs), mark
    assert {job["event"] for job in jobs} == {"pull_request", "push"}
    assert {job["downstream"] for job in jobs} == set(REPORTING)
    for span, kind in ASKED[2:]:
        rates = {expected_rate(relay_with_reports, each, span, kind).rate for each in REPORTING}
        assert len(rates) > 1, "a rate that all share would hide a mistake"


@pytest.mark.parametrize(("span", "kind"), ASKED)
async def test_the_page_of_all_backends(relay_with_reports: RunningRelay, span: str, kind: str) -> None:
    html = await page(relay_with_reports, "/crcr", span, kind)
    for each in (*REPORTING, QUIET):
        right, line = expected_rate(relay_with_reports, each, span, kind), table_row(html, each)
        assert rate_text(line) == right.percent
        assert (cell_text(line, "success"), cell_text(line, "failed")) == (
            str(right.success),
            str(right.failure),
        )


@pytest.mark.parametrize(("span", "kind"), ASKED)
async def test_the_backends_own_page(relay_with_reports: RunningRelay, span: str, kind: str) -> None:
    for each in (*REPORTING, QUIET):
        right = expected_rate(relay_with_reports, each, span, kind)
        html = words(await page(relay_with_reports, f"/crcr/{each}", span, kind))
        if right.rate is None:
            assert "Pass rate — no results" in html
        else:
            decided = right.success + right.failure
            assert f"Pass rate {right.percent} {right.success} of {decided} jobs" in html
        assert f"Success {right.success} " in html
        assert f"Failure {right.failure} " in html


@pytest.mark.parametrize(("span", "kind"), ASKED)
async def test_the_json_of_all_backends_and_of_one(
    relay_with_reports: RunningRelay, span: str, kind: str
) -> None:
    summary = await answer(relay_with_reports, "/api/v1/summary", span, kind)
    by_name = {each["name"].lower(): each for each in summary["backends"]}
    for each in (*REPORTING, QUIET):
        right = expected_rate(relay_with_reports, each, span, kind)
        assert rate_in_json(by_name[each]["figures"]["tally"]) == right
        own = await answer(relay_with_reports, f"/api/v1/backends/{each}", span, kind)
        assert rate_in_json(own["backend"]["figures"]["tally"]) == right
        jobs = [job["tally"] for job in own["jobs"]]
        assert sum(job["success"] for job in jobs) == right.success
        assert sum(job["failure"] for job in jobs) == right.failure
        parts = [part["tally"] for part in own["backend"]["figures"]["parts"]]
        assert sum(part["success"] for part in parts) == right.success
    assert by_name["org/told"]["figures"] is None


@pytest.mark.parametrize(("span", "kind"), ASKED)
async def test_the_total_is_of_all_but_the_probes(
    relay_with_reports: RunningRelay, span: str, kind: str
) -> None:
    each = [expected_rate(relay_with_reports, name, span, kind) for name in REPORTING if name != "org/probe"]
    success, failure = sum(one.success for one in each), sum(one.failure for one in each)
    right = PassRate(success, failure, success / (success + failure) if success + failure else None)
    assert rate_in_json((await answer(relay_with_reports, "/api/v1/summary", span, kind))["tally"]) == right
    assert (
        rate_in_json((await answer(relay_with_reports, "/api/v1/metrics", span, kind))["total"]["tally"])
        == right
    )
    assert rate_text(_total(await page(relay_with_reports, "/crcr/metrics", span, kind))) == right.percent
    [card] = re.findall(
        r'data-key="rate".*?</div>', await page(relay_with_reports, "/crcr", span, kind), re.DOTALL
    )
    assert right.rate is None or f"{right.percent} {success} of {success + failure} jobs" in words(card)


def _total(html: str) -> str:
    [found] = re.findall(r'<tr class="sum".*?</tr>', html, re.DOTALL)
    return str(found)


@pytest.mark.parametrize(("span", "kind"), ASKED)
async def test_the_csv(relay_with_reports: RunningRelay, span: str, kind: str) -> None:
    rows = list(
        csv.DictReader(io.StringIO(await page(relay_with_reports, "/api/v1/summary.csv", span, kind)))
    )
    by_name = {row["name"].lower(): row for row in rows}
    metrics = list(
        csv.DictReader(io.StringIO(await page(relay_with_reports, "/api/v1/metrics.csv", span, kind)))
    )
    whole = {
        row["name"].lower(): row for row in metrics if (row["scope"], row["part"]) == ("backend", "whole")
    }
    for each in (*REPORTING, QUIET):
        right = expected_rate(relay_with_reports, each, span, kind)
        for row in (by_name[each], whole[each]):
            assert (int(row["success"]), int(row["failure"])) == (right.success, right.failure)
            assert row["pass_rate"] == ("" if right.rate is None else repr(right.rate))


@pytest.mark.parametrize(("span", "kind"), ASKED)
async def test_the_badge(relay_with_reports: RunningRelay, span: str, kind: str) -> None:
    for each in REPORTING:
        right = expected_rate(relay_with_reports, each, span, kind)
        svg = words(await page(relay_with_reports, f"/badge/{each}.svg", span, kind))
        assert (
            rate_in_json((await answer(relay_with_reports, f"/api/v1/badges/{each}", span, kind))["tally"])
            == right
        )
        shown = re.findall(r"· ([0-9.]+%)", svg)
        assert set(shown) == ({right.percent} if right.rate is not None else set())
    assert "silent" in words(await page(relay_with_reports, f"/badge/{QUIET}.svg", span, kind))


@pytest.mark.parametrize(("span", "kind"), ASKED)
async def test_the_metrics(relay_with_reports: RunningRelay, span: str, kind: str) -> None:
    html = await page(relay_with_reports, "/crcr/metrics", span, kind)
    metrics = await answer(relay_with_reports, "/api/v1/metrics", span, kind)
    by_name = {each["name"].lower(): each["figures"]["tally"] for each in metrics["backends"]}
    for each in (*REPORTING, QUIET):
        right, line = expected_rate(relay_with_reports, each, span, kind), table_row(html, each)
        assert rate_in_json(by_name[each]) == right
        assert rate_text(line) == right.percent
        assert (cell_text(line, "success"), cell_text(line, "failed")) == (
            str(right.success),
            str(right.failure),
        )


def counted_s(relay: RunningRelay, backend: str, span: str, kind: str) -> dict[str, list[float]]:
    """How long the jobs that count waited and ran, one by one."""
    since, until = window(span, relay.clock.now())
    found = durations(relay.rows("SELECT * FROM jobs"), relay.rows("SELECT * FROM dispatches"), HOUR_US)
    times = [
        each
        for (_, name, of_kind, at), each in found.items()
        if (name, of_kind) == (backend, kind) and since <= at < until
    ]
    return {what: [s for each in times for s in each[what]] for what in ("queue", "execution")}


@pytest.mark.parametrize(("span", "kind"), ASKED)
async def test_percentiles_are_the_same_everywhere_and_of_few_jobs_they_are_theirs(
    relay_with_reports: RunningRelay, span: str, kind: str
) -> None:
    summary = await answer(relay_with_reports, "/api/v1/summary", span, kind)
    metrics = await answer(relay_with_reports, "/api/v1/metrics", span, kind)
    lines = list(
        csv.DictReader(io.StringIO(await page(relay_with_reports, "/api/v1/summary.csv", span, kind)))
    )
    html = await page(relay_with_reports, "/crcr/metrics", span, kind)
    for backend in REPORTING:
        own = await answer(relay_with_reports, f"/api/v1/backends/{backend}", span, kind)
        [one] = [each["figures"] for each in summary["backends"] if each["name"].lower() == backend]
        [other] = [each["figures"] for each in metrics["backends"] if each["name"].lower() == backend]
        [line] = [each for each in lines if each["name"].lower() == backend]
        card = words(await page(relay_with_reports, f"/crcr/{backend}", span, kind))
        for what, seconds in counted_s(relay_with_reports, backend, span, kind).items():
            shown = one[what]
            assert shown == other[what] == own["backend"]["figures"][what]
            exact = (percentile(seconds, 0.5), percentile(seconds, 0.95))
            assert len(seconds) >= 20 or (shown["p50_s"], shown["p95_s"]) == exact
            for name in ("p50_s", "p95_s"):
                assert line[f"{what}_{name}"] == ("" if shown[name] is None else repr(shown[name]))
            word = "queue" if what == "queue" else "run"
            row = table_row(html, backend)
            p50, p95 = (cell_text(row, f"{word} {each}") for each in ("P50", "P95"))
            assert f"P50 {p50} · P95 {p95}" in card.partition(f"{word.capitalize()}, average")[2]
