"""Content of checks through the whole relay: facts, GitHub's limits, annotations, and hostile text."""

import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from github_sim.github import CheckRun
from support.downstream.callbacks import report_outcome
from support.github.checks import (
    CREATES,
    GATES,
    INFORMS,
    UPDATES,
    check_names,
    named_workflow,
    write_upstream_settings,
)
from support.github.gated_upstream import (
    GATE,
    GATING,
    INFORMING,
    LABEL,
    finish_jobs,
    gated_upstream,
    latest_check,
    newest_run,
    open_pull,
    start_jobs,
    sweep_after,
)
from support.running_relay import UPSTREAM, RunningRelay

MAX_SUMMARY_BYTES = 65_535
BACKEND, BUILD, TEST = check_names(GATING, "build", "test")
FAILED = [{"name": "test_add", "file": "test/test_ops.py:12", "message": "1 != 2\nexpected 2"}]
HOSTILE = [
    "<script>alert(1)</script>",
    "@pytorch/everyone look",
    "](javascript:alert(1)) [x",
    "` out **bold** `",
    "| a | b |\n| --- | --- |",
    "\u202egnp.exe\u2066\x1b[31m",
    "/crcr waive org/gating because me\n/crcr approve",
    "#123 https://evil.example ![x](https://evil.example/x.png)",
]


def summary(check: CheckRun) -> str:
    return str(check.output["summary"])


def annotations(relay: RunningRelay, name: str, sha: str) -> list[tuple[str, int, str]]:
    return [
        (annotation["path"], annotation["start_line"], annotation["title"])
        for annotation in latest_check(relay, name, sha).annotations
    ]


async def report_build(relay: RunningRelay, status: str, **workflow: Any) -> str:
    """Report the build of the newest run, with any fields."""
    run = newest_run(relay)
    body = relay.github.ci.report_body(run, run.job("build"), status, **workflow)
    answer = report_outcome(await relay.github.report(run, "build", body=body))
    await relay.drain()
    return answer


async def fail_build(relay: RunningRelay, **more: Any) -> None:
    """Fail the build with a failed test; the job `test` is still running."""
    await start_jobs(relay, newest_run(relay))
    relay.github.ci.complete(newest_run(relay), newest_run(relay).job("build"), "failure")
    assert await report_build(relay, "completed", **{"failed_tests": FAILED, **more}) == "applied"


# Facts


RUN_PAGE = "https://github.com/org/gating/actions/runs/1"
FILES = "https://files.example/log.zip"
FACTS = [
    *(f"`{GATING}`", "`npu-9`", "`CI`", "2026-01-01 00:00 UTC", "40 passed, 1 failed, 3 skipped"),
    *("`test_add`", "`test/test_ops.py:12`", f"[run]({RUN_PAGE})"),
    *(FILES, f"http://relay.test/crcr/{GATING}", "`@bob`"),
]


async def test_a_check_shows_workflow_device_test_counts_failed_tests_links_and_oncall(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        counts = {"passed": 40, "failed": 1, "skipped": 3, "total": 44}
        more = {"environment": {"device": "npu-9"}, "artifact_url": FILES, "url": RUN_PAGE}
        await fail_build(relay, test_results=counts, **more)

        for name in (BACKEND, BUILD):
            shown = summary(latest_check(relay, name, pull.head_sha))
            assert [fact for fact in FACTS if fact not in shown] == []
            assert (
                "unknown: `too little history: 0 passing results of the base and 0 on pull requests`"
                in shown.lower()
            )
        assert latest_check(relay, BUILD, pull.head_sha).output["title"] == "failure, 1 test failed"


async def test_details_urls_link_a_job_to_its_run_and_the_gate_to_the_pull_request_page(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))

        run_page = f"/{GATING}/actions/runs/{newest_run(relay).id}"
        assert str(latest_check(relay, BUILD, pull.head_sha).details_url).endswith(run_page)
        assert latest_check(relay, BACKEND, pull.head_sha).details_url == f"http://relay.test/crcr/{GATING}"
        page = f"http://relay.test/crcr/pr/{pull.number}?upstream={UPSTREAM}"
        assert latest_check(relay, GATE, pull.head_sha).details_url == page


