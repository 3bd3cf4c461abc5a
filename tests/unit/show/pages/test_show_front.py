"""The front page without a store: attention items, the relay's chip, the checklist, marks, columns, favourites."""

import re
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from crcr.decide.health.relay import Health, HealthState, Reason, ReasonCode
from crcr.decide.model import Conclusion, Level, RepoName
from crcr.decide.statistics.figures import Durations, Figures, Tally
from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.attention import Attention, AttentionItem, AttentionKind
from crcr.decide.views.overview import AllowlistState, Probe, Summary
from crcr.show.live.shared_health import SharedHealth
from crcr.show.pages import routes as pages_routes
from crcr.show.pages.frame import Frame
from crcr.show.pages.onboarding import OnboardingSettings
from support.clock import ManualClock
from support.data.overview_views import (
    NOW,
    UPSTREAM,
    FixedViews,
    backend_summary,
    figures,
    last_result,
    relay_health,
    summary,
)
from support.page_reader import HOSTILE, ParsedPage, assert_inert

GREEN = Health()
AMBER_REASON = Reason(code=ReasonCode.PAUSED, state=HealthState.AMBER, text="Dispatching has been paused.")
AMBER = Health(HealthState.AMBER, (AMBER_REASON,))
NONE_READ = AllowlistState(version=None, source=None, read_at=None, newest_is_bad=False, problems=())


class FixedHealth:
    def __init__(self, health: Health | None) -> None:
        self._health = health

    async def health(self, _: object) -> dict[RepoName, Health]:
        return {UPSTREAM: self._health} if self._health else {}


async def get_page(
    page_summary: Summary, health: Health | None = GREEN, path: str = "/crcr", *, app_page: str | None = None
) -> str:
    clock = ManualClock(NOW)
    frame = Frame(
        FixedViews(page_summary),  # type: ignore[arg-type]
        upstreams=(UPSTREAM,),
        clock=clock,
        public_url="https://relay.example/",
        health=SharedHealth(FixedHealth(health), clock),
    )
    settings = OnboardingSettings(app_page=lambda: app_page)
    transport = httpx.ASGITransport(Starlette(routes=pages_routes.routes(frame, None, settings)))
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as client:
        answer = await client.get(path)
    assert answer.status_code == 200
    return answer.text


def attention_section(text: str) -> str:
    match = re.search(r'<section class="attention".*?</section>', text, re.DOTALL)
    assert match
    return match[0]


def visible_words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def item(kind: AttentionKind = AttentionKind.BACKEND_RED, **more: Any) -> AttentionItem:
    return AttentionItem(**{"kind": kind, "text": "build fails on main", "since": NOW, **more})


async def test_the_page_begins_with_one_line_for_each_item_that_needs_attention() -> None:
    items = (
        item(backend=RepoName("gate/one"), level=Level.L4, oncalls=("ada", "grace")),
        item(AttentionKind.PULL_BLOCKED, text="Fuse it by mia is blocked", number=7),
        item(AttentionKind.IN_TREE_RED, sha="a" * 40),
        item(AttentionKind.BASE_RED, text="2 jobs of 1 backend have failed"),
    )
    attention = Attention(items=items, blocked_pulls=1_234, more_backends=3, branch="main")
    text = await get_page(summary(backend_summary("gate/one", Level.L4), attention=attention))
    shown = attention_section(text)
    assert text.index('class="attention"') < text.index('class="cards"') < text.index("<table")
    links = ParsedPage(shown).attributes("href")
    assert links == [
        "/crcr/gate/one",
        "/crcr/pr/7",
        f"/crcr/commit/{'a' * 40}",
        "/crcr/failing",
        "/crcr/pulls?only=blocked",
    ]
    assert (
        "X turned red L4 gate/one build fails on main since Jul 1, 12:20 UTC call ada, grace"
        in visible_words(shown)
    )
    assert "and 3 more backends that turned red or silent" in visible_words(shown)
    assert "and 1,233 more blocked pull requests" in visible_words(shown)
    assert "Nothing needs attention" not in shown


