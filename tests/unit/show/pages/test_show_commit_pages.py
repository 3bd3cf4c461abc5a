"""The pages of a pull request and of a commit, and the same data as JSON."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from markupsafe import Markup

from crcr.app import error_handlers
from crcr.decide.checks.status import GateStatus
from crcr.decide.in_tree.checks import InTreeCheck, shorten_name
from crcr.decide.model import DispatchState
from crcr.decide.views.commit import BackendState, GateShown, PullState, PullView, WaiverState
from crcr.decide.views.overview import DispatchAnswer, JobView
from crcr.errors import CrcrError
from crcr.show.api import routes as api
from crcr.show.pages import routes as pages_routes
from crcr.show.pages.frame import Frame
from crcr.show.render import status
from crcr.show.render.templates import _mark_code
from crcr.show.urls.job_tokens import job_token
from crcr.show.urls.location import is_sha
from support.data.store_rows import OTHER, UPSTREAM, StoreRows
from support.page_reader import HOSTILE, ParsedPage, assert_inert

HEAD = f"{7:040x}"
GROUP = "c" * 40
GATED = """
L1:
  - listen/only
L2:
  - Good/Backend: {oncalls: [ada]}
L4:
  - gate/one: {oncalls: [bob], jobs: [build, test]}
  - gate/two: {oncalls: [eve], jobs: [build]}
