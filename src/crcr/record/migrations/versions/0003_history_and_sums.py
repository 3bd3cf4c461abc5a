"""Sums by the hour and by job and day, results of other relays, and the indexes of the pages' questions"""

import sqlalchemy as sa
from alembic import op

from crcr.record.statistics.rebuild_all_sums import rebuild_sums

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "hours",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("hour_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("success", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failure", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("timed_out", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("silent", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("other", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("superseded", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("earlier", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("sent", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("delay_sum_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("queue_sum_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("execution_sum_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        *(
            sa.Column(f"{letter}{place}", sa.Integer(), server_default=sa.text("0"), nullable=False)
            for letter in "qe"
            for place in range(16)
        ),
        sa.PrimaryKeyConstraint("upstream", "downstream", "kind", "hour_at", name=op.f("pk_hours")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "days",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("day_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("success", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failure", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("timed_out", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("silent", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("other", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("superseded", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("earlier", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("sent", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("delay_sum_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("queue_sum_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("execution_sum_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        *(
            sa.Column(f"{letter}{place}", sa.Integer(), server_default=sa.text("0"), nullable=False)
            for letter in "qe"
            for place in range(16)
        ),
        sa.PrimaryKeyConstraint("upstream", "downstream", "kind", "day_at", name=op.f("pk_days")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ingested",
        sa.Column("delivery", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("workflow_name", sa.Text(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("check_run", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=True),
        sa.Column("rank", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("conclusion", sa.Text(), nullable=True),
        sa.Column("disputed_conclusion", sa.Text(), nullable=True),
        sa.Column("expected", sa.Text(), nullable=True),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=True),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("head_sha", sa.Text(), nullable=True),
        sa.Column("ref", sa.Text(), nullable=True),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("author", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("artifact_url", sa.Text(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("delivery_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("queue_s", sa.Double(), nullable=True),
        sa.Column("execution_s", sa.Double(), nullable=True),
        sa.Column("tests_passed", sa.Integer(), nullable=True),
        sa.Column("tests_failed", sa.Integer(), nullable=True),
        sa.Column("tests_skipped", sa.Integer(), nullable=True),
        sa.Column("tests_total", sa.Integer(), nullable=True),
        sa.Column("failed_tests", sa.Text(), nullable=True),
        sa.Column("failed_tests_cut", sa.Integer(), nullable=True),
        sa.Column("environment", sa.Text(), nullable=True),
        sa.Column("ended_as", sa.Text(), nullable=True),
        sa.Column("untrusted", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(
            "delivery", "downstream", "workflow_name", "job_name", "check_run", name=op.f("pk_ingested")
        ),
    )
    op.create_index(
        "ix_ingested_backend",
        "ingested",
        ["upstream", "downstream", "delivery_at", "delivery"],
        unique=False,
    )
    op.create_index(
        "ix_ingested_begun",
        "ingested",
        ["upstream", "downstream"],
        unique=False,
        sqlite_where=sa.text("state = 'in_progress'"),
        postgresql_where=sa.text("state = 'in_progress'"),
    )
    op.create_index(
        "ix_ingested_ended",
        "ingested",
        ["upstream", "downstream", "completed_at"],
        unique=False,
        sqlite_where=sa.text("ended_as IN ('success', 'failure', 'timed_out', 'other')"),
        postgresql_where=sa.text("ended_as IN ('success', 'failure', 'timed_out', 'other')"),
    )
    op.create_table(
        "job_days",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("day_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("workflow_name", sa.Text(), nullable=False),
        sa.Column("success", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failure", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("timed_out", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("silent", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("other", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("superseded", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("earlier", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("execution_sum_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("execution_known", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint(
            "upstream", "downstream", "kind", "day_at", "workflow", "job_name", name=op.f("pk_job_days")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "levels",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("upstream", "downstream", "version", name=op.f("pk_levels")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_deliveries_head",
        "deliveries",
        ["head_sha", "upstream"],
        unique=False,
        sqlite_where=sa.text("head_sha IS NOT NULL"),
        postgresql_where=sa.text("head_sha IS NOT NULL"),
    )
    op.drop_index("ix_pulls_open", table_name="pulls")
    op.drop_index("ix_deliveries_pull", table_name="deliveries")
    op.create_index(
        "ix_deliveries_pull",
        "deliveries",
        ["upstream", "number", "received_at"],
        unique=False,
        sqlite_where=sa.text("number IS NOT NULL"),
        postgresql_where=sa.text("number IS NOT NULL"),
    )
    op.drop_index(op.f("ix_dispatches_backend"), table_name="dispatches")
    op.create_index(
        "ix_dispatches_backend", "dispatches", ["upstream", "downstream", "event", "created_at"], unique=False
    )
    op.create_index(
        "ix_dispatches_unsent",
        "dispatches",
        ["upstream", "downstream"],
        unique=False,
        sqlite_where=sa.text("state <> 'sent' AND state <> 'cancelled' AND state <> 'left_out'"),
        postgresql_where=sa.text("state <> 'sent' AND state <> 'cancelled' AND state <> 'left_out'"),
    )
    op.add_column("dispatches", sa.Column("delay_s", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("expected", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("ended_as", sa.Text(), nullable=True))
    op.create_index(
        "ix_jobs_ended",
        "jobs",
        ["upstream", "downstream", "event", "completed_at"],
        unique=False,
        sqlite_where=sa.text("ended_as IS NOT NULL"),
        postgresql_where=sa.text("ended_as IS NOT NULL"),
    )
    op.add_column("upstreams", sa.Column("default_branch", sa.Text(), nullable=True))
    op.create_index("ix_pulls_author", "pulls", [sa.text("lower(author)"), "upstream"], unique=False)
    rebuild_sums(op.get_bind())
