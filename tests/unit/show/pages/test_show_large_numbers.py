"""Large numbers on every page and in command output: counts are `3,999` and rates `92.7%`."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import httpx
import pytest
from sqlalchemy import update
from starlette.applications import Starlette

from crcr.cli.failing.output import OutputFormat, print_failing
from crcr.decide.in_tree.checks import InTreeCheck
from crcr.record.schema import in_tree, statistics
from crcr.show.pages import routes as pages_routes
from crcr.show.pages.frame import Frame
from support.data.base_history import BaseHistory
from support.data.store_rows import UPSTREAM, StoreRows

COUNT = re.compile(r"(?<![\w#./:,=@-])[1-9]\d{3,}(?![\w./:=-])")
"""Four or more digits that are not part of a SHA, an id, a time, a URL or a pull request's number."""
LOOSE_PERCENT = re.compile(r"\d %")
NOT_COUNTS = re.compile(r"attempt \d+|repository id \d+|version \d+|run \d+")
PATHS = (
    "/crcr",
    "/crcr?kind=push",
    "/crcr/metrics",
    "/crcr/good/backend",
    "/crcr/good/backend?kind=push",
    "/crcr/pr/7",
    f"/crcr/commit/{7:040x}",
    "/crcr/failing",
    "/crcr/failures",
    "/crcr/deliveries",
    "/crcr/deliveries?show=effects",
    "/crcr/waivers",
    "/crcr/audit",
    "/crcr/search?q=build",
)


class Texts(HTMLParser):
    """The visible texts of a page, including titles and labels."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._skipped = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipped += tag in {"script", "style", "code", "pre"}
        self.texts += [value for name, value in attrs if name in {"title", "aria-label"} and value]

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag in {"script", "style", "code", "pre"}

    def handle_data(self, data: str) -> None:
        if not self._skipped and data.strip():
            self.texts.append(data)


def find_ungrouped_numbers(texts: list[str]) -> Iterator[str]:
    for text in texts:
        plain = NOT_COUNTS.sub("", text)
        if COUNT.search(plain) or LOOSE_PERCENT.search(plain):
            yield text


def fill(store: StoreRows) -> None:
    """A pull request, pushes and sums in the thousands."""
    store.allowlist()
    delivery = store.pull(7)
    store.dispatch(delivery)
    store.job(
        delivery,
        "failure",
        head_sha=f"{7:040x}",
        tests_passed=41_234,
        tests_failed=2_345,
        tests_skipped=5_678,
        tests_total=49_257,
    )
    base = BaseHistory(store)
    for position in (1, 2):
        base.push(position, hours_ago=10 - position)
    for sha in (f"{7:040x}", base.place(2)):
        store.in_tree(sha, InTreeCheck(1, "lint", 1, 2, "failure", None))
    store.sum_up()
    with store.engine.begin() as connection:
        connection.execute(update(in_tree.in_tree_commits).values(passed=4_812, failed=1_111, running=2_222))
        for table in (statistics.hours, statistics.days, statistics.job_days):
            counts = {"success": 3_999, "failure": 1_234, "superseded": 4_464, "earlier": 1_080}
            sent = {"sent": 7_777} if table is not statistics.job_days else {}
            connection.execute(update(table).values(**counts, **sent))


async def test_no_page_prints_a_count_without_separators(store: StoreRows) -> None:
    fill(store)
    frame = Frame(store.views, upstreams=(UPSTREAM,), clock=store.clock)
    transport = httpx.ASGITransport(Starlette(routes=pages_routes.routes(frame)))
    ungrouped_texts: dict[str, list[str]] = {}
    grouped = set()
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as browser:
        for path in PATHS:
            answer = await browser.get(path)
            assert answer.status_code == 200, path
            texts = Texts(answer.text).texts
            if loose := list(find_ungrouped_numbers(texts)):
                ungrouped_texts[path] = loose
            grouped |= set(re.findall(r"\d,\d{3}", " ".join(texts)))
    assert ungrouped_texts == {}
    assert {"3,999", "1,234", "4,464", "4,812", "1,111", "2,345"} <= grouped


@pytest.mark.parametrize(
    ("text", "is_loose"),
    [
        ("3999 jobs", True),
        ("92.7 %", True),
        ("3,999 jobs, 92.7%", False),
        ("#12345 on 2026-07-01, a1234b, run 987654", False),
    ],
)
def test_the_scan_distinguishes_counts_from_identifiers(text: str, is_loose: bool) -> None:
    assert bool(list(find_ungrouped_numbers([text]))) is is_loose


@pytest.mark.parametrize("form", [OutputFormat.TABLE, OutputFormat.MARKDOWN])
def test_a_table_of_a_command_has_thousands_separators(
    form: OutputFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    item = {
        "backend": "org/one",
        "job": "build",
        "since": "2026-07-01T12:00:00Z",
        "failures_in_a_row": 12_345,
    }
    print_failing([item], form, hud="https://relay.example")
    assert "12,345" in capsys.readouterr().out