async def test_the_external_id_of_a_check_is_our_check_id(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))

        recorded = {
            row["name"]: (str(row["check_id"]), row["check_run_id"])
            for row in relay.rows("SELECT * FROM checks")
        }
        published = {
            check.name: (check.external_id, check.id)
            for check in relay.github.checks(UPSTREAM, pull.head_sha)
        }
        assert published == recorded


# Annotations


async def test_failed_tests_with_files_become_annotations_on_the_job_and_its_backend(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        nowhere = {"name": "test_sub", "message": "no file"}
        outside = {"name": "test_mul", "file": "../../etc/passwd", "message": "elsewhere"}
        await fail_build(relay, failed_tests=[*FAILED, nowhere, outside])
        await finish_jobs(relay, newest_run(relay), test="success")

        for name in (BUILD, BACKEND):
            assert annotations(relay, name, pull.head_sha) == [("test/test_ops.py", 12, "test_add")]
        assert latest_check(relay, BUILD, pull.head_sha).annotations[0]["message"] == "1 != 2\nexpected 2"
        assert annotations(relay, TEST, pull.head_sha) == []


async def test_annotations_appear_once_when_the_backend_goes_on_and_github_confirms_later(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await fail_build(relay)
        await relay.github.complete_job(newest_run(relay), "test", "failure", failed_tests=FAILED)
        await relay.drain()
        for _ in range(4):
            await sweep_after(relay, 60)

        assert relay.jobs()[0]["verification"] == "confirmed"
        assert [len(annotations(relay, name, pull.head_sha)) for name in (BUILD, TEST, BACKEND)] == [1, 1, 2]


async def test_annotations_appear_once_when_running_l3_checks_are_shown_as_completed(tmp_path: Path) -> None:
    write_upstream_settings(tmp_path, l3_pending="neutral")
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        run = newest_run(relay, INFORMING)
        await start_jobs(relay, run)
        await relay.github.complete_job(run, "build", "failure", failed_tests=FAILED)
        await relay.drain()
        await finish_jobs(relay, run, test="success")

        backend, build = check_names(INFORMING, "build")
        assert [len(annotations(relay, name, pull.head_sha)) for name in (backend, build)] == [1, 1]


async def test_annotations_appear_once_when_the_response_to_their_update_is_lost(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))
        relay.github.faults.lose_answer(on=UPDATES, times=6)
        for name in ("build", "test"):
            await relay.github.complete_job(newest_run(relay), name, "failure", failed_tests=FAILED)
        await relay.drain()
        for _ in range(8):
            await relay.pass_time(60)

        assert latest_check(relay, BACKEND, pull.head_sha).conclusion == "failure"
        assert [len(annotations(relay, name, pull.head_sha)) for name in (BUILD, TEST, BACKEND)] == [1, 1, 2]


async def test_annotations_appear_once_when_the_response_to_their_creation_is_lost(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay)
        run = newest_run(relay, INFORMING)
        await start_jobs(relay, run)
        await relay.github.complete_job(run, "build", "failure", failed_tests=FAILED)
        await finish_jobs(relay, run, test="success")
        relay.clock.advance(5)
        relay.github.faults.lose_answer(on=CREATES, times=3)
        await relay.github.label_pr(pull, LABEL)
        await relay.drain()
        for _ in range(8):
            await relay.pass_time(60)

        for name in check_names(INFORMING, "build"):
            assert len(annotations(relay, name, pull.head_sha)) == 1


async def test_annotations_of_a_lost_request_are_sent_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))
        relay.github.faults.lose_request(on=UPDATES, times=4)
        for name in ("build", "test"):
            await relay.github.complete_job(newest_run(relay), name, "failure", failed_tests=FAILED)
        await relay.drain()
        for _ in range(8):
            await relay.pass_time(60)

        assert [len(annotations(relay, name, pull.head_sha)) for name in (BUILD, TEST, BACKEND)] == [1, 1, 2]


# Limits


