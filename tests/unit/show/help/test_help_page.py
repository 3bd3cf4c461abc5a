"""`/crcr/help` and docs/help.md: one text, with the levels, letters and states of the code."""

import re

import pytest

from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.model import JobMark
from crcr.docs import HELP_TEMPLATE, help_html
from crcr.show.render import status
from support.data.store_rows import StoreRows
from support.paths import ROOT
from support.reader_client import reader_client
from test_docs import names, section, table

DOCS = ROOT / "docs"
HELP = DOCS / "help.md"
TEMPLATES = ROOT / "src" / "crcr" / "show" / "templates"


def column(title: str, number: int) -> list[str]:
    return [row[number] for row in table(section(HELP, title))]


def test_the_help_names_the_levels_letters_verdicts_and_gate_states_of_the_code() -> None:
    levels = sorted(status.LEVELS.items())
    assert list(zip(column("Levels", 0), column("Levels", 1), strict=True)) == [
        (level.name, word) for level, word in levels
    ]
    for title, legend in (
        ("Letters of a job", status.LEGEND.jobs),
        ("Letters of an event", status.LEGEND.events),
    ):
        letters = [names(cell)[0] for cell in column(title, 0)]
        assert list(zip(letters, column(title, 1), strict=True)) == [
            (entry.letter, entry.word) for entry in legend
        ]
    assert column("Verdicts", 0) == list(VerdictKind)
    gate = [names(cell)[0] for cell in column("Gate", 0)]
    assert list(zip(gate, column("Gate", 1), strict=True)) == [
        (entry.letter, entry.word) for entry in status.GATE_STATUSES.values()
    ]
    assert set(JobMark) <= set(column("Marks", 0))


def test_the_help_page_has_the_text_of_the_docs() -> None:
    assert HELP_TEMPLATE.read_text("utf-8") == help_html(DOCS)


def test_each_table_of_the_help_is_in_a_labelled_region() -> None:
    text = HELP_TEMPLATE.read_text("utf-8")
    frames = re.findall(r'role="region" aria-label="([^"]+)">\n<table>.*?</table>\n</div>', text, re.DOTALL)
    pages = "\n".join((DOCS / name).read_text("utf-8") for name in ("help.md", "glossary.md"))
    tables = re.findall(r"^\|[ :|-]+\|$", pages, re.MULTILINE)
    assert len(frames) == len(set(frames)) == text.count("<table>") == text.count("</div>") == len(tables)
    assert len(tables) > 5


def test_links_to_the_help_lead_to_existing_sections() -> None:
    sections = set(re.findall(r'<h[12] id="([^"]+)"', HELP_TEMPLATE.read_text("utf-8")))
    used = {
        anchor
        for template in TEMPLATES.glob("*.html")
        for anchor in re.findall(r"help_link\(location, '([^']+)'\)", template.read_text("utf-8"))
    }
    assert used >= {"levels", "gate", "verdicts", "probes"}
    assert used <= sections


def test_links_of_the_help_lead_to_existing_pages_of_the_docs() -> None:
    text = HELP_TEMPLATE.read_text("utf-8")
    links = re.findall(r'href="([^"]+)"', text)
    pages = [link.partition("#")[0].removeprefix("/docs/").rstrip("/") for link in links if link[0] == "/"]
    assert len(pages) > 5
    assert [page for page in pages if not (DOCS / f"{page}.md").is_file()] == []
    sections = {link[1:] for link in links if link[0] == "#"}
    assert {"glossary", "gate"} <= sections <= set(re.findall(r' id="([^"]+)"', text))


@pytest.mark.parametrize("query", ["", "?upstream=other/upstream"])
async def test_the_help_page_has_no_inline_scripts(store: StoreRows, query: str) -> None:
    async with reader_client(store) as http:
        page = await http.get(f"/crcr/help{query}")
    assert page.status_code == 200
    assert 'id="gate"' in page.text
    assert 'id="glossary"' in page.text
    assert "script-src 'self';" in page.headers["content-security-policy"]
    assert not re.search(r"<script(?![^>]* src=)", page.text)
    assert 'href="/docs/"' in page.text
