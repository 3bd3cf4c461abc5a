"""Culprits: what a push says about its commits, and the commit that a pull request became"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("pulls", sa.Column("merge_commit_sha", sa.Text(), nullable=True))
    merged = sa.text("merge_commit_sha IS NOT NULL")
    op.create_index(
        "ix_pulls_merged_as",
        "pulls",
        ["merge_commit_sha", "upstream"],
        sqlite_where=merged,
        postgresql_where=merged,
    )
    op.add_column("base_commits", sa.Column("title", sa.Text(), nullable=True))
    op.add_column("base_commits", sa.Column("number", sa.Integer(), nullable=True))
    op.add_column("base_commits", sa.Column("reverts", sa.Text(), nullable=True))
    op.add_column("base_commits", sa.Column("paths", sa.Text(), nullable=True))
    op.add_column("base_commits", sa.Column("path_count", sa.Integer(), nullable=True))
