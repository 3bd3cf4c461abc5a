"""Rows of a database at schema 0007: what that release had recorded and queued, in its own form.

Written out, and never made by today's code: they guard against a change of what an effect or its payload means.
`$name` stands for a SHA or an id that the simulated GitHub gave; `Packed` is a webhook body, kept compressed.
"""

from support.upgrades.database import (
    AGAIN,
    AT,
    DECIDED,
    DOUBTED,
    GATING,
    GROUPED,
    NEWCOMER,
    PRESSED,
    REPORTED,
    REPORTER,
    SAID,
    SENT,
    UP,
    OldRelease,
    Packed,
    Row,
)

SECOND = 1_000_000


_PULL: Row = {
    "upstream": UP,
    "updated_at": AT,
    "head_at": AT,
    "is_open": 1,
    "merged": 0,
    "draft": 0,
    "labels": "[]",
    "base_ref": "main",
    "title": "Fix a kernel",
    "author": "ann",
    "author_association": "CONTRIBUTOR",
}
_DELIVERY: Row = {
    "upstream": UP,
    "state": "accepted",
    "source": "webhook",
    "received_at": AT,
    "body_bytes": 300,
}
_DISPATCH: Row = {
    "upstream": UP,
    "downstream": GATING,
    "level": 4,
    "event": "pull_request",
    "action": "opened",
    "created_at": AT,
    "test": 0,
    "unsure": 0,
    "repository_id": "$gating_id",
    "reads_actions": 1,
}
_RUN: Row = {
    "upstream": UP,
    "downstream": GATING,
    "workflow": ".github/workflows/ci.yml",
    "workflow_name": "CI",
    "issuer": "github",
    "first_seen_at": AT,
    "attempt": 1,
    "attempt_at": AT,
    "over_attempt": 1,
    "conclusion": "failure",
    "reported": 1,
    "superseded": 0,
}
_JOB: Row = {
    "upstream": UP,
    "downstream": GATING,
    "workflow": ".github/workflows/ci.yml",
    "workflow_name": "CI",
    "attempt": 1,
    "level": 4,
    "event": "pull_request",
    "state": "completed",
    "silent_at": AT,
    "in_progress_at": AT,
    "completed_at": AT,
    "queue_s": 1.0,
    "execution_s": 0.0,
    "check_run_text": "48100000543",
    "opened_by": "48100000543",
    "closed_by": "48100000543",
    "url": "http://127.0.0.1:9/run",
    "trusted": '{"verified_repo":"org/gating","downstream_repo_level":"L4",'
    '"ci_metrics":{"queue_time":1.0,"execution_time":0.0}}',
}
_REPORT = (
    '{"event_type":"pull_request","delivery_id":"%s","workflow":{"schema_version":"1","status":"completed",'
    '"conclusion":"%s","name":"CI","url":"http://127.0.0.1:9/run","run_id":"%s","run_attempt":"1","job_name":"%s",'
    '"check_run_id":"48100000543","started_at":"2026-01-01T00:00:00Z","completed_at":"2026-01-01T00:00:00Z"}}'
)
_REPOSITORY: Row = {
    "upstream": UP,
    "bound_at": AT,
    "owner_id": "$owner_id",
    "installation_id": "$org_installation",
    "confirmed": 1,
    "reads_actions": 1,
    "default_branch": "main",
}

Facts = list[tuple[str, Row]]


def _pull(guid: str, number: int, head_sha: str, state: str = "accepted") -> Facts:
    """A pull request and the delivery that told of it."""
    body = (
        f'{{"action":"opened","number":{number},"pull_request":{{"number":{number},"head":{{"sha":"{head_sha}"}},'
        f'"base":{{"ref":"main"}}}},"repository":{{"full_name":"{UP}"}}}}'
    )
    place = {"number": number, "head_sha": head_sha, "base_ref": "main"}
    told = {"guid": guid, "event": "pull_request", "action": "opened", "state": state, "body": Packed(body)}
    return [("pulls", _PULL | place), ("deliveries", _DELIVERY | place | told)]


def _dispatch(guid: str, number: int, head_sha: str, state: str, **more: object) -> tuple[str, Row]:
    place = {"number": number, "head_sha": head_sha, "lane": f"pull/{number}"}
    return "dispatches", _DISPATCH | {"delivery": guid, "state": state, **place, **more}


def _failed_run(
    guid: str, number: int, head_sha: str, run_id: str, verification: str = "confirmed", **asked: int
) -> Facts:
    """A dispatch that was sent, and its run, of which one job has failed."""
    times = {"attempted_at": AT, "sent_at": AT, "delay_s": 0.0, "listed_at": AT}
    run = {"delivery": guid, "run_id": run_id}
    jobs: Facts = [
        (
            "jobs",
            _JOB
            | run
            | {"number": number, "head_sha": head_sha, "job_name": name, "reported_name": name}
            | {
                "conclusion": ended,
                "first_conclusion": ended,
                "ended_as": ended,
                "verification": verification,
            }
            | {"github_conclusion": ended if verification == "confirmed" else None}
            | {"untrusted": (_REPORT % (guid, ended, run_id, name)).encode()},
        )
        for name, ended in (("build", "failure"), ("test", "success"))
    ]
    sent = _dispatch(guid, number, head_sha, "sent", **times)
    return [*_pull(guid, number, head_sha), sent, ("runs", _RUN | run | asked), *jobs]


