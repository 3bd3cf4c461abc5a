"""The upstream's own CI on the pages of pull requests, commits and all backends, and as JSON."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from crcr.decide.in_tree.checks import InTreeCheck
from crcr.show.api import routes as api
from crcr.show.pages import routes as pages_routes
from crcr.show.pages.frame import Frame
from support.data.store_rows import OTHER, UPSTREAM, StoreRows

HEAD = f"{7:040x}"


@pytest.fixture
async def browser(store: StoreRows) -> AsyncIterator[httpx.AsyncClient]:
    store.allowlist()
    upstreams = (UPSTREAM, OTHER)
    app = FastAPI()
    app.router.routes += api.routes(store.views, upstreams=upstreams, clock=store.clock)
    app.router.routes += pages_routes.routes(Frame(store.views, upstreams=upstreams, clock=store.clock))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relay") as client:
        yield client


def a_check(name: str, conclusion: str | None = "success", url: str = "https://ci.test/1") -> InTreeCheck:
    return InTreeCheck(15_368, name, 7, None if conclusion is None else 9, conclusion, url)


async def test_a_pull_request_and_a_commit_list_failing_checks_above_the_backends(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.pull()
    store.in_tree(HEAD, a_check("build"), a_check("unit", "timed_out"), a_check("lint", None))
    for path in ("/crcr/pr/7", f"/crcr/commit/{HEAD}"):
        page = (await browser.get(path)).text
        assert page.index('id="in-tree"') < page.index('class="section">Backends')
        assert all(words in page for words in ("1 failed", "1 running", "1 passed", "timed out"))
        assert (
            '<a href="https://ci.test/1" rel="noopener nofollow" referrerpolicy="no-referrer">unit</a>'
            in page
        )
        assert ">build<" not in page


async def test_without_in_tree_checks_pages_and_api_omit_them(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.pull()
    for path in ("/crcr/pr/7", f"/crcr/commit/{HEAD}", "/crcr"):
        assert "In-tree" not in (await browser.get(path)).text
    for path in ("/api/v1/pulls/7", f"/api/v1/commits/{HEAD}", "/api/v1/summary"):
        assert (await browser.get(path)).json()["in_tree"] is None


async def test_many_failing_checks_are_folded(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.pull()
    store.in_tree(HEAD, *(a_check(f"test {number:03}", "failure") for number in range(230)), packed=True)
    page = (await browser.get("/crcr/pr/7")).text
    assert "210 more failing checks" in page
    assert "and 30 more" in page
    assert ("test 199" in page, "test 200" in page) == (True, False)


async def test_the_api_has_counts_and_safe_links(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.pull()
    store.in_tree(HEAD, a_check("build"), a_check("unit", "failure", url="javascript:alert(1)"))
    expected = {
        "passed": 1,
        "failed": 1,
        "running": 0,
        "failing": [{"name": "unit", "url": None, "conclusion": "failure", "on_base": None, "since": None}],
    }
    for path in ("/api/v1/pulls/7", f"/api/v1/commits/{HEAD}"):
        answer = await browser.get(path)
        assert json.dumps(answer.json()["in_tree"]) == json.dumps(expected)  # with the fields in this order


async def test_the_front_page_has_a_card_with_the_trend_of_the_base_branch(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    for number, conclusion in enumerate(("success", "failure", "success", None), 1):
        store.base_commit(f"{number:040x}", number)
        store.in_tree(f"{number:040x}", a_check("build", conclusion))
    page = (await browser.get("/crcr")).text
    assert "oldest first: passed, failed, passed, running" in page
    assert "2 of 3 commits passed" in page
    assert f'href="/crcr/commit/{3:040x}"' in page
    trend = (await browser.get("/api/v1/summary")).json()["in_tree"]
    assert trend["branch"] == "main"
    assert [commit["outcome"] for commit in trend["commits"]] == ["passed", "failed", "passed", "running"]


async def test_the_card_warns_while_the_newest_decided_commit_fails(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.base_commit(HEAD, 1)
    store.in_tree(HEAD, a_check("build", "failure"), a_check("unit", "failure"), a_check("lint"))
    page = (await browser.get("/crcr")).text
    assert '<div class="card alert" data-key="in-tree">' in page
    assert "0 of 1 commit passed" in page


async def test_failing_checks_are_marked_as_new_here_or_also_red_on_the_base(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    for position in (1, 2):
        store.base_commit(f"{position:040x}", position)
        store.in_tree(f"{position:040x}", a_check("lint", "failure"), a_check("unit"), packed=True)
    delivery = store.pull(merge_base=f"{2:040x}")
    store.dispatch(delivery, head_sha=HEAD)
    store.job(delivery, "failure")
    store.failure(delivery, "good/backend", "NotImplementedError: aten::foo")
    store.in_tree(HEAD, a_check("lint", "failure"), a_check("unit", "failure"), a_check("cla", "failure"))
    words = "In-tree CI fails on this commit too: unit, which passed on the base; lint, which also fails on the base;"
    for path in ("/crcr/pr/7", f"/crcr/commit/{HEAD}"):
        page = (await browser.get(path)).text
        assert page.count('<span class="mark bad">new here</span>') == 1
        assert page.count('<span class="mark">also red on the base</span>') == 1
        assert page.index(">unit<") < page.index(">cla<") < page.index(">lint<")
        assert words in page
    for path in ("/api/v1/pulls/7", f"/api/v1/commits/{HEAD}"):
        answer = (await browser.get(path)).json()
        assert {check["name"]: check["on_base"] for check in answer["in_tree"]["failing"]} == {
            "cla": None,
            "lint": "failed",
            "unit": "passed",
        }
        assert [group["in_tree"] for group in answer["groups"]] == [
            f"{words} cla, of which the base has no result."
        ]


async def test_a_base_commit_names_the_first_commit_where_a_check_failed(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    for position, conclusion in enumerate(("success", "failure", "failure"), 1):
        store.base_commit(f"{position:040x}", position)
        store.in_tree(f"{position:040x}", a_check("<b>unit</b>", conclusion), packed=True)
    store.pull(12, is_open=0, merged=1, merge_commit_sha=f"{2:040x}")
    page = (await browser.get(f"/crcr/commit/{3:040x}")).text
    assert (
        f'red since <a class="sha" href="/crcr/commit/{2:040x}">00000000</a>, by <a href="/crcr/pr/12">#12</a>?'
        in page
    )
    assert "<b>unit</b>" not in page
    answer = (await browser.get(f"/api/v1/commits/{3:040x}")).json()
    assert answer["in_tree"]["failing"][0]["since"] == {"sha": f"{2:040x}", "number": 12}
    (culprits,) = (await browser.get(f"/api/v1/culprits?backend={UPSTREAM}")).json()
    assert (culprits["backend"], culprits["job"], culprits["bisection"]) == (
        str(UPSTREAM),
        "<b>unit</b>",
        None,
    )
    assert culprits["range"] == {"good": f"{1:040x}", "bad": f"{2:040x}", "commits": 1}
    assert [candidate["number"] for candidate in culprits["candidates"]] == [12]
