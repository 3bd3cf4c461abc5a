"""The upstream's version tags, for the compatibility matrix"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "upstream_tags",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("object_sha", sa.Text(), nullable=False),
        sa.Column("pushed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("upstream", "name", name=op.f("pk_upstream_tags")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_upstream_tags_age", "upstream_tags", ["upstream", "pushed_at"])
