"""Excerpts of logs, and the groups of failures that their first error lines make"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("log_excerpt", sa.Text(), nullable=True))
    op.add_column("ingested", sa.Column("log_excerpt", sa.Text(), nullable=True))
    op.add_column("failures", sa.Column("log_fingerprint", sa.Text(), nullable=True))
