"""Those who join: builds bound to runs, refused reports, the sandbox, inspected repositories, tested commits"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "builds",
        sa.Column("build", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("first_seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("build", "downstream", "issuer", name=op.f("pk_builds")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_builds_run", "builds", ["run_id", "downstream", "issuer"], unique=True)
    op.create_table(
        "commits",
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("standing", sa.Text(), nullable=False),
        sa.Column("branch", sa.Text(), nullable=True),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("checked_at", sa.BigInteger(), nullable=True),
        sa.Column("ask_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("sha", "upstream", name=op.f("pk_commits")),
        sqlite_with_rowid=False,
    )
    unchecked = sa.text("standing = 'unchecked'")
    op.create_index(
        "ix_commits_unchecked",
        "commits",
        ["upstream", "ask_at"],
        unique=False,
        sqlite_where=unchecked,
        postgresql_where=unchecked,
    )
    op.create_table(
        "inspections",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("inspected_at", sa.BigInteger(), nullable=True),
        sa.Column("found", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("upstream", "downstream", name=op.f("pk_inspections")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "refusals",
        sa.Column("refusal_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=True),
        sa.Column("delivery", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("workflow_name", sa.Text(), nullable=True),
        sa.Column("job_name", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("refusal_id", name=op.f("pk_refusals")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_refusals_backend", "refusals", ["upstream", "downstream", "refusal_id"], unique=False)
    op.create_table(
        "sandbox_jobs",
        sa.Column("repository_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("private", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("workflow_name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("conclusion", sa.Text(), nullable=True),
        sa.Column("late", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("in_progress_at", sa.BigInteger(), nullable=False),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.Column("reported_at", sa.BigInteger(), nullable=False),
        sa.Column("tests_passed", sa.Integer(), nullable=True),
        sa.Column("tests_failed", sa.Integer(), nullable=True),
        sa.Column("tests_skipped", sa.Integer(), nullable=True),
        sa.Column("tests_total", sa.Integer(), nullable=True),
        sa.Column("failed_tests", sa.Text(), nullable=True),
        sa.Column("failed_tests_cut", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint(
            "repository_id", "workflow", "run_id", "attempt", "job_name", name=op.f("pk_sandbox_jobs")
        ),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_sandbox_jobs_recent", "sandbox_jobs", ["reported_at"], unique=False)