"""


PUSHED = "5" * 40


@pytest.fixture
async def store(store: StoreRows) -> StoreRows:
    store.allowlist(GATED)
    return store


@pytest.fixture
async def browser(store: StoreRows) -> AsyncIterator[httpx.AsyncClient]:
    upstreams = (UPSTREAM, OTHER)
    frame = Frame(store.views, upstreams=upstreams, clock=store.clock)
    app = FastAPI()
    app.add_exception_handler(CrcrError, error_handlers(frame.problem)[CrcrError])
    app.router.routes += api.routes(store.views, upstreams=upstreams, clock=store.clock)
    app.router.routes += pages_routes.routes(frame)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relay") as client:
        yield client


def fill(store: StoreRows, text: str = "plain", **pull: Any) -> None:
    """Add everything that the two pages can show, with `text` in every field that others can set."""
    labels = json.dumps([text] * 3)
    delivery = store.pull(title=text, author=text, labels=labels, base_ref=text, **pull)
    store.dispatch(delivery, "listen/only", level=1, reason=text)
    store.dispatch(delivery, "good/backend", answer="unreported")
    store.dispatch(delivery, "gate/one", level=4)
    store.dispatch(delivery, "gate/two", level=4, state="held", reason=text, sent_at=None)
    tests = json.dumps([{"name": text, "file": text, "message": text}])
    texts = {"workflow_name": text, "url": text, "artifact_url": text, "environment": text}
    disputed = {"verification": "disputed", "github_conclusion": "failure", "disputed": 1}
    job = {"downstream": "gate/one", "level": 4, **texts}
    store.job(delivery, "failure", job_name=text, failed_tests=tests, tests_failed=1, **job, **disputed)
    store.job(delivery, "success", job_name=f"b{text}", verification="self-reported", **job)
    store.job(delivery, None, job_name=f"c{text}", run_id=text, workflow=text, **job)
    store.gate(HEAD, title=text)
    store.waiver(who=text, reason=text, job=text, head_sha=text)
    store.waiver(who=text, reason=text, ended_by=text, ended_at=1)
    store.check("crcr/gate", title=text)
    store.check(f"crcr/{text}"[:300], "gate/one", title=text)
    failing = InTreeCheck(7, shorten_name(text), 5, 9, "failure", text[:2_000])
    store.in_tree(HEAD, failing, failing._replace(app_id=8, conclusion=text[:300]))
    group = store.group(GROUP, "[7, 9]", head_ref=text, base_ref=text, reused_from=text)
    store.dispatch(group, "gate/one", level=4, number=None, head_sha=GROUP)
    store.gate(GROUP, title=text)
    store.delivery(action=text, reason=text, head_sha=text, state="superseded")


def all_jobs(pull: PullView) -> list[JobView]:
    return [job for backend in pull.backends for job in backend.jobs]


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
async def test_fault_29_hostile_text_stays_text(
    store: StoreRows, browser: httpx.AsyncClient, hostile: str
) -> None:
    fill(store, hostile.replace("\x00", "\x01"))
    pull = await store.views.pull(UPSTREAM, 7, store.clock.now())
    token = next(
        (token_of_job for job in all_jobs(pull) if (token_of_job := job_token(job, shared=True))), "x"
    )
    shared = f"/crcr/pr/7?job={token}"
    for path in (
        *("/crcr/pr/7?older=1", "/crcr/pr/7?fragment=main", f"/crcr/commit/{HEAD}", f"/crcr/commit/{GROUP}"),
        *(shared, f"{shared}&fragment=panel", f"/crcr/commit/{HEAD}?job={token}"),
    ):
        answer = await browser.get(path)
        assert answer.status_code == 200
        assert len(answer.content) < 150_000
        assert_inert(ParsedPage(answer.text), answer.text)
        assert ">49<" not in answer.text.replace(" ", "")


async def test_the_page_shows_gate_dispatches_waivers_and_retry_command(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    fill(store, "plain")
    text = (await browser.get("/crcr/pr/7?older=1")).text
    for expected in (
        *("#7 plain", "gate/one failed (plain)", "/crcr retry gate/one", "bob", "held", "notified"),
        *("ran and did not report", "disputed", "self-reported", "revoked", "for another commit"),
        *("In a merge group", "crcr/gate", "superseded", "3 sent", "1 held", "#9"),
    ):
        assert expected in text, expected


async def test_the_page_listens_for_events_of_its_own_number(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    fill(store)
    page = ParsedPage((await browser.get("/crcr/pr/7")).text)
    assert page.attributes("data-number") == ["7"]
    assert page.attributes("data-events") == ["/api/v1/events?upstream=Torch/torch&after=0"]
    assert ParsedPage((await browser.get(f"/crcr/commit/{GROUP}")).text).attributes("data-number") == []
    part = (await browser.get("/crcr/pr/7?fragment=main")).text
    assert "<html" not in part
    assert "gate/one failed" in part


async def test_element_ids_are_unique_and_stable_between_requests(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    fill(store)
    first, second = [ParsedPage((await browser.get("/crcr/pr/7")).text).attributes("id") for _ in range(2)]
    assert first == second
    assert len(first) == len(set(first))


async def test_the_pages_link_to_each_other(store: StoreRows, browser: httpx.AsyncClient) -> None:
    fill(store)
    store.dispatch(store.delivery(head_sha=HEAD, guid="d&1"), "good/backend", head_sha=HEAD, hours_ago=0.1)
    links = ParsedPage((await browser.get("/crcr/good/backend")).text).attributes("href")
    assert "/crcr/pr/7" in links
    assert f"/crcr/commit/{HEAD}?delivery=d%261" in links
    assert "/crcr/pr/7" in ParsedPage((await browser.get(f"/crcr/commit/{HEAD}")).text).attributes("href")
    assert f"/crcr/commit/{GROUP}" in ParsedPage((await browser.get("/crcr/pr/7")).text).attributes("href")
    assert "https://github.com/Torch/torch/pull/7" in ParsedPage(
        (await browser.get("/crcr/pr/7")).text
    ).attributes("href")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/crcr/pr/8", "no event of Torch/torch#8 has arrived"),
        ("/crcr/pr/0", "is not the number of a pull request"),
        ("/crcr/pr/nonsense", "is not the number of a pull request"),
        ("/crcr/pr/99999999999", "is not the number of a pull request"),
        ("/crcr/commit/abc", "give all 40 digits"),
        (f"/crcr/commit/{'9' * 40}", "no delivery of Torch/torch"),
        ("/crcr/pr/7?upstream=no/such", "serves no upstream"),
    ],
)
async def test_an_unknown_pull_request_or_commit_is_a_404_page_with_advice(
    store: StoreRows, browser: httpx.AsyncClient, path: str, said: str
) -> None:
    store.pull()
    answer = await browser.get(path)
    assert answer.status_code == 404
    assert said in answer.text
    assert "All backends" in answer.text


async def test_empty_states_are_explained(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.pull()
    text = (await browser.get("/crcr/pr/7")).text
    assert "is not evaluated yet" in text
    assert "No backend was notified of this commit" in text
    assert "None are published on this commit" in text
    assert ">Waivers</h2>" not in text
    store.gate(HEAD, "none", "")
    assert "This upstream has no gate" in (await browser.get("/crcr/pr/7")).text


async def test_a_gate_with_hidden_backends_mentions_them_without_their_names(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist("L4:\n  - gate/one: {visibility: hidden, oncalls: [bob], jobs: [build]}\n", version=2)
    store.dispatch(store.pull(), "gate/one", level=4)
    store.gate(HEAD)
    text = (await browser.get("/crcr/pr/7")).text
    assert "backends that are not shown here" in text
    assert "gate/one" not in text


async def test_the_backend_page_shows_left_out_and_never_started_dispatches(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.dispatch(store.delivery(), "good/backend", state="left_out", reason="paths", sent_at=None)
    store.dispatch(store.delivery(), "good/backend", answer="never_started")
    text = (await browser.get("/crcr/good/backend")).text
    assert "not affected" in text
    assert "GitHub lists no run since the dispatch" in text


async def test_the_api_returns_the_data_of_the_pages(store: StoreRows, browser: httpx.AsyncClient) -> None:
    fill(store, "plain")
    pull = (await browser.get("/api/v1/pulls/7")).json()
    assert (pull["upstream"], pull["state"], pull["gate"]["state"]) == ("Torch/torch", "open", "failed")
    row = pull["gate"]["subjects"][0]["rows"][0]
    assert (row["backend"], row["level"], row["standing"]) == ("gate/one", "L4", "failed")
    first = pull["backends"][0]
    assert (first["state"], first["jobs"][0]["verification"]) == ("failed", "disputed")
    assert first["jobs"][0]["url"] is None
    assert {item["dispatch"]["answer"] for item in pull["backends"]} == {None, "unreported"}
    assert [item["arrival"]["dispatches"] for item in pull["timeline"] if item["arrival"]] == [
        [],
        [{"state": "held", "number": 1}, {"state": "sent", "number": 3}],
    ]
    sent = next(item for item in pull["timeline"] if item["kind"] == "last dispatch sent")
    assert (sent["number"], sent["event"], sent["subject"]) == (3, "pull_request", None)
    commit = (await browser.get(f"/api/v1/commits/{GROUP.upper()}")).json()
    assert (commit["head_sha"], commit["group"]["numbers"]) == (GROUP, [7, 9])


async def test_waivers_page_to_their_end_by_cursor(store: StoreRows, browser: httpx.AsyncClient) -> None:
    for number in range(1, 6):
        store.waiver(number=number)
    numbers: list[int] = []
    params: dict[str, Any] = {"limit": 2}
    while True:
        page = (await browser.get("/api/v1/waivers", params=params)).json()
        numbers += [waiver["number"] for waiver in page["waivers"]]
        if page["next"] is None:
            break
        params["cursor"] = page["next"]
    assert numbers == [5, 4, 3, 2, 1]
    assert (await browser.get("/api/v1/waivers?cursor=WyJ4Il0")).status_code == 400


@pytest.mark.parametrize("path", ["pulls/0", "pulls/x", "pulls/99999999999", "waivers?limit=0"])
async def test_parameters_out_of_bounds_are_refused(browser: httpx.AsyncClient, path: str) -> None:
    assert (await browser.get(f"/api/v1/{path}")).status_code == 422


async def test_an_unknown_pull_request_or_commit_has_an_error_code(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    for path in ("pulls/8", f"commits/{'9' * 40}"):
        answer = await browser.get(f"/api/v1/{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("kinds", "statuses"),
    [
        (DispatchState, status.DISPATCHES),
        (DispatchAnswer, status.ANSWERS),
        (GateShown, status.GATES),
        (GateStatus, status.GATE_STATUSES),
        (BackendState, status.BACKENDS),
        (PullState, status.PULLS),
        (WaiverState, status.WAIVERS),
    ],
)
def test_every_state_has_a_status_display(kinds: Any, statuses: Any) -> None:
    assert set(statuses) == set(kinds)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run `a <b>` now", "run <code>a &lt;b&gt;</code> now"),
        ("one ` alone <i>", "one ` alone &lt;i&gt;"),
        ("", ""),
        ("`<script>`", "<code>&lt;script&gt;</code>"),
    ],
)
def test_backticks_become_code_elements_and_text_is_escaped(text: str, shown: str) -> None:
    assert _mark_code(text) == Markup(shown)  # noqa: S704


def test_only_a_full_lower_case_sha_is_a_sha() -> None:
    assert is_sha("a" * 40)
    assert is_sha("0" * 64)
    assert not any(map(is_sha, (None, "", "a" * 39, "a" * 41, "A" * 40, "g" * 40, "a" * 40 + "\n")))


async def test_a_long_list_of_jobs_is_cut_with_a_link_to_the_rest(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    delivery = store.pull()
    store.dispatch(delivery, "good/backend")
    for number in range(203):
        store.job(delivery, job_name=f"job {number}")
    text = (await browser.get("/crcr/pr/7")).text
    assert f'<a href="/crcr/Good/Backend?q={"f" * 12}">191 more</a>' in text
    store.job(delivery, "failure", job_name="worse")
    text = (await browser.get("/crcr/pr/7")).text
    assert "4 more jobs do not fit here" in text
    assert f"delivery={delivery}" in text


async def test_job_details_open_beside_the_pull_request(store: StoreRows, browser: httpx.AsyncClient) -> None:
    fill(store, "plain")
    (link,) = [
        href
        for tag, attrs in ParsedPage((await browser.get("/crcr/pr/7?older=1")).text).elements
        if tag == "a"
        and "data-panel" in attrs
        and (href := attrs["href"] or "")
        and "name" in (attrs["class"] or "")
    ][:1]
    whole = (await browser.get(f"/crcr/pr/7{link}")).text
    panel = whole[whole.index("<aside") : whole.index("</aside>")]
    for expected in ("plain", "gate/one", "failure", "GitHub shows another result"):
        assert expected in panel, expected
    assert "/crcr/pr/7?older=1" in ParsedPage(panel).attributes("href")
    alone = (await browser.get(f"/crcr/pr/7{link}&fragment=panel")).text
    assert "<html" not in alone
    assert "Gate" not in alone
    commit = await browser.get(f"/crcr/commit/{HEAD}{link}&fragment=panel")
    assert "gate/one" in commit.text


@pytest.mark.parametrize("path", ["/crcr/pr/7", f"/crcr/commit/{HEAD}"])
@pytest.mark.parametrize(
    "token", ["nonsense", "WyJ4Il0", "WyJkIiwidyIsInIiLDEsImoiXQ", "WyJkIiwidyIsInIiLDEsImoiLCJhL2IiXQ"]
)
async def test_an_unknown_job_token_leaves_the_rest_of_the_page(
    store: StoreRows, browser: httpx.AsyncClient, path: str, token: str
) -> None:
    fill(store)
    answer = await browser.get(f"{path}?job={token}")
    assert answer.status_code == 200
    assert "No such job" in answer.text
    assert "Timeline" in answer.text
    assert "No such job" in (await browser.get(f"{path}?job={token}&fragment=panel")).text


async def test_a_job_of_a_hidden_backend_is_not_shown_even_for_its_token(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    fill(store, "plain")
    job = all_jobs(await store.views.pull(UPSTREAM, 7, store.clock.now()))[0]
    path = f"/crcr/pr/7?job={job_token(job, shared=True)}&fragment=panel"
    assert "gate/one" in (await browser.get(path)).text
    store.allowlist("L4:\n  - gate/one: {visibility: hidden, oncalls: [bob], jobs: [build]}\n", version=2)
    assert "No such job" in (await browser.get(path)).text


async def test_failures_shared_by_backends_come_first_with_their_verdict(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    delivery = store.pull()
    for name, level in (("good/backend", 2), ("gate/one", 4)):
        store.dispatch(delivery, name, level=level)
        tests = json.dumps([{"name": "test_lazy", "file": None, "message": f"no kernel on device {level}"}])
        store.job(delivery, "failure", downstream=name, level=level, failed_tests=tests, tests_failed=1)
        store.failure(delivery, name, f"no kernel on device {level}")
    text = (await browser.get("/crcr/pr/7")).text
    group = text[text.index('id="alike"') : text.index("Backends <span")]
    for expected in (
        "no kernel on device",
        "2 jobs",
        "2 of 2 backends",
        "gate/one",
        "Good/Backend",
        "first seen here",
    ):
        assert expected in group, expected
    assert text.index('id="alike"') < text.index('class="unit"')
    api = (await browser.get("/api/v1/pulls/7")).json()
    (shared,) = api["groups"]
    assert shared["backends"] == ["gate/one", "Good/Backend"]
    assert (shared["jobs"], shared["first_seen"]["number"], shared["known"]) == (
        ["gate/one:build", "Good/Backend:build"],
        7,
        None,
    )
    (job,) = api["backends"][0]["jobs"]
    assert (job["verdict"]["kind"], job["verdict"]["by"]) == ("new", "rules")


async def test_the_timeline_lists_results_the_gate_and_waivers(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    delivery = store.pull(is_open=0, merged=1)
    for name in ("good/backend", "gate/one"):
        store.dispatch(delivery, name)
        store.job(delivery, "failure" if name == "gate/one" else "success", downstream=name)
    store.waiver(job="build", used_at=store.ago(minutes=2))
    store.check("crcr/gate")
    store.delivery(action="closed", head_sha=HEAD, hours_ago=0.01)
    text = (await browser.get("/crcr/pr/7")).text
    part = text[text.index('id="timeline"') :].replace("<", " <")
    timeline = " ".join(Markup(part).striptags().split())  # noqa: S704
    entries = (
        *("merged", "gate published O passed", "waiver used gate/one build by mia", "waiver given gate/one"),
        *("backend ended gate/one X failed", "backend ended Good/Backend O passed", "first job started"),
        *("last of 2 dispatches sent", "first of 2 dispatches sent", "synchronize"),
    )
    positions = [timeline.index(entry) for entry in entries if "ended" not in entry]
    assert positions == sorted(positions)
    assert all(entry in timeline for entry in entries)


async def test_a_nightly_commit_has_a_page(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.job(GROUP, "failure", event="nightly", number=None, head_sha=GROUP, url="https://ci.test/1")
    text = (await browser.get(f"/crcr/commit/{GROUP}")).text
    for expected in ("nightly", "Good/Backend", "failed", "started", "backend ended"):
        assert expected in text, expected
    assert "No backend was notified" not in text
    api = (await browser.get(f"/api/v1/commits/{GROUP}")).json()
    [backend] = api["backends"]
    assert (api["event"], backend["dispatch"], backend["event"]) == ("nightly", None, "nightly")
    csv = (await browser.get(f"/api/v1/commits/{GROUP}.csv")).text.splitlines()
    assert len(csv) == 2
    assert csv[1].startswith("Good/Backend,")


async def test_events_of_older_commits_are_behind_a_switch(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.pull()
    store.delivery(number=7, head_sha="b" * 40, hours_ago=5)
    text = (await browser.get("/crcr/pr/7")).text
    assert "bbbbbbbb" not in text
    assert "1 event of older commits" in text
    switch = [attrs["href"] for _, attrs in ParsedPage(text).elements if attrs.get("role") == "switch"]
    assert switch == ["/crcr/pr/7?older=1#timeline"]
    shown = ParsedPage((await browser.get("/crcr/pr/7?older=1")).text)
    assert [href for href in shown.attributes("href") if href.startswith(f"/crcr/commit/{'b' * 40}")]


async def test_passed_and_notified_backends_are_folded_into_one_line(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    names = [f"many/b{number:02d}" for number in range(40)]
    store.allowlist("L1: [listen/only]\nL2:\n" + "".join(f"  - {name}\n" for name in names), version=2)
    delivery = store.pull()
    store.dispatch(delivery, "listen/only", level=1)
    for index, name in enumerate(names):
        store.dispatch(delivery, name)
        store.job(delivery, "failure" if index == 3 else None if index == 4 else "success", downstream=name)
    text = (await browser.get("/crcr/pr/7")).text
    assert len(re.findall(r'<section class="unit"', text)) == 2
    folded = text.partition('<details class="failure folded" id="folded-now">')[2].partition("</details>")[0]
    assert [" ".join(text_of_count.split()) for text_of_count in re.findall(r'"word">([^<]+)<', folded)] == [
        "38 passed",
        "1 notified only (L1)",
    ]
    links = ParsedPage(folded).attributes("href")
    assert {"/crcr/many/b00", "/crcr/listen/only"} <= set(links)
    assert "/crcr/many/b03" not in links
    assert len([link for link in links if "job=" in link]) == 38


async def test_a_few_passed_backends_are_not_folded(store: StoreRows, browser: httpx.AsyncClient) -> None:
    delivery = store.pull()
    store.dispatch(delivery, "good/backend")
    store.job(delivery)
    text = (await browser.get("/crcr/pr/7")).text
    assert '<details class="failure folded" id="folded-now" open>' in text


@pytest.mark.parametrize(("state", "tone"), [("failed", "bad"), ("pending", "wait"), ("passed", "wait")])
async def test_a_merge_group_that_failed_is_red(
    store: StoreRows, browser: httpx.AsyncClient, state: str, tone: str
) -> None:
    store.pull()
    store.group(GROUP)
    store.gate(GROUP, state)
    text = (await browser.get("/crcr/pr/7")).text
    assert f'<section class="note {tone}"><h2>In a merge group' in text


async def test_both_pages_link_to_their_json_and_csv_in_the_footer(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    fill(store)
    for path, api_path in (("/crcr/pr/7", "pulls/7"), (f"/crcr/commit/{HEAD}?delivery=x", f"commits/{HEAD}")):
        foot = (await browser.get(path)).text.partition('<span id="formats">')[2].partition("</span>")[0]
        query = "?delivery=x" if "?" in path else ""
        assert ParsedPage(foot).attributes("href") == [
            f"/api/v1/{api_path}{query}",
            f"/api/v1/{api_path}.csv{query}",
        ]
        for link in ParsedPage(foot).attributes("href"):
            assert (await browser.get(link)).status_code == 200


@pytest.mark.parametrize("digits", [HEAD[:7], HEAD[:12].upper(), HEAD[:39]])
async def test_an_abbreviated_sha_redirects_to_its_commit_or_to_the_search(
    store: StoreRows, browser: httpx.AsyncClient, digits: str
) -> None:
    store.pull()
    answer = await browser.get(f"/crcr/commit/{digits}")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/crcr/commit/{HEAD}")
    store.delivery(event="push", number=None, head_sha=HEAD[:39] + "0")
    answer = await browser.get(f"/crcr/commit/{digits}")
    location = f"/crcr/search?q={digits.lower()}"
    assert (answer.status_code, answer.headers["location"]) == (303, location)


@pytest.mark.parametrize("sha", ["9" * 40, "9" * 39, "9" * 12, "abc", "9" * 41, "g" * 40, "%C3%A4"])
async def test_an_unknown_commit_is_not_found_on_the_page_and_in_the_api(
    store: StoreRows, browser: httpx.AsyncClient, sha: str
) -> None:
    store.pull()
    for path in (f"/crcr/commit/{sha}", f"/api/v1/commits/{sha}", f"/api/v1/commits/{sha}.csv"):
        answer = await browser.get(path, follow_redirects=True)
        assert (answer.status_code, answer.url.path) == (404, httpx.URL(path).path), path


async def test_a_commit_known_only_from_a_push_has_a_page(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.delivery(event="push", number=None, head_sha=PUSHED, ref="refs/heads/main")
    for path in (f"/crcr/commit/{PUSHED}", f"/api/v1/commits/{PUSHED}"):
        assert (await browser.get(path)).status_code == 200
    assert (await browser.get(f"/crcr/commit/{PUSHED[:10]}")).status_code == 303
