"""In-tree CI: the counts of each commit, and the checks of commits that are not quiet yet"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    zero = sa.text("0")
    op.create_table(
        "in_tree_commits",
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("passed", sa.Integer(), server_default=zero, nullable=False),
        sa.Column("failed", sa.Integer(), server_default=zero, nullable=False),
        sa.Column("running", sa.Integer(), server_default=zero, nullable=False),
        sa.Column("unpacked", sa.SmallInteger(), server_default=zero, nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("announced_at", sa.BigInteger(), server_default=zero, nullable=False),
        sa.Column("change_id", sa.BigInteger(), nullable=True),
        sa.Column("packed", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("sha", "upstream", name=op.f("pk_in_tree_commits")),
    )
    unpacked = sa.text("unpacked = 1")
    op.create_index("ix_in_tree_commits_age", "in_tree_commits", ["upstream", "changed_at"])
    op.create_index(
        "ix_in_tree_commits_unpacked",
        "in_tree_commits",
        ["changed_at"],
        sqlite_where=unpacked,
        postgresql_where=unpacked,
    )
    op.create_table(
        "in_tree_checks",
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("app_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("check_id", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("conclusion", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("sha", "upstream", "app_id", "name", name=op.f("pk_in_tree_checks")),
        sqlite_with_rowid=False,
    )
