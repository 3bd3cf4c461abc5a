"""Verdicts: the order of base commits, failures with fingerprints, groups, known failures"""

# ruff: noqa: S608 - every name in these statements is our own

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    _bases()
    _failures()
    _groups()
    _opinions()
    _failures_of_last_month()


def _text(name: str, *, nullable: bool = True) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _keys(*names: str) -> list[sa.Column[str]]:
    return [_text(name, nullable=False) for name in names]


def _serial(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False)


def _flag(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.SmallInteger(), server_default=sa.text("0"), nullable=False)


def _time(name: str, *, nullable: bool = True) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _bases() -> None:
    """Which base commit a head was built on, and the order of the base's commits."""
    op.add_column("pulls", sa.Column("base_sha", sa.Text(), nullable=True))
    op.add_column("pulls", sa.Column("merge_base", sa.Text(), nullable=True))
    op.add_column("pulls", sa.Column("stacked_on", sa.Text(), nullable=True))
    op.add_column(
        "dispatches",
        sa.Column("tests_merged", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
    )
    ended_on_base = sa.text("ended_as IS NOT NULL AND event <> 'pull_request'")
    op.create_index(
        "ix_jobs_base",
        "jobs",
        ["upstream", "downstream", "job_name", "in_progress_at"],
        sqlite_where=ended_on_base,
        postgresql_where=ended_on_base,
    )
    op.create_table(
        "base_commits",
        *_keys("sha", "upstream", "ref"),
        _time("position", nullable=False),
        _text("before"),
        _time("pushed_at", nullable=False),
        sa.PrimaryKeyConstraint("sha", "upstream", "ref", name=op.f("pk_base_commits")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_base_commits_order", "base_commits", ["upstream", "ref", "position"])
    op.create_index("ix_base_commits_age", "base_commits", ["upstream", "pushed_at"])


def _failures() -> None:
    job = ("delivery", "upstream", "downstream", "workflow", "run_id")
    op.create_table(
        "failures",
        _serial("failure_id"),
        *_keys(*job),
        sa.Column("attempt", sa.Integer(), nullable=False),
        *_keys("job_name", "kind", "event"),
        sa.Column("number", sa.Integer(), nullable=True),
        *(_text(name) for name in ("head_sha", "base_ref", "built_on")),
        _flag("built_on_exact"),
        _text("author"),
        _flag("trusted"),
        _time("at", nullable=False),
        _text("ended", nullable=False),
        _text("fingerprint"),
        sa.Column("rules", sa.SmallInteger(), nullable=False),
        _text("sample"),
        _text("fingerprints"),
        _time("passed_at"),
        *(_text(name) for name in ("verdict", "confidence", "sentence")),
        sa.Column("evidence", sa.LargeBinary(), nullable=True),
        sa.Column("test_verdicts", sa.LargeBinary(), nullable=True),
        _time("judged_at"),
        _text("verdict_before"),
        _time("excused_at"),
        sa.PrimaryKeyConstraint("failure_id", name=op.f("pk_failures")),
        sqlite_autoincrement=True,
    )
    op.create_index("uq_failures_job", "failures", [*job, "attempt", "job_name"], unique=True)
    op.create_index("ix_failures_history", "failures", ["upstream", "downstream", "job_name", "at"])
    op.create_index("ix_failures_backend", "failures", ["upstream", "downstream", "at"])
    op.create_index("ix_failures_verdict", "failures", ["upstream", "downstream", "verdict"])
    op.create_index("ix_failures_rules", "failures", ["rules", "failure_id"])
    unjudged = sa.text("judged_at IS NULL")
    op.create_index(
        "ix_failures_unjudged", "failures", ["at"], sqlite_where=unjudged, postgresql_where=unjudged
    )
    on_base = sa.text("kind <> 'pull_request'")
    base = ["upstream", "kind", "downstream", "workflow", "job_name", "at"]
    op.create_index("ix_failures_base", "failures", base, sqlite_where=on_base, postgresql_where=on_base)


def _groups() -> None:
    op.create_table(
        "failure_fingerprints",
        *_keys("fingerprint", "upstream"),
        _time("failure_id", nullable=False),
        sa.PrimaryKeyConstraint(
            "fingerprint", "upstream", "failure_id", name=op.f("pk_failure_fingerprints")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "failure_groups",
        *_keys("fingerprint", "upstream", "downstream", "sample"),
        sa.Column("number", sa.Integer(), server_default=sa.text("0"), nullable=False),
        _time("first_at"),
        _time("last_at"),
        sa.PrimaryKeyConstraint("fingerprint", "upstream", "downstream", name=op.f("pk_failure_groups")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_failure_groups_recent", "failure_groups", ["upstream", "last_at"])
    op.create_table(
        "known_failures",
        *_keys("fingerprint", "upstream", "url", "state", "who"),
        _text("reason"),
        _time("created_at", nullable=False),
        _time("until_at", nullable=False),
        _time("checked_at"),
        _time("ended_at"),
        sa.PrimaryKeyConstraint("fingerprint", "upstream", name=op.f("pk_known_failures")),
        sqlite_with_rowid=False,
    )


def _opinions() -> None:
    op.create_table(
        "person_verdicts",
        _serial("person_verdict_id"),
        _text("upstream", nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        *_keys("head_sha", "downstream", "job", "verdict"),
        _text("rules_verdict"),
        *_keys("who", "reason"),
        _time("at", nullable=False),
        sa.PrimaryKeyConstraint("person_verdict_id", name=op.f("pk_person_verdicts")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_person_verdicts_head", "person_verdicts", ["head_sha", "upstream"])
    op.create_index("ix_person_verdicts_recent", "person_verdicts", ["upstream", "at"])


def _failures_of_last_month() -> None:
    """The failures of the last 30 days, by the newest result; fingerprints are worked out in the background (`rules` 0)."""
    kind = (
        "CASE WHEN j.event = 'pull_request' THEN 'pull_request' WHEN j.event IN ('push', 'merge_group') THEN 'push'"
        " ELSE 'nightly' END"
    )
    on_base = "j.event <> 'pull_request'"
    op.execute(
        "INSERT INTO failures (delivery, upstream, downstream, workflow, run_id, attempt, job_name, kind, event, number,"
        " head_sha, base_ref, built_on, built_on_exact, author, trusted, at, ended, rules)"
        " SELECT j.delivery, j.upstream, j.downstream, j.workflow, j.run_id, j.attempt, j.job_name,"
        f" {kind}, j.event, j.number, j.head_sha, p.base_ref, CASE WHEN {on_base} THEN j.head_sha END,"
        f" CASE WHEN {on_base} THEN 1 ELSE 0 END, lower(p.author),"
        " CASE WHEN p.author_association IN ('OWNER', 'MEMBER', 'COLLABORATOR', 'CONTRIBUTOR') THEN 1 ELSE 0 END,"
        " coalesce(j.completed_at, j.swept_at, j.in_progress_at), j.ended_as, 0"
        " FROM jobs j LEFT JOIN pulls p ON p.upstream = j.upstream AND p.number = j.number"
        " WHERE j.ended_as IN ('failure', 'timed_out', 'silent') AND j.in_progress_at >="
        " (SELECT max(in_progress_at) FROM jobs) - 2592000000000"
        " ORDER BY coalesce(j.completed_at, j.swept_at, j.in_progress_at)"
    )
