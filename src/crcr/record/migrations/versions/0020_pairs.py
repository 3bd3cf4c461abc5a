"""Pairs of pull requests that belong together"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.create_table(
        "pairs",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("dependency", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("in_text", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=True),
        sa.Column("round", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.Column("head_sha", sa.Text(), nullable=True),
        sa.Column("clone_url", sa.Text(), nullable=True),
        sa.Column("approved_by", sa.Text(), nullable=True),
        sa.Column("read_at", sa.BigInteger(), nullable=True),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("merged_seen_at", sa.BigInteger(), nullable=True),
        sa.Column("retested", sa.Text(), nullable=True),
        sa.Column("delivery", sa.Text(), nullable=True),
        sa.Column("plain", sa.Text(), nullable=True),
        sa.Column("tested_sha", sa.Text(), nullable=True),
        sa.Column("tested_round", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("upstream", "number", "downstream", "dependency", name=op.f("pk_pairs")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_pairs_dependency", "pairs", ["downstream", "dependency"])
    _create_partial("ix_pairs_due", "pairs", ["due_at"], "due_at IS NOT NULL")
    _create_partial("ix_pairs_delivery", "pairs", ["delivery", "upstream"], "delivery IS NOT NULL")
    _create_partial("ix_deliveries_pairs", "deliveries", ["upstream", "received_at"], "event = 'crcr_pair'")


def _create_partial(name: str, table: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)
