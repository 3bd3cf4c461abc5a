"""The log pages and the search: filters in the query, empty states, hostile text, and contents for admins only."""

import json
import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from crcr.decide.commands.grammar import WaiveCommand, parse_commands
from crcr.errors import StoreUnavailable
from crcr.record.schema import main_tables, statistics
from crcr.show.access.reader import Reader, SignInMethod
from crcr.show.pages.frame import Frame
from support.data.store_rows import OTHER, UPSTREAM, StoreRows
from support.page_app import page_app
from support.page_reader import HOSTILE, ParsedPage, assert_inert
from support.running_relay import running_relay

LISTED = """
L2:
  - Good/Backend
  - flaky/backend
  - secret/one: {visibility: hidden}
L4:
  - gate/one: [ada]
"""
LISTS = ("/crcr/deliveries", "/crcr/deliveries?show=effects", "/crcr/waivers", "/crcr/audit")
ADMIN = Reader("ops", admin=True, csrf="signed", method=SignInMethod.SESSION)


def browse(views: Any, store: StoreRows, reader: Reader | None = None) -> httpx.AsyncClient:
    app: ASGIApp = page_app(Frame(views, upstreams=(UPSTREAM, OTHER), clock=store.clock))

    async def app_with_reader(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {"reader": reader} if reader else {}}, receive, send)

    return httpx.AsyncClient(transport=httpx.ASGITransport(app_with_reader), base_url="http://relay")


@pytest.fixture
async def browser(store: StoreRows) -> AsyncIterator[httpx.AsyncClient]:
    async with browse(store.views, store) as client:
        yield client


@pytest.fixture
async def admin(store: StoreRows) -> AsyncIterator[httpx.AsyncClient]:
    async with browse(store.views, store, ADMIN) as client:
        yield client


def main_text(answer: httpx.Response) -> str:
    main = answer.text.partition("<main")[2].partition("</main>")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", main).split())


def page_links(answer: httpx.Response) -> list[str]:
    return ParsedPage(answer.text).attributes("href")


def add_action(store: StoreRows, name: str = "pause", subject: str = "Torch/torch", **more: Any) -> None:
    row = {"upstream": UPSTREAM.key, "at": store.ago(hours=1), "who": "ops", "act": name, "subject": subject}
    store.add(main_tables.audit, {**row, "detail": json.dumps(more)})


def add_job_statistics(store: StoreRows, job_name: str, downstream: str = "good/backend") -> None:
    row = {
        "upstream": UPSTREAM.key,
        "downstream": downstream,
        "kind": "pull_request",
        "day_at": store.ago(days=1),
    }
    job = {"workflow": "ci.yml", "workflow_name": "CI", "job_name": job_name}
    store.add(statistics.job_days, {**row, **job})


