"""Links to a job's details: a round trip for any name, and no job for a foreign token."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.model import RepoName
from crcr.decide.statistics.window import Span
from crcr.decide.views.backend import JobKey
from crcr.show.urls.job_tokens import decode_backend_job, decode_job_key, encode_job_token, job_key
from crcr.show.urls.location import PageLinks, PageLocation
from support.data.backend_views import a_job_view

KEY = JobKey(delivery="d-1", workflow=".github/workflows/ci.yml", run_id="10", attempt=2, job_name="build")
BACKEND = RepoName("Good/Backend")
NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=80)
UPSTREAMS = (RepoName("up/one"), RepoName("up/two"))
LOCATION = PageLocation(UPSTREAMS, UPSTREAMS[1], Span.WEEK, "/crcr/good/backend", "https://github.com")


@given(NAMES, NAMES, NAMES, st.integers(1, 10_000), NAMES)
def test_a_token_leads_back_to_its_job(delivery: str, path: str, run: str, attempt: int, name: str) -> None:
    key = JobKey(delivery=delivery, workflow=path, run_id=run, attempt=attempt, job_name=name)
    token = encode_job_token(key)
    assert decode_job_key(token) == key
    assert set(token) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert decode_backend_job(token) is None
    shared = encode_job_token(key, BACKEND)
    assert decode_backend_job(shared) == (BACKEND, key)
    assert decode_job_key(shared) == key


def encode_raw_token(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


GOOD = ["d-1", "ci.yml", "10", 1, "build"]


@pytest.mark.parametrize(
    "text",
    [
        *(
            None,
            "",
            "nonsense",
            "%00",
            "=" * 50,
            "x" * 20_000,
            "ÿ☃",
            encode_raw_token({}),
            encode_raw_token([]),
            encode_raw_token("text"),
        ),
        *(
            encode_raw_token(GOOD[:4]),
            encode_raw_token([*GOOD, "o/r", "more"]),
            encode_raw_token([*GOOD, "no repository"]),
            encode_raw_token([*GOOD, 5]),
        ),
        *(
            encode_raw_token([*GOOD[:3], "1", "build"]),
            encode_raw_token([*GOOD[:3], 0, "build"]),
            encode_raw_token([*GOOD[:3], 2**40, "build"]),
        ),
        *(
            encode_raw_token([*GOOD[:3], True, "build"]),
            encode_raw_token([1, *GOOD[1:]]),
            encode_raw_token([*GOOD[:4], "nul\0"]),
        ),
        *(
            encode_raw_token([*GOOD[:4], ["build"]]),
            encode_raw_token([*GOOD[:4], "\ud800"]),
            encode_raw_token([None] * 5),
        ),
    ],
)
def test_a_foreign_token_is_no_job(text: str | None) -> None:
    assert decode_job_key(text) is None
    assert decode_backend_job(text) is None


@given(st.text(max_size=200))
def test_any_text_decodes_to_a_job_or_none(text: str) -> None:
    assert decode_job_key(text) is None or isinstance(decode_job_key(text), JobKey)


def test_a_job_with_a_name_of_100_000_characters_has_no_link() -> None:
    assert encode_job_token(replace(KEY, job_name="x" * 100_000)) == ""
    assert PageLinks(LOCATION, {}).job(a_job_view(name="x" * 100_000)) is None


def test_the_key_of_a_job_view_has_its_run_attempt_and_name() -> None:
    job = a_job_view(name="build", delivery="d-1", run_id="10", attempt=2)
    assert job_key(job) == KEY


def test_links_keep_the_filters() -> None:
    links = PageLinks(LOCATION, {"jobs": "a&b", "after": "xyz"})
    kept = "upstream=up/two&range=7d"
    assert links.url(older="1") == f"/crcr/good/backend?jobs=a%26b&after=xyz&older=1&{kept}"
    assert links.url(jobs=None, after=None) == f"/crcr/good/backend?{kept}"
    assert links.query_prefix("job") == f"?jobs=a%26b&after=xyz&{kept}&job="
    assert links.fields("q", "jobs") == (("upstream", "up/two"), ("range", "7d"))
    assert (
        PageLinks(replace(LOCATION, upstream=UPSTREAMS[0], span=Span.FORTNIGHT), {}).query_prefix("job")
        == "?job="
    )


def test_a_job_link_of_a_shared_page_names_the_backend() -> None:
    job = a_job_view()
    link = PageLinks(LOCATION, {}, shared=True).job(job)
    assert link is not None
    token = link.partition("job=")[2].partition("&")[0]
    assert decode_backend_job(token) == (BACKEND, job_key(job))
