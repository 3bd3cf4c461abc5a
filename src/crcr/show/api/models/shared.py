"""The JSON API's models that several answers share: errors, health, numbers, backends, jobs, dispatches.

Field names are the words of the glossary. Rates are exact, and null where nothing was decided. Links that are not
http(s) are left out; all other text is as it was sent, and must be treated as text.
"""

from pydantic import ConfigDict, Field, computed_field

from crcr.decide.allowlist.entries import AllowlistProblem
from crcr.decide.github.commit_origin import CommitPlace as CommitPlaceValue
from crcr.decide.health.relay import HealthState, Reason
from crcr.decide.statistics import figures
from crcr.decide.views import attention, failures, in_tree
from crcr.decide.views import overview as views
from crcr.decide.views.backend import JobKey
from crcr.show.api.models import examples
from crcr.show.api.models.derive import Link, Model, Next, derive_model
from crcr.show.urls.job_tokens import encode_job_token


class ErrorDetail(Model):
    code: str = Field(description="Stable; see the table of errors in the protocol.")
    detail: str
    hint: str | None = None
    request_id: str | None = None


class ErrorBody(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [examples.ERROR]})

    ok: bool = False
    error: ErrorDetail


PROBLEM = derive_model(AllowlistProblem, "Problem", types={"severity": str})
ALLOWLIST_STATE = derive_model(
    views.AllowlistState,
    "AllowlistState",
    "The version in force; `problems` are those of the newest version if that one was rejected.",
)
LAST_RESULT = derive_model(figures.LastResult, "LastResult")
PROBE = derive_model(
    views.Probe,
    "Probe",
    "A repository that tests the relay itself; `stale` when it has stopped reporting.",
)
HEALTH_REASON = derive_model(
    Reason,
    "HealthReason",
    "Why the relay is not green, in one sentence; fields that do not apply to its code are null.",
    described={"until": "When the limit that holds the effects back ends."},
)
HEALTH = derive_model(
    views.RelayHealth,
    "Health",
    types={"state": (HealthState, HealthState.GREEN), "reasons": (list[HEALTH_REASON], [])},  # type: ignore[valid-type]
    described={
        "state": "Amber: something waits or needs attention. Red: gates cannot be published, or nothing is delivered.",
        "reasons": "The most serious first; empty when green.",
        "lag_s": "Age of the oldest effect that is due and not done.",
        "installed": "Whether the App's installation on the upstream is recorded.",
    },
)
TALLY = derive_model(
    figures.Tally,
    "Tally",
    "`pass_rate` is success / decided, and null where nothing was decided; failures include `timed_out`.",
    properties=("pass_rate", "decided", "total"),
)
LEFT_OUT = derive_model(
    figures.LeftOut,
    "LeftOut",
    "Results of the same window that do not count: of superseded commits or runs, and earlier attempts.",
)
TIMES = derive_model(
    figures.Durations,
    "Times",
    "Seconds, over the `known` jobs whose time is known; P50 and P95 of fewer than 20 are exact, else to their bucket.",
    only=("known",),
    properties=("average_s", "p50_s", "p95_s"),
)
STRIP_PART = derive_model(
    figures.Part, "StripPart", "One part of the window, from `at` on.", only=("at", "tally")
)
PART = derive_model(
    figures.Part,
    "Part",
    base=STRIP_PART,
    only=("queue", "execution", "sent"),
    properties=("average_delay_s",),
)
_SUMS = ("tally", "queue", "execution", "sent", "average_delay_s")
FIGURES = derive_model(
    figures.Figures,
    "Figures",
    "The numbers of a window; `sent` are dispatches, `average_delay_s` is from arrival to sending.",
    without=("running",),
    properties=_SUMS,
    types={"parts": list[STRIP_PART]},  # type: ignore[valid-type]
    described={"parts": "Oldest first."},
)
TREND = derive_model(
    figures.Figures,
    "Trend",
    "The numbers of a window and of each of its parts.",
    base=FIGURES,
    only=("parts",),
    types={"parts": list[PART]},  # type: ignore[valid-type]
    described={"parts": "Oldest first."},
)
BACKEND = derive_model(
    views.BackendSummary,
    "Backend",
    "`figures` is null where results are not recorded (L1) or not shown (`name_only`).",
    described={
        "never_reported": "It should report, and no report of it has ever arrived.",
        "demotion": "By its level standing: `silent` (no checks) at L3; `alarmed` or `downgraded` at L4; else null.",
        "probe": "It tests the relay itself; its results do not count in totals.",
        "hidden": "Shown to administrators only.",
    },
)
IN_TREE_COMMIT = derive_model(in_tree.InTreeCommit, "InTreeCommit", properties=("outcome",))
IN_TREE_TREND = derive_model(
    in_tree.InTreeTrend,
    "InTreeTrend",
    "The upstream's own CI on the newest commits of its default branch, the newest last.",
)
ATTENTION_ITEM = derive_model(
    attention.AttentionItem,
    "AttentionItem",
    "One thing that needs attention; fields that do not apply to its kind are null.",
    described={
        "oncalls": "Whom to call; empty where nobody is named.",
        "number": "The pull request.",
        "sha": "The newest commit of the base branch whose in-tree checks fail.",
    },
)
ATTENTION = derive_model(
    attention.Attention,
    "Attention",
    "What needs attention now, the most urgent first, whatever the kind, the range and the filters.",
    described={
        "blocked_pulls": "All open pull requests whose gate failed; the worst of them are items.",
        "more_backends": "Backends that turned red or silent in 24 hours, beyond the listed ones.",
        "branch": "The base branch; null where it is not known, so that nothing is said about it.",
    },
)
SUMMARY = derive_model(
    views.Summary,
    "Summary",
    "`tally` covers all backends shown except the probes; `cursor` is the position for live updates.",
    without=("levels", "rows"),
    properties=("tally", "backends"),
    types={"matching": (int, 0), "next": (Next, None)},
    described={
        "ingests": "Whether another relay sends results.",
        "matching": "How many backends match the filters, on all pages.",
        "in_tree": "Null where no check of the upstream's own CI was recorded on its default branch.",
    },
    example=examples.SUMMARY,
)
EVIDENCE = derive_model(failures.EvidenceView, "Evidence", "`url` is a page of this relay.")
VERDICT = derive_model(
    failures.VerdictView,
    "Verdict",
    "What a failure means; see `docs/verdicts.md` for the rules.",
    described={
        "by": "`person` where a maintainer contradicts the rules.",
        "was": "The rules' verdict before it changed; null where it did not.",
    },
    example=examples.VERDICT,
)
TEST_VERDICT = derive_model(failures.TestVerdict, "TestVerdict")
FAILED_TEST = derive_model(failures.FailedTestView, "FailedTest")
_KEY = ("delivery", "workflow", "run_id", "attempt", "job_name")


