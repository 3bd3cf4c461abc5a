"""Announced breakage: the paragraph for downstreams of a pull request, and who answered it"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column("pulls", sa.Column("downstream_note", sa.Text(), nullable=True))
    op.add_column("pulls", sa.Column("downstream_note_at", sa.BigInteger(), nullable=True))
    condition = sa.text("is_open = 1 AND downstream_note <> ''")
    op.create_index(
        "ix_pulls_announcing",
        "pulls",
        ["number", "upstream"],
        sqlite_where=condition,
        postgresql_where=condition,
    )
    op.create_table(
        "announcement_answers",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("upstream", "number", "backend", "who"),
        sqlite_with_rowid=False,
    )
