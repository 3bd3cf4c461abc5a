"""ClickHouse is fed: what it has not been told yet, and how far it is"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    nothing, none = sa.text("''"), sa.text("0")
    op.create_table(
        "unfed",
        sa.Column("seq", serial, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("delivery", sa.Text(), nullable=False),
        sa.Column("workflow", sa.Text(), server_default=nothing, nullable=False),
        sa.Column("run_id", sa.Text(), server_default=nothing, nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=none, nullable=False),
        sa.Column("job_name", sa.Text(), server_default=nothing, nullable=False),
        sa.Column("check_run", sa.Text(), server_default=nothing, nullable=False),
        sa.Column("was_at", sa.BigInteger(), server_default=none, nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_unfed")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_unfed_queue", "unfed", ["upstream", "seq"])
    op.create_table(
        "feeding",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_feeding")),
        sqlite_with_rowid=False,
    )
