"""The documentation site built from docs/: complete, without dead links, and with the elements that GitHub renders."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from support.deploy.built_site import built_site, site_builder
from support.paths import ROOT

__all__ = ["built_site"]

DOCS = ROOT / "docs"
TASKS = {
    "why a pull request is blocked": ("tasks/blocked-pull-request", "Read the gate"),
    "whom to call about a backend": ("tasks/find-oncall", "on call"),
    "green for the gating backends": ("tasks/is-main-green", "/crcr/failing"),
    "join with GitLab": ("tasks/join-gitlab", "--ci gitlab"),
    "rotate the webhook secret": ("tasks/rotate-webhook-secret", "CRCR_GITHUB_WEBHOOK_SECRET"),
    "add a backend": ("tasks/add-backend", "crcr allowlist check"),
    "promote a backend": ("tasks/promote-backend", "Move the entry"),
    "replay what failed": ("tasks/replay-failed", "crcr effects retry"),
    "upgrade to a new release": ("tasks/upgrade", "crcr migrate"),
    "waive it": ("tasks/waive-failure", "/crcr waive"),
}
"""Each task of the front page: its words, the page that it links to, and a text that the page must contain."""
_COUNTED = {
    "list_item_open": "li",
    "fence": "pre",
    "code_block": "pre",
    "table_open": "table",
    "tr_open": "tr",
}


class Article(HTMLParser):
    """The elements of a page's own text, without navigation."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self._inside = False
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = self._inside or tag == "article"
        if self._inside and tag in _COUNTED.values():
            self.elements[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "article"


def page_of(site: Path, source: Path) -> Path:
    path = source.relative_to(DOCS)
    return site / (path.parent if path.name == "index.md" else path.with_suffix("")) / "index.html"


def test_the_site_has_the_lists_tables_and_code_blocks_that_github_renders(built_site: Path) -> None:
    """The generator uses another Markdown dialect, in which a nested list could become plain text."""
    markdown = MarkdownIt("commonmark").enable("table")
    different = {}
    for source in DOCS.rglob("*.md"):
        tokens = markdown.parse(source.read_text("utf-8"))
        expected = Counter(_COUNTED[token.type] for token in tokens if token.type in _COUNTED)
        if (elements := Article(page_of(built_site, source)).elements) != expected:
            different[str(source.relative_to(DOCS))] = {"docs": expected, "site": elements}
    assert different == {}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_one_click_from_the_front_page(built_site: Path, task: str) -> None:
    address, answer = TASKS[task]
    rows = re.findall(r"<tr>.*?</tr>", (built_site / "index.html").read_text("utf-8"), re.DOTALL)
    [row] = [row for row in rows if task in row]
    assert f'href="{address}/"' in row
    text = re.sub(r"<[^>]+>", "", (built_site / address / "index.html").read_text("utf-8"))
    assert answer in text


def test_every_page_except_the_adrs_is_in_the_navigation() -> None:
    # The configuration has a Python tag for one of the generator's functions, which a safe loader rejects.
    text = re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text("utf-8"))
    listed = set(re.findall(r"[\w/-]+\.md", yaml.safe_dump(yaml.safe_load(text)["nav"])))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name != "adr"}
    assert pages <= listed


def test_the_site_loads_nothing_from_other_hosts_and_has_no_inline_handlers_or_styles(
    built_site: Path,
) -> None:
    pages = list(built_site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        text = page.read_text("utf-8")
        assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=.?(?:https?:)?//", text), page
        assert not re.search(r"<[^>]+\s(?:style|on\w+)=", text), page


def test_the_link_check_finds_dead_links_and_resources_of_other_hosts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text('<h2 id="there">there</h2><a href="..">up</a>')
    (tmp_path / "index.html").write_text(
        '<a href="a/#there">ok</a><a href="a/#gone">1</a><a href="b/">2</a><a href="../../etc/passwd">3</a>'
        '<a href="https://example.org/">ok</a><img src="https://example.org/x.png"><script src="x.js"></script>'
    )
    assert list(site_builder.check_links(tmp_path)) == [
        "index.html: loads https://example.org/x.png",
        "index.html: a/#gone leads nowhere",
        "index.html: b/ leads nowhere",
        "index.html: ../../etc/passwd leads nowhere",
        "index.html: x.js leads nowhere",
    ]


def test_a_link_to_a_missing_file_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Front\n\n[gone](../deploy/gone.yml)\n")
    with pytest.raises(site_builder.SiteError, match=r"\.\./deploy/gone\.yml does not exist"):
        site_builder.SiteSource(tmp_path, tmp_path / "out").write()


def test_linked_files_outside_the_docs_become_part_of_the_site(tmp_path: Path) -> None:
    for name, text in {
        "docs/index.md": "[c](../code.py) [r](../README.md) [f](../deploy)\n\n```\n[no](../link)\n```\n",
        "README.md": "[back](docs/index.md)",
        "code.py": "pass",
        "deploy/a.conf": "a",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    out = tmp_path / "out"
    site_builder.SiteSource(tmp_path, out).write()
    front = (out / "index.md").read_text()
    assert front.startswith("[c](files/code.py.txt) [r](project/README.md) [f](files/deploy/index.md)\n")
    assert "[no](../link)" in front
    assert (out / "project" / "README.md").read_text() == "[back](../index.md)"
    assert "[a.conf](a.conf)" in (out / "files" / "deploy" / "index.md").read_text()
    assert (out / "files" / "code.py.txt").read_text() == "pass"