async def test_without_attention_items_the_page_states_that_nothing_needs_attention() -> None:
    known = visible_words(attention_section(await get_page(summary(attention=Attention(branch="main")))))
    assert "Nothing needs attention: no backend turned red or silent in the last 24 hours" in known
    assert "no job fails continuously on main" in known
    unknown = visible_words(attention_section(await get_page(summary())))
    assert "The base branch is not known yet, so its jobs are not judged." in unknown


@pytest.mark.parametrize(
    "hostile", [text_without_nul.replace("\x00", "") for text_without_nul in HOSTILE], ids=range(len(HOSTILE))
)
async def test_hostile_text_in_attention_items_stays_text(hostile: str) -> None:
    attention = Attention(items=(item(text=hostile, number=7, oncalls=(hostile,)),), branch=hostile)
    text = await get_page(summary(attention=attention))
    assert_inert(ParsedPage(text), text)


PROBE = Probe(RepoName("probe/one"), last_result(), stale=False)
STALE = replace(PROBE, stale=True)


@pytest.mark.parametrize(
    ("health", "facts", "chip"),
    [
        (GREEN, {}, "ok relay green"),
        (GREEN, {"probes": (PROBE,)}, "ok relay green"),
        (AMBER, {}, "warn relay amber"),
        (Health(HealthState.RED, (replace(AMBER_REASON, state=HealthState.RED),)), {}, "bad relay red"),
        (None, {}, "warn relay unknown"),
        (GREEN, {"probes": (PROBE, STALE)}, "warn relay amber"),
        (GREEN, {"lag_s": 301.0}, "warn relay amber"),
        (GREEN, {"last_delivery_at": None}, "warn relay amber"),
    ],
)
async def test_the_relay_chip_is_green_only_when_health_and_facts_are_good(
    health: Health | None, facts: dict[str, Any], chip: str
) -> None:
    text = await get_page(summary(backend_summary("a/b"), health=relay_health(**facts)), health)
    match = re.search(
        r'<summary><span class="chip (\w+)"><b[^>]*>.</b><span class="word">([\w ]+)</span>', text
    )
    assert match
    assert f"{match[1]} {match[2]}" == chip


async def test_the_relay_chip_expands_to_its_state_and_health_reasons_are_listed() -> None:
    health = relay_health(deliveries=1_204, waiting=3, parked=2_000, probes=(STALE,))
    text = await get_page(summary(backend_summary("a/b"), health=health), AMBER)
    details = re.search(r'<details class="relay-health".*?</details>', text, re.DOTALL)
    assert details
    for expected in ("1,204 in 14d", "3 waiting", "2,000, review and retry", "stale", "version 3, read"):
        assert expected in visible_words(details[0])
    assert (
        text.count("Dispatching has been paused.") == 2
    )  # in the attention list and in the details, not also above the page
    assert '<section class="health' not in text
    assert '<section class="health' in await get_page(summary(), AMBER, "/crcr/metrics")


SIGN = re.compile(r'<li data-key="(\w+)"><span class="chip (\w+)"><b aria-hidden="true">(.)</b>')


@pytest.mark.parametrize(
    ("facts", "allowlist", "health", "app_page", "signs"),
    [
        ({"last_delivery_at": None, "last_result_at": None}, NONE_READ, GREEN, None, "??✗✗?"),
        ({"last_delivery_at": None, "last_result_at": None}, NONE_READ, None, "https://x/a", "✓?✗✗?"),
        (
            {"last_delivery_at": None, "last_result_at": None, "installed": True},
            None,
            GREEN,
            "https://x/a",
            "✓✓✗✓?",
        ),
        ({}, NONE_READ, GREEN, None, "✓✓✓✗✓"),
        (
            {},
            None,
            Health(HealthState.RED, (replace(AMBER_REASON, code=ReasonCode.CREDENTIALS_REFUSED),)),
            None,
            "✗✓✓✓✓",
        ),
    ],
)
async def test_an_incomplete_set_up_shows_a_checklist(
    facts: dict[str, Any],
    allowlist: AllowlistState | None,
    health: Health | None,
    app_page: str | None,
    signs: str,
) -> None:
    more = {"allowlist": allowlist} if allowlist else {}
    page_summary = summary(
        *([] if allowlist else [backend_summary("a/b")]), health=relay_health(**facts), **more
    )
    text = await get_page(page_summary, health, app_page=app_page)
    steps = SIGN.findall(text)
    assert [name for name, _, _ in steps] == ["app_key", "installation", "webhook", "allowlist", "callback"]
    assert "".join(sign for _, _, sign in steps) == signs
    assert text.index('id="checklist"') < text.index('id="attention"')
    assert "Nothing needs attention" not in text
    assert "<code>crcr doctor</code>" in text
    if facts.get("last_delivery_at", NOW) is None:
        assert "<code>https://relay.example/github/webhook</code>" in text


