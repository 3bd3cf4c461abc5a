"""Indexes of jobs that did not pass, for the lists of pull requests and commits, and for the jobs that keep failing"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    _create_partial(
        "ix_jobs_not_passed",
        "jobs",
        ["delivery", "upstream", "downstream", "state", "conclusion", "expected", "superseded"],
        "(state <> 'completed' OR coalesce(conclusion, '') <> 'success' OR expected IS NOT NULL OR superseded <> 0)",
    )
    _create_partial(
        "ix_jobs_nights",
        "jobs",
        ["upstream", "downstream", "job_name", "in_progress_at"],
        "event IN ('nightly', 'periodic') AND ended_as IS NOT NULL",
    )
    _create_partial(
        "ix_failures_base_commits",
        "failures",
        ["upstream", "kind", "downstream", "workflow", "job_name", "at", "passed_at", "head_sha"],
        "kind <> 'pull_request'",
    )


def _create_partial(name: str, table: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)
