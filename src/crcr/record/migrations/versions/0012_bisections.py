"""Bisections and their runs"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "bisections",
        sa.Column("bisection_id", _SERIAL, nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("flake_rate", sa.Double(), nullable=False),
        sa.Column("most_runs", sa.Integer(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("left_good", sa.Integer(), nullable=False),
        sa.Column("left_bad", sa.Integer(), nullable=False),
        sa.Column("culprit", sa.Text(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("fingerprints", sa.Text(), nullable=True),
        sa.Column("commits", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("bisection_id", name=op.f("pk_bisections")),
        sqlite_autoincrement=True,
    )
    running = sa.text("state = 'running'")
    op.create_index(
        "uq_bisections_running",
        "bisections",
        ["upstream", "downstream", "workflow", "job_name"],
        unique=True,
        sqlite_where=running,
        postgresql_where=running,
    )
    op.create_index("ix_bisections_job", "bisections", ["upstream", "downstream", "job_name", "bisection_id"])
    op.create_index("ix_bisections_recent", "bisections", ["upstream", "bisection_id"])
    found = sa.text("culprit IS NOT NULL")
    op.create_index(
        "ix_bisections_culprit",
        "bisections",
        ["culprit", "upstream"],
        sqlite_where=found,
        postgresql_where=found,
    )
    op.create_table(
        "bisection_runs",
        sa.Column("bisection_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("delivery", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("sample", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("failed_run", sa.Text(), nullable=True),
        sa.Column("fingerprints", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("bisection_id", "number", "upstream", name=op.f("pk_bisection_runs")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_bisection_runs_delivery", "bisection_runs", ["delivery", "upstream"])
    op.create_index("ix_bisection_runs_recent", "bisection_runs", ["upstream", "created_at"])