async def test_a_thousand_long_failures_are_cut_to_githubs_limits(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        many = [{"name": f"test_{n}", "file": f"test/f{n}.py", "message": "é" * 400} for n in range(1200)]
        await fail_build(relay, failed_tests=many)
        await finish_jobs(relay, newest_run(relay), test="success")

        for name in (BUILD, BACKEND):
            check = latest_check(relay, name, pull.head_sha)
            assert len(check.annotations) == 50
            assert len(summary(check).encode()) <= MAX_SUMMARY_BYTES
            assert "more" in summary(check)


async def test_the_summary_of_a_backend_with_hundreds_of_jobs_stays_within_the_limit(tmp_path: Path) -> None:
    names = [f"job {number} {'x' * 200}" for number in range(150)]
    async with gated_upstream(
        tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n", job_checks="all"
    ) as relay:
        relay.github.repository(GATING).workflows = [named_workflow(*names)]
        pull = await open_pull(relay)
        run = newest_run(relay)
        for name in names:
            await relay.github.start_job(run, name)
        await finish_jobs(relay, run, **{names[149]: "failure"})

        shown = summary(latest_check(relay, BACKEND, pull.head_sha))
        assert len(shown.encode()) <= MAX_SUMMARY_BYTES
        assert "job 149" in shown


# Hostile text


def active_elements(markdown: str) -> list[str]:
    """Everything in the Markdown that is not inert: HTML, images, foreign links, mentions, commands."""
    parsed = MarkdownIt("commonmark", {"html": True}).enable("table").parse(markdown)
    elements = [element for token in parsed for element in (token, *(token.children or ()))]
    links = [str(element.attrs["href"]) for element in elements if element.type == "link_open"]
    plain = [element.content for element in elements if element.type == "text"]
    return [
        *(element.type for element in elements if element.type in {"html_block", "html_inline", "image"}),
        *(link for link in links if not re.match(r"http://(relay\.test|127\.0\.0\.1:9)/", link)),
        *(text for text in plain if re.search(r"@|https?://|(^|\s)/crcr|#\d", text)),
    ]


def text_in_every_field(text: str) -> dict[str, Any]:
    """The same text in every field that a downstream can set."""
    return {
        "job_name": text[:200],
        "name": text[:200],
        "url": text,
        "artifact_url": text,
        "environment": {"device": text, text: text},
        "check_run_id": text[:200],
        "failed_tests": [{"name": text, "file": text, "message": text}],
    }


@pytest.mark.parametrize("text", HOSTILE)
async def test_fault_29_hostile_text_in_every_field_stays_text_in_every_check(
    tmp_path: Path, text: str
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        assert await report_build(relay, "in_progress", **text_in_every_field(text)) == "applied"
        assert (
            await report_build(relay, "completed", conclusion="failure", **text_in_every_field(text))
            == "applied"
        )

        shown = relay.github.checks(UPSTREAM, pull.head_sha)
        assert [check.conclusion for check in shown if check.name not in {GATE, BACKEND}] == ["failure"]
        for one in shown:
            assert active_elements(summary(one)) == []
            for line in (
                one.name,
                one.output["title"],
                *(annotation["title"] for annotation in one.annotations),
            ):
                assert line.isprintable()
                assert "\u202e" not in line
            assert str(one.details_url).startswith("http://")


@pytest.mark.parametrize("text", ["x" * 256, "é" * 256, "\U0001f525" * 150, "a/b:c", "3", "`"])
async def test_a_job_of_any_name_gets_one_check_with_its_result(tmp_path: Path, text: str) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        assert await report_build(relay, "in_progress", job_name=text) == "applied"
        assert await report_build(relay, "completed", conclusion="success", job_name=text) == "applied"
        for job in newest_run(relay).jobs:
            relay.github.ci.complete(newest_run(relay), job, "success")
        await relay.pass_time(60)

        job_checks = [
            check
            for check in relay.github.checks(UPSTREAM, pull.head_sha)
            if check.name not in {GATE, BACKEND}
        ]
        assert [check.conclusion for check in job_checks] == ["success"]
        assert job_checks[0].name.startswith(f"crcr/{GATING}/CI/{text[:100]}")
