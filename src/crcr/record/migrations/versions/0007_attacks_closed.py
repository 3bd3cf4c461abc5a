"""Columns that close the attacks of faults 54 to 69"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Each part of the migration names the fault that it closes."""
    # Fault 61: reports of other refs than the default branch are refused.
    op.add_column("repositories", sa.Column("default_branch", sa.Text(), nullable=True))
