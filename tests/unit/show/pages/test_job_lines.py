"""Jobs as lines: hostile names stay text, and a link leads to its job for names of any length."""

import pytest
from markupsafe import escape

from crcr.decide.model import RepoName
from crcr.decide.statistics.window import Span
from crcr.show.render.job_lines import draw_alike, draw_line, draw_list, draw_marks, draw_names, split_jobs
from crcr.show.render.markup import draw_chip, escape_link, escape_name, escape_text
from crcr.show.render.safe_text import visible
from crcr.show.render.status import Status
from crcr.show.urls.job_tokens import decode_backend_job
from crcr.show.urls.location import PageLinks, PageLocation
from support.data.backend_views import BACKEND, UPSTREAM, a_job_view
from support.page_reader import HOSTILE, ParsedPage, assert_inert

LOCATION = PageLocation((UPSTREAM,), UPSTREAM, Span.WEEK, "/crcr/pr/7", "https://github.com")
LINKS = PageLinks(LOCATION, {"older": "1"}, shared=True)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text_in_every_form_of_a_job(text: str) -> None:
    job = a_job_view(name=text, workflow_name=text, marks=(text,))
    drawn = [
        draw_line(job, LINKS, LOCATION),
        draw_list([job], LINKS),
        draw_names([job], LINKS),
        draw_alike([job], LINKS),
        draw_marks(job),
    ]
    for markup in (*drawn, draw_chip(Status("X", text, "bad"), text)):
        assert_inert(ParsedPage(markup), markup)


@pytest.mark.parametrize("text", ["plain (3.12, cuda)", "a<b>&'\"", "tab\there", "é", "\u202e", "x" * 90, ""])
def test_text_is_escaped_neutralised_and_cut_as_in_a_template(text: str) -> None:
    assert escape_text(text, 60) == str(escape(visible(text, 60))) == escape_name(text, 60)


def test_the_link_to_a_job_with_a_long_name_is_never_cut() -> None:
    long_job = a_job_view(name="n" * 3_000)
    link = LINKS.job(long_job)
    assert link is not None
    assert escape_link(link) in draw_line(long_job, LINKS)
    decoded = decode_backend_job(link.rpartition("job=")[2])
    assert decoded is not None
    assert (decoded[0], decoded[1].job_name) == (RepoName(BACKEND.full_name), "n" * 3_000)
    assert link.startswith("?older=1&range=7d&job=")


def test_passed_jobs_are_separated_from_the_others() -> None:
    passed, failed = a_job_view(name="a"), a_job_view("failure", "b")
    assert split_jobs([passed, failed]) == ([failed], [passed])