FACTS: Facts = [
    (
        "upstreams",
        {
            "upstream": UP,
            "name": UP,
            "created_at": AT,
            "default_branch": "main",
            "gate_since": AT,
            "repository_id": "$upstream_id",
            "installation_id": "$upstream_installation",
        },
    ),
    (
        "allowlist_versions",
        {
            "upstream": UP,
            "version": 1,
            "good": 1,
            "problems": "[]",
            "read_at": AT,
            "source": "$allowlist",
            "text": "$allowlist_text",
        },
    ),
    ("repositories", _REPOSITORY | {"downstream": GATING, "name": GATING, "repository_id": "$gating_id"}),
    (
        "repositories",
        _REPOSITORY | {"downstream": REPORTER, "name": REPORTER, "repository_id": "$reporter_id"},
    ),
    ("repositories", {"upstream": UP, "downstream": NEWCOMER, "name": NEWCOMER, "confirmed": 0}),
    # Decided: its gate is red, and nothing of it was written on GitHub yet.
    *_failed_run(DECIDED, 1, "$decided", "$decided_run"),
    (
        "gates",
        {
            "upstream": UP,
            "head_sha": "$decided",
            "judged_at": AT,
            "state": "failed",
            "title": "org/gating failed (build)",
        },
    ),
    ("deliveries", _DELIVERY | {"guid": SAID, "event": "issue_comment", "action": "created", "number": 1}),
    (
        "deliveries",
        _DELIVERY
        | {"guid": PRESSED, "event": "check_run", "action": "requested_action", "head_sha": "$decided"},
    ),
    # To be sent: to one backend at once, to the other when the changed files are known.
    *_pull(SENT, 2, "$sent"),
    _dispatch(SENT, 2, "$sent", "waiting"),
    _dispatch(
        *(SENT, 2, "$sent", "held"),
        downstream=REPORTER,
        level=2,
        reason="paths",
        repository_id="$reporter_id",
    ),
    # In doubt: GitHub is asked for the head.
    ("pulls", _PULL | {"number": 3, "head_sha": "c" * 40}),
    _pull(DOUBTED, 3, "$doubted", "in_doubt")[1],
    _dispatch(DOUBTED, 3, "$doubted", "held", reason="head in doubt"),
    # Reported, and not yet compared with GitHub's view.
    *_failed_run(REPORTED, 4, "$reported", "$reported_run", "unchecked"),
    # Failed, and to be run again.
    *_failed_run(AGAIN, 5, "$again", "$again_run", rerun_from=1, rerun_at=AT),
    # A merge group.
    (
        "deliveries",
        _DELIVERY
        | {"guid": GROUPED, "event": "merge_group", "action": "checks_requested", "head_sha": "$group"}
        | {
            "ref": "$group_ref",
            "body": Packed('{"action":"checks_requested","merge_group":{"head_sha":"$group"}}'),
        },
    ),
    (
        "merge_groups",
        {
            "upstream": UP,
            "head_sha": "$group",
            "head_ref": "$group_ref",
            "base_sha": "$base",
            "base_ref": "refs/heads/main",
            "delivery": GROUPED,
            "created_at": AT,
            "merged": 0,
        },
    ),
    (
        "dispatches",
        _DISPATCH
        | {"delivery": GROUPED, "event": "merge_group", "action": "checks_requested", "head_sha": "$group"}
        | {"lane": "group/$group", "state": "held", "reason": "tree"},
    ),
    # A commit that a nightly run reported about, and a repository that somebody asked to inspect.
    (
        "commits",
        {
            "upstream": UP,
            "sha": "$base",
            "seen_at": AT,
            "ask_at": AT + 90_000 * SECOND,
            "standing": "unchecked",
        },
    ),
    ("inspections", {"upstream": UP, "downstream": GATING, "asked_at": AT}),
    # A result that ClickHouse does not have yet.
    ("feeding", {"name": "since", "value": str(AT)}),
    (
        "unfed",
        {
            "kind": "job",
            "upstream": UP,
            "downstream": GATING,
            "delivery": DECIDED,
            "workflow": ".github/workflows/ci.yml",
            "run_id": "$decided_run",
            "attempt": 1,
            "job_name": "build",
            "check_run": "",
            "was_at": 0,
            "due_at": AT + 2 * SECOND,
        },
    ),
]

