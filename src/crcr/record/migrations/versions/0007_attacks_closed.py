"""Columns that close the attacks of faults 54 to 69"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Each part of the migration names the fault that it closes."""
    # Fault 61: reports of other refs than the default branch are refused.
    op.add_column("repositories", sa.Column("default_branch", sa.Text(), nullable=True))
    # Fault 66: a captured webhook is not taken again under another GUID.
    op.create_table(
        "webhook_bodies",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("guid", sa.Text(), nullable=False),
        sa.Column("taken_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_webhook_bodies")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_webhook_bodies_age", "webhook_bodies", ["taken_at"])