async def test_a_complete_set_up_shows_no_checklist() -> None:
    assert 'id="checklist"' not in await get_page(summary(backend_summary("a/b")))


def header_words(text: str) -> list[str]:
    return [visible_words(head) for head in re.findall(r'<th scope="col".*?</th>', text, re.DOTALL)]


async def test_columns_that_are_empty_in_a_tab_are_left_out() -> None:
    empty = await get_page(summary(backend_summary("a/b"), backend_summary("l/one", Level.L1)))
    assert header_words(empty) == ["Level", "Backend", "Last result"]
    tally, took = Tally(success=3), Durations.from_seconds([60.0])
    day = figures(tally).parts[-1]
    nightly = Figures(parts=(replace(day, queue=Durations(), execution=took),))
    text = await get_page(summary(backend_summary("a/b", figures=nightly), kind=ResultKind.NIGHTLY))
    heads = header_words(text)
    assert [head for head in heads if "Queue" in head] == []
    assert [head for head in heads if "Run" in head] == ["Run avg", "Run P50", "Run P95"]
    [row] = re.findall(r'<tr data-key="a/b".*?</tr>', text, re.DOTALL)
    assert len(re.findall("<t[dh]", row)) == len(heads)
    assert f'colspan="{len(heads)}"' in text


async def test_a_backend_that_never_reported_does_not_look_healthy() -> None:
    page_summary = summary(
        backend_summary("gate/mute", Level.L4, never_reported=True),
        backend_summary("gate/good", Level.L4, figures=figures(Tally(success=9), last_result=last_result())),
        backend_summary("report/mute", never_reported=True),
    )
    text = await get_page(page_summary)
    assert text.count(">never reported<") == 2
    assert text.index('data-key="gate/mute"') < text.index('data-key="gate/good"')
    [mute] = re.findall(r'<tr data-key="gate/mute".*?</tr>', text, re.DOTALL)
    assert '<span class="mark bad"' in mute
    assert 'class="chip ok"' not in mute


async def test_an_expected_failure_has_its_own_letter() -> None:
    expected = replace(last_result(Conclusion.FAILURE), counted=last_result().counted)
    page_summary = summary(
        backend_summary("p/p", probe=True, figures=figures(Tally(success=1), last_result=expected))
    )
    text = await get_page(page_summary)
    assert (
        '<span class="chip expected"><b aria-hidden="true">X=</b><span class="word">failure, as expected'
        in text
    )


async def test_favourites_are_buttons_and_a_script_on_the_front_page_only() -> None:
    text = await get_page(summary(backend_summary("Org/Name")))
    assert '<tr data-key="org/name"' in text
    assert '<button class="star" data-star></button>' in text
    assert "favourites.js" in text
    assert "favourites.js" not in await get_page(summary(), path="/crcr/metrics")


async def test_relay_facts_and_attention_items_are_separate_page_parts() -> None:
    """The relay's facts change with every delivery, and an attention item seldom: each is a part of its own."""
    text = await get_page(summary(backend_summary("a/b"), attention=Attention(items=(item(number=7),))))
    assert re.search(r'<details class="relay-health"[^>]* data-part="', text)
    assert re.search(r'<li data-key="backend_red-7"[^>]* data-part="', text)