_FORWARDED_PULL = (
    b'{"trusted":{"verified_repo":"org/gating","downstream_repo_level":"L4",'
    b'"ci_metrics":{"queue_time":1.0,"execution_time":0.0}},'
    b'"untrusted":{"callback_payload":{"event_type":"pull_request",'
    b'"delivery_id":"00000000-0000-4000-8000-000000000004",'
    b'"workflow":{"schema_version":"1","status":"completed","conclusion":"failure","name":"CI",'
    b'"url":"http://127.0.0.1:9/run","run_id":"$reported_run","run_attempt":"1","job_name":"build",'
    b'"check_run_id":"48100000543","started_at":"2026-01-01T00:00:00Z","completed_at":"2026-01-01T00:00:00Z"},'
    b'"payload":{"action":"opened","number":4,"repository":{"full_name":"pytorch-like/core"}}}}}'
)
_FORWARDED_NIGHTLY = (
    b'{"trusted":{"verified_repo":"org/gating","downstream_repo_level":"L4",'
    b'"ci_metrics":{"queue_time":null,"execution_time":null}},'
    b'"untrusted":{"callback_payload":{"event_type":"nightly","delivery_id":"$base",'
    b'"workflow":{"schema_version":"1","status":"completed","conclusion":"success","name":"Nightly",'
    b'"url":"http://127.0.0.1:9/nightly","run_id":"17200000029","run_attempt":"1","job_name":"build",'
    b'"check_run_id":"48100000414","started_at":null,"completed_at":null},"payload":{}}}}'
)
_COMMAND = (
    b'{"number": 1, "comment_id": $comment, "author": "maintainer", "person": true, "body": "/crcr status",'
    b' "created_at": "2026-01-01T00:00:00+00:00"}'
)

EFFECTS: list[Row] = [
    {"kind": "send_dispatch", "target": GATING, "lane": "pull/2", "delivery": SENT},
    {"kind": "identify_repository", "target": NEWCOMER, "lane": "identity"},
    {"kind": "confirm_head", "target": UP, "lane": "pull/3", "delivery": DOUBTED},
    {"kind": "refresh_allowlist", "target": "allowlist", "lane": "allowlist"},
    {
        "kind": "forward_result",
        "target": "hud 14",
        "lane": REPORTED,
        "delivery": REPORTED,
        "payload": _FORWARDED_PULL,
    },
    {"kind": "forward_result", "target": "hud 3", "lane": "$base", "payload": _FORWARDED_NIGHTLY},
    {"kind": "ask_files", "target": UP, "lane": f"files/{SENT}", "delivery": SENT},
    {
        "kind": "read_group",
        "target": UP,
        "lane": "group/$group",
        "delivery": GROUPED,
        "payload": b"$group",
    },
    {"kind": "publish_checks", "target": "checks/gate", "lane": "$decided"},
    {"kind": "publish_checks", "target": "checks/backend", "lane": "$decided"},
    {"kind": "publish_checks", "target": "checks/job", "lane": "$decided"},
    {
        "kind": "rerun",
        "target": GATING,
        "lane": "rerun/$again_run",
        "delivery": AGAIN,
        "payload": b'{"run_id": "$again_run"}',
    },
    {"kind": "look_up", "target": GATING, "lane": f"lookup/{REPORTED}", "delivery": REPORTED},
    {
        "kind": "answer_command",
        "target": "commands",
        "lane": "pull/1",
        "delivery": SAID,
        "payload": _COMMAND,
    },
    {
        "kind": "offer_waiver",
        "target": "commands",
        "lane": "offer/$decided",
        "delivery": PRESSED,
        "payload": b'{"head_sha": "$decided"}',
    },
    {"kind": "verify_commit", "target": "commits org/gating", "lane": "$base", "payload": b"$base"},
    {"kind": "inspect_repository", "target": "inspect org/gating", "lane": GATING},
    {"kind": "feed_history", "target": "history", "lane": ""},
]
_BEGUN = {"attempts": 1, "first_attempt_at": AT, "lease_owner": "relay-1/4711/0f3a"}
STATES: dict[str, Row] = {
    "waiting": {"state": "waiting", "attempts": 0},
    "claimed, lease over": {"state": "claimed", **_BEGUN, "lease_until": AT + 120 * SECOND},
    "claimed, lease running": {"state": "claimed", **_BEGUN, "lease_until": AT + 660 * SECOND},
    "parked": {
        "state": "parked",
        "attempts": 12,
        "first_attempt_at": AT,
        "finished_at": AT + 60 * SECOND,
        "last_error": "GitHub answered 502",
    },
    "done": {"state": "done", "attempts": 1, "first_attempt_at": AT, "finished_at": AT, "payload": None},
}
DISPATCHES: dict[str, Row] = {
    "waiting": {},
    "claimed, lease over": {"attempted_at": AT},
    "claimed, lease running": {"attempted_at": AT},
    "parked": {"attempted_at": AT, "state": "parked", "reason": "GitHub answered 502"},
}
"""What stands in the row of a dispatch while its effect is in such a state."""

RELEASE = OldRelease(
    revision="0007",
    facts=FACTS,
    effects=[{"upstream": UP, "unsure": 0, "due_at": AT, "created_at": AT, **row} for row in EFFECTS],
    states=STATES,
    dispatches=DISPATCHES,
)
