"""Faults 41, 43 and 45: a backend's numbers are equal on every page and in every format, to the last digit.

The expected numbers are computed from the recorded jobs by an independent oracle (`sums_oracle`), for every range and kind.
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
SPANS_AND_KINDS = [(span, kind) for span in RANGES for kind in KINDS]


@dataclass(frozen=True)
class PassRate:
    """The expected numbers of one backend."""

    success: int
    failure: int
    rate: float | None

    @property
    def percent(self) -> str:
        """As every page formats it: rounded down to a tenth, in integer arithmetic."""
        if self.rate is None:
            return "—"
        return f"{1000 * self.success // (self.success + self.failure) / 10:.1f}%"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def relay_with_reports(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningRelay]:
    folder = tmp_path_factory.mktemp("story")
    async with running_relay(folder, LISTED, downstreams=EVERYBODY) as relay:
        history = SeededHistory(relay, Random(41))
        await history.send_all()
        assert history.reports > 300
        yield relay


def window(span: str, now: datetime) -> tuple[int, int]:
    """A day in whole hours, or a number of whole days; the current one is the last."""
    if span == "24h":
        until = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    else:
        until = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return to_us(until - timedelta(days=RANGES[span])), to_us(until)


def expected_rate(relay: RunningRelay, backend: str, span: str, kind: str) -> PassRate:
    since, until = window(span, relay.clock.now())
    jobs, dispatches = relay.rows("SELECT * FROM jobs"), relay.rows("SELECT * FROM dispatches")
    counts = pass_rate(jobs, dispatches, downstream=backend, kind=kind, since_us=since, until_us=until)
    return PassRate(*counts)


async def get_html(relay: RunningRelay, path: str, span: str, kind: str) -> str:
    response = await relay.http.get(path, params={"range": span, "kind": kind})
    assert response.status_code == 200, response.text
    return response.text


async def get_json(relay: RunningRelay, path: str, span: str, kind: str) -> Any:
    response = await relay.http.get(path, params={"range": span, "kind": kind})
    assert response.status_code == 200, response.text
    return response.json()


def visible_text(html: str) -> str:
    """The visible text, without thousands separators."""
    text = unescape(re.sub(r"<[^>]+>", " ", html))
    return " ".join(re.sub(r"(?<=\d),(?=\d{3})", "", text).split())


def table_row(html: str, backend: str) -> str:
    [match] = re.findall(rf'<tr data-key="{re.escape(backend)}".*?</tr>', html, re.DOTALL)
    return str(match)


def cell_text(line: str, label: str) -> str:
    [match] = re.findall(rf'<td[^>]*data-label="{label}"[^>]*>(.*?)</td>', line, re.DOTALL)
    return visible_text(match)


def rate_text(line: str) -> str:
    [match] = re.findall(r'<td class="num ratecell[^>]*>(.*?)</td>', line, re.DOTALL)
    return visible_text(match)


def rate_in_json(tally: dict[str, Any]) -> PassRate:
    return PassRate(tally["success"], tally["failure"], tally["pass_rate"])


async def test_the_seeded_history_covers_every_job_category(
    relay_with_reports: RunningRelay,
) -> None:
    jobs = relay_with_reports.rows("SELECT * FROM jobs")
    categories = set(job_categories(jobs, relay_with_reports.rows("SELECT * FROM dispatches")).values())
    assert categories >= {"success", "failure", "timed_out", "silent", "other", "superseded", "earlier", None}
    for flag in ("late", "disputed", "superseded"):
        assert any(job[flag] for job in jobs), flag
    assert {job["event"] for job in jobs} == {"pull_request", "push"}
    assert {job["downstream"] for job in jobs} == set(REPORTING)
    for span, kind in SPANS_AND_KINDS[2:]:
        rates = {expected_rate(relay_with_reports, backend, span, kind).rate for backend in REPORTING}
        assert len(rates) > 1, "a rate that all share would hide a mistake"


@pytest.mark.parametrize(("span", "kind"), SPANS_AND_KINDS)
async def test_pass_rates_on_the_summary_page_match_the_oracle(
    relay_with_reports: RunningRelay, span: str, kind: str
) -> None:
    html = await get_html(relay_with_reports, "/crcr", span, kind)
    for backend in (*REPORTING, QUIET):
        expected, line = expected_rate(relay_with_reports, backend, span, kind), table_row(html, backend)
        assert rate_text(line) == expected.percent
        assert (cell_text(line, "success"), cell_text(line, "failed")) == (
            str(expected.success),
            str(expected.failure),
        )


@pytest.mark.parametrize(("span", "kind"), SPANS_AND_KINDS)
async def test_pass_rates_on_a_backends_page_match_the_oracle(
    relay_with_reports: RunningRelay, span: str, kind: str
) -> None:
    for backend in (*REPORTING, QUIET):
        expected = expected_rate(relay_with_reports, backend, span, kind)
        html = visible_text(await get_html(relay_with_reports, f"/crcr/{backend}", span, kind))
        if expected.rate is None:
            assert "Pass rate — no results" in html
        else:
            decided = expected.success + expected.failure
            assert f"Pass rate {expected.percent} {expected.success} of {decided} jobs" in html
        assert f"Success {expected.success} " in html
        assert f"Failure {expected.failure} " in html


@pytest.mark.parametrize(("span", "kind"), SPANS_AND_KINDS)
async def test_pass_rates_in_summary_and_backend_json_match_the_oracle(
    relay_with_reports: RunningRelay, span: str, kind: str
) -> None:
    summary = await get_json(relay_with_reports, "/api/v1/summary", span, kind)
    by_name = {backend["name"].lower(): backend for backend in summary["backends"]}
    for backend in (*REPORTING, QUIET):
        expected = expected_rate(relay_with_reports, backend, span, kind)
        assert rate_in_json(by_name[backend]["figures"]["tally"]) == expected
        backend_json = await get_json(relay_with_reports, f"/api/v1/backends/{backend}", span, kind)
        assert rate_in_json(backend_json["backend"]["figures"]["tally"]) == expected
        jobs = [job["tally"] for job in backend_json["jobs"]]
        assert sum(job["success"] for job in jobs) == expected.success
        assert sum(job["failure"] for job in jobs) == expected.failure
        parts = [part["tally"] for part in backend_json["backend"]["figures"]["parts"]]
        assert sum(part["success"] for part in parts) == expected.success
    assert by_name["org/told"]["figures"] is None


@pytest.mark.parametrize(("span", "kind"), SPANS_AND_KINDS)
async def test_the_total_counts_all_backends_except_probes(
    relay_with_reports: RunningRelay, span: str, kind: str
) -> None:
    rates = [expected_rate(relay_with_reports, name, span, kind) for name in REPORTING if name != "org/probe"]
    success, failure = sum(rate.success for rate in rates), sum(rate.failure for rate in rates)
    expected = PassRate(success, failure, success / (success + failure) if success + failure else None)
    assert (
        rate_in_json((await get_json(relay_with_reports, "/api/v1/summary", span, kind))["tally"]) == expected
    )
    assert (
        rate_in_json((await get_json(relay_with_reports, "/api/v1/metrics", span, kind))["total"]["tally"])
        == expected
    )
    assert (
        rate_text(_total(await get_html(relay_with_reports, "/crcr/metrics", span, kind))) == expected.percent
    )
    [card] = re.findall(
        r'data-key="rate".*?</div>', await get_html(relay_with_reports, "/crcr", span, kind), re.DOTALL
    )
    assert (
        expected.rate is None
        or f"{expected.percent} {success} of {success + failure} jobs" in visible_text(card)
    )


def _total(html: str) -> str:
    [match] = re.findall(r'<tr class="sum".*?</tr>', html, re.DOTALL)
    return str(match)


@pytest.mark.parametrize(("span", "kind"), SPANS_AND_KINDS)
async def test_pass_rates_in_csv_match_the_oracle(
    relay_with_reports: RunningRelay, span: str, kind: str
) -> None:
    rows = list(
        csv.DictReader(io.StringIO(await get_html(relay_with_reports, "/api/v1/summary.csv", span, kind)))
    )
    by_name = {row["name"].lower(): row for row in rows}
    metrics = list(
        csv.DictReader(io.StringIO(await get_html(relay_with_reports, "/api/v1/metrics.csv", span, kind)))
    )
    whole = {
        row["name"].lower(): row for row in metrics if (row["scope"], row["part"]) == ("backend", "whole")
    }
    for backend in (*REPORTING, QUIET):
        expected = expected_rate(relay_with_reports, backend, span, kind)
        for row in (by_name[backend], whole[backend]):
            assert (int(row["success"]), int(row["failure"])) == (expected.success, expected.failure)
            assert row["pass_rate"] == ("" if expected.rate is None else repr(expected.rate))


@pytest.mark.parametrize(("span", "kind"), SPANS_AND_KINDS)
async def test_pass_rates_on_badges_match_the_oracle(
    relay_with_reports: RunningRelay, span: str, kind: str
) -> None:
    for backend in REPORTING:
        expected = expected_rate(relay_with_reports, backend, span, kind)
        svg = visible_text(await get_html(relay_with_reports, f"/badge/{backend}.svg", span, kind))
        assert (
            rate_in_json(
                (await get_json(relay_with_reports, f"/api/v1/badges/{backend}", span, kind))["tally"]
            )
            == expected
        )
        badge_rates = re.findall(r"· ([0-9.]+%)", svg)
        assert set(badge_rates) == ({expected.percent} if expected.rate is not None else set())
    assert "silent" in visible_text(await get_html(relay_with_reports, f"/badge/{QUIET}.svg", span, kind))


@pytest.mark.parametrize(("span", "kind"), SPANS_AND_KINDS)
async def test_pass_rates_on_the_metrics_page_and_json_match_the_oracle(
    relay_with_reports: RunningRelay, span: str, kind: str
) -> None:
    html = await get_html(relay_with_reports, "/crcr/metrics", span, kind)
    metrics = await get_json(relay_with_reports, "/api/v1/metrics", span, kind)
    by_name = {backend["name"].lower(): backend["figures"]["tally"] for backend in metrics["backends"]}
    for backend in (*REPORTING, QUIET):
        expected, line = expected_rate(relay_with_reports, backend, span, kind), table_row(html, backend)
        assert rate_in_json(by_name[backend]) == expected
        assert rate_text(line) == expected.percent
        assert (cell_text(line, "success"), cell_text(line, "failed")) == (
            str(expected.success),
            str(expected.failure),
        )


def counted_durations_s(relay: RunningRelay, backend: str, span: str, kind: str) -> dict[str, list[float]]:
    """Queue and execution time of each counted job."""
    since, until = window(span, relay.clock.now())
    times_by_job = durations(
        relay.rows("SELECT * FROM jobs"), relay.rows("SELECT * FROM dispatches"), HOUR_US
    )
    times = [
        job_times
        for (_, name, job_kind, at), job_times in times_by_job.items()
        if (name, job_kind) == (backend, kind) and since <= at < until
    ]
    return {
        measure: [s for job_times in times for s in job_times[measure]] for measure in ("queue", "execution")
    }


@pytest.mark.parametrize(("span", "kind"), SPANS_AND_KINDS)
async def test_percentiles_are_equal_in_all_outputs_and_exact_for_fewer_than_20_jobs(
    relay_with_reports: RunningRelay, span: str, kind: str
) -> None:
    summary = await get_json(relay_with_reports, "/api/v1/summary", span, kind)
    metrics = await get_json(relay_with_reports, "/api/v1/metrics", span, kind)
    lines = list(
        csv.DictReader(io.StringIO(await get_html(relay_with_reports, "/api/v1/summary.csv", span, kind)))
    )
    html = await get_html(relay_with_reports, "/crcr/metrics", span, kind)
    for backend in REPORTING:
        backend_json = await get_json(relay_with_reports, f"/api/v1/backends/{backend}", span, kind)
        [in_summary] = [entry["figures"] for entry in summary["backends"] if entry["name"].lower() == backend]
        [in_metrics] = [entry["figures"] for entry in metrics["backends"] if entry["name"].lower() == backend]
        [line] = [entry for entry in lines if entry["name"].lower() == backend]
        card = visible_text(await get_html(relay_with_reports, f"/crcr/{backend}", span, kind))
        for measure, seconds in counted_durations_s(relay_with_reports, backend, span, kind).items():
            shown = in_summary[measure]
            assert shown == in_metrics[measure] == backend_json["backend"]["figures"][measure]
            exact = (percentile(seconds, 0.5), percentile(seconds, 0.95))
            assert len(seconds) >= 20 or (shown["p50_s"], shown["p95_s"]) == exact
            for name in ("p50_s", "p95_s"):
                assert line[f"{measure}_{name}"] == ("" if shown[name] is None else repr(shown[name]))
            word = "queue" if measure == "queue" else "run"
            row = table_row(html, backend)
            p50, p95 = (cell_text(row, f"{word} {label}") for label in ("P50", "P95"))
            assert f"P50 {p50} · P95 {p95}" in card.partition(f"{word.capitalize()}, average")[2]
