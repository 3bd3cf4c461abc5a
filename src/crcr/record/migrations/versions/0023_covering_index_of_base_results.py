"""The index of results on the base has what tells a pass, so that pages find the last one without the rows of jobs"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    condition = sa.text("ended_as IS NOT NULL AND event <> 'pull_request'")
    op.drop_index("ix_jobs_base", "jobs")
    op.create_index(
        "ix_jobs_base",
        "jobs",
        [
            *("upstream", "downstream", "job_name", "in_progress_at"),
            *("workflow", "event", "ended_as", "head_sha", "imported"),
        ],
        sqlite_where=condition,
        postgresql_where=condition,
    )
