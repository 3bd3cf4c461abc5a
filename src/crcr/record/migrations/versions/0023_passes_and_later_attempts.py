"""Pages find the last pass on the base, and later attempts of a job, by indexes alone"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.drop_index("ix_jobs_base", "jobs")
    _add_partial_index(
        "ix_jobs_base",
        [
            *("upstream", "downstream", "job_name", "in_progress_at"),
            *("workflow", "event", "ended_as", "head_sha", "imported"),
        ],
        "ended_as IS NOT NULL AND event <> 'pull_request'",
    )
    _add_partial_index(
        "ix_jobs_later_attempts",
        ["delivery", "upstream", "downstream", "workflow", "run_id", "job_name", "attempt"],
        "attempt > 1",
    )


def _add_partial_index(name: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, "jobs", columns, sqlite_where=condition, postgresql_where=condition)
