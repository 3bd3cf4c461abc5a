"""The JSON API's models of pull requests, commits, groups of failures, waivers, failing jobs, culprits and bisections."""

from crcr.decide.culprits.ranking import CulpritCandidate
from crcr.decide.health.texts import GatePublication
from crcr.decide.notices import announcements
from crcr.decide.views import bisections, culprits, failing, failures, in_tree
from crcr.decide.views import commit as views
from crcr.show.api.models import examples
from crcr.show.api.models.derive import Link, Model, Next, derive_model
from crcr.show.api.models.shared import FAILED_JOB, WithJobToken

GATE_PART = derive_model(views.GatePart, "GatePart")
GATE_ROW = derive_model(
    views.GateRow,
    "GateRow",
    "One backend that counts; `parts` are its jobs that did not pass, worst first.",
)
GATE_SUBJECT = derive_model(
    views.GateSubject,
    "GateSubject",
    "A pull request, or with `number` null a merge group of `numbers`, whose head is the commit.",
)
UNPUBLISHED_GATE = derive_model(
    GatePublication,
    "UnpublishedGate",
    "A gate whose decision is not on GitHub yet: `text` says since when and why.",
    without=("at",),
    properties=("text",),
    described={
        "decided_at": "When the deciding facts were recorded.",
        "due_at": "When publishing it is tried next.",
        "parked": "Publishing failed for good; an administrator can retry it.",
    },
)
GATE = derive_model(
    views.GateView,
    "Gate",
    "`whole` is false, and `title` null, when the gate includes backends that are not shown.",
    described={
        "unpublished": "Null when the gate on GitHub is up to date.",
        "decided_at": "When it came to this state; null where that is not recorded.",
    },
)
SPELL = derive_model(
    views.Spell,
    "Spell",
    "When a backend's jobs ran; `ended_at` is null while one is running.",
    described={"failed_at": "When the first of them failed."},
)
COMMIT_BACKEND = derive_model(
    views.CommitBackend,
    "CommitBackend",
    "`level` is that of the dispatch; `jobs` are those that count, failed first.",
    types={"jobs": list[FAILED_JOB]},  # type: ignore[valid-type]
    described={
        "dispatch": "Null for a run that was not dispatched, such as a nightly one; `delivery` is then the commit.",
        "verdict": "`missing` where an expected result has not come in time; its jobs have verdicts of their own.",
    },
)
KNOWN_FAILURE = derive_model(
    failures.KnownFailureView,
    "KnownFailure",
    "The issue that a maintainer linked the failure to, until then.",
    without=("reason",),
)
SEEN_AT = derive_model(
    failures.SeenAt,
    "SeenAt",
    "Where a failure was recorded; `number` is null for a push or a night.",
)
COMMIT_GROUP = derive_model(
    failures.CommitGroup,
    "FailureGroup",
    "Failures with the same fingerprint; `backends` and `jobs` are those of this commit.",
    without=("members",),
    described={
        "sample": "The first line of one of their messages, as it was reported.",
        "is_first_here": "Nobody failed alike before.",
        "on_base": "How often it failed on the base branch in the last 7 days.",
        "known": "Null unless a maintainer linked it to an issue.",
        "in_tree": "Whether the upstream's own CI fails on this commit too, and on the base; null where that is not known.",
    },
)
FAILING_JOB = derive_model(
    failing.FailingJob,
    "FailingJob",
    "A job that failed on the newest commits of the base branch, or in the newest nights, without a pass since.",
    without=("first_delivery", "last_delivery", "good_delivery"),
    described={
        "since": "When it first failed in the row.",
        "failures_in_a_row": "Commits, or nights, each counted once.",
        "first_bad": "The oldest commit of the row; null where a night named none.",
        "last_good": "The newest commit before the row where it passed; null where no pass is recorded.",
        "fingerprint": "Of the newest failure; null where it reported no failed test.",
        "known": "Null unless a maintainer linked the newest failure to an issue.",
        "sample": "The first line of one of the newest failure's messages, as it was reported.",
        "last_bad": "The newest commit of the row.",
    },
)
FAILING = derive_model(
    failing.FailingPage,
    "FailingJobs",
    without=("cursor", "branch"),
    types={"next": Next},
    example=examples.FAILING,
)
CULPRIT_CANDIDATE = derive_model(
    CulpritCandidate,
    "CulpritCandidate",
    "A change that may have broken the job.",
    without=("title",),
    described={
        "sha": "Its last commit in the range.",
        "number": "Its pull request; null for a commit that names none.",
        "score": "Its share of all candidates, from 0 to 1.",
        "reasons": "What speaks for it, then what speaks against it, each with the weightiest first.",
    },
)
CULPRIT_RANGE = derive_model(
    culprits.CulpritRange,
    "CulpritRange",
    "The commits after `good`, up to `bad`, in the order of the base branch.",
    described={
        "good": "The newest tested commit without the failure; null where none is recorded.",
        "bad": "The first commit that surely has it.",
        "commits": "How many commits these are; null without `good`.",
    },
)
JOB_CULPRITS = derive_model(
    culprits.JobCulprits,
    "JobCulprits",
    "One breakage of a job, or of an in-tree check, on the base branch.",
    without=("workflow", "fingerprints", "since", "may_bisect"),
    described={
        "backend": "The upstream itself for an in-tree check.",
        "job": "Or the name of an in-tree check.",
        "candidates": "The likeliest first, at most 50; without a recorded pass only those with evidence for them.",
        "bisection": "Null where no bisection was started.",
    },
    example=examples.JOB_CULPRITS,
)
BISECTION_COMMIT = derive_model(
    bisections.BisectionCommit,
    "BisectionCommit",
    "A commit of the range.",
    described={
        "number": "Its pull request; null for a commit that names none.",
        "finding": "What its runs say together; `open` while another run is needed, null where it was not tested.",
        "is_candidate": "Whether it may still be the one that broke the job.",
    },
)
BISECTION_RUN = derive_model(
    bisections.BisectionRun,
    "BisectionRun",
    "A test of one commit.",
    types={"url": Link},
    described={
        "delivery": "The `delivery_id` that its reports name.",
        "result": "Null while it runs; `failed_otherwise` where it failed without showing the failure that is looked for.",
        "sample": "The first line of a failure's message, as it was reported.",
        "url": "The job's own page.",
    },
)
BISECTION = derive_model(
    bisections.BisectionView,
    "Bisection",
    "A search for the commit that broke a job, by testing commits on the backend.",
    properties=("sentence",),
    described={
        "outcome": "How it ended; null while it runs.",
        "reason": "Why it ended, where the outcome does not say it.",
        "good": "The good end of the range that it began with.",
        "bad": "The bad end of that range.",
        "commits": "How many commits after `good`, up to `bad`, there were.",
        "left": "How many of them may still be the one.",
        "left_good": "The culprit is after this commit.",
        "left_bad": "The culprit is this commit or one before it.",
        "culprit": "The commit that broke the job; null until it is found.",
        "runs": "How many runs were sent.",
        "most_runs": "How many runs are sent at most.",
        "flake_rate": "The share of the job's results that fail by chance, from which follows how often a failure is repeated.",
        "who": "Who began it; `crcr` for one that the relay began by itself.",
        "ends_at": "When it ends without a result.",
        "sentence": "Where it stands, or what it found.",
    },
    example=examples.BISECTION,
)
BISECTIONS = derive_model(
    bisections.BisectionPage,
    "Bisections",
    "Bisections, newest first.",
    without=("change",),
    types={"next": Next},
    example=examples.BISECTIONS,
)
BISECTION_DETAIL = derive_model(
    bisections.BisectionDetail,
    "BisectionDetail",
    "One bisection with the commits of its range, the good end first, and its runs in the order in which they were sent.",
    without=("change",),
    example=examples.BISECTION_DETAIL,
)
CULPRIT_BISECTION = derive_model(
    bisections.CulpritBisection,
    "CulpritBisection",
    "A bisection that found a commit to be the one that broke a job.",
)
OPEN_GROUP = derive_model(
    failures.OpenGroup,
    "OpenFailureGroup",
    "Failures with the same fingerprint over all commits.",
    types={"first_seen": SEEN_AT, "last_seen": SEEN_AT, "known": KNOWN_FAILURE | None},
    described={
        "sample": "The first line of one of their messages, as it was reported.",
        "jobs": "`owner/repo:job`, of its newest 50 failures.",
        "backends": "The one that failed last first.",
        "count": "How often it failed, deleted results included.",
        "known": "Null unless a maintainer linked it to an issue.",
    },
)
FAILURES = derive_model(
    failures.FailurePage,
    "Failures",
    "Groups that failed in the last 14 days and since their issue was closed, those that failed last first.",
    without=("cursor",),
    types={"next": Next},
    example=examples.FAILURES,
)
GROUP_MEMBER = derive_model(
    failures.GroupMember,
    "GroupMember",
    base=WithJobToken,
    described={"passed_at": "When the same job passed on the same commit; null where it did not."},
)
GROUP = derive_model(
    failures.GroupPage,
    "FailureGroupPage",
    "One group with its failures, newest first.",
    without=("cursor",),
    types={"next": Next},
    described={"is_open": "Whether the list of failures has it."},
    example=examples.FAILURE_GROUP,
)
WAIVER = derive_model(views.WaiverView, "Waiver")
WAIVERS = derive_model(views.WaiverPage, "Waivers", without=("cursor",), types={"next": Next})
CHECK = derive_model(views.CheckView, "Check")
STATE_COUNT = derive_model(views.StateCount, "StateCount")
ARRIVAL = derive_model(
    views.Arrival,
    "Arrival",
    "A delivery on the timeline, with the number of its dispatches by state.",
)
MOMENT = derive_model(
    views.Moment,
    "Moment",
    "One line of the timeline; fields that do not apply to its kind are null.",
    described={
        "subject": "The backend.",
        "number": "How many dispatches were sent.",
        "superseded": "Of an older commit.",
    },
)
MERGE_GROUP = derive_model(
    views.GroupView, "MergeGroup", described={"unpublished": "Null when its gate on GitHub is up to date."}
)
RED_SINCE = derive_model(
    in_tree.RedSince,
    "RedSince",
    "Where a check of the default branch began to fail.",
    described={
        "sha": "The first commit of the row on which it fails.",
        "number": "The pull request, if it is the only change since the check passed.",
    },
)
FAILING_CHECK = derive_model(
    in_tree.FailingCheck,
    "FailingCheck",
    types={"url": Link},
    described={
        "conclusion": "GitHub's word, such as `failure`, `timed_out` or `cancelled`.",
        "on_base": "The same check on the base, or for a commit of the default branch on those before it; null without a result.",
        "since": "For a commit of the default branch; null where no pass of the check is recorded.",
    },
)
IN_TREE = derive_model(
    in_tree.InTreeView,
    "InTree",
    "The upstream's own CI on a commit: the newest check run of each App and name, and commit statuses.",
    described={"failing": "By name; the first 500."},
    example=examples.IN_TREE,
)
ANNOUNCEMENT_ANSWER = derive_model(
    announcements.AnnouncementAnswer,
    "AnnouncementAnswer",
    described={
        "at": "When the comment was written.",
        "is_outdated": "Whether the paragraph was changed afterwards.",
    },
)
ANNOUNCED_BACKEND = derive_model(
    views.AnnouncedBackend,
    "AnnouncedBackend",
    described={
        "notified_at": "Null until its people are told, within a minute, and where no channel takes it.",
        "has_channel": "Whether a channel takes its notices; null until that is looked up, within a minute.",
        "ended_at": "When the announcement ended for it; null while it stands.",
    },
)
ANNOUNCEMENT = derive_model(
    views.AnnouncementView,
    "Announcement",
    "A breakage that a label announces to the backends that the pull request concerns.",
    described={
        "note": "The paragraph for downstreams in the pull request's text; empty where it is missing.",
        "backends": "Those without an answer first.",
    },
)
PAIR = derive_model(
    views.PairView,
    "Pair",
    "A pull request of a backend that one of the upstream depends on, tested together with it. Its results count nowhere.",
    described={
        "number": "The upstream's pull request.",
        "dependency": "The backend's pull request.",
        "refusal": "Why it is not tested; null where it is, or is merged or closed.",
        "head_sha": "The head of the backend's pull request, where it counts.",
        "approved_by": "Who approved that head, where it is in a fork.",
        "requested_by": "Who requested it by a comment; null where only the text names it.",
        "status": "How the backend does with both heads; null while they were not dispatched together.",
        "result": "The same with its jobs.",
    },
)
_DESCRIBED = {
    "in_tree": "Null where no check of the upstream's own CI was recorded.",
    "groups": "The failures by fingerprint, those of the most backends first.",
    "timeline": "From the webhook to the results, newest first.",
    "bisections": "Those that found the commit, or the one that a pull request became, to have broken a job.",
}
PULL_REQUEST = derive_model(
    views.PullView,
    "PullRequest",
    "`gate` is null until it is evaluated for the head.",
    described={
        **_DESCRIBED,
        "announcement": "Null where no breakage is announced.",
        "pairs": "The pull requests of backends that it depends on.",
    },
)
COMMIT = derive_model(
    views.CommitView,
    "Commit",
    described={
        **_DESCRIBED,
        "place": "Whether it belongs to the upstream; set once a backend tested it on its own.",
    },
)


def describe_pull(view: views.PullView) -> Model:
    return PULL_REQUEST.model_validate(view)


def describe_commit(view: views.CommitView) -> Model:
    return COMMIT.model_validate(view)
