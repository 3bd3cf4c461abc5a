"""Columns that close the attacks of faults 54 to 69"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Each part of the migration names the fault that it closes."""
    # Faults 58 and 59: how a run ended, whether Actions could be read at the dispatch, and when GitHub last told of runs.
    op.add_column("runs", sa.Column("conclusion", sa.Text(), nullable=True))
    op.add_column("dispatches", sa.Column("reads_actions", sa.SmallInteger(), nullable=True))
    op.add_column("repositories", sa.Column("told_at", sa.BigInteger(), nullable=True))
