"""The summary and the metrics page without a store: every state of a backend, sorting, filters, exclusions."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from crcr.decide.allowlist.entries import AllowlistProblem
from crcr.decide.model import Conclusion, JobState, Level
from crcr.decide.statistics.figures import CountedAs, LastResult, Tally
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.overview import AllowlistState, Summary
from crcr.show.pages.frame import Frame
from crcr.show.render.status import LATE_S
from support.clock import ManualClock
from support.data.overview_views import (
    NOW,
    UPSTREAM,
    FixedViews,
    backend_summary,
    every_state,
    figures,
    last_result,
    many_backends,
    relay_health,
    summary,
)
from support.page_app import page_app
from support.page_reader import HOSTILE, ParsedPage, assert_inert


@asynccontextmanager
async def open_client(shown: Summary | FixedViews) -> AsyncIterator[httpx.AsyncClient]:
    views = shown if isinstance(shown, FixedViews) else FixedViews(shown)
    frame = Frame(views, upstreams=(UPSTREAM,), clock=ManualClock(NOW))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(page_app(frame))
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as client:
        yield client


async def get_page(page_summary: Summary, path: str = "/crcr", **params: str) -> str:
    async with open_client(page_summary) as client:
        answer = await client.get(path, params=params)
    assert answer.status_code == 200
    return answer.text


def row_html(text: str, name: str) -> str:
    match = re.search(rf'<tr data-key="{name}".*?</tr>', text, re.DOTALL)
    assert match, name
    return match[0]


def row_keys(text: str) -> list[str]:
    return re.findall(r'<tr data-key="([^"]+/[^"]+)"', text)


async def test_every_state_of_a_backend_is_shown_in_words() -> None:
    text = await get_page(every_state())
    for name, words in {
        "gate/good": ("94.4%", "NPU 910B · on call ada, grace", ">success<"),
        "gate/bad": ("16.6%", ">failure<", ">5<"),
        "signal/silent": (">silent<", "3 sent, no results"),
        "signal/running": ("2 running, no result yet",),
        "report/suspended": (">suspended<", "alarm: its id changed", "2 undelivered", "1 waiting"),
        "report/probe": (">probe<",),
        "report/hidden": (">hidden<", "nothing sent, no results"),
        "report/private": ("shows its name only",),
        "notify/told": ("notified 5 times", "results are not recorded at L1"),
        "notify/quiet": ("not notified in 14d",),
    }.items():
        shown = row_html(text, name)
        for word in words:
            assert word in shown, (name, word)
    assert_inert(ParsedPage(text), text)


async def test_fault_42_a_backend_that_sent_nothing_is_never_green() -> None:
    text = await get_page(every_state())
    for name in ("signal/silent", "signal/running", "report/hidden", "report/private", "notify/quiet"):
        shown = row_html(text, name)
        assert "part-ok" not in shown
        assert 'class="chip ok"' not in shown
        assert "100.0%" not in shown


async def test_a_stale_probe_is_a_warning_and_no_probe_is_in_the_totals() -> None:
    page_summary = every_state()
    text = await get_page(page_summary)
    probes = re.findall(r'<dd data-key="(probe/\w+)"><span class="chip (\w+)">', text)
    assert probes == [("probe/ok", "ok"), ("probe/off", "bad"), ("probe/stale", "warn")]
    assert "probe repositories." in text
    assert f"{page_summary.tally.success} of {page_summary.tally.decided} jobs" in text


async def test_exclusions_from_the_totals_are_listed() -> None:
    expected = "Not counted: 4 results for superseded commits, 1 earlier attempt, probe repositories."
    assert expected in await get_page(every_state())
    assert "Not counted" not in await get_page(summary(backend_summary("a/b")))


async def test_pages_of_backends_continue_where_the_previous_one_ended() -> None:
    page_summary = summary(
        *(
            backend_summary(f"gate/b{number}", Level.L4, figures=figures(Tally(failure=1)))
            for number in range(3)
        ),
        *(backend_summary(f"org/b{number:03}") for number in range(250)),
    )
    texts = [
        await get_page(page_summary, page=page, sort=sort)
        for sort in ("", "-name")
        for page in ("1", "2", "3")
    ]
    for first, second, third in (texts[:3], texts[3:]):
        rows = [row_keys(text) for text in (first, second, third)]
        assert [len(row_page) for row_page in rows] == [100, 100, 53]
        assert len({name for row_page in rows for name in row_page}) == 253
    assert row_keys(texts[0])[:3] == ["gate/b0", "gate/b1", "gate/b2"]
    assert row_keys(texts[3])[0] == "org/b249"
    assert "· 250</span>" in texts[1]  # of the level, on all pages
    assert [href for href in ParsedPage(texts[4]).attributes("href") if "page=" in href] == [
        "/crcr?sort=-name&page=3",
        "/crcr?sort=-name&page=3",
    ]
    assert 'rel="prev" data-in-place href="/crcr?sort=-name"' in texts[4]
    for wrong in ("0", "-1", "x", "4", "9" * 40):
        assert row_keys(await get_page(page_summary, page=wrong)) == row_keys(
            texts[2 if wrong[0] in "49" else 0]
        )
    assert 'name="page"' not in texts[1]  # a new filter begins on its first page


async def test_sorting_by_a_column_sets_aria_sort_and_reverses_its_link() -> None:
    page_summary = every_state()
    text = await get_page(page_summary, sort="-failure")
    failures = [name for name in row_keys(text) if "strong-bad" in row_html(text, name)]
    assert failures == ["gate/bad", "report/probe", "gate/good", "report/left-out"]
    heads = [attrs.get("aria-sort") for tag, attrs in ParsedPage(text).elements if tag == "th"]
    assert [order for order in heads if order] == ["descending"]
    assert 'href="/crcr?sort=failure"' in text
    assert row_keys(text) != row_keys(await get_page(page_summary))


async def test_filters_narrow_the_table_and_are_kept_in_links() -> None:
    text = await get_page(every_state(), q="report", level="L2", sort="name", range="7d")
    assert {name.partition("/")[0] for name in row_keys(text)} == {"report"}
    assert "5 of 11 backends" in text
    links = [href for href in ParsedPage(text).attributes("href") if "sort=-name" in href]
    assert links == ["/crcr?sort=-name&q=report&level=L2&range=7d"]
    hidden = {
        (attrs.get("name"), attrs.get("value"))
        for tag, attrs in ParsedPage(text).elements
        if tag == "input" and attrs.get("type") == "hidden"
    }
    assert hidden == {("range", "7d"), ("sort", "name"), ("level", "L2")}


async def test_a_filter_without_matches_states_it() -> None:
    text = await get_page(every_state(), q="nobody")
    assert "No backend matches" in text
    assert "Show all 11" in text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ResultKind.PULLS, "No results of pull requests in 14d"),
        (ResultKind.PUSH, "No results of pushes in 14d"),
        (ResultKind.NIGHTLY, "event_type: nightly"),
        (ResultKind.INGESTED, "/api/crcr/results"),
    ],
)
async def test_an_empty_kind_explains_how_results_get_there(kind: ResultKind, words: str) -> None:
    assert words in await get_page(summary(backend_summary("a/b"), ingests=True), kind=kind.value)
    assert words not in await get_page(
        summary(backend_summary("a/b", figures=figures(Tally(success=1)))), kind=kind.value
    )


async def test_the_other_relays_tab_is_shown_only_with_ingested_results() -> None:
    assert "Other relays" not in await get_page(summary(backend_summary("a/b")))
    assert "Other relays" in await get_page(summary(backend_summary("a/b"), ingests=True))


async def test_range_and_kind_are_passed_to_the_store() -> None:
    views = FixedViews(many_backends(2))
    async with open_client(views) as client:
        await client.get("/crcr?range=30d&kind=push")
        await client.get("/crcr/metrics?range=90d&kind=nightly")
    assert views.asked == [(Span.MONTH, ResultKind.PUSH), (Span.QUARTER, ResultKind.NIGHTLY)]


async def test_a_bad_allowlist_and_a_pause_are_shown() -> None:
    problems = tuple(
        AllowlistProblem(line=n, severity="error", message="<b>no</b>", hint=None) for n in range(12)
    )
    bad = AllowlistState(version=2, source="x", read_at=NOW, newest_is_bad=True, problems=problems)
    text = await get_page(summary(backend_summary("a/b"), allowlist=bad, health=relay_health(paused_at=NOW)))
    assert "Version 2" in text
    assert "&lt;b&gt;no&lt;/b&gt;" in text
    assert "and 2 more" in text
    assert "Dispatching is paused" in text


async def test_an_empty_allowlist_is_explained() -> None:
    assert "The allowlist is empty" in await get_page(summary())


@pytest.mark.parametrize(
    "hostile", [text_without_nul.replace("\x00", "") for text_without_nul in HOSTILE], ids=range(len(HOSTILE))
)
async def test_fault_29_hostile_text_in_the_summary_stays_text(hostile: str) -> None:
    page_summary = summary(
        backend_summary("a/b", hardware=hostile, oncalls=(hostile, hostile), alarm=hostile, device=hostile)
    )
    for path, params in (("/crcr", {"q": hostile[:50]}), ("/crcr", {"sort": hostile[:50]}), ("/crcr", {})):
        text = await get_page(page_summary, path, **params)
        assert_inert(ParsedPage(text), text)
        assert len(text) < 100_000


async def test_sixty_backends_are_all_listed_by_key() -> None:
    page_summary = many_backends(60)
    text = await get_page(page_summary)
    assert sorted(row_keys(text)) == sorted(backend.name.key for backend in page_summary.backends)
    assert len(text) < 400_000


async def test_metrics_are_drawn_for_all_backends_and_for_one() -> None:
    page_summary = many_backends(5)
    reporting = next(
        backend for backend in page_summary.backends if backend.figures and backend.figures.tally.total
    )
    for params in ({}, {"backend": reporting.name.key.upper()}):
        text = await get_page(page_summary, "/crcr/metrics", **params)
        assert text.count('<figure class="chart"') == 6
        assert text.count('role="img"') == 6 or "No data" in text
        assert_inert(ParsedPage(text), text)
    assert f'<option value="{reporting.name}" selected>' in text


async def test_fault_41_metrics_and_summary_show_the_same_rate() -> None:
    page_summary = many_backends(8)
    rates = [await get_page(page_summary, path) for path in ("/crcr", "/crcr/metrics")]
    for backend in page_summary.backends:
        if backend.figures and backend.figures.tally.decided:
            rates_of_backend = {
                *re.findall(
                    r'class="rate">([^<]+)<', "".join(row_html(text, backend.name.key) for text in rates)
                )
            }
            assert len(rates_of_backend) == 1


async def test_metrics_of_a_level_that_records_nothing_show_no_zeros() -> None:
    page_summary = summary(backend_summary("a/told", Level.L1, figures=figures()), backend_summary("a/b"))
    text = await get_page(page_summary, "/crcr/metrics")
    assert row_html(text, "a/told").count("not recorded") == 4
    assert "not recorded" not in row_html(text, "a/b")


async def test_metrics_of_an_unknown_backend_are_a_404() -> None:
    async with open_client(many_backends(2)) as client:
        answer = await client.get("/crcr/metrics?backend=no/such")
    assert answer.status_code == 404
    assert "no/such is not a backend" in answer.text


async def test_metrics_without_results_explain_it() -> None:
    assert "No backend records results yet" in await get_page(summary(), "/crcr/metrics")


async def test_the_frame_marks_the_current_page_and_links_to_its_data() -> None:
    text = await get_page(many_backends(2), "/crcr/metrics", range="7d")
    current = [
        attrs["href"] for tag, attrs in ParsedPage(text).elements if attrs.get("aria-current") == "page"
    ]
    assert "/crcr/metrics?range=7d" in current
    assert {"/api/v1/metrics?range=7d", "/api/v1/metrics.csv?range=7d"} <= set(
        ParsedPage(text).attributes("href")
    )
    assert 'role="search"' in text
    assert 'href="#main"' in text


@pytest.mark.parametrize("path", ["/crcr", "/crcr/metrics"])
async def test_pages_of_all_backends_listen_for_all_events_of_the_upstream(path: str) -> None:
    page = ParsedPage(await get_page(many_backends(2), path))
    assert page.attributes("data-events") == ["/api/v1/events?upstream=Torch/torch&after=7"]
    assert page.attributes("data-number") == page.attributes("data-backend") == []


async def test_the_links_to_the_data_keep_the_filters_of_the_view() -> None:
    text = await get_page(every_state(), q="report", level="L2", sort="-failure", range="7d", kind="push")
    links = ParsedPage(text).attributes("href")
    for kind in ("summary", "summary.csv"):
        query = "sort=-failure&q=report&level=L2&range=7d&kind=push"
        assert f"/api/v1/{kind}?{query}" in links
    metrics = ParsedPage(await get_page(every_state(), "/crcr/metrics", backend="gate/good")).attributes(
        "href"
    )
    assert {"/api/v1/metrics?backend=gate/good", "/api/v1/metrics.csv?backend=gate/good"} <= set(metrics)


async def test_the_fragment_includes_the_elements_outside_the_main_part() -> None:
    whole = await get_page(every_state(), q="report")
    part = await get_page(every_state(), q="report", fragment="main")
    outside = dict(
        re.findall(r'<template data-outside="(\w+)">(.*?)</template>', part, flags=re.DOTALL),
    )
    assert outside.keys() == {"formats", "account", "health"}
    assert f'<span id="formats">{outside["formats"]}</span>' in whole
    assert "q=report" in outside["formats"]


async def test_a_probes_result_is_shown_as_expected_or_not_expected() -> None:
    expected = LastResult(JobState.COMPLETED, Conclusion.FAILURE, "xfail", NOW, CountedAs.SUCCESS)
    missed = LastResult(JobState.COMPLETED, Conclusion.SUCCESS, "xfail", NOW, CountedAs.FAILURE)
    page_summary = summary(
        backend_summary("probe/good", probe=True, figures=figures(Tally(success=1), last_result=expected)),
        backend_summary("probe/bad", probe=True, figures=figures(Tally(failure=1), last_result=missed)),
        backend_summary(
            "plain/bad", figures=figures(Tally(failure=1), last_result=last_result(Conclusion.FAILURE))
        ),
    )
    text = await get_page(page_summary)
    for name, tone, word in (
        ("probe/good", "expected", "failure, as expected"),
        ("probe/bad", "bad", "success, not as expected"),
        ("plain/bad", "bad", "failure"),
    ):
        assert re.search(
            rf'<span class="chip {tone}">.*?<span class="word">{word}</span>', row_html(text, name)
        )


async def test_parked_effects_are_linked_and_a_late_outbox_is_amber() -> None:
    parked = await get_page(summary(backend_summary("a/b"), health=relay_health(parked=2, lag_s=LATE_S)))
    assert "/crcr/deliveries?show=effects&state=parked" in ParsedPage(parked).attributes("href")
    assert '<dd data-key="outbox">' in parked
    behind = await get_page(summary(backend_summary("a/b"), health=relay_health(lag_s=LATE_S + 1)))
    assert '<dd data-key="outbox" class="warned">' in behind


async def test_silence_is_shown_on_the_metrics_page() -> None:
    page_summary = summary(
        backend_summary("signal/silent", Level.L3, silent=True, sent=3),
        backend_summary("signal/loud", Level.L3),
    )
    text = await get_page(page_summary, "/crcr/metrics")
    assert ">silent<" in row_html(text, "signal/silent")
    assert ">silent<" not in row_html(text, "signal/loud")


async def test_both_tables_support_arrow_keys_and_have_a_jobs_column() -> None:
    for path in ("/crcr", "/crcr/metrics"):
        text = await get_page(every_state(), path)
        tables = [
            attrs for tag, attrs in ParsedPage(text).elements if tag == "table" and "data-rows" in attrs
        ]
        assert len(tables) == 1
        assert re.search(r"sort=-?total[^>]*>Jobs</a>", text)
        assert not re.search(r">(Total|Runs)</a>", text)