async def test_an_empty_log_explains_what_is_missing(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.allowlist(LISTED)
    messages = (
        "No webhook has arrived yet",
        "Nothing is waiting",
        "No waivers",
        "No actions yet",
    )
    for path, words in zip(LISTS, messages, strict=True):
        answer = await browser.get(path)
        assert words in main_text(answer)
        assert "<table" not in answer.text


async def test_the_log_lists_deliveries_with_their_dispatch_counts(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    delivery = store.delivery(source="recovered", reason="said so", ref="refs/heads/main", number=None)
    for name, state in (("good/backend", "sent"), ("flaky/backend", "parked"), ("secret/one", "sent")):
        store.dispatch(
            delivery, name, state=state, reason="no such repository" if state == "parked" else None
        )
    answer = await browser.get("/crcr/deliveries")
    words = main_text(answer)
    assert "1 undelivered" in words
    assert "1 sent" in words
    assert "recovered" in words
    assert "no such repository" in words
    assert "secret" not in answer.text
    assert f"/crcr/deliveries/{delivery}" in page_links(answer)


async def test_filters_order_and_cursor_are_in_the_query(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    for number in range(35):
        store.delivery(hours_ago=number, number=7)
    store.delivery(number=8)
    first = await browser.get(
        "/crcr/deliveries?number=%237&event=pull_request&state=accepted&sort=at&range=7d"
    )
    next_link = next(link for link in page_links(first) if "after=" in link)
    query = parse_qs(urlsplit(next_link).query)
    assert {**query, "after": []} == {
        "number": ["7"], "event": ["pull_request"], "state": ["accepted"], "sort": ["at"], "range": ["7d"], "after": [],
    }  # fmt: skip
    second = await browser.get(next_link)
    assert second.text.count('data-key="') == 10
    for kind in ("/api/v1/deliveries?", "/api/v1/deliveries.csv?"):
        export = next(link for link in page_links(second) if link.startswith(kind))
        assert {"number", "event", "state", "sort"} <= parse_qs(urlsplit(export).query).keys()
        assert "after" not in export
    hidden = [
        attrs
        for tag, attrs in ParsedPage(second.text).elements
        if tag == "input" and attrs.get("type") == "hidden"
    ]
    assert {str(field["name"]) for field in hidden} >= {"sort", "range"}


async def test_another_upstream_is_kept_in_every_link(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.allowlist(LISTED, OTHER)
    store.delivery(OTHER)
    for path in LISTS:
        answer = await browser.get(
            path, params={**dict(parse_qs(urlsplit(path).query)), "upstream": "other/upstream"}
        )
        kept = [link for link in page_links(answer) if link.startswith(("/crcr/deliveries", "/api/v1/"))]
        assert kept
        assert all("upstream=other/upstream" in link for link in kept)


@pytest.mark.parametrize(
    "path",
    [
        *("/crcr/deliveries?after=!!", "/crcr/deliveries?after=WyJ4Il0"),
        *("/crcr/audit?after=WzFd", "/crcr/waivers?after=WzFd"),
    ],
)
async def test_a_foreign_cursor_is_a_400_page(
    store: StoreRows, browser: httpx.AsyncClient, path: str
) -> None:
    store.allowlist(LISTED)
    answer = await browser.get(path)
    assert answer.status_code == 400
    assert "Not understood" in answer.text


@pytest.mark.parametrize(
    ("path", "field", "said"),
    [
        ("/crcr/deliveries?sha=abc", "sha", "give its first 7 digits, or more"),
        ("/crcr/deliveries?sha=zzzzzzzz", "sha", "a commit has only the digits 0 to 9 and a to f"),
        ("/crcr/deliveries?number=abc", "number", "not the number of a pull request"),
        ("/crcr/deliveries?number=0", "number", "not the number of a pull request"),
        ("/crcr/deliveries?state=lost", "state", "there is no such state"),
        ("/crcr/deliveries?show=effects&state=lost", "state", "there is no such state"),
        ("/crcr/waivers?state=lost", "state", "there is no such state"),
        ("/crcr/waivers?number=x", "number", "not the number of a pull request"),
    ],
)
async def test_an_invalid_filter_is_ignored_with_a_message_beside_its_field(
    store: StoreRows, browser: httpx.AsyncClient, path: str, field: str, said: str
) -> None:
    store.allowlist(LISTED)
    store.delivery()
    store.effect("waiting")
    store.waiver("gate/one")
    answer = await browser.get(path)
    assert answer.status_code == 200
    assert f'<span class="unclear" id="unclear-{field}">{said}</span>' in answer.text
    marked = [attrs for _, attrs in ParsedPage(answer.text).elements if attrs.get("aria-invalid")]
    assert [(attrs["id"], attrs["aria-describedby"]) for attrs in marked] == [(field, f"unclear-{field}")]
    assert 'data-key="' in answer.text, "all rows, as without the filter"
    exports = [link for link in page_links(answer) if link.startswith("/api/v1/")]
    assert not [link for link in exports if f"{field}=" in link]


async def test_a_seven_digit_sha_filters_even_beside_an_invalid_number(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    store.delivery(head_sha="abcdef1" + "0" * 33)
    store.delivery(head_sha="1" * 40)
    answer = await browser.get("/crcr/deliveries?sha=ABCDEF1&number=x")
    assert answer.text.count('data-key="') == 1
    assert "unclear-number" in answer.text
    assert "unclear-sha" not in answer.text


async def test_waivers_are_found_by_parts_of_names(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.allowlist(LISTED)
    store.pull(7)
    store.waiver("gate/one", who="Mia-Long")
    store.waiver("good/backend", who="tom", head_sha="b" * 40)
    for query, expected in (
        ("backend=GATE", ["gate/one"]),
        ("backend=ood", ["Good/Backend"]),
        ("who=@mia", ["gate/one"]),
        ("who=o", ["gate/one", "Good/Backend"]),
        ("backend=wide", []),
    ):
        answer = await browser.get(f"/crcr/waivers?{query}")
        assert answer.status_code == 200
        listed = re.findall(r'<th scope="row"><a class="text" href="/crcr/([^"]+)"', answer.text)
        assert sorted(listed) == sorted(expected), query


async def test_actions_are_found_by_parts_of_their_names(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    add_action(store, "waiver_used", "#7")
    add_action(store, "pause")
    for query, expected in (
        *(("act=Waiver+used", ["waiver used"]), ("act=waiver_u", ["waiver used"]), ("act=us", ["waiver used"]), ("act=ause", [])),
        *(("who=OP", ["pause", "waiver used"]), ("who=nobody", [])),
    ):  # fmt: skip
        answer = await browser.get(f"/crcr/audit?{query}")
        assert sorted(re.findall(r'title="Actions of this kind">([^<]+)<', answer.text)) == expected, query


async def test_the_example_of_a_waiver_is_a_valid_command(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    answer = await browser.get("/crcr/waivers")
    (example,) = re.findall(r"<code>(/crcr waive [^<]+)</code>", answer.text)
    assert [type(command) for command in parse_commands(unescape(example))] == [WaiveCommand]


async def test_a_filter_without_matches_states_it(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.allowlist(LISTED)
    for path in (
        "/crcr/deliveries?number=5",
        "/crcr/deliveries?show=effects&target=a/b",
        "/crcr/waivers?who=x",
        "/crcr/audit?who=x",
    ):
        answer = await browser.get(path)
        assert re.search(r"No matching (deliveries|outgoing calls|waivers|actions)", main_text(answer))


async def test_a_delivery_page_has_its_dispatches_jobs_and_open_effects(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    delivery = store.delivery()
    store.dispatch(delivery, "good/backend")
    store.dispatch(delivery, "secret/one")
    store.job(delivery, "failure", job_name="build (linux)")
    store.job(delivery, "failure", job_name="hidden job", downstream="secret/one")
    store.effect("waiting", "flaky/backend", delivery=delivery, kind="look_up")
    store.effect("waiting", "secret/one", delivery=delivery)
    answer = await browser.get(f"/crcr/deliveries/{delivery}")
    words = main_text(answer)
    assert "build (linux)" in words
    assert "check run status" in words
    assert "secret" not in answer.text
    assert "hidden job" not in answer.text
    assert (await browser.get("/crcr/deliveries/no-such")).status_code == 404


async def test_action_forms_are_shown_to_administrators_only(
    store: StoreRows, browser: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    delivery = store.delivery()
    store.effect("parked", delivery=delivery, last_error="404 from GitHub")
    addresses = (
        f"/crcr/deliveries/{delivery}",
        "/crcr/deliveries",
        "/crcr/deliveries?show=effects&target=good/backend",
    )
    for path in addresses:
        assert "/crcr/admin/" not in (await browser.get(path)).text
        assert "404 from GitHub" not in (await browser.get(path)).text
    delivery_page, deliveries, effects = [await admin.get(path) for path in addresses]
    assert delivery_page.text.count('action="/crcr/admin/replay"') == 2
    assert 'action="/crcr/admin/pause"' in deliveries.text
    assert effects.text.count('action="/crcr/admin/retry"') == 2
    assert "404 from GitHub" in main_text(effects)
    back = [attrs["value"] for _, attrs in ParsedPage(effects.text).elements if attrs.get("name") == "next"]
    assert set(back) == {"/crcr/deliveries?show=effects&target=good/backend"}


async def test_a_paused_upstream_is_shown_with_an_unpause_form(
    store: StoreRows, admin: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    with store.engine.begin() as connection:
        connection.execute(main_tables.upstreams.update().values(paused_at=store.ago(hours=1)))
    answer = await admin.get("/crcr/deliveries")
    assert "Dispatching is paused" in main_text(answer)
    assert 'action="/crcr/admin/unpause"' in answer.text


async def test_effects_are_counted_by_state_and_parked_ones_come_first(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    store.effect("waiting", attempts=3, kind="publish_checks")
    store.effect("parked")
    words = main_text(await browser.get("/crcr/deliveries?show=effects"))
    assert "1 open 1 undelivered" in words
    assert "retried" in words
    assert words.index("send dispatch") < words.index("publish checks")
    by_word, by_state = [
        main_text(await browser.get(f"/crcr/deliveries?show=effects&state={word}"))
        for word in ("undelivered", "parked")
    ]
    assert by_word == by_state
    assert "publish checks" not in by_word


async def test_a_waiver_links_to_its_pull_request_and_backend(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    store.pull(7)
    store.waiver("gate/one", job="build")
    store.waiver("secret/one")
    answer = await browser.get("/crcr/waivers")
    assert {"/crcr/pr/7", "/crcr/gate/one", "/crcr/waivers?who=mia"} <= set(page_links(answer))
    assert "in force" in main_text(answer)
    assert "secret" not in answer.text


async def test_the_audit_log_hides_hidden_backends_and_sign_ins_from_the_public(
    store: StoreRows, browser: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    add_action(store, "suspend", "secret/one")
    add_action(store, "sign_in_failed", "pages")
    add_action(store, "waive", "#7", command="/crcr waive gate/one down", head="a" * 40)
    answer = await browser.get("/crcr/audit")
    assert "/crcr waive gate/one down" in main_text(answer)
    assert {"/crcr/pr/7", f"/crcr/commit/{'a' * 40}", "/crcr/audit?act=waive"} <= set(page_links(answer))
    assert "secret" not in answer.text
    assert "sign in" not in main_text(answer)
    admin_text = main_text(await admin.get("/crcr/audit"))
    assert "secret/one" in admin_text
    assert "sign in failed" in admin_text


async def test_a_search_for_a_number_or_sha_redirects_to_its_page(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    store.pull(123)
    delivery = store.delivery(number=None, head_sha="c" * 40)
    for text, location in (
        ("#123", "/crcr/pr/123"),
        ("c" * 40, f"/crcr/commit/{'c' * 40}?delivery={delivery}"),
    ):
        answer = await browser.get("/crcr/search", params={"q": text})
        assert (answer.status_code, answer.headers["location"]) == (303, location)


async def test_search_results_are_grouped_by_kind(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.allowlist(LISTED)
    store.pull(5, title="Make the backend faster", author="backend")
    add_job_statistics(store, "backend tests")
    answer = await browser.get("/crcr/search?q=backend")
    words = main_text(answer)
    for group in (
        "Pull requests 1",
        "Pull requests by this author 1",
        "Backends 2",
        "Jobs of the last 30 days 1",
    ):
        assert group in words
    assert {"/crcr/pr/5", "/crcr/Good/Backend", "/crcr/Good/Backend?jobs=backend+tests"} <= set(
        page_links(answer)
    )
    assert {"/api/v1/search?q=backend", "/api/v1/search.csv?q=backend"} <= set(page_links(answer))


async def test_the_pull_requests_of_an_author_are_paged(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.allowlist(LISTED)
    for number in range(1, 46):
        store.pull(number, author="Ada", title="plain")
    listed, address = [], "/crcr/search?q=Ada"
    while address:
        page = ParsedPage((await browser.get(address)).text)
        listed += [href for href in page.attributes("href") if href.startswith("/crcr/pr/")]
        address = next((href for href in page.attributes("href") if "after=" in href), "")
    assert listed == [f"/crcr/pr/{number}" for number in range(45, 0, -1)]
    for bad in ("W10", "WyJ4Il0"):
        assert (await browser.get(f"/crcr/search?q=@ada&after={bad}")).status_code == 400


async def test_a_search_without_results_explains_what_can_be_searched(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    for query in ("", "?q=", "?q=nothing-like-it"):
        words = main_text(await browser.get(f"/crcr/search{query}"))
        assert "a commit by its first 7 digits" in words


def fill_with(store: StoreRows, storable: str) -> str:
    store.allowlist(LISTED)
    more: dict[str, Any] = {"event": storable, "action": storable, "source": storable}
    delivery = store.delivery(ref=storable, head_sha=storable, reason=storable, number=None, **more)
    store.dispatch(delivery, reason=storable, head_sha=storable, action=storable, event=storable)
    text = {"job_name": storable, "workflow": storable, "workflow_name": storable, "run_id": storable}
    store.job(delivery, "failure", **text, url=storable, artifact_url=storable)
    store.effect("parked", storable.replace("/", "."), kind=storable, delivery=delivery, last_error=storable)
    store.pull(7, title=storable, author=storable)
    store.waiver("gate/one", who=storable, reason=storable, job=storable, ended_by=storable)
    add_action(store, storable, storable, **{storable[:100]: storable})
    add_job_statistics(store, f"zz {storable}")
    return delivery


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
async def test_fault_29_hostile_text_in_the_log_stays_text(
    store: StoreRows, admin: httpx.AsyncClient, hostile: str
) -> None:
    delivery = fill_with(store, hostile.replace("\x00", "\x01"))
    for path in (*LISTS, f"/crcr/deliveries/{delivery}", "/crcr/search?q=zz", "/crcr/audit?fragment=main"):
        answer = await admin.get(path)
        assert answer.status_code == 200
        assert len(answer.content) < 60_000
        assert_inert(ParsedPage(answer.text), answer.text)
        assert "49" not in re.findall(r">\s*(\d+)\s*<", answer.text)


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_fault_29_hostile_query_parameters_are_answered_harmlessly(
    store: StoreRows, browser: httpx.AsyncClient, hostile: str
) -> None:
    store.allowlist(LISTED)
    names = (
        "q",
        "event",
        "state",
        "number",
        "sha",
        "who",
        "act",
        "backend",
        "target",
        "sort",
        "after",
        "show",
    )
    for path in ("/crcr/deliveries", "/crcr/waivers", "/crcr/audit", "/crcr/search"):
        for name in names:
            answer = await browser.get(path, params={name: hostile[:10_000]})
            assert answer.status_code in {200, 400}
            assert_inert(ParsedPage(answer.text), answer.text)


async def test_a_store_outage_is_a_503_page_with_a_message(store: StoreRows) -> None:
    class Down:
        def __getattr__(self, _: str) -> Any:
            async def refuse(*_: Any, **__: Any) -> Any:
                raise StoreUnavailable

            return refuse

    async with browse(Down(), store) as client:
        for path in (*LISTS, "/crcr/deliveries/x", "/crcr/search?q=x"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert "cannot be read right now" in answer.text


async def test_lists_listen_for_events_and_their_fragment_is_the_main_part(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist(LISTED)
    store.change()
    for path in LISTS:
        whole = (await browser.get(path)).text
        assert "&amp;after=1" in whole
        part = (
            await browser.get(path, params={**dict(parse_qs(urlsplit(path).query)), "fragment": "main"})
        ).text
        assert "<html" not in part
        assert part.partition("<template")[0].strip() in whole


async def test_every_export_link_works(tmp_path: Path) -> None:
    paths = (
        "/crcr/deliveries?number=%237&event=push&state=accepted&sha=abcdef1&sort=at",
        "/crcr/deliveries?show=effects&state=retried&target=org/repo",
        "/crcr/waivers?state=in+force&who=@mia&backend=org/repo&number=7&sort=-at",
        "/crcr/audit?who=@mia&act=pause&sort=at",
        "/crcr/search?q=x%26y",
    )
    async with running_relay(tmp_path, "L1: [org/repo]", downstreams=("org/repo",)) as relay:
        for path in paths:
            answer = await relay.http.get(path)
            exports = [link for link in page_links(answer) if link.startswith("/api/v1/")]
            assert exports
            for link in exports:
                assert (await relay.http.get(link)).status_code == 200, link


async def test_the_sign_in_link_returns_to_the_filtered_page(store: StoreRows) -> None:
    store.allowlist(LISTED)
    async with browse(store.views, store, Reader(may_sign_in=True)) as visitor:
        for more in ("", "&fragment=main&done=pause"):
            answer = await visitor.get(f"/crcr/audit?who=ada&sort=at{more}")
            back = next(link for link in page_links(answer) if link.startswith("/crcr/login"))
            assert parse_qs(urlsplit(back).query) == {"next": ["/crcr/audit?who=ada&sort=at"]}
