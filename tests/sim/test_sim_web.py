import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from github_sim.github import CheckRun, GitHub, PullRequest
from github_sim.web.html import render_markdown

HTML = {"accept": "text/html,application/xhtml+xml"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


class Tags(HTMLParser):
    """Every element and attribute that a browser would parse."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= set(attrs)


async def get_page(api: httpx.AsyncClient, path: str) -> str:
    answer = await api.get(path, headers=HTML)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    return answer.text


def add_check(github: GitHub, sha: str, conclusion: str | None, **more: Any) -> CheckRun:
    number = github.world.next_id("check_run")
    status = "completed" if conclusion else "in_progress"
    fields = {"name": "crcr/gate", "status": status, "conclusion": conclusion, **more}
    check = CheckRun(number, github.repository("org/upstream").id, sha, **fields)
    github.world.check_runs[number] = check
    return check


@pytest.fixture
async def pull(github: GitHub) -> PullRequest:
    github.require_checks("org/upstream", ["crcr/gate"])
    return await github.open_pr("org/upstream", title="Speed up addmm", labels=["ciflow/crcr/npu"])


async def test_the_front_page_shows_the_apps_use_of_the_rate_limit(
    github: GitHub,
    api: httpx.AsyncClient,
    pull: PullRequest,
    token_for: Callable[..., Awaitable[dict[str, str]]],
) -> None:
    assert "The App&#x27;s calls" not in await get_page(api, "/")
    await api.get("/repos/org/upstream", headers=await token_for("org/upstream"))
    until = github.clock.now() + timedelta(hours=1)
    page = await get_page(api, "/")
    assert f"on org in the hour until {until:%H:%M} UTC: 1 of 5,000." in page
    assert "Busiest minute so far: 1 of 900 points." in page


async def test_the_front_page_lists_open_pull_requests_and_says_what_it_is(
    github: GitHub, api: httpx.AsyncClient, pull: PullRequest
) -> None:
    gone = await github.open_pr("org/upstream", title="Withdrawn")
    await github.close_pr(gone)
    page = await get_page(api, "/")
    assert "This is the simulated GitHub" in page
    assert 'href="/org/upstream/pull/1"' in page
    assert "Speed up addmm" in page
    assert "Withdrawn" not in page
    assert "acme/backend" in page
    github.finish()


async def test_a_pull_request_shows_its_newest_checks_and_the_merge_box(
    github: GitHub, api: httpx.AsyncClient, pull: PullRequest
) -> None:
    assert "Merging is blocked: crcr/gate: expected" in await get_page(api, "/org/upstream/pull/1")
    output = {
        "title": "2 of 3 backends",
        "summary": "| backend | state |\n| --- | --- |\n| acme | **late** |",
    }
    add_check(github, pull.head_sha, "failure", output={"title": "old words"})
    add_check(github, pull.head_sha, None, output=output)
    page = await get_page(api, "/org/upstream/pull/1")
    assert "Merging is blocked: crcr/gate: pending" in page
    assert "2 of 3 backends" in page
    assert "old words" not in page
    assert "<td>acme</td>\n<td><strong>late</strong></td>" in page
    assert '<span class="mark wait" title="in_progress">R</span>' in page
    assert pull.head_sha in page
    assert "ciflow/crcr/npu" in page
    add_check(github, pull.head_sha, "success")
    page = await get_page(api, "/org/upstream/pull/1")
    assert "All required checks have passed" in page
    assert '<span class="mark good" title="success">P</span>' in page


async def test_the_page_of_a_closed_pull_request_shows_whether_it_was_merged(
    github: GitHub, api: httpx.AsyncClient, pull: PullRequest
) -> None:
    add_check(github, pull.head_sha, "success")
    await github.merge_pr(pull)
    assert f"Merged as {pull.merge_commit_sha}" in await get_page(api, "/org/upstream/pull/1")
    other = await github.open_pr("org/upstream")
    await github.close_pr(other)
    assert "Closed without merging" in await get_page(api, f"/org/upstream/pull/{other.number}")


async def test_the_merge_queue_has_a_page(github: GitHub, api: httpx.AsyncClient, pull: PullRequest) -> None:
    assert "The merge queue is empty" in await get_page(api, "/org/upstream/queue")
    group = await github.enqueue(pull)
    page = await get_page(api, "/org/upstream/queue")
    assert group.head_sha in page
    assert "Waiting for: crcr/gate: expected" in page
    assert "Number 1 in the" in await get_page(api, "/org/upstream/pull/1")
    add_check(github, pull.head_sha, "success")
    assert "in the merge queue" in await get_page(api, "/")


async def test_comments_are_shown_with_author_and_reactions(
    github: GitHub, api: httpx.AsyncClient, pull: PullRequest
) -> None:
    await github.comment_pr(pull, "/crcr status", author="mira")
    await github.comment_pr(pull, "Noted.", author="helper[bot]", author_type="Bot")
    page = await get_page(api, "/org/upstream/pull/1")
    assert "/crcr status" in page
    assert "<strong>mira</strong>" in page
    assert "helper[bot] (bot)" in page


async def test_a_check_and_a_run_have_pages(
    github: GitHub, api: httpx.AsyncClient, pull: PullRequest
) -> None:
    check = add_check(github, pull.head_sha, "failure", output={"title": "t", "summary": "Why it failed"})
    assert "Why it failed" in await get_page(api, f"/org/upstream/runs/{check.id}")
    run = github.start_run("acme/backend", event="repository_dispatch", event_type="push")
    page = await get_page(api, f"/acme/backend/actions/runs/{run.id}/job/1")
    assert "build (cuda): queued" in page


@pytest.mark.parametrize("path", ["", "/pull/1", "/queue", "/runs/{check}"])
async def test_hostile_text_is_escaped_on_every_page(
    github: GitHub, api: httpx.AsyncClient, path: str
) -> None:
    pull = await github.open_pr(
        "org/upstream", title=HOSTILE, body=HOSTILE, labels=[HOSTILE], author=HOSTILE, head=HOSTILE
    )
    output = {"title": HOSTILE, "summary": f"[{HOSTILE}](javascript:alert(1))\n\n| a |\n| - |\n| {HOSTILE} |"}
    check = add_check(
        github, pull.head_sha, "failure", name=HOSTILE, output=output, details_url="javascript:alert(1)"
    )
    await github.comment_pr(pull, f"```\n{HOSTILE}\n```\n# {HOSTILE}\n- `{HOSTILE}`", author=HOSTILE)
    await github.enqueue(pull)
    page = await get_page(api, f"/org/upstream{path.format(check=check.id)}")
    tags = Tags(page)
    assert "&lt;script&gt;" in page
    assert not tags.names & {"script", "img"}
    assert not [name for name, value in tags.attributes if name.startswith("on")]
    assert not [value for name, value in tags.attributes if (value or "").startswith("javascript:")]


async def test_pages_allow_no_script_and_no_foreign_style(api: httpx.AsyncClient) -> None:
    answer = await api.get("/", headers=HTML)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert '<meta http-equiv="refresh" content="3">' in answer.text
    assert len(re.findall("<style>", answer.text)) == 1


async def test_the_page_of_the_app_lists_its_installations(github: GitHub, api: httpx.AsyncClient) -> None:
    for path in ("/apps/crcr-simulated", "/apps/crcr-simulated/installations/new"):
        page = await get_page(api, path)
        assert '<a href="/acme/backend">acme/backend</a>' in page
        assert "crcr demo-join" in page
    github.finish()


async def test_a_file_has_a_page(github: GitHub, api: httpx.AsyncClient) -> None:
    github.write_file("org/upstream", ".github/list.yml", f"L1:\n  - {HOSTILE}\n")
    repository = github.repository("org/upstream")
    repository.branches["release/1"] = repository.head_sha
    for ref in ("main", "release/1", repository.head_sha):
        page = await get_page(api, f"/org/upstream/blob/{ref}/.github/list.yml")
        assert "<pre>L1:\n  - &lt;script&gt;" in page
        assert not Tags(page).names & {"script", "img"}
    assert "No such file" in await get_page(api, "/org/upstream/blob/main/nowhere.yml")
    github.finish()


async def test_a_browsers_request_for_an_unknown_page_is_not_unexpected(
    github: GitHub, api: httpx.AsyncClient
) -> None:
    assert (await api.get("/no/such", headers=HTML)).status_code == 404
    github.finish()
    assert (await api.get("/no/such")).status_code == 404
    assert github.unexpected == ["unknown route GET /no/such"]
    github.unexpected.clear()


async def test_only_requests_that_accept_html_get_pages(github: GitHub, api: httpx.AsyncClient) -> None:
    assert (await api.get("/org/upstream/queue")).status_code == 404
    assert (await api.get("/favicon.ico")).status_code == 204
    assert (await api.get("/repos/org/upstream", headers=HTML)).json()["full_name"] == "org/upstream"


@pytest.mark.parametrize(
    ("markdown", "made"),
    [
        ("plain <b>", "<p>plain &lt;b&gt;</p>"),
        ("one\ntwo\n\nthree", "<p>one<br>\ntwo</p>\n<p>three</p>"),
        ("# Head\ntext", "<h3>Head</h3>\n<p>text</p>"),
        ("- a\n- `b*`", "<ul>\n<li>a</li>\n<li><code>b*</code></li>\n</ul>"),
        ("```py\n**x**\n```", '<pre><code class="language-py">**x**\n</code></pre>'),
        ("```\nopen", "<pre><code>open</code></pre>"),
        ("[hud](https://hud.test/?a=1&b=2)", '<p><a href="https://hud.test/?a=1&amp;b=2">hud</a></p>'),
        ("[x](javascript:alert)", "<p>[x](javascript:alert)</p>"),
        (r"\*\*not bold\*\* \<i\>", "<p>**not bold** &lt;i&gt;</p>"),
        (
            "| a | b |\n|---|:-:|\n| 1 \\| 2 | 3",
            (
                "<table>\n<thead>\n<tr>\n<th>a</th>\n<th>b</th>\n</tr>\n</thead>\n"
                "<tbody>\n<tr>\n<td>1 | 2</td>\n<td>3</td>\n</tr>\n</tbody>\n</table>"
            ),
        ),
        ("a | b\n---", "<h3>a | b</h3>"),
        ("seen\n\n<!-- our mark -->", "<p>seen</p>"),
        ("![x](https://x.test/a.png)", '<p>!<a href="https://x.test/a.png">x</a></p>'),
        ("[a][b]\n\n[b]: javascript:x", "<p>[a][b]</p>\n<p>[b]: javascript:x</p>"),
        ("not <!-- alone -->", "<p>not &lt;!-- alone --&gt;</p>"),
    ],
)
def test_basic_markdown_is_rendered(markdown: str, made: str) -> None:
    assert render_markdown(markdown) == made + "\n"
