"""History that was imported from another relay: marked where it stands, and how far each import is"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    for table in ("dispatches", "jobs"):
        op.add_column(
            table, sa.Column("imported", sa.SmallInteger(), nullable=False, server_default=sa.text("0"))
        )
    condition = sa.text("imported = 1")
    op.create_index(
        "ix_dispatches_imported",
        "dispatches",
        ["upstream", "downstream", "number", "created_at"],
        sqlite_where=condition,
        postgresql_where=condition,
    )
    op.create_table(
        "imports",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("position", sa.Text(), nullable=False),
        sa.Column("counts", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("source", name=op.f("pk_imports")),
        sqlite_with_rowid=False,
    )
