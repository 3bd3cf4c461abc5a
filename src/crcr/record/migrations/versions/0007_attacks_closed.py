"""Columns that close the attacks of faults 54 to 69"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Each part of the migration names the fault that it closes."""
    # Fault 60: dispatches and waivers follow a repository by its id when its name changes. Rows from before have none
    # and are read by the id that their name is bound to.
    op.add_column("dispatches", sa.Column("repository_id", sa.BigInteger(), nullable=True))
    op.add_column("waivers", sa.Column("repository_id", sa.BigInteger(), nullable=True))
    op.create_index("ix_repositories_id", "repositories", ["repository_id", "upstream"])
    # Fault 68: the gate of a merged group stays green, the gate of another destroyed group ends cancelled. Groups from
    # before count as merged: their checks are left as they are.
    op.add_column(
        "merge_groups", sa.Column("merged", sa.SmallInteger(), server_default=sa.text("0"), nullable=False)
    )
    op.execute("UPDATE merge_groups SET merged = 1 WHERE destroyed_at IS NOT NULL")