class WithJobToken(Model):
    @computed_field(
        description="For `/backends/{org}/{repo}/jobs/{token}`; null if the names are too long for an address."
    )
    def token(self) -> str | None:
        return encode_job_token(JobKey(**{name: getattr(self, name) for name in _KEY})) or None


JOB = derive_model(
    views.JobView,
    "Job",
    "`counted` is what it counts as; `ended` is its category in the sums, null while it runs and for a test.",
    base=WithJobToken,
    without=("swept_at", "failed_tests", "failed_tests_more", "first_error", "verdict"),
    properties=("counted",),
    types={"url": Link, "artifact_url": Link},
    described={"expected": "The outcome that counts as a pass, where one is expected."},
)
JUDGED_JOB = derive_model(
    views.JobView,
    "JudgedJob",
    base=JOB,
    only=("verdict",),
    described={"verdict": "Null for a job that did not fail."},
)
FAILED_JOB = derive_model(
    views.JobView,
    "FailedJob",
    base=JUDGED_JOB,
    only=("failed_tests", "failed_tests_more", "first_error"),
    described={
        "failed_tests_more": "Failed tests beyond the ones listed.",
        "first_error": "The first error line of its log, masked; null where its report has none.",
    },
)
COMMIT_PLACE = derive_model(
    CommitPlaceValue,
    "CommitPlace",
    "Whether a commit belongs to the upstream; `branch` is the first of its branches that has it.",
)
DISPATCH = derive_model(
    views.DispatchView,
    "Dispatch",
    without=("delivery", "event", "action", "number", "head_sha", "jobs"),
    described={"trimmed": "What was cut from the payload because it was too large, as in `relay.trimmed`."},
)
