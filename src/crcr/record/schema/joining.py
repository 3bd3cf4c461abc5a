"""Tables for downstreams that join: builds bound to runs, refused reports, the sandbox, inspections, tested commits.

No check or gate depends on them. No other table refers to the sandbox.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text, text

from crcr.record.schema.main_tables import SERIAL, flag, key, metadata

_UNCHECKED = text("standing = 'unchecked'")

builds = Table(
    "builds",
    metadata,
    key("build"),
    key("downstream"),
    key("issuer"),
    Column("run_id", Text, nullable=False),
    Column("first_seen_at", BigInteger, nullable=False),
    Index("ix_builds_run", "run_id", "downstream", "issuer", unique=True),
    sqlite_with_rowid=False,
)
"""Where a token signs a build's number and not the run's id: which run each build said it is."""

refusals = Table(
    "refusals",
    metadata,
    Column("refusal_id", SERIAL, primary_key=True),
    Column("upstream", Text, nullable=False),
    Column("downstream", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("code", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("hint", Text),
    Column("delivery", Text),
    Column("run_id", Text),
    Column("workflow_name", Text),
    Column("job_name", Text),
    Index("ix_refusals_backend", "upstream", "downstream", "refusal_id"),
    sqlite_autoincrement=True,
)
"""The last reports of a repository that were not taken. No bodies."""

sandbox_jobs = Table(
    "sandbox_jobs",
    metadata,
    Column("repository_id", BigInteger, primary_key=True, autoincrement=False),
    key("workflow"),
    key("run_id"),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    key("job_name"),
    Column("name", Text, nullable=False),
    flag("private"),
    Column("event_type", Text, nullable=False),
    Column("workflow_name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("conclusion", Text),
    flag("late"),
    Column("in_progress_at", BigInteger, nullable=False),
    Column("completed_at", BigInteger),
    Column("reported_at", BigInteger, nullable=False),
    Column("tests_passed", Integer),
    Column("tests_failed", Integer),
    Column("tests_skipped", Integer),
    Column("tests_total", Integer),
    Column("failed_tests", Text),
    Column("failed_tests_cut", Integer, nullable=False, server_default=text("0")),
    Index("ix_sandbox_jobs_recent", "reported_at"),
    sqlite_with_rowid=False,
)
"""Reports of repositories that are on no allowlist, tried out."""

inspections = Table(
    "inspections",
    metadata,
    key("upstream"),
    key("downstream"),
    Column("asked_at", BigInteger, nullable=False),
    Column("inspected_at", BigInteger),
    Column("found", Text),
    sqlite_with_rowid=False,
)
"""GitHub's last answer about a downstream's set-up: installation, permissions, workflows."""

commits = Table(
    "commits",
    metadata,
    key("sha"),
    key("upstream"),
    Column("standing", Text, nullable=False),
    Column("branch", Text),
    Column("seen_at", BigInteger, nullable=False),
    Column("checked_at", BigInteger),
    Column("ask_at", BigInteger, nullable=False, server_default=text("0")),
    Index(
        "ix_commits_unchecked",
        "upstream",
        "ask_at",
        sqlite_where=_UNCHECKED,
        postgresql_where=_UNCHECKED,
    ),
    sqlite_with_rowid=False,
)
"""Commits that downstreams tested on their own: whether they belong to the upstream's history, and to which branch.

`ask_at` is when one without an answer is to be asked about again.
"""

__all__ = ["builds", "commits", "inspections", "refusals", "sandbox_jobs"]

imports = Table(
    "imports",
    metadata,
    key("source"),
    Column("position", Text, nullable=False),
    Column("counts", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    sqlite_with_rowid=False,
)
"""How far the import of each source is (`record.jobs.imported`)."""
