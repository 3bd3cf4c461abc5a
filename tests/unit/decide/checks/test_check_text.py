"""Texts of checks; anything that a downstream writes appears in them as text only."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.checks.check_run import MOST_TEXT
from crcr.decide.checks.commit import (
    BackendResults,
    CommitFacts,
    DispatchRun,
    FailedTestExcerpt,
    GrantedWaiver,
    JobResult,
    MergeSubject,
    Verification,
)
from crcr.decide.checks.gate import BackendJudgement, GatePolicy, judge_backend, judge_gate
from crcr.decide.checks.text.check import (
    HudPages,
    Words,
    backend_words,
    gate_words,
    is_link,
    job_words,
    one_line,
)
from crcr.decide.checks.text.markdown import code, fit_items, link, prose, row
from crcr.decide.failures.verdict import Confidence, Evidence, EvidenceKind, Verdict, VerdictKind
from crcr.decide.jobs.log_excerpt import LogExcerpt
from crcr.decide.model import Conclusion, DispatchState, JobState, Level, RepoName
from crcr.decide.views.commit import GateRow, gate_view

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
HUD = "https://hud.example"
PAGES = HudPages(HUD, RepoName("up/stream"))
POLICY = GatePolicy(timedelta(hours=3), timedelta(hours=3), frozenset({VerdictKind.FLAKY}))
NEW = Verdict(
    kind=VerdictKind.NEW,
    confidence=Confidence.HIGH,
    sentence="The base passed 5 times.",
    evidence=(
        Evidence(kind=EvidenceKind.RERUN, text="another run of the same commit"),
        Evidence(kind=EvidenceKind.BASE, text="base passed, 01 Jan 11:00 UTC", sha="b" * 40),
        Evidence(kind=EvidenceKind.PULL, text="#7 failed alike, 01 Jan 10:00 UTC", sha="c" * 40, number=7),
    ),
)
FLAKY = Verdict(
    kind=VerdictKind.FLAKY,
    confidence=Confidence.HIGH,
    sentence="The same commit passed when it was run again.",
)
UNKNOWN = Verdict(
    kind=VerdictKind.UNKNOWN, confidence=Confidence.LOW, sentence="Too little history: 1 passing result."
)
BUILD = AllowlistEntry(
    name=RepoName("org/a"), level=Level.L4, device="npu", oncalls=("ann", "org/team"), jobs=("build",)
)
HOSTILE = [
    "_:_",
    "@pytorch/everyone",
    "a | b | c",
    "a\\| b\\\\|",
    "ends in \\",
    "line\n/crcr waive org/a because me",
    "/crcr approve",
    "` out @ann `",
    "`" * 200 + "@ann",
    "``@ann`` ` ```",
    "<img src=x onerror=alert(1)>",
    "<!-- hidden",
    "--><b>",
    "[click](https://evil.example)",
    "![x](https://evil.example/x.png)",
    "https://evil.example www.evil.example",
    "#123 org/repo#4 GH-5 0123456789abcdef0123456789abcdef01234567",
    "\u202egnp.exe\u2066",
    "a\u2028b\u2029c\x85d\x0be",
    "&#64;ann &lt;b&gt; &vert;",
    "\ud800 lone",
    "| --- |\n| x |",
    "\n\n# heading\n\n- item\n\n```\nfence",
    "~~x~~ **y** _z_ $a$",
    "",
    " ",
    "\x00",
    "left out by `@ann`",
    "`a` @ann `b`",
    "words: @ann",
]


# Builders


def job(name: str = "build", **changes: object) -> JobResult:
    plain = JobResult(
        workflow=".github/workflows/ci.yml",
        workflow_name="ci",
        run_id="7",
        attempt=1,
        name=name,
        state=JobState.COMPLETED,
        conclusion=Conclusion.SUCCESS,
        verification=Verification.CONFIRMED,
        began_at=NOON,
        ended_at=NOON + timedelta(minutes=30),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def failed(name: str = "build", **changes: object) -> JobResult:
    return job(name, **({"conclusion": Conclusion.FAILURE, "verdict": NEW} | changes))


def entry(name: str = "org/a", **changes: object) -> AllowlistEntry:
    plain = AllowlistEntry(
        name=RepoName(name), level=Level.L4, device="npu", oncalls=("ann", "org/team"), jobs=("*",)
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def backend(name: str = "org/a", *jobs: JobResult, **changes: object) -> BackendResults:
    plain = BackendResults(
        name=RepoName(name),
        entry=entry(name),
        level=Level.L4,
        state=DispatchState.SENT,
        created_at=NOON,
        sent_at=NOON,
        jobs=jobs,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def unsent(name: str, state: DispatchState, reason: str | None) -> BackendResults:
    return backend(name, state=state, reason=reason, sent_at=None)


def subject(*backends: BackendResults, number: int | None = 12, **changes: object) -> MergeSubject:
    plain = MergeSubject(number=number, delivery=f"d{number}", received_at=NOON, backends=backends)
    return replace(plain, **changes)  # type: ignore[arg-type]


def waiver(name: str = "org/a", **changes: object) -> GrantedWaiver:
    plain = GrantedWaiver(downstream=RepoName(name), job=None, who="ann", reason="the lab is down", number=12)
    return replace(plain, **changes)  # type: ignore[arg-type]


RUN = DispatchRun(
    run_id="7", workflow=".github/workflows/ci.yml", attempt=1, attempt_at=NOON, first_seen_at=NOON, over=True
)


def view_row(one: BackendResults, public: set[str]) -> GateRow:
    commit = CommitFacts(upstream=RepoName("up/stream"), head_sha="a" * 40, subjects=(subject(one),))
    at = NOON + timedelta(hours=1)
    [gate_row] = gate_view(judge_gate(commit, POLICY, at), public, at, commit.head_sha).subjects[0].rows
    return gate_row


def gate(*subjects: MergeSubject, after: timedelta = timedelta(hours=1)) -> Words:
    commit = CommitFacts(upstream=RepoName("up/stream"), head_sha="a" * 40, subjects=subjects)
    return gate_words(judge_gate(commit, POLICY, NOON + after), commit.head_sha, None, PAGES)


def judge(
    one: BackendResults, *waivers: GrantedWaiver, after: timedelta = timedelta(hours=1)
) -> BackendJudgement:
    return judge_backend(one, waivers, POLICY, NOON + after)


def check_words(one: BackendResults, *waivers: GrantedWaiver) -> Words:
    return backend_words(judge(one, *waivers), PAGES)


def words_of_job(one: JobResult, *waivers: GrantedWaiver) -> Words:
    parts = judge(backend("org/a", one, entry=BUILD), *waivers).parts
    return job_words(backend(), parts[0], one, PAGES)


# Parsing the texts with an independent parser


def tokens(summary: str) -> Iterator[Token]:
    for block in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(summary):
        yield block
        yield from block.children or ()


def texts(summary: str) -> list[str]:
    return [token.content for token in tokens(summary) if token.type == "text"]


def rows(summary: str) -> list[str]:
    return [line for line in summary.splitlines() if line.startswith("| ")]


def columns(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line)) - 1


def assert_inert(summary: str) -> None:
    """Assert that the text is inert: no foreign links, HTML, pictures, mentions, references, commands or odd rows."""
    kinds = {token.type for token in tokens(summary)}
    assert not kinds & {"html_inline", "html_block", "image", "fence", "code_block", "s_open", "em_open"}
    targets = [str(token.attrs["href"]) for token in tokens(summary) if token.type == "link_open"]
    assert all(target.startswith(HUD) for target in targets)
    plain = " ".join(texts(summary))
    assert not re.search(r"[@<]|https?:|www\.|GH-|[0-9a-f]{7}|&#|&lt", plain)
    assert set(re.findall(r"\S*#\d+", plain)) <= {"#12"}
    assert not any(line.lstrip().startswith("/crcr") for line in summary.splitlines())
    assert all(columns(line) == 7 for line in rows(summary))
    assert len([token for token in tokens(summary) if token.type == "tr_open"]) * 7 == len(
        [token for token in tokens(summary) if token.type in {"td_open", "th_open"}]
    )
    summary.encode()


# The gate's title


TITLES = [
    ([], "no gating backend"),
    ([backend("org/a", job())], "1 backend passed"),
    ([backend("org/a", job()), backend("org/b", job()), backend("org/c")], "2 of 3 backends passed, waiting for org/c"),
    ([backend("org/a", failed()), unsent("org/b", DispatchState.PARKED, "gone")], "org/a failed (build; new), org/b is missing"),
    ([backend("org/a", job("x", conclusion=Conclusion.CANCELLED))], "org/a errored (x)"),
    ([backend("org/a", job(conclusion=Conclusion.SKIPPED))], "org/a declined"),
    ([unsent("org/a", DispatchState.HELD, "draft"), backend("org/b")], "org/a is held (draft), waiting for org/b"),
    ([unsent("org/a", DispatchState.LEFT_OUT, "paths")], "1 not affected"),
    ([backend("org/a", failed(verdict=FLAKY), entry=BUILD)], "org/a excused (build; flaky)"),
    ([backend("org/a", failed())], "org/a failed (build), new: the base passed 5 times"),
    ([backend("org/a", failed(verdict=None))], "org/a failed (build)"),
    ([backend("org/a", failed(verdict=UNKNOWN))], "org/a failed (build)"),
    ([backend("org/a", failed(), failed("test"))], "org/a failed (build, test), new"),
    ([backend("org/a", failed(), failed("test", verdict=UNKNOWN))], "org/a failed (build, test), 1 new, 1 unknown"),
    ([backend("org/a", failed("x" * 40), failed("y" * 40))], f"org/a failed ({'x' * 40}, {'y' * 40}), new"),
]  # fmt: skip


@pytest.mark.parametrize(("backends", "title"), TITLES)
def test_the_gate_title_names_the_deciding_backends(backends: list[BackendResults], title: str) -> None:
    assert gate(subject(*backends)).title == title


def test_the_title_of_a_waived_gate_names_who_waived_it() -> None:
    words = gate(subject(backend("org/a", failed()), waivers=(waiver(),)))
    assert words.title == "org/a waived by @ann"


def test_the_title_says_when_the_same_tree_has_passed_and_when_the_push_is_in_doubt() -> None:
    assert gate(subject(reused_from="b" * 40)).title == "the same tree has passed already"
    assert (
        gate(subject(in_doubt=True, reused_from="b" * 40)).title
        == "asking GitHub which push and base are the newest"
    )


@settings(deadline=None)
@given(st.integers(0, 60), st.text(max_size=80))
def test_a_title_is_short_and_one_line(count: int, name: str) -> None:
    backends = [backend(f"{'o' * 30}/{number}", failed(name)) for number in range(count)]
    title = gate(subject(*backends)).title
    assert 0 < len(title) <= 120
    assert title == one_line(title)


def test_a_title_counts_the_items_that_do_not_fit() -> None:
    assert (
        fit_items([f"org/{number} failed" for number in range(50)], 40)
        == "org/0 failed, org/1 failed, and 48 more"
    )
    assert fit_items(["x" * 50], 10) == "x" * 9 + "…"


# The gate's summary


def cells(summary: str, name: str) -> list[str]:
    line = next(line for line in rows(summary) if line.startswith(f"| `{name}`"))
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


EVIDENCE = (
    f"[`base passed, 01 Jan 11:00 UTC` on `hud.example`]({HUD}/crcr/commit/{'b' * 40}?upstream=up/stream), "
    f"[`#7 failed alike, 01 Jan 10:00 UTC` on `hud.example`]({HUD}/crcr/pr/7?upstream=up/stream)"
)


def test_a_failed_backend_shows_reason_and_remedy_and_mentions_nobody() -> None:
    words = gate(subject(backend("org/a", failed())))
    _, standing, why, since, until, todo, oncall = cells(words.summary, "org/a")
    assert (standing, since, until) == ("**failed**", "2026-01-01 12:00 UTC", "")
    assert why == f"`build` failure, new: `the base passed 5 times` ({EVIDENCE})"
    waive = f"`/crcr waive org/a at {'a' * 12} because …`"
    assert todo == f"fix it, `/crcr retry org/a`, or a maintainer can {waive}"
    assert oncall == "`@ann`, `@org/team`"


def test_only_a_failed_gate_offers_and_explains_a_waiver() -> None:
    bad, good = gate(subject(backend("org/a", failed()))), gate(subject(backend("org/a", job())))
    assert "### Waiving" in bad.summary
    assert "### Waiving" not in good.summary
    assert not good.buttons
    (button,) = bad.buttons
    assert (len(button.label) <= 20, len(button.description) <= 40, button.identifier) == (
        True,
        True,
        "waive",
    )


def test_the_first_failed_jobs_are_listed_and_the_others_counted() -> None:
    words = gate(subject(backend("org/a", *(failed(f"job {number:02}") for number in range(10)))))
    why = cells(words.summary, "org/a")[2]
    assert "`job 02`" in why
    assert "`job 03`" not in why
    assert why.endswith("and 7 more")


def test_a_waiting_backend_shows_its_deadline() -> None:
    _, standing, why, _, until, todo, _ = cells(gate(subject(backend())).summary, "org/a")
    assert (standing, until, todo) == ("waiting", "2026-01-01 15:00 UTC", "")
    assert why == "`*` has not reported yet"


WHAT_TO_DO = [
    (unsent("org/a", DispatchState.HELD, "draft"), "ready for review"),
    (unsent("org/a", DispatchState.HELD, "approval"), f"`/crcr approve at {'a' * 12}`"),
    (unsent("org/a", DispatchState.PARKED, "404"), "contact the on-call"),
    (backend("org/a", job(conclusion=Conclusion.TIMED_OUT)), "`/crcr retry org/a`"),
    (backend("org/a", job(conclusion=Conclusion.SKIPPED)), "`may_skip: true`"),
    (
        backend("org/a", job(), entry=entry(jobs=None), readable=False),
        "name its `jobs` literally in the allowlist, or grant Actions: read",
    ),
    (
        backend("org/a", job(), entry=entry(jobs=None), runs=(replace(RUN, on_github=False),)),
        "name its `jobs` literally in the allowlist, or a maintainer",
    ),
    (
        backend("org/a", job(verification=Verification.UNCHECKED), readable=True),
        "the relay queries GitHub again by itself; if this lasts, contact the on-call, or a maintainer can",
    ),
    (
        backend("org/a", failed(), entry=None, possible_renames=(RepoName("org/new"),)),
        "install the App on `org/new` so that GitHub shows its id, push again, or a maintainer can",
    ),
]


@pytest.mark.parametrize(("one", "advice"), WHAT_TO_DO)
def test_each_blocking_state_has_the_same_advice_on_github_and_on_the_pages(
    one: BackendResults, advice: str
) -> None:
    assert advice in cells(gate(subject(one)).summary, "org/a")[5]
    assert advice in (view_row(one, public={"org/a", "org/new"}).advice or "")


def test_a_page_does_not_name_a_hidden_entry_that_a_backend_may_have_been_renamed_to() -> None:
    left = backend("org/a", failed(), entry=None, possible_renames=(RepoName("org/hidden"),))
    gate_row = view_row(left, public={"org/a"})
    assert [part.reason for part in gate_row.parts] == ["checking for a rename"]
    assert gate_row.advice is None


def test_a_waiver_shows_its_author_reason_and_expiry() -> None:
    until = waiver(job="build", until_at=NOON + timedelta(days=3))
    why = cells(gate(subject(backend("org/a", failed()), waivers=(until,))).summary, "org/a")[2]
    assert "`build` waived by `@ann` on #12 because `the lab is down`, until 2026-01-04 12:00 UTC" in why
    why = cells(gate(subject(backend("org/a", failed()), waivers=(waiver(),))).summary, "org/a")[2]
    assert "waived by `@ann` on #12 because `the lab is down`, for this commit on this base only" in why


def test_an_excused_job_shows_its_verdict_and_an_unaffected_backend_the_option() -> None:
    summary = gate(
        subject(
            backend("org/a", failed(verdict=FLAKY), entry=BUILD),
            unsent("org/b", DispatchState.LEFT_OUT, "paths"),
        )
    ).summary
    excuse = "`build` failure, flaky: the same commit passed when it was run again"
    assert cells(summary, "org/a")[1:3] == ["excused", excuse]
    part = view_row(backend("org/a", failed(verdict=FLAKY), entry=BUILD), public={"org/a"}).parts[0]
    assert (part.standing, part.reason) == ("excused", excuse.replace("`", "").removeprefix("build "))
    assert cells(summary, "org/b")[1:3] == ["not affected", "skipped: no changed file matches `paths`"]


def test_backends_that_left_the_gate_or_have_not_joined_yet_are_listed() -> None:
    gone = backend("org/gone", entry=None)
    down = backend("org/down", entry=entry("org/down", level=Level.L3))
    new = backend("org/new", level=Level.L3)
    summary = gate(subject(gone, down, new)).summary
    assert "- `org/gone` has left the allowlist" in summary
    assert "- `org/down` is downgraded to L3; to gate, its allowlist entry must be at L4 again." in summary
    assert "- `org/new` has come to L4 since" in summary


def test_each_pull_request_has_its_own_table_worst_first() -> None:
    fine, group = (
        subject(backend("org/a", job())),
        subject(backend("org/a", failed()), number=None, numbers=(12, 13)),
    )
    summary = gate(fine, group).summary
    assert summary.index("### merge group of #12, #13") < summary.index("### #12")
    assert gate(fine, group).title == "org/a failed (build), new: the base passed 5 times"


def test_the_worst_backends_come_first() -> None:
    names = ["org/a", "org/b", "org/c"]
    summary = gate(subject(backend("org/a", job()), backend("org/b"), backend("org/c", failed()))).summary
    assert sorted(names, key=lambda name: summary.index(f"| `{name}`")) == ["org/c", "org/b", "org/a"]


def test_the_text_does_not_change_with_time_alone() -> None:
    one = subject(backend("org/a", job("x", state=JobState.IN_PROGRESS, conclusion=None)))
    assert gate(one, after=timedelta(minutes=1)) == gate(one, after=timedelta(hours=2))


# Size limits


def test_a_gate_of_hundreds_of_backends_is_cut_between_rows_and_says_so() -> None:
    jobs = tuple(failed(f"å job with a rather long name {number}" * 3) for number in range(300))
    summary = gate(subject(*(backend(f"org/{number}", *jobs) for number in range(500)))).summary
    assert MOST_TEXT * 0.9 < len(summary.encode()) <= MOST_TEXT
    assert all(columns(line) == 7 for line in rows(summary))
    shown = len(rows(summary)) - 2
    assert f"Left out, because a check cannot hold more text: {500 - shown} backends." in summary
    assert summary.endswith("It waives nothing by itself.")


def test_a_backend_of_hundreds_of_jobs_is_cut_too_and_keeps_the_failures() -> None:
    tests = tuple(FailedTestExcerpt(name="t" * 900, file="ü" * 900, message="|" * 1000) for _ in range(1000))
    jobs = [failed(f"{number} " + "|" * 200, failed_tests=tests, failed_tests_cut=5) for number in range(300)]
    words = check_words(backend("org/a", *jobs))
    assert len(words.summary.encode()) <= MOST_TEXT
    assert "### First failures" in words.summary
    assert f"- and {300 * 1005 - 20:,} more" in words.summary
    assert re.search(r"Left out, because a check cannot hold more text: \d+ jobs\.", words.summary)


# A backend's check


BACKEND_TITLES = [
    (backend("org/a", *(job(f"j{number}") for number in range(12))), "passed: 12 jobs"),
    (backend("org/a", failed(), failed("test"), job("x")), "failed: build, test (2 of 3 jobs), new"),
    (backend("org/a", failed()), "failed: build (1 of 1 job), new: the base passed 5 times"),
    (backend("org/a", entry=entry(jobs=None)), "waiting"),
    (unsent("org/a", DispatchState.HELD, "draft"), "held: draft"),
    (unsent("org/a", DispatchState.LEFT_OUT, "paths"), "not affected: no changed file matches paths"),
    (
        backend("org/a", failed(), job("x", state=JobState.IN_PROGRESS, conclusion=None)),
        "failed: build, others still waiting",
    ),
]


@pytest.mark.parametrize(("one", "title"), BACKEND_TITLES)
def test_a_backend_title_shows_its_state(one: BackendResults, title: str) -> None:
    assert check_words(one).title == title


def test_a_waived_backend_names_who_waived_it() -> None:
    words = check_words(backend("org/a", failed()), waiver())
    assert words.title == "waived by @ann: build"
    assert (
        "- Waivers: waived by `@ann` on #12 because `the lab is down`, for this commit on this base only"
        in words.summary
    )


def test_a_backend_summary_lists_jobs_devices_results_and_links() -> None:
    bad = failed(
        device="npu2",
        tests=(10, 2, None),
        verification=Verification.DISPUTED,
        url="https://github.com/org/a/actions/runs/7",
        artifact_url="https://files.example/7?a=1&lt=2",
        failed_tests=(FailedTestExcerpt(name="test_add", file="test/a.py:7", message="boom"),),
    )
    summary = check_words(backend("org/a", job("fine"), bad, entry=entry(hardware="8 x 910B"))).summary
    assert "- Device: `npu`, `npu2`" in summary
    assert "- Hardware: `8 x 910B`" in summary
    assert "- `test_add` in `test/a.py:7`: `boom`" in summary
    name, state, attempt, tests, why, verdict, links = cells(summary, "build")
    assert (name, state, attempt, tests) == ("`build`", "**failed**", "1", "10 passed, 2 failed")
    assert why.startswith("failure; disputed: ")
    assert verdict == f"new: `the base passed 5 times` ({EVIDENCE})"
    assert links == (
        "[run](https://github.com/org/a/actions/runs/7), "
        "[artifact on `files.example`](https://files.example/7?a=1&amp;lt=2)"
    )
    assert summary.index("| `build`") < summary.index("| `fine`")
    assert "On call: `@ann`, `@org/team`" in summary
    assert "(https://hud.example/crcr/org/a)" in summary


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_sentence_or_evidence_stays_text(text: str) -> None:
    evidence = (Evidence(kind=EvidenceKind.PULL, text=text, number=7),)
    bad = failed(verdict=replace(NEW, sentence=text, evidence=evidence))
    assert_inert(gate(subject(backend("org/a", bad))).summary)
    assert_inert(check_words(backend("org/a", bad)).summary)
    assert len(words_of_job(bad).title) <= 120


def test_too_little_history_is_mentioned_in_the_summary_only() -> None:
    words = check_words(backend("org/a", failed(verdict=UNKNOWN)))
    assert cells(words.summary, "build")[5] == "unknown: `too little history: 1 passing result`"
    assert words.title == "failed: build (1 of 1 job)"


def test_a_check_without_a_verdict_does_not_mention_verdicts() -> None:
    failed_backend = backend("org/a", failed(verdict=None))
    assert cells(gate(subject(failed_backend)).summary, "org/a")[2] == "`build` failure"
    assert "verdict" not in check_words(failed_backend).summary.lower()
    assert len(cells(check_words(failed_backend).summary, "build")) == 6


@pytest.mark.parametrize("verification", [Verification.SELF_REPORTED, Verification.NOT_VERIFIABLE])
def test_an_unverifiable_result_is_marked(verification: Verification) -> None:
    words = check_words(backend("org/a", job(verification=verification)))
    assert verification.value in cells(words.summary, "build")[4]


def test_jobs_of_several_workflows_are_prefixed_with_the_workflow_name() -> None:
    summary = check_words(backend("org/a", job(), job(workflow="n.yml", workflow_name="nightly"))).summary
    assert cells(summary, "nightly / build")
    assert cells(summary, "ci / build")


def test_failed_tests_that_were_not_kept_are_counted() -> None:
    test = FailedTestExcerpt(name="test_add", file=None, message=None)
    summary = check_words(backend("org/a", failed(failed_tests=(test,), failed_tests_cut=3))).summary
    assert "- `test_add`\n- and 3 more" in summary


# A job's check


JOB_TITLES = [
    (job(tests=(12, 0, 1)), "success, 12 tests passed"),
    (failed(tests=(12, 1, 1)), "failure, 1 test failed, new: the base passed 5 times"),
    (failed(tests=(12, 1, 1), verdict=UNKNOWN), "failure, 1 test failed"),
    (failed(verdict=FLAKY), "excused: failure, flaky: the same commit passed when it was run again"),
    (
        failed(verdict=replace(FLAKY, confidence=Confidence.MEDIUM)),
        "failure, flaky: the same commit passed when it was run again",
    ),
    (job(verification=Verification.DISPUTED), "success, disputed"),
    (job(state=JobState.IN_PROGRESS, conclusion=None, ended_at=None), "running"),
]


@pytest.mark.parametrize(("one", "title"), JOB_TITLES)
def test_a_job_title_shows_its_result(one: JobResult, title: str) -> None:
    assert words_of_job(one).title == title


def test_a_job_summary_shows_its_times_and_waiver() -> None:
    words = words_of_job(failed(unreported=True), waiver())
    assert words.title == "waived by @ann: failure, unreported, new: the base passed 5 times"
    assert "- Began: 2026-01-01 12:00 UTC, ended: 2026-01-01 12:30 UTC" in words.summary
    assert "- Waiver: waived by `@ann`" in words.summary


def test_a_rerunning_job_is_waiting_and_shows_its_previous_result() -> None:
    rerun = DispatchRun(
        run_id="7", workflow="ci", attempt=1, attempt_at=NOON, first_seen_at=NOON, rerun_from=1, rerun_at=NOON
    )
    words = check_words(backend("org/a", failed(), runs=(rerun,)))
    assert words.title == "waiting"
    assert "runs again after: failure" in words.summary


# Annotations


LOCATIONS = [
    ("test/a.py", ("test/a.py", 1)),
    ("./test/a.py:12", ("test/a.py", 12)),
    ("test/a.py:12:5", ("test/a.py", 12)),
    ("test/a.py:0", ("test/a.py", 1)),
    ("test/a.py:99999999", None),
    ("/etc/passwd", None),
    ("../a.py", None),
    ("a/../../b.py", None),
    ("a//b.py", None),
    ("C:\\a.py", None),
    ("https://evil.example/a.py", None),
    ("a\nb.py", None),
    ("a\u202eb.py", None),
    ("x" * 501, None),
    ("", None),
    (".", None),
    (None, None),
]


@pytest.mark.parametrize(("file", "location"), LOCATIONS)
def test_a_failed_test_is_annotated_at_its_line_if_its_path_is_inside_the_repository(
    file: str | None, location: tuple[str, int] | None
) -> None:
    test = FailedTestExcerpt(name="test\nadd", file=file, message="boom\x1b[0m\n\n at \u202e7")
    annotations = words_of_job(failed(failed_tests=(test,))).annotations
    assert [(annotation.path, annotation.line) for annotation in annotations] == (
        [location] if location else []
    )
    assert all(
        (annotation.title, annotation.message) == ("test add", "boom[0m\nat 7") for annotation in annotations
    )


def test_a_check_has_at_most_fifty_annotations_and_none_for_passed_jobs() -> None:
    tests = tuple(FailedTestExcerpt(name=str(number), file="a.py", message=None) for number in range(90))
    annotations = check_words(backend("org/a", failed(failed_tests=tests))).annotations
    assert len(annotations) == 50
    assert annotations[0].message == "0 failed"
    assert not check_words(backend("org/a", job(failed_tests=tests))).annotations


# Untrusted text


def backend_with_text_everywhere(text: str) -> BackendResults:
    """Return a backend with the text in every field that a downstream or a person can write."""
    test = FailedTestExcerpt(name=text, file=text, message=text)
    one = failed(text, workflow_name=text, device=text, url=text, artifact_url=text, failed_tests=(test,))
    two = job(f"{text}2", workflow="w", workflow_name=text, state=JobState.IN_PROGRESS, conclusion=None)
    return backend("org/a", one, two, entry=entry(hardware=text, oncalls=(text,)))


def every_summary(text: str) -> Iterator[str]:
    one = backend_with_text_everywhere(text)
    parked = unsent("org/p", DispatchState.PARKED, text)
    left_out, held = unsent("org/l", DispatchState.LEFT_OUT, text), unsent("org/h", DispatchState.HELD, text)
    waived = waiver("org/a", reason=text, who=text)
    yield gate(subject(one, parked, left_out, held)).summary
    yield gate(subject(one, waivers=(waived, waiver("org/a", job=text, reason=text)))).summary
    yield gate(subject(reused_from=text)).summary
    for results in (one, parked, left_out, held):
        yield check_words(results).summary
    yield check_words(one, waived).summary
    yield words_of_job(one.jobs[0], waived).summary


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    for summary in every_summary(text):
        assert_inert(summary)


UNTRUSTED_TEXT = st.text(
    st.sampled_from("`|\\<>@#[]()!&;:/*_~-\n\r\t ax1\u202e\u2028\ud800é"), max_size=40
) | st.text(max_size=40)


@settings(max_examples=100, deadline=None)
@given(UNTRUSTED_TEXT)
def test_any_text_stays_text(text: str) -> None:
    for summary in every_summary(text):
        assert_inert(summary)


@given(UNTRUSTED_TEXT)
def test_a_code_span_shows_the_text_and_nothing_else(text: str) -> None:
    inline = [token for token in tokens(f"x {code(text)} y") if token.type != "inline" and token.content]
    assert [token.type for token in inline] == ["text", "code_inline", "text"]
    shown = re.sub("`{4,}", "```", one_line(text)) or "(empty)"
    assert inline[1].content == shown


def test_a_code_span_delimiter_is_no_longer_than_github_accepts() -> None:
    assert code("`" * 200 + "@ann") == "```` ```@ann ````"


@given(st.lists(UNTRUSTED_TEXT, min_size=7, max_size=7))
def test_a_table_row_has_one_cell_per_given_text(given_texts: list[str]) -> None:
    line = row(code(text) for text in given_texts)
    assert columns(line) == 7
    head = f"{row('abcdefg')}\n{row('---' for _ in range(7))}\n"
    shown = [token.content for token in tokens(head + line) if token.type == "code_inline"]
    assert shown == [re.sub("`{4,}", "```", one_line(text)) or "(empty)" for text in given_texts]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("no run has answered yet", "no run has answered yet"),
        ("names no `jobs`, and more", "names no `jobs`, and more"),
        ("could not be delivered: HTTP 404 @ann", "could not be delivered: `HTTP 404 @ann`"),
        ("odd ` tick", "``odd ` tick``"),
        ("see #12", "`see #12`"),
        ("word " * 100, f"`{('word ' * 100)[:199]}…`"),
    ],
)
def test_a_reason_shows_known_phrases_verbatim_and_other_text_as_code(reason: str, shown: str) -> None:
    assert prose(reason) == shown


# Lines and links


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("build (a, b)", "build (a, b)"),
        (" a\r\n\tb ", "a b"),
        ("a\u2028b\u2029c\x85d", "a b c d"),
        ("\u202ea\u2066\u200bb\ufeff", "ab"),
        ("a\x00\x1b\ud800b", "ab"),
        ("\n", ""),
    ],
)
def test_one_line_removes_line_breaks_and_invisible_characters(text: str, line: str) -> None:
    assert one_line(text) == line


@given(UNTRUSTED_TEXT | st.text(st.characters(categories=("C", "Z"))))
def test_one_line_is_a_single_line_without_invisible_characters_and_idempotent(text: str) -> None:
    line = one_line(text)
    assert not {unicodedata.category(character) for character in line} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert " ".join(line.split()) == line
    assert len(line.splitlines()) <= 1
    assert one_line(line) == line
    line.encode()


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/org/a/actions/runs/7/job/8?pr=1#step:2:3",
        "http://127.0.0.1:8000/x",
        "HTTPS://CI.example",
        "https://ci.example/@me/a%20b",
    ],
)
def test_ordinary_urls_are_links(url: str) -> None:
    assert is_link(url)


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "javascript:alert(1)",
        "ftp://a.example",
        "//a.example",
        "https://",
        "https://user:pw@a.example/",
        "https://github.com@evil.example/",
        "https://a.example\\@b.example",
        "https://a.example/a b",
        "https://a.example/)",
        "https://a.example/(",
        'https://a.example/"x"',
        "https://a.example/'x'",
        "https://a.example/<b>",
        "https://a.example/`x`",
        "https://a.example/a|b",
        "https://a.example/[x]",
        "https://a.example/é",
        "https://\uff41.example/",
        "https://a.example/\n",
        "https://a.example/\u202e",
        "https://a.example/" + "x" * 2048,
    ],
)
def test_unsafe_or_malformed_urls_are_no_links(url: str | None) -> None:
    assert not is_link(url)
    assert link("run", url) is None


# Logs


def fences(summary: str) -> list[list[str]]:
    return [token.content.splitlines() for token in tokens(summary) if token.type == "fence"]


def test_a_failed_job_without_failed_tests_shows_its_log() -> None:
    excerpt = LogExcerpt("a.c:3: error: no x", "cc a.c\n  a.c:3: error: no x\nexit 1")
    for summary in (
        check_words(backend("org/a", failed(log_excerpt=excerpt))).summary,
        words_of_job(failed(log_excerpt=excerpt)).summary,
    ):
        assert "- `build`: `a.c:3: error: no x`" in summary
        assert fences(summary) == [["cc a.c", "  a.c:3: error: no x", "exit 1"]]


def test_jobs_that_passed_or_list_failed_tests_show_no_log_tail_in_the_backend_check() -> None:
    tests = (FailedTestExcerpt(name="t", file=None, message="m"),)
    jobs = (
        job("good", log_excerpt=LogExcerpt("e", "never")),
        failed("bad", failed_tests=tests, log_excerpt=LogExcerpt("first", "long")),
    )
    summary = check_words(backend("org/a", *jobs)).summary
    assert "never" not in summary
    assert ("- `bad`: `first`" in summary, fences(summary)) == (True, [])


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_logs_stay_text(text: str) -> None:
    excerpt = LogExcerpt(text or None, f"{text}\n{text}\n````\n    {text}")
    jobs = tuple(failed(f"job {number}", log_excerpt=excerpt) for number in range(4))
    summary = check_words(backend("org/a", *jobs)).summary
    kinds = {token.type for token in tokens(summary)}
    assert not kinds & {"html_inline", "html_block", "image", "s_open", "em_open"}
    assert len(fences(summary)) == 3
    outside = " ".join(texts(summary))
    assert not re.search(r"[@<]|https?:|www\.|GH-|[0-9a-f]{7}|&#|&lt", outside)
    assert not any(
        line.lstrip().startswith("/crcr")
        for line in re.sub(r"(?s)````text\n.*?\n````", "", summary).splitlines()
    )


def test_logs_that_do_not_fit_are_left_out_whole() -> None:
    tail = ["😀" * 300] * 15
    excerpt = LogExcerpt("😀" * 1000, "\n".join(tail))
    jobs = tuple(
        failed(f"{number:03} {'x' * 100}", log_excerpt=excerpt, failed_tests=()) for number in range(400)
    )
    summary = check_words(backend("org/a", *jobs)).summary
    assert len(summary.encode()) <= MOST_TEXT
    assert fences(summary) == [tail, tail]
    assert summary.count("Last lines of") == 2
    assert ": 1 ends of logs, " in summary
