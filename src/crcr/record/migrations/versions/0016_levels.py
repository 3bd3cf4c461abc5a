"""Standings by evidence, and dispatches of downgraded backends"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_days()
    _create_standings()
    _create_changes()
    op.add_column(
        "dispatches", sa.Column("downgraded", sa.SmallInteger(), server_default=sa.text("0"), nullable=False)
    )


def _create_days() -> None:
    op.create_table(
        "level_days",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("day_at", sa.BigInteger(), nullable=False),
        sa.Column("runs", sa.Text(), nullable=False),
        sa.Column("jobs", sa.Text(), nullable=False),
        sa.Column("expected", sa.Integer(), nullable=False),
        sa.Column("answered", sa.Integer(), nullable=False),
        sa.Column("counted_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("upstream", "downstream", "day_at", name=op.f("pk_level_days")),
        sqlite_with_rowid=False,
    )


def _create_standings() -> None:
    op.create_table(
        "level_standings",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=False),
        sa.Column("standing", sa.Text(), nullable=False),
        sa.Column("since_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=True),
        sa.Column("evaluated_at", sa.BigInteger(), nullable=False),
        sa.Column("results", sa.Text(), nullable=False),
        sa.Column("left_out", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("override_until_at", sa.BigInteger(), nullable=True),
        sa.Column("override_who", sa.Text(), nullable=True),
        sa.Column("override_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("upstream", "downstream", name=op.f("pk_level_standings")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "level_evaluations",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=False),
        sa.Column("standing", sa.Text(), nullable=False),
        sa.Column("observation", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("upstream", "downstream", "at", name=op.f("pk_level_evaluations")),
        sqlite_with_rowid=False,
    )


def _create_changes() -> None:
    op.create_table(
        "level_changes",
        sa.Column("level_change_id", _SERIAL, nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("before", sa.SmallInteger(), nullable=False),
        sa.Column("after", sa.SmallInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("level_change_id", name=op.f("pk_level_changes")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_level_changes_recent", "level_changes", ["upstream", "level_change_id"])
    op.create_table(
        "level_proposals",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "upstream", name=op.f("pk_level_proposals")),
        sqlite_with_rowid=False,
    )
